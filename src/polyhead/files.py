"""Files that are there whole or not at all, also after a kill or a power cut, and locks between processes.

A file that is being written has an unpredictable name, is always newly made, and lies in a folder that was opened
first: a planted link cannot lead the writer elsewhere.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import IO

from polyhead.errors import LockError

TEMPORARY = ".new-"  # names of files and folders that are being written begin so; no reader looks at them
PAUSE = 0.02  # seconds between two attempts at a lock
LARGEST_CONFIG = 2**24  # bytes of a small JSON or TOML file: far above any real one
HOLES = 2**30  # bytes; a file of this size or more must not consist of holes
LONGEST = 200  # bytes of a name that a temporary name repeats; file systems allow 255

_MADE = re.compile(r"\.new-[0-9a-f]{16}-(?P<name>.+)", re.DOTALL)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe would otherwise wait for its writer
_UNUSABLE = (errno.ELOOP, errno.EISDIR, errno.EROFS, errno.ENXIO)


class NotPlain(OSError):
    """A file that is not read: a pipe, a device, a folder, too large, or made of holes."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(errno.EINVAL, why, str(path))


def temporary_name(name: str) -> str:
    """A new name for what will be called `name`."""
    return f"{TEMPORARY}{secrets.token_hex(8)}-{_short(name)}"


def is_temporary(name: str, *, of: str | None = None) -> bool:
    """Whether `temporary_name` made this name; with `of`, whether it made it of that name."""
    match = _MADE.fullmatch(name)
    return match is not None and (of is None or match["name"] == _short(of))


@contextmanager
def opened_folder(folder: Path, *, root: Path | None = None) -> Iterator[int]:
    """A handle of the folder. No step below `root` may be a link; `root`, by default the folder itself, may be one.

    Raises an OSError that names the step.
    """
    root = folder if root is None else root
    handle, path = os.open(root, _FOLDER), root
    try:
        for step in folder.relative_to(root).parts:
            path, above = path / step, handle
            handle = _below(above, step, path)
            os.close(above)
        yield handle
    finally:
        os.close(handle)


def make_folder(folder: Path, *, root: Path) -> None:
    """Makes the folder and its parents below `root`, which exists; none of them may be a link."""
    path = root
    for step in folder.relative_to(root).parts:
        with opened_folder(path, root=root) as above, suppress(FileExistsError):
            os.mkdir(step, dir_fd=above)
        path /= step
    with opened_folder(folder, root=root):
        pass


def write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> str:
    """Writes and flushes a new file, and gives its SHA-256 in hex. Neither it nor its folder may be a link."""
    total = hashlib.sha256()
    with opened_folder(path.parent, root=_above(path.parent)) as folder, _new(folder, path.name) as file:
        for chunk in chunks:
            file.write(chunk)
            total.update(chunk)
        file.flush()
        os.fsync(file.fileno())
    return total.hexdigest()


@contextmanager
def replacing(path: Path, *, root: Path | None = None, within: Path | None = None) -> Iterator[IO[bytes]]:
    """A file to write, which replaces the old one once it is whole; if the block fails, it is removed.

    No step below `root` may be a link; a link under the name itself is replaced. Until it is whole, the file lies
    `within` a folder on the same disk, by default that of `path`.
    """
    with opened_folder(path.parent, root=root) as folder, opened_folder(within or path.parent, root=root) as place:
        temporary = temporary_name(path.name)
        try:
            with _new(place, temporary) as file:
                _mark_as_used(file)
                yield file
                file.flush()
                os.fsync(file.fileno())
                os.replace(temporary, path.name, src_dir_fd=place, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=place)
            raise
        os.fsync(folder)


def replace_file(path: Path, content: bytes, *, root: Path | None = None) -> None:
    """Replaces the content of a file, so that a reader sees the old or the new one; links as in `replacing`."""
    with replacing(path, root=root) as file:
        file.write(content)


def put_if_absent(path: Path, content: bytes, *, root: Path | None = None) -> None:
    """Makes a file that is there whole or not at all; raises FileExistsError where another has the name already.

    No step below `root` may be a link.
    """
    with opened_folder(path.parent, root=root) as folder:
        temporary = temporary_name(path.name)
        try:
            with _new(folder, temporary) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        finally:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
        os.fsync(folder)


def open_plain(
    path: Path | str, *, root: Path | None = None, flags: int = 0, limit: int | None = None
) -> BufferedReader:
    """A regular file, open for reading; raises OSError, and NotPlain for any other kind, without waiting or reading.

    With `root`, no step below it may be a link. `limit`: the most bytes that the file may have. A file of a gigabyte or
    more that hardly takes room on its disk is refused too: reading its zeros would take hours.
    """
    path = Path(path)
    if root is None:
        return _checked(os.open(path, _READ | flags), path, limit)
    with opened_folder(path.parent, root=root) as folder:
        return plain_in(folder, path.name, limit=limit)


def plain_in(folder: int, name: str, *, limit: int | None = None) -> BufferedReader:
    """`open_plain` for a file of an open folder; the file may not be a link."""
    return _checked(os.open(name, _READ | os.O_NOFOLLOW, dir_fd=folder), Path(name), limit)


