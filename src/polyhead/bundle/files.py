"""Reading untrusted files, arrays in safetensors files, and the lock of the process that writes.

Arrays are little-endian float32, memory-mapped, with no trust in the header.
"""

from __future__ import annotations

import errno
import hashlib
import math
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path as FilePath
from typing import BinaryIO

import msgspec
import numpy as np

from polyhead.bundle.format import LARGEST_JSON, LOCK, MOST_ARRAYS
from polyhead.errors import BundleError, CorruptFile
from polyhead.files import held, open_plain, refuse_links, write_file
from polyhead.machine import MappedFile


def open_inside(root: FilePath, *names: str) -> BufferedReader:
    """A regular file of the bundle, open for reading; a link on the way to it raises CorruptFile."""
    check_no_links(root, *names)
    path = root.joinpath(*names)
    try:
        return open_plain(path, root=root)
    except OSError as error:
        raise CorruptFile(
            f"{path} cannot be read",
            got=error.strerror,
            do="restore the file, or open the bundle again if it was changed meanwhile",
            path=path,
        ) from None


def check_no_links(root: FilePath, *names: str) -> None:
    """Raises CorruptFile when a step below `root` is a link, which could lead out of the bundle."""
    try:
        refuse_links(root.joinpath(*names), root=root)
    except OSError as error:
        path = FilePath(error.filename)
        raise CorruptFile(
            f"{path} is a link", allowed="plain files and folders", do="copy what it points to", path=path
        ) from None


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


def check_hash(path: FilePath, actual: str, expected: str) -> None:
    """Raises CorruptFile that names the file when its SHA-256 is not the one written down."""
    if actual != expected:
        raise CorruptFile(
            f"{path} was changed since it was written",
            got=f"SHA-256 {actual}",
            allowed=expected,
            do="restore the file, or write it again",
            path=path,
        )


@contextmanager
def writing_bundle(root: FilePath, problem: str, *, patience: float = 60.0) -> Iterator[None]:
    """Holds the bundle's lock; a system error inside becomes a BundleError that begins with `problem`."""
    busy = BundleError(
        f"another process has been writing to {root} for {patience:.0f} seconds", do="wait for it, or end it"
    )
    try:
        with held(root / LOCK, patience=patience, busy=busy):
            yield
    except OSError as error:
        raise _bundle_error(error, problem) from error


def _bundle_error(error: OSError, problem: str) -> BundleError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return BundleError(
            f"{problem}: the disk is full; the bundle is whole, as it was before",
            got=error.strerror,
            do="make room on that disk, then run the same command again",
        )
    return BundleError(f"{problem}: the system refused", got=error, do="check the folder and its permissions")


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def write_shared(path: FilePath, content: bytes) -> str:
    """Writes a file of a task's version that versions of other tasks may have too; its SHA-256, in hex.

    Where one of them has the same bytes it becomes a second name of that file, so that they lie on the disk once; a
    file system without such links gets a copy.
    """
    for twin in sorted(path.parents[2].glob(f"*/*/{path.name}")):
        with suppress(OSError):
            with open_plain(twin, root=path.parents[2]) as file:
                is_same = file.read(len(content) + 1) == content
            if is_same:
                os.link(twin, path, follow_symlinks=False)
                return hashlib.sha256(content).hexdigest()
    return write_file(path, [content])


def write_arrays(path: FilePath, arrays: Mapping[str, np.ndarray]) -> str:
    """Writes a safetensors file, arrays in the order of their names; the file's SHA-256, in hex."""
    for name, array in arrays.items():
        if array.dtype != np.float32 or not array.size:
            raise BundleError(
                f"array '{name}' cannot be kept", got=f"{array.dtype} {array.shape}", allowed="non-empty float32"
            )
    return write_file(path, _chunks(arrays))


def read_arrays(root: FilePath, *names: str) -> dict[str, np.ndarray]:
    """The arrays of a file of the bundle, memory-mapped; raises CorruptFile where header and size disagree.

    They are to be read: what is written into them never reaches the file, and `release` drops it. A file that is
    written into changes them, and one that is cut short ends the process (SIGBUS): replace it by a new one.
    """
    with open_inside(root, *names) as file:
        path = root.joinpath(*names)
        entries, start, size = _read_header(file, path)
        if not entries:
            return {}
        # Copy on write and not read-only: torch warns about arrays that it could not write to.
        data = np.frombuffer(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY), np.uint8)[start:]
    return {name: data[slice(*entry.data_offsets)].view("<f4").reshape(entry.shape) for name, entry in entries.items()}


def release(arrays: Iterable[np.ndarray]) -> None:
    """Releases the memory of mapped files behind these arrays; later reads come from the file.

    Only for arrays that were not written to: such changes would be lost. Unmapped arrays are left alone.
    """
    maps = {id(mapped): mapped for array in arrays if (mapped := map_of(array)) is not None}
    if hasattr(mmap, "MADV_DONTNEED"):
        for mapped in maps.values():
            mapped.madvise(mmap.MADV_DONTNEED)


def map_of(array: np.ndarray) -> mmap.mmap | MappedFile | None:
    """The mapped file that the array lies in; None for one in memory of its own."""
    base: object = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return base if isinstance(base, mmap.mmap | MappedFile) else None


def _chunks(arrays: Mapping[str, np.ndarray]) -> Iterator[bytes | memoryview]:
    entries, end = {}, 0
    for name in sorted(arrays):
        start, end = end, end + arrays[name].nbytes
        entries[name] = _Entry(dtype="F32", shape=arrays[name].shape, data_offsets=(start, end))
    header = msgspec.json.encode(entries)
    header += b" " * (-len(header) % 8)  # arrays start at a multiple of 8 bytes
    yield len(header).to_bytes(8, "little")
    yield header
    for name in sorted(arrays):
        yield np.ascontiguousarray(arrays[name], dtype="<f4").reshape(-1).data.cast("B")


def _read_header(file: BinaryIO, path: FilePath) -> tuple[dict[str, _Entry], int, int]:
    """Entries whose ranges tile the data exactly, where the data starts, and the file's size."""
    size = file.seek(0, 2)
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(size - 8, LARGEST_JSON):
        raise _corrupt(path, f"a header of {length} bytes in a file of {size}")
    try:
        raw = msgspec.json.decode(file.read(length), type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        if len(raw) > MOST_ARRAYS:
            raise _corrupt(path, f"{len(raw):,} arrays, and {MOST_ARRAYS:,} are allowed")
        entries = {name: msgspec.json.decode(entry, type=_Entry) for name, entry in raw.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _corrupt(path, str(error)) from None
    _check_tiling(path, entries, size - 8 - length)
    return entries, 8 + length, size


def _check_tiling(path: FilePath, entries: Mapping[str, _Entry], size: int) -> None:
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        start, stop = entry.data_offsets
        if entry.dtype != "F32" or len(entry.shape) > 4 or any(n < 1 for n in entry.shape):
            raise _corrupt(path, f"array '{name}' of type {entry.dtype} and shape {entry.shape}")
        if start != end or stop - start != 4 * math.prod(entry.shape):
            raise _corrupt(path, f"array '{name}' at bytes {start} to {stop} for shape {entry.shape}")
        end = stop
    if end != size:
        raise _corrupt(path, f"{size} bytes of data where the header speaks of {end}")


def _corrupt(path: FilePath, got: str) -> CorruptFile:
    return CorruptFile(f"{path} is not a whole safetensors file", got=got, do="restore the file", path=path)
