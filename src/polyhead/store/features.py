"""Kept features of many texts: finding missing ones, adding them, and batches of them, decoded and padded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np

from polyhead.engine.backends.base import FeatureBatch
from polyhead.errors import StoreError
from polyhead.files import make_folder
from polyhead.plan import Codec
from polyhead.plan.coding import decode, encode
from polyhead.store.corpus.base import FeatureColumn, PackedRows, Schema, check_column_name
from polyhead.store.corpus.plain import PlainStore


class Features:
    """Rows of a store in the requested order, memory-mapped, and decoded when taken."""

    def __init__(self, column: FeatureColumn, blocks: list[np.ndarray], places: np.ndarray) -> None:
        """`blocks`: data of fragments (tokens, token_bytes); `places` (rows, 3): block, first token, end."""
        self._column, self._blocks, self._places = column, blocks, places
        self.lengths: np.ndarray = places[:, 2] - places[:, 1]  # number of tokens of each row

    def __len__(self) -> int:
        return len(self._places)

    @property
    def nbytes(self) -> int:
        """Encoded bytes of these rows, without keys and offsets; a repeated row counts twice."""
        return int(self.lengths.sum()) * self._column.token_bytes

    def take(self, indices: Sequence[int] | np.ndarray) -> FeatureBatch:
        """These rows (indices into the requested keys), padded to the longest of them."""
        rows = np.asarray(indices, dtype=np.intp)
        layers, width = self._column.layers, self._column.width
        lengths = self.lengths[rows]
        longest = int(lengths.max(initial=0))
        mask = np.arange(longest) < lengths[:, None]
        shape = (len(rows), longest, layers, width)
        if not mask.any():
            return FeatureBatch(values=np.zeros(shape, np.float32), mask=mask)
        # One copy of the encoded slices and one decode per batch: the number of calls, not of bytes, costs time.
        raw = np.concatenate([self._blocks[block][start:stop] for block, start, stop in self._places[rows].tolist()])
        values = decode(raw.reshape(len(raw), layers, -1), self._column.codec, width)
        if mask.all():
            return FeatureBatch(values=values.reshape(shape), mask=mask)
        padded = np.zeros(shape, np.float32)
        padded[mask] = values
        return FeatureBatch(values=padded, mask=mask)


class FeatureStore:
    """The values at one node for many texts, in a separate store (`store.corpus`) named by the path's digest.

    Rows are found by key (`document_id`). A store of another digest, or of other layers, width or codec, is refused. A
    kill loses at most the append in progress.
    """

    def __init__(self, store: PlainStore) -> None:
        self._store = store
        self._column = store.schema.features[0]

    @classmethod
    def open(cls, root: Path | str, *, digest: str, layers: int, width: int, codec: Codec) -> Self:
        """The store under `<root>/<digest>`, created if absent.

        `layers`: stored layers per token, all that a learned mix or a codec before the mean needs, or 1. Raises
        StoreError if the folder keeps other features. A process hashes a file when it first reads it.
        """
        column = FeatureColumn(digest=digest, layers=layers, width=width, codec=codec)
        check_column_name(digest, "features")
        folder = Path(root) / digest
        try:
            make_folder(folder, root=folder.parent)
        except OSError as error:
            do = "give a folder that can be written"
            raise StoreError(f"{folder} cannot be made", got=error.strerror, do=do) from error
        return cls(PlainStore.create(str(folder), Schema(features=(column,))))

    def __len__(self) -> int:
        return sum(fragment.rows for fragment in self._store.fragments)

    @property
    def nbytes(self) -> int:
        """Encoded bytes on disk, without keys and lengths."""
        digest = self._column.digest
        return sum(self._store.rows(fragment.name, digest).data.nbytes for fragment in self._store.fragments)

    def missing(self, keys: Sequence[bytes]) -> list[int]:
        """Indices of the keys that the store lacks, taking other writers' additions into account."""
        self._store.refresh()
        return np.flatnonzero(self._store.find(keys)[:, 0] < 0).tolist()

    def append(
        self, keys: Sequence[bytes], values: Sequence[np.ndarray], tokens: Sequence[np.ndarray] | None = None
    ) -> None:
        """Adds `values` (tokens, layers, width) under `keys` as one fragment; existing keys are skipped.

        `tokens` (tokens,) are those for the codec (`plan.coding.encode`), if it needs them. Raises StoreError on shapes
        that do not fit, on NaN and on a full disk; then nothing is kept.
        """
        if len(keys) != len(values) or (tokens is not None and len(tokens) != len(values)):
            raise StoreError("every key needs one value", got=f"{len(keys)} keys and {len(values)} values")
        column = self._column
        for value in values:
            if value.ndim != 3 or value.shape[1:] != (column.layers, column.width):
                allowed = f"(tokens, {column.layers}, {column.width})"
                raise StoreError("features of another shape", got=value.shape, allowed=allowed)
        counts: Sequence[np.ndarray | None] = [None] * len(values) if tokens is None else [t[:, None] for t in tokens]
        encoded = [
            encode(value, column.codec, token_counts).reshape(len(value), column.token_bytes)
            for value, token_counts in zip(values, counts, strict=True)
        ]
        data = np.concatenate(encoded) if encoded else np.empty((0, column.token_bytes), np.uint8)
        self.append_packed(keys, PackedRows.of([len(value) for value in values], data))

    def append_packed(self, keys: Sequence[bytes], rows: PackedRows) -> None:
        """Adds encoded values under `keys` as one fragment; existing keys are skipped."""
        self._store.append(keys, {self._column.digest: rows})

    def features(self, keys: Sequence[bytes]) -> Features:
        """The rows under these keys, in this order, repeats allowed; raises StoreError if one is absent."""
        absent = self.missing(keys)
        if absent:
            raise StoreError(
                f"the store lacks {len(absent)} of {len(keys)} rows",
                got=f"no features for rows {absent[:5]}",
                do="encode the texts that `missing` lists, and append them",
                rows=absent,
            )
        fragments = [self._store.rows(fragment.name, self._column.digest) for fragment in self._store.fragments]
        located = self._store.find(keys)
        places = np.zeros((len(keys), 3), np.int64)
        for number, rows in enumerate(fragments):
            members = located[:, 0] == number
            places[members, 0], row = number, located[members, 1]
            places[members, 1], places[members, 2] = rows.offsets[row], rows.offsets[row + 1]
        return Features(self._column, [rows.data for rows in fragments], places)

    def verify(self) -> None:
        """Reads every byte; raises StoreError that names a file changed since it was written."""
        self._store.verify()
