"""Files that are there whole or not at all, also after a kill or a power cut, and locks between processes.

A file that is being written has an unpredictable name and is always newly made, so a planted link cannot lead the
writer elsewhere. Folders are looked at once, before they are used: `refuse_links` and `make_folder`.
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
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
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
_UNUSABLE = (errno.ELOOP, errno.EISDIR, errno.EROFS, errno.ENXIO)


class NotPlain(OSError):
    """A file that is not read: a pipe, a device, a folder, too large, or made of holes."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(errno.EINVAL, why, str(path))


def temporary_name(name: str) -> str:
    """A new name for what will be called `name`."""
    return f"{TEMPORARY}{secrets.token_hex(8)}-{_short(name)}"


def temporary_folder(owner: object) -> Path:
    """A new folder, removed with its owner or at the end of the process, but never by a fork of the process."""
    folder = Path(tempfile.mkdtemp(prefix="polyhead-"))
    weakref.finalize(owner, _removed_by, os.getpid(), folder)
    return folder


def _removed_by(process: int, folder: Path) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def is_temporary(name: str, *, of: str | None = None) -> bool:
    """Whether `temporary_name` made this name; with `of`, whether it made it of that name."""
    match = _MADE.fullmatch(name)
    return match is not None and (of is None or match["name"] == _short(of))


def refuse_links(path: Path, *, root: Path) -> None:
    """Raises an OSError that names the first step below `root` that is a link; `root` itself may be one."""
    step = root
    for name in path.relative_to(root).parts:
        step /= name
        if step.is_symlink():
            raise OSError(errno.ELOOP, "it is a link, and none is followed there", str(step))


def make_folder(folder: Path, *, root: Path) -> None:
    """Makes the folder and those above it, where they are missing; no step below `root` may be a link."""
    refuse_links(folder, root=root)
    folder.mkdir(parents=True, exist_ok=True)


def write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> str:
    """Writes and flushes a new file, and gives its SHA-256 in hex; raises OSError where anything has its name."""
    total = hashlib.sha256()
    with open(path, "xb") as file:
        for chunk in chunks:
            file.write(chunk)
            total.update(chunk)
        _flush(file)
    return total.hexdigest()


def replacing(path: Path, *, within: Path | None = None) -> AbstractContextManager[IO[bytes]]:
    """A file to write, which replaces the old one once it is whole; if the block fails, it is removed.

    A link under the name is replaced, not followed. Until it is whole, the file lies `within` a folder on the same
    disk, by default that of `path`.
    """
    return _naming(path, within or path.parent, os.replace)


def replace_file(path: Path, content: bytes) -> None:
    """Replaces the content of a file, so that a reader sees the old or the new one; a link is replaced too."""
    with replacing(path) as file:
        file.write(content)


def put_if_absent(path: Path, content: bytes) -> None:
    """Makes a file that is there whole or not at all; raises FileExistsError where another has the name already."""
    with _naming(path, path.parent, os.link) as file:
        file.write(content)


def link_or_copy(source: Path, target: Path) -> None:
    """A second name for a file that is never written again; a copy where the disk has no hard links."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copyfile(source, target)


def open_plain(path: Path | str, *, root: Path | None = None, limit: int | None = None) -> BufferedReader:
    """A regular file, open for reading; raises OSError, and NotPlain for any other kind, without waiting or reading.

    With `root`, no step below it may be a link. `limit`: the most bytes that the file may have. A file of a gigabyte or
    more that hardly takes room on its disk is refused too: reading its zeros would take hours.
    """
    path, flags = Path(path), os.O_RDONLY | os.O_NONBLOCK  # a pipe would otherwise wait for its writer
    if root is not None:
        refuse_links(path, root=root)
        flags |= os.O_NOFOLLOW
    handle = os.open(path, flags)
    try:
        _check_plain(handle, path, limit)
    except BaseException:
        os.close(handle)
        raise
    return os.fdopen(handle, "rb")


def read_plain(path: Path | str, *, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes; raises OSError as `open_plain`."""
    with open_plain(path, limit=limit) as file:
        content = file.read(limit + 1)
    if len(content) > limit:  # it grows
        raise NotPlain(Path(path), f"it is too large: more than {limit:,} bytes")
    return content


