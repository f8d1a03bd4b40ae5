"""Ids of documents: 16 bytes of a digest of their texts, and an index that finds rows by them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Self

import numpy as np

from polyhead.errors import StoreError

ID_BYTES = 16


def document_id(texts: Sequence[str], extra: str = "") -> bytes:
    """16 bytes of SHA-256 over the exact strings of one input (text or pair); `extra` distinguishes windows."""
    # The length before each string distinguishes ("ab", "c") from ("a", "bc"); lone surrogates have bytes too.
    encoded = [text.encode("utf-8", "surrogatepass") for text in (extra, *texts)]
    return hashlib.sha256(b"".join(len(e).to_bytes(8, "little") + e for e in encoded)).digest()[:ID_BYTES]


def window_id(texts: Sequence[str], window: int) -> bytes:
    """The id of a part of a long input, numbered from 0; the first part has the input's id."""
    return document_id(texts, f"window:{window}" if window else "")


def as_ids(ids: Sequence[bytes] | np.ndarray) -> np.ndarray:
    """Ids as uint8 (rows, 16); raises StoreError for ids of another length."""
    if not isinstance(ids, np.ndarray):
        wrong = next((each for each in ids if len(each) != ID_BYTES), None)
        if wrong is not None:
            raise StoreError("an id has the wrong length", got=f"{len(wrong)} bytes", allowed=f"{ID_BYTES} bytes")
        ids = np.frombuffer(b"".join(ids), np.uint8).reshape(-1, ID_BYTES)
    if ids.dtype != np.uint8 or ids.ndim != 2 or ids.shape[1] != ID_BYTES:
        raise StoreError("ids have another shape", got=f"{ids.dtype} {ids.shape}", allowed=f"uint8 (rows, {ID_BYTES})")
    return np.ascontiguousarray(ids)


def first_of_each(ids: np.ndarray) -> np.ndarray:
    """The first row of every different id, ascending, int64."""
    _, first = np.unique(np.ascontiguousarray(ids).view(f"V{ID_BYTES}")[:, 0], return_index=True)
    rows: np.ndarray = np.sort(first)
    return rows


class IdIndex:
    """An index of rows by id: the sorted first 8 bytes of each id, and its row."""

    def __init__(self, ids: np.ndarray, prefixes: np.ndarray, rows: np.ndarray) -> None:
        """`ids` (rows, 16) uint8; `prefixes` (rows,) uint64, sorted; `rows` (rows,) uint32."""
        self._ids, self._prefixes, self._rows = ids, prefixes, rows

    @classmethod
    def of(cls, ids: np.ndarray) -> Self:
        """The index of these ids."""
        prefixes = prefixes_of(ids)
        order = np.argsort(prefixes, kind="stable")
        return cls(ids, prefixes[order], order.astype(np.uint32))

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """The arrays that a store writes: sorted prefixes, and their rows."""
        return self._prefixes, self._rows

    def find(self, ids: np.ndarray) -> np.ndarray:
        """The row of each id, int64 (rows,); -1 if absent."""
        places = np.full(len(ids), -1, np.int64)
        if not len(self._ids):
            return places
        wanted = prefixes_of(ids)
        at = np.searchsorted(self._prefixes, wanted)
        open_ = np.flatnonzero(at < len(self._prefixes))
        while len(open_):  # one iteration, unless two ids share their first 8 bytes
            open_ = open_[self._prefixes[at[open_]] == wanted[open_]]
            rows = self._rows[at[open_]].astype(np.int64)
            equal = (self._ids[rows] == ids[open_]).all(axis=1)
            places[open_[equal]] = rows[equal]
            open_ = open_[~equal]
            at[open_] += 1
            open_ = open_[at[open_] < len(self._prefixes)]
        return places


def prefixes_of(ids: np.ndarray) -> np.ndarray:
    """The first 8 bytes of ids (rows, 16) as numbers, uint64 (rows,)."""
    numbers: np.ndarray = np.ascontiguousarray(ids[:, :8]).view(">u8")[:, 0].astype(np.uint64)
    return numbers
