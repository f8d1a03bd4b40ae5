"""Kept features of many texts: which are missing, adding them, and batches of them, decoded and padded."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np

from polyhead.config import Value
from polyhead.errors import StoreError
from polyhead.plan import Codec
from polyhead.store.codec import decode, encode
from polyhead.store.layout import (
    FORMAT,
    KEY_BYTES,
    Manifest,
    Segment,
    open_manifest,
    open_segment,
    segment_folders,
    verify_segment,
    write_segment,
    writing,
)


def key_of(texts: Sequence[str], extra: str = "") -> bytes:
    """16 bytes of SHA-256 over the exact strings of one input (text or pair); `extra` tells windows apart."""
    # The length before each string keeps ("ab", "c") and ("a", "bc") apart; lone surrogates have bytes too.
    encoded = [text.encode("utf-8", "surrogatepass") for text in (extra, *texts)]
    return hashlib.sha256(b"".join(len(e).to_bytes(8, "little") + e for e in encoded)).digest()[:KEY_BYTES]


class FeatureBatch(Value, frozen=True, kw_only=True):
    """Some rows, decoded and padded: `values` are 0 where `mask` is False."""

    values: np.ndarray  # (rows, tokens, layers, width) float32
    mask: np.ndarray  # (rows, tokens) bool


class Features:
    """Rows of a store in the order in which they were asked for, memory-mapped, decoded when taken."""

    def __init__(self, manifest: Manifest, blocks: list[np.ndarray], places: np.ndarray) -> None:
        """`blocks`: the segments' data (tokens, token_bytes); `places` (rows, 3): block, first token, end."""
        self._manifest, self._blocks, self._places = manifest, blocks, places
        self.lengths: np.ndarray = places[:, 2] - places[:, 1]  # tokens of each row

    def __len__(self) -> int:
        return len(self._places)

    @property
    def nbytes(self) -> int:
        """Encoded bytes of these rows, without keys and offsets; a row asked for twice counts twice."""
        return int(self.lengths.sum()) * self._manifest.token_bytes

    def take(self, indices: Sequence[int] | np.ndarray) -> FeatureBatch:
        """These rows (indices into the keys that were asked for), padded to the longest of them."""
        rows = np.asarray(indices, dtype=np.intp)
        layers, width = self._manifest.layers, self._manifest.width
        lengths = self.lengths[rows]
        longest = int(lengths.max(initial=0))
        mask = np.arange(longest) < lengths[:, None]
        shape = (len(rows), longest, layers, width)
        if not mask.any():
            return FeatureBatch(values=np.zeros(shape, np.float32), mask=mask)
        # One copy of the encoded slices and one decode for the whole batch: calls, not bytes, cost the time.
        raw = np.concatenate([self._blocks[block][start:stop] for block, start, stop in self._places[rows].tolist()])
        values = decode(raw.reshape(len(raw), layers, -1), self._manifest.codec, width)
        if mask.all():
            return FeatureBatch(values=values.reshape(shape), mask=mask)
        padded = np.zeros(shape, np.float32)
        padded[mask] = values
        return FeatureBatch(values=padded, mask=mask)


