"""Reading untrusted files, and the lock of the process that writes."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path as FilePath

from polyhead.bundle.format import LOCK
from polyhead.errors import BundleError, CorruptFile
from polyhead.files import held, open_plain


def open_inside(root: FilePath, *names: str) -> BufferedReader:
    """A regular file of the bundle, open for reading; a link on the way to it raises CorruptFile."""
    check_no_links(root, *names)
    path = root.joinpath(*names)
    try:
        return open_plain(path, flags=os.O_NOFOLLOW)
    except OSError as error:
        raise CorruptFile(
            f"{path} cannot be read",
            got=error.strerror,
            do="restore the file, or open the bundle again if it was changed meanwhile",
            path=path,
        ) from None


def check_no_links(root: FilePath, *names: str) -> None:
    """Raises CorruptFile when a step below `root` is a link, which could lead out of the bundle."""
    path = root
    for name in names:
        path = path / name
        if path.is_symlink():
            raise CorruptFile(
                f"{path} is a link", allowed="plain files and folders", do="copy what it points to", path=path
            )


def read_inside(root: FilePath, *names: str, limit: int) -> bytes:
    """The bytes of a file of the bundle; raises CorruptFile when it has more than `limit`."""
    with open_inside(root, *names) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        path = root.joinpath(*names)
        raise CorruptFile(f"{path} is too large", allowed=f"{limit} bytes", do="restore the file", path=path)
    return content


def hash_inside(root: FilePath, *names: str) -> str:
    """SHA-256, in hex, of a file of the bundle."""
    with open_inside(root, *names) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_hash(path: FilePath, found: str, expected: str) -> None:
    """Raises CorruptFile that names the file when its SHA-256 is not the one written down."""
    if found != expected:
        raise CorruptFile(
            f"{path} was changed since it was written",
            got=f"SHA-256 {found}",
            allowed=expected,
            do="restore the file, or write it again",
            path=path,
        )


@contextmanager
def writing(root: FilePath, what: str, *, patience: float = 60.0) -> Iterator[None]:
    """Holds the bundle's lock; a system error inside becomes a BundleError that begins with `what`."""
    busy = BundleError(
        f"another process has been writing to {root} for {patience:.0f} seconds", do="wait for it, or end it"
    )
    try:
        with held(root / LOCK, patience=patience, busy=busy):
            yield
    except OSError as error:
        raise _bundle_error(error, what) from error


def _bundle_error(error: OSError, what: str) -> BundleError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return BundleError(
            f"{what}: the disk is full; the bundle is whole, as it was before",
            got=error.strerror,
            do="make room on that disk, then run the same command again",
        )
    return BundleError(f"{what}: the system refused", got=error, do="check the folder and its permissions")