def read_plain(path: Path | str, *, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes; raises OSError as `open_plain`."""
    with open_plain(path, limit=limit) as file:
        content = file.read(limit + 1)
    if len(content) > limit:  # it grows
        raise NotPlain(Path(path), f"it is too large: more than {limit:,} bytes")
    return content


def rename_inside(folder: Path, old: str, new: str, *, root: Path | None = None) -> None:
    """Renames a file or folder inside `folder`, and flushes both names; no step below `root` may be a link."""
    with opened_folder(folder, root=root) as handle:
        os.rename(old, new, src_dir_fd=handle, dst_dir_fd=handle)
        os.fsync(handle)


def remove_tree(folder: Path, *, root: Path) -> None:
    """Removes a folder of ours and its content as far as possible; nothing if a step below `root` is a link."""
    with suppress(OSError), opened_folder(folder.parent, root=root) as above:
        shutil.rmtree(folder.name, ignore_errors=True, dir_fd=above)


def remove_files(folder: Path, names: Iterable[str]) -> None:
    """Removes these files of a folder, then the folder if it is empty; other content stays."""
    with suppress(OSError), opened_folder(folder, root=_above(folder)) as handle:
        for name in names:
            with suppress(OSError):
                os.unlink(name, dir_fd=handle)
    with suppress(OSError):
        folder.rmdir()


def remove_leftovers(folder: Path, *, of: str | None = None, root: Path | None = None) -> bool:
    """Removes what killed writers left in a folder, or only what they left `of` one name; links and targets stay.

    Gives whether no other process is writing a file there. Folders that are being filled are known by a lock alone,
    which the caller holds. No step below `root` may be a link.
    """
    is_quiet = True
    with opened_folder(folder, root=root) as handle:
        for name in os.listdir(handle):
            if is_temporary(name, of=of):
                is_quiet &= _remove_leftover(handle, name)
    return is_quiet


def sync_folder(folder: Path) -> None:
    """Flushes the names in a folder, as a rename alone does not."""
    with opened_folder(folder) as handle:
        os.fsync(handle)


@contextmanager
def held(path: Path, *, patience: float, busy: Exception) -> Iterator[None]:
    """Holds the lock of this file, which is made if it is missing, and stays.

    Raises `busy` if another process, or thread, holds it for `patience` seconds, and LockError if something else has
    its name or it may not be opened. The lock ends with the process, however that ends.
    """
    handle = _locked(path, time.monotonic() + patience, busy)
    try:
        yield
    finally:
        os.close(handle)  # gives the lock back


def _checked(handle: int, path: Path, limit: int | None) -> BufferedReader:
    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            raise NotPlain(path, "it is not a plain file")
        if limit is not None and facts.st_size > limit:
            raise NotPlain(path, f"it is too large: {facts.st_size:,} bytes, and {limit:,} are allowed")
        if facts.st_size >= HOLES and 512 * facts.st_blocks < facts.st_size // 100 and _has_hole(handle):
            raise NotPlain(path, f"it is made of holes: {facts.st_size:,} bytes that are hardly on the disk")
    except BaseException:
        os.close(handle)
        raise
    return os.fdopen(handle, "rb")


def _has_hole(handle: int) -> bool:
    """Whether the file system reports a hole; some count no blocks of any file."""
    has_hole = os.lseek(handle, 0, os.SEEK_HOLE) < os.fstat(handle).st_size
    os.lseek(handle, 0, os.SEEK_SET)
    return has_hole


def _short(name: str) -> str:
    raw = os.fsencode(name)
    return name if len(raw) <= LONGEST else hashlib.sha256(raw).hexdigest()


def _above(folder: Path) -> Path:
    """The parent of a folder; the folder itself if its path does not name one."""
    return folder.parent if folder.name else folder


def _below(above: int, step: str, path: Path) -> int:
    try:
        return os.open(step, _FOLDER | os.O_NOFOLLOW, dir_fd=above)
    except OSError as error:
        if path.is_symlink():
            message = "it is a link, and none is followed there"
            raise OSError(errno.ELOOP, message, str(path)) from None
        raise OSError(error.errno, error.strerror, str(path)) from None


def _new(folder: int, name: str) -> IO[bytes]:
    return open(name, "xb", opener=_opener(folder))


def _opener(folder: int) -> Callable[[str, int], int]:
    return lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o666, dir_fd=folder)


def _mark_as_used(file: IO[bytes]) -> None:
    """Keeps `remove_leftovers` from removing the file until it is closed; does nothing on disks without locks."""
    with suppress(OSError):
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)


def _remove_leftover(folder: int, name: str) -> bool:
    """Whether it was a leftover, or is gone by now."""
    with suppress(OSError):
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            shutil.rmtree(name, ignore_errors=True, dir_fd=folder)
        elif stat.S_ISREG(mode):
            if _is_used(folder, name):
                return False
            os.unlink(name, dir_fd=folder)
    return True


def _is_used(folder: int, name: str) -> bool:
    handle = os.open(name, _READ | os.O_NOFOLLOW, dir_fd=folder)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(handle)


def _locked(path: Path, until: float, busy: Exception) -> int:
    while True:
        handle = _handle(path)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(handle, path):
                return handle
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(handle)
                raise busy from None
            time.sleep(PAUSE)
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _handle(path: Path) -> int:
    """A handle of the lock file. Users of a shared folder may lock files that their umask keeps them from writing."""
    try:
        handle = _open_lock(path)
    except OSError as error:
        if error.errno in _UNUSABLE or isinstance(error, PermissionError):
            raise _unusable(path, error.strerror) from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise _unusable(path, "no plain file")
    return handle


def _open_lock(path: Path) -> int:
    flags = os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o666)
    except OSError as error:
        if not isinstance(error, PermissionError) and error.errno != errno.EROFS:
            raise
        with suppress(FileNotFoundError):
            return os.open(path, os.O_RDONLY | flags)
        raise


def _unusable(path: Path, got: object) -> LockError:
    return LockError(
        f"the lock {path} cannot be used, so nothing was written",
        got=got,
        allowed="a plain file that can be opened, or none and a folder where one can be made",
        do="remove what has that name, or give access to it",
        path=path,
    )


def _is_at(handle: int, path: Path) -> bool:
    """Whether the file still has this name; the previous holder of the lock may have removed it."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
