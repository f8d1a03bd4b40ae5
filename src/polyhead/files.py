"""Files that are there whole or not at all, also after a kill or a power cut, and locks between processes."""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

TEMPORARY = ".new-"  # how names begin of what is being written; a reader never looks at it
PAUSE = 0.02  # seconds between two looks at a lock


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