def remove_files(folder: Path, names: Iterable[str]) -> None:
    """Removes these files of a folder, unless it is a link, then the folder if it is empty; other content stays."""
    if folder.is_symlink():
        return
    for name in names:
        with suppress(OSError):
            (folder / name).unlink()
    with suppress(OSError):
        folder.rmdir()


def remove_leftovers(folder: Path, *, of: str | None = None) -> bool:
    """Removes what killed writers left in a folder, or only what they left `of` one name; links and targets stay.

    Gives whether no other process is writing a file there. Folders that are being filled are known by a lock alone,
    which the caller holds.
    """
    left = [folder / name for name in os.listdir(folder) if is_temporary(name, of=of)]
    return not [path for path in left if not _remove_leftover(path)]


def sync_folder(folder: Path) -> None:
    """Flushes the names in a folder, as a rename alone does not."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def held(path: Path, *, patience: float, busy: Exception) -> Iterator[None]:
    """Holds the lock of this file, which is made if it is missing, and stays.

    Raises `busy` if another process, or thread, holds it for `patience` seconds, and LockError if something else has
    its name or it may not be opened. The lock ends with the process, however that ends.
    """
    until = time.monotonic() + patience
    while True:
        with os.fdopen(_lock_file(path), "rb") as file:  # closing it gives the lock back
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    raise busy from None
            else:
                if _is_at(file.fileno(), path):
                    yield
                    return
        time.sleep(PAUSE)


@contextmanager
def _naming(path: Path, place: Path, name: Callable[[Path, Path], None]) -> Iterator[IO[bytes]]:
    """A new file in `place` that `name` gives its name once it is whole."""
    temporary = place / temporary_name(path.name)
    try:
        with open(temporary, "xb") as file:
            with suppress(OSError):  # of disks without locks; it keeps `remove_leftovers` from removing the file
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield file
            _flush(file)
            name(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink()
    sync_folder(path.parent)


def _flush(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _check_plain(handle: int, path: Path, limit: int | None) -> None:
    facts = os.fstat(handle)
    if not stat.S_ISREG(facts.st_mode):
        raise NotPlain(path, "it is not a plain file")
    if limit is not None and facts.st_size > limit:
        raise NotPlain(path, f"it is too large: {facts.st_size:,} bytes, and {limit:,} are allowed")
    if facts.st_size >= HOLES and 512 * facts.st_blocks < facts.st_size // 100 and _has_hole(handle):
        raise NotPlain(path, f"it is made of holes: {facts.st_size:,} bytes that are hardly on the disk")


def _has_hole(handle: int) -> bool:
    """Whether the file system reports a hole; some count no blocks of any file."""
    has_hole = os.lseek(handle, 0, os.SEEK_HOLE) < os.fstat(handle).st_size
    os.lseek(handle, 0, os.SEEK_SET)
    return has_hole


def _short(name: str) -> str:
    raw = os.fsencode(name)
    return name if len(raw) <= LONGEST else hashlib.sha256(raw).hexdigest()


def _remove_leftover(path: Path) -> bool:
    """Whether it was a leftover, or is gone by now."""
    try:
        if path.is_symlink():
            return True
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.is_file():
            with open(path, "rb") as file:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
    except OSError as error:
        return not isinstance(error, BlockingIOError)
    return True


def _lock_file(path: Path) -> int:
    """A handle. Users of a shared folder may lock files that their umask keeps them from writing."""
    flags, handle = os.O_NOFOLLOW | os.O_NONBLOCK, -1
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o666)
    except OSError as error:
        if isinstance(error, PermissionError) or error.errno == errno.EROFS:
            with suppress(OSError):
                handle = os.open(path, os.O_RDONLY | flags)
        if handle < 0 and error.errno not in _UNUSABLE and not isinstance(error, PermissionError):
            raise
        if handle < 0:
            raise _unusable(path, error.strerror) from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise _unusable(path, "no plain file")
    return handle


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
