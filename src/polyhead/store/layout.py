"""The store on disk: a manifest, and segments that appear whole or not at all.

    <root>/<digest>/manifest.json                what is kept: digest, layers, width, codec
    <root>/<digest>/lock                         held by the one writer
    <root>/<digest>/segments/00000000/           keys.bin (16 bytes each), offsets.npy, data.bin, segment.json

A segment is written under a temporary name, flushed, and renamed. What a killed writer left
behind is never read, and the next writer removes it.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from io import BytesIO
from pathlib import Path

import msgspec
import numpy as np

from polyhead.config import Value, ValueT, from_json, to_json
from polyhead.cost import row_bytes
from polyhead.errors import ConfigError, StoreError
from polyhead.files import (
    LARGEST_CONFIG,
    held,
    make_folder,
    open_plain,
    read_plain,
    remove_leftovers,
    remove_tree,
    rename_inside,
    replace_file,
    sync_folder,
    temporary_name,
    write_file,
)
from polyhead.plan import Codec

FORMAT = 1
KEY_BYTES = 16
LARGEST_HEADER = 2**16  # bytes of a .npy file before its numbers
FILES = ("keys.bin", "offsets.npy", "data.bin")
Stamp = tuple[int, int, int] | None


class Manifest(Value, frozen=True, kw_only=True):
    """What a store keeps; two stores of one digest agree in all of it."""

    format: int
    digest: str
    layers: int  # stored layers of a token
    width: int
    codec: Codec

    @property
    def token_bytes(self) -> int:
        """Bytes of one token: all its stored layers."""
        return self.layers * row_bytes(self.codec, self.width)


class SegmentManifest(Value, frozen=True, kw_only=True):
    """The sizes of a segment, and the SHA-256 of each of its files."""

    rows: int
    tokens: int
    files: dict[str, str]


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """One open segment."""

    folder: Path
    keys: np.ndarray  # (rows, 16) uint8
    offsets: np.ndarray  # (rows + 1), in tokens
    data: np.ndarray  # (tokens, token_bytes) uint8, memory-mapped


def open_manifest(folder: Path, wanted: Manifest) -> None:
    """Creates the folder's manifest, or raises StoreError where the one that is there says something else."""
    path = folder / "manifest.json"
    if not path.exists():
        with writing(folder, f"the store {folder}"):
            _create(path, to_json(wanted))
    existing = _read_json(path, Manifest)
    if existing.format != FORMAT:
        raise StoreError(
            f"{path} was written by another version", got=f"format {existing.format}", allowed=f"format {FORMAT}"
        )
    for name in ("digest", "layers", "width", "codec"):
        if getattr(existing, name) != getattr(wanted, name):
            raise StoreError(
                f"{folder} keeps other features: its {name} differs",
                got=f"{name} {getattr(existing, name)}",
                allowed=getattr(wanted, name),
                do="use another folder, or delete this one",
            )


def segment_folders(folder: Path) -> list[Path]:
    """Complete segments, oldest first; leftovers of killed writers are not among them."""
    names = sorted(entry.name for entry in os.scandir(folder / "segments") if re.fullmatch(r"\d{8,}", entry.name))
    return [folder / "segments" / name for name in sorted(names, key=int)]


def open_segment(folder: Path, manifest: Manifest) -> Segment:
    """The segment, memory-mapped; raises StoreError that names a file of a wrong size, or changed since it was written.

    Every byte is hashed the first time that a process opens the segment (50 ms for 90 MB).
    """
    facts = _read_json(folder / "segment.json", SegmentManifest)
    _check_size(folder / "keys.bin", facts.rows * KEY_BYTES)
    _check_size(folder / "data.bin", facts.tokens * manifest.token_bytes)
    keys = np.frombuffer(_bytes_of(folder / "keys.bin"), np.uint8).reshape(facts.rows, KEY_BYTES)
    offsets = _read_offsets(folder / "offsets.npy", facts)
    _verified(folder, tuple(_stamp(folder / name) for name in ("segment.json", *FILES)))
    shape = (facts.tokens, manifest.token_bytes)
    # An empty file cannot be mapped.
    data = np.memmap(folder / "data.bin", np.uint8, "r", shape=shape) if facts.tokens else np.empty(shape, np.uint8)
    return Segment(folder=folder, keys=keys, offsets=offsets, data=np.asarray(data))


@functools.lru_cache(maxsize=2**16)
def _verified(folder: Path, stamps: tuple[Stamp, ...]) -> None:
    """Once for files that did not change since."""
    verify_segment(folder)


def verify_segment(folder: Path) -> None:
    """Reads every byte; raises StoreError that names a file changed since it was written."""
    facts = _read_json(folder / "segment.json", SegmentManifest)
    for name in FILES:
        try:
            with open_plain(folder / name) as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise _unreadable(folder / name, error) from None
        if digest != facts.files.get(name):
            raise StoreError(
                f"{folder / name} was changed since it was written",
                got=f"SHA-256 {digest}",
                allowed=facts.files.get(name),
                do=f"delete {folder}; the texts are encoded again when they are next needed",
            )


