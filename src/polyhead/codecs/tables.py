"""Arrays of codecs, too large for a path: they are in a file of their own, and the path refers to them by digest.

A table with a given digest never changes, so a process keeps each table once, for all plans that refer to it. Bundles
and stores load theirs when they are opened.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from polyhead.errors import CorruptFile, StoreError
from polyhead.files import make_folder, put_if_absent, read_plain

FOLDER = "codecs"  # of a bundle or a store
LARGEST = 2**28  # bytes of a file
RESTORE = "restore the folder from a copy"

Table = Mapping[str, np.ndarray]  # arrays by name, uint8 or float32

_TABLES: dict[str, Table] = {}


def is_digest(text: str) -> bool:
    """Whether this can be the digest of a table."""
    return re.fullmatch(r"[0-9a-f]{64}", text) is not None


def table_digest(table: Table) -> str:
    """SHA-256, in hex, over names, shapes and numbers, float32 or uint8, ordered by name."""
    total = hashlib.sha256()
    for name in sorted(table):
        array = _kept(table[name])
        kind = "uint8\0" if array.dtype == np.uint8 else ""  # arrays other than float32 also hash their type
        total.update(f"{name}\0{array.shape}\0{kind}".encode())
        total.update(array.data if array.size else b"")
    return total.hexdigest()


def keep_table(table: Table) -> str:
    """Adds the arrays to this process's tables, uint8 unchanged, others as float32, and returns their digest."""
    kept = {name: _kept(array) for name, array in table.items()}
    digest = table_digest(kept)
    _TABLES.setdefault(digest, kept)
    return digest


def is_known(digest: str) -> bool:
    """Whether this process knows the table; True if no table is named."""
    return not digest or digest in _TABLES


def table_named(digest: str) -> Table:
    """The arrays with this digest; raises StoreError if they are not loaded."""
    if digest not in _TABLES:
        raise StoreError(
            "the arrays of a codec are not known here",
            got=digest or "no digest",
            do="open the bundle or the store that keeps them, or fix them from training features with `calibrate`",
        )
    return _TABLES[digest]


def table_bytes(digest: str) -> bytes:
    """A loaded table as the bytes of a safetensors file."""
    content: bytes = save(dict(table_named(digest)))
    return content


def take_table(content: bytes, digest: str, path: Path) -> None:
    """Loads the table from a file's bytes; raises CorruptFile if its digest differs."""
    try:
        table = load(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise CorruptFile(f"{path} is no safetensors file", got=error, do=RESTORE, path=path) from None
    if any(array.dtype not in (np.float32, np.uint8) for array in table.values()) or table_digest(table) != digest:
        raise CorruptFile(f"{path} does not hold the arrays of digest {digest}", do=RESTORE, path=path)
    keep_table(table)


def write_tables(root: Path, digests: Iterable[str]) -> None:
    """Writes `codecs/DIGEST.safetensors` below `root` for each named table that is not there yet; "" is skipped."""
    for digest in set(digests) - {""}:
        make_folder(root / FOLDER, root=root)
        with suppress(FileExistsError):
            put_if_absent(root / FOLDER / f"{digest}.safetensors", table_bytes(digest), root=root)


def read_tables(root: Path, digests: Iterable[str]) -> None:
    """Loads the named tables; raises StoreError for one that is missing or changed."""
    for digest in set(digests) - {""} - set(_TABLES):
        path = root / FOLDER / f"{digest}.safetensors"
        try:
            take_table(read_plain(path, limit=LARGEST), digest, path)
        except OSError as error:
            raise StoreError(f"{path} cannot be read", got=error.strerror or error, do=RESTORE) from None
        except CorruptFile as error:
            raise StoreError(error.what, got=error.got, do=RESTORE) from None


def _kept(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array, np.uint8 if array.dtype == np.uint8 else "<f4")
