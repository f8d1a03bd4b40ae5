"""Files that are there whole or not at all, also after a kill or a power cut, and locks between processes."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

TEMPORARY = ".new-"  # how names begin of what is being written; a reader never looks at it
PAUSE = 0.02  # seconds between two looks at a lock
LARGEST_CONFIG = 2**24  # bytes of a small JSON or TOML file: far above any real one
HOLES = 2**30  # bytes of a file from which on it must not be made of holes


class NotPlain(OSError):
    """A file that is not read: a pipe, a device, a folder, one that is too large, or one that is made of holes."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(errno.EINVAL, why, str(path))


def open_plain(path: Path | str, *, flags: int = 0, limit: int | None = None) -> BufferedReader:
    """A regular file, open for reading; raises OSError, NotPlain for any other kind, without waiting or reading.

    `limit`: bytes that it may have. A file of a gigabyte or more that takes hardly any room on its disk is refused too:
    reading its zeros would take hours.
    """
    # Not blocking: a pipe under this name would otherwise wait for its writer.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            raise NotPlain(Path(path), "it is not a plain file")
        if limit is not None and facts.st_size > limit:
            raise NotPlain(Path(path), f"it is too large: {facts.st_size:,} bytes, and {limit:,} are allowed")
        if facts.st_size >= HOLES and 512 * facts.st_blocks < facts.st_size // 100 and _has_hole(handle):
            raise NotPlain(
                Path(path), f"it is made of holes: {facts.st_size:,} bytes that are hardly on the disk"
            )
    except BaseException:
        os.close(handle)
        raise
    return os.fdopen(handle, "rb")


def _has_hole(handle: int) -> bool:
    """Whether the file's system says so, since some count no blocks of any file."""
    found = os.lseek(handle, 0, os.SEEK_HOLE) < os.fstat(handle).st_size
    os.lseek(handle, 0, os.SEEK_SET)
    return found


def read_plain(path: Path | str, *, limit: int) -> bytes:
    """The bytes of a regular file of at most so many; raises OSError as `open_plain`."""
    with open_plain(path, limit=limit) as file:
        content = file.read(limit + 1)
    if len(content) > limit:  # it grows
        raise NotPlain(Path(path), f"it is too large: more than {limit:,} bytes")
    return content


def write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> str:
    """Writes and flushes a new file; its SHA-256, in hex."""
    total = hashlib.sha256()
    with open(path, "wb") as file:
        for chunk in chunks:
            file.write(chunk)
            total.update(chunk)
        file.flush()
        os.fsync(file.fileno())
    return total.hexdigest()


def replace_file(path: Path, content: bytes) -> None:
    """Puts new content in the place of the old, so that a reader sees the one or the other."""
    temporary = path.with_name(TEMPORARY + path.name)
    try:
        write_file(temporary, [content])
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flushes the names in a folder, which a rename alone does not."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def held(path: Path, *, patience: float, busy: Exception) -> Iterator[None]:
    """Holds the lock of this file, which is made where it is not there and stays.

    Raises `busy` when another process, or thread, holds it for `patience` seconds. It ends with the process, however
    that ends.
    """
    handle = _locked(path, time.monotonic() + patience, busy)
    try:
        yield
    finally:
        os.close(handle)  # gives the lock back


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
    """Others may lock what they may not write: of a folder that several share, as their umask has it."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except PermissionError:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)


def _is_at(handle: int, path: Path) -> bool:
    """Whether the file is still the one of this name; who held its lock before may have removed it."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
