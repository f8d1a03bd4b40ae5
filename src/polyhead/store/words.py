"""Hashed words of texts in a store, 3 bytes per feature, and the outputs of tasks' heads for them.

From the lowest bit: the column, of which a head with fewer columns takes the lowest bits; the sign; whether the feature
is of letters; and how often it occurs, which normalizes a text's values once its features are read. Where that is too
often for the highest 4 bits they are 0 in a second entry, whose other bits are the number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from polyhead.store.corpus.base import WORD_BYTES, PackedRows
from polyhead.text.hashing import HashedRows, counted_features, normed, signed
from polyhead.text.tokenize import Input

COLUMN_BITS, COUNT_BITS = 18, 4
SIGN, LETTERS, COUNT = COLUMN_BITS, COLUMN_BITS + 1, COLUMN_BITS + 2  # lowest bit of each
MOST_COLUMNS = 1 << COLUMN_BITS
NO_ENTRIES = np.zeros((0, WORD_BYTES), np.uint8)
BLOCK = 2**20  # entries that are read at once


def packed_words(documents: Sequence[Input]) -> list[np.ndarray]:
    """The hashed words of each text, uint8 (entries, 3); none of a pair."""
    groups, hashes, counts = counted_features([each[0] if len(each) == 1 else "" for each in documents])
    entries = hashes & np.uint32(MOST_COLUMNS - 1) | hashes >> np.uint32(31) << np.uint32(SIGN)
    entries |= (groups & 1).astype(np.uint32) << np.uint32(LETTERS)
    entries |= np.where(counts >> COUNT_BITS, 1, counts).astype(np.uint32) << np.uint32(COUNT)
    often = np.flatnonzero(counts >> COUNT_BITS)
    most = np.minimum(counts[often], (1 << COUNT) - 1).astype(np.uint32)
    packed = np.insert(entries, often + 1, most).astype("<u4").view(np.uint8).reshape(-1, 4)[:, :WORD_BYTES]
    of_each = np.insert(groups >> 1, often + 1, groups[often] >> 1)
    return np.split(packed, np.searchsorted(of_each, np.arange(1, len(documents))))


def word_outputs(words: PackedRows, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Each task's outputs for texts' words, float32 (rows, outputs), by its weights (columns, outputs), float32."""
    outputs = {name: np.zeros((len(words.lengths), matrix.shape[1]), np.float32) for name, matrix in weights.items()}
    rows, start = words.offsets, 0
    while start < len(rows) - 1:
        stop = int(np.searchsorted(rows, rows[start] + BLOCK, side="right")) - 1
        stop = max(stop, start + 1)
        hashed = _read(words.data[rows[start] : rows[stop]], np.diff(rows[start : stop + 1]))
        for name, matrix in weights.items():
            outputs[name][start:stop] = hashed.sums(matrix)
        start = stop
    return outputs


def _read(data: np.ndarray, lengths: np.ndarray) -> HashedRows:
    """The features of some texts, with so many entries each."""
    entries = data[:, 0].astype(np.int64) | data[:, 1].astype(np.int64) << 8 | data[:, 2].astype(np.int64) << 16
    counts, places = entries >> COUNT, np.repeat(np.arange(len(lengths)), lengths)
    second = np.flatnonzero(counts == 0)
    counts[second - 1] = entries[second]
    is_feature = np.ones(len(entries), bool)
    is_feature[second] = False
    entries, counts, places = entries[is_feature], counts[is_feature], places[is_feature]
    values = signed(entries >> SIGN & 1, normed(2 * places + (entries >> LETTERS & 1), counts))
    columns = (entries & (MOST_COLUMNS - 1)).astype(np.uint32)
    return HashedRows(places, columns, values.astype(np.float32), len(lengths))