def write_segment(
    folder: Path, *, keys: list[bytes], lengths: list[int], blocks: Iterable[np.ndarray], needed: int
) -> None:
    """Adds one segment, whole or not at all, under the lock (`writing`); `needed` is its bytes of data."""
    segments = folder / "segments"
    taken = segment_folders(folder)
    number = int(taken[-1].name) + 1 if taken else 0
    temporary = segments / temporary_name(f"{number:08d}")
    try:
        remove_leftovers(segments, root=folder.parent)
        _write_files(temporary, keys, lengths, blocks)
        rename_inside(segments, temporary.name, f"{number:08d}", root=folder.parent)
    except (OSError, StoreError) as error:
        remove_tree(temporary, root=folder.parent)
        if isinstance(error, StoreError):
            raise
        raise StoreError(
            f"{len(keys)} rows cannot be written to {folder}, {needed} bytes were needed",
            got=error.strerror,
            do="make room, or keep fewer layers or a smaller codec",
            needed=needed,
        ) from error


@contextmanager
def writing(folder: Path, what: str, *, patience: float = 60.0) -> Iterator[None]:
    """Holds the folder's lock; raises StoreError when another writer keeps it for `patience` seconds."""
    busy = StoreError(
        f"another process has been writing to {what} for {patience:.0f} seconds", do="wait for it, or end it"
    )
    with ExitStack() as stack:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            make_folder(folder, root=folder.parent)
            stack.enter_context(held(folder / "lock", patience=patience, busy=busy))
        except OSError as error:
            raise StoreError(
                f"{what} cannot be written", got=error.strerror, do="give a folder that can be written"
            ) from error
        yield


def _write_files(temporary: Path, keys: list[bytes], lengths: list[int], blocks: Iterable[np.ndarray]) -> None:
    temporary.mkdir()
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype("<i8")
    files = {
        "keys.bin": write_file(temporary / "keys.bin", keys),
        "data.bin": write_file(temporary / "data.bin", (block.reshape(-1).data for block in blocks)),
        "offsets.npy": write_file(temporary / "offsets.npy", [_npy(offsets)]),
    }
    facts = SegmentManifest(rows=len(keys), tokens=int(offsets[-1]), files=files)
    write_file(temporary / "segment.json", [to_json(facts)])
    sync_folder(temporary)


def _create(path: Path, content: bytes) -> None:
    try:
        make_folder(path.parent / "segments", root=path.parent)
        replace_file(path, content)
    except OSError as error:
        raise StoreError(
            f"{path} cannot be written, {len(content)} bytes were needed",
            got=error.strerror,
            do="make room on the disk",
        ) from error


def _npy(array: np.ndarray) -> bytes:
    buffer = BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def _read_offsets(path: Path, facts: SegmentManifest) -> np.ndarray:
    try:
        open_plain(path, limit=8 * (facts.rows + 1) + LARGEST_HEADER).close()
        # Mapped first, since a header may claim any size; the map is refused when the file is shorter.
        offsets = np.array(np.load(path, mmap_mode="r", allow_pickle=False))
    except Exception as error:  # numpy reads the header by Python's own parser, which raises errors of its own too
        raise StoreError(f"{path} is damaged", got=error, do=f"delete {path.parent}") from None
    good = offsets.dtype == np.int64 and offsets.shape == (facts.rows + 1,)
    if not good or offsets[0] != 0 or offsets[-1] != facts.tokens or (np.diff(offsets) < 0).any():
        raise StoreError(f"{path} does not fit its segment", do=f"delete {path.parent}")
    return offsets


def _stamp(path: Path) -> Stamp:
    """What changes with a file's content; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _check_size(path: Path, expected: int) -> None:
    size = path.stat().st_size if path.is_file() else None
    if size != expected:
        raise StoreError(
            f"{path} is " + ("missing" if size is None else "truncated" if size < expected else "too long"),
            got=None if size is None else f"{size} bytes",
            allowed=f"{expected} bytes",
            do=f"delete {path.parent}; the texts are encoded again when they are next needed",
        )


def _bytes_of(path: Path) -> bytes:
    try:
        with open_plain(path) as file:
            return file.read()
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> StoreError:
    return StoreError(f"{path} cannot be read", got=error.strerror, do=f"delete {path.parent}")


def _read_json(path: Path, kind: type[ValueT]) -> ValueT:
    try:
        return from_json(read_plain(path, limit=LARGEST_CONFIG), kind, source=str(path))
    except OSError as error:
        raise _unreadable(path, error) from None
    except (ConfigError, RecursionError) as error:
        raise StoreError(f"{path} is damaged", got=error, do=f"delete {path.parent}") from None