class FeatureStore:
    """The values at one node for many texts, kept under the digest of the path to it.

    Rows are found by key; a store of another digest, or of other layers, width or codec, is refused. Every
    append is one segment that appears whole or not at all, so a kill loses at most the append it met.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder, self._manifest = folder, manifest
        self._segments: list[Segment] = []
        self._places: list[np.ndarray] = []
        self._index: dict[bytes, int] = {}
        self._refresh()

    @classmethod
    def open(cls, root: Path | str, *, digest: str, layers: int, width: int, codec: Codec) -> Self:
        """The store under `<root>/<digest>`, created when absent.

        `layers`: stored layers of a token, all that a learned mix or a codec before the mean needs, or 1.
        Raises StoreError when the folder keeps other features or a segment is damaged; it is hashed, once a process.
        """
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,128}", digest):
            raise StoreError("a store is named by a digest", got=digest, allowed="hexadecimal digits")
        if layers < 1 or width < 1:
            raise StoreError("a store needs at least one layer and one dimension", got=f"{layers} and {width}")
        manifest = Manifest(format=FORMAT, digest=digest, layers=layers, width=width, codec=codec)
        folder = Path(root) / digest
        open_manifest(folder, manifest)
        return cls(folder, manifest)

    def __len__(self) -> int:
        return len(self._index)

    @property
    def nbytes(self) -> int:
        """Encoded bytes on disk, without keys and offsets."""
        return sum(segment.data.nbytes for segment in self._segments)

    def missing(self, keys: Sequence[bytes]) -> list[int]:
        """Indices of the keys that the store lacks, those that other writers have added since included."""
        self._refresh()
        return [i for i, key in enumerate(keys) if key not in self._index]

    def append(self, keys: Sequence[bytes], values: Sequence[np.ndarray]) -> None:
        """Keeps `values` (tokens, layers, width) under `keys` as one segment; keys already there are skipped.

        Raises StoreError on shapes that do not fit, on NaN and on a full disk; then nothing is kept.
        """
        self._check(keys, values)
        with writing(self._folder, f"the store {self._folder}"):
            self._refresh()
            first = {key: i for i, key in reversed(list(enumerate(keys))) if key not in self._index}
            rows = sorted(first.values())
            if not rows:
                return
            lengths = [len(values[i]) for i in rows]
            write_segment(
                self._folder,
                keys=[bytes(keys[i]) for i in rows],
                lengths=lengths,
                blocks=(encode(values[i], self._manifest.codec) for i in rows),
                needed=sum(lengths) * self._manifest.token_bytes,
            )
        self._refresh()

    def features(self, keys: Sequence[bytes]) -> Features:
        """The rows under these keys, in this order, repeats allowed; raises StoreError when one is absent."""
        absent = self.missing(keys)
        if absent:
            raise StoreError(
                f"the store lacks {len(absent)} of {len(keys)} rows",
                got=f"no features for rows {absent[:5]}",
                do="encode the texts that `missing` lists, and append them",
                rows=absent,
            )
        places = np.concatenate(self._places) if self._places else np.zeros((0, 3), np.int64)
        rows = np.fromiter((self._index[key] for key in keys), np.intp, len(keys))
        return Features(self._manifest, [segment.data for segment in self._segments], places[rows])

    def verify(self) -> None:
        """Reads every byte; raises StoreError that names a file changed since it was written."""
        for folder in segment_folders(self._folder):
            verify_segment(folder)

    def _refresh(self) -> None:
        opened = {segment.folder for segment in self._segments}
        for folder in segment_folders(self._folder):
            if folder in opened:
                continue
            segment = open_segment(folder, self._manifest)
            block = np.full(len(segment.keys), len(self._segments), np.int64)
            known = len(self._index)
            for key in map(bytes, segment.keys):
                self._index.setdefault(key, len(self._index))
            if len(self._index) != known + len(block):
                raise StoreError(f"{folder / 'keys.bin'} repeats keys", do=f"delete {folder}")
            self._segments.append(segment)
            self._places.append(np.stack([block, segment.offsets[:-1], segment.offsets[1:]], axis=1))

    def _check(self, keys: Sequence[bytes], values: Sequence[np.ndarray]) -> None:
        if len(keys) != len(values):
            raise StoreError("every key needs one value", got=f"{len(keys)} keys and {len(values)} values")
        for key in keys:
            if len(key) != KEY_BYTES:
                raise StoreError("a key has the wrong length", got=f"{len(key)} bytes", allowed=f"{KEY_BYTES} bytes")
        expected = (self._manifest.layers, self._manifest.width)
        for value in values:
            if value.ndim != 3 or value.shape[1:] != expected:
                allowed = f"(tokens, {expected[0]}, {expected[1]})"
                raise StoreError("features of another shape", got=value.shape, allowed=allowed)
