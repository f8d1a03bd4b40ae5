"""Hashed words of texts in a store, 3 bytes per feature, and the outputs of tasks' heads for them.

From the lowest bit: the column, of which a head with fewer columns takes the lowest bits; the sign; whether the feature
is of letters; and how often it occurs, which normalizes a text's values once its features are read. Where that is too
often for the highest 4 bits they are 0 in a second entry, whose other bits are the number.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from polyhead.store.corpus.base import WORD_BYTES, PackedRows
from polyhead.text.hashing import counted_features
from polyhead.text.tokenize import Input

COLUMN_BITS, COUNT_BITS = 18, 4
SIGN, LETTERS, COUNT = COLUMN_BITS, COLUMN_BITS + 1, COLUMN_BITS + 2  # lowest bit of each
MOST_COLUMNS = 1 << COLUMN_BITS
NO_ENTRIES = np.zeros((0, WORD_BYTES), np.uint8)
BLOCK = 2**20  # products of weights at once


def packed_words(document: Input) -> np.ndarray:
    """The hashed words of a text, uint8 (entries, 3); none of a pair."""
    parts = [np.zeros(0, np.uint32)]
    for is_letters, (features, counts) in enumerate(counted_features(document[0]) if len(document) == 1 else ()):
        entries = features & np.uint32(MOST_COLUMNS - 1) | features >> np.uint32(31) << np.uint32(SIGN)
        entries |= np.uint32(is_letters << LETTERS)
        often = np.flatnonzero(counts >> COUNT_BITS)
        entries |= np.where(counts >> COUNT_BITS, 1, counts).astype(np.uint32) << np.uint32(COUNT)
        most = np.minimum(counts[often], (1 << COUNT) - 1).astype(np.uint32)
        parts.append(np.insert(entries, often + 1, most))
    return np.concatenate(parts).astype("<u4").view(np.uint8).reshape(-1, 4)[:, :WORD_BYTES]


def word_outputs(words: PackedRows, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Each task's outputs for texts' words, float32 (rows, outputs), by its weights (columns, outputs), float32.

    The values are those of `text.hashing.hashed_text`; sums differ from `hashed_sum` by rounding alone.
    """
    outputs = {name: np.zeros((len(words.lengths), matrix.shape[1]), np.float32) for name, matrix in weights.items()}
    rows, start = words.offsets, 0
    entries = BLOCK // max((matrix.shape[1] for matrix in weights.values()), default=1)
    while start < len(rows) - 1:
        stop = int(np.searchsorted(rows, rows[start] + entries, side="right")) - 1
        stop = max(stop, start + 1)
        lengths = np.diff(rows[start : stop + 1])
        places, columns, values = _read(words.data[rows[start] : rows[stop]], lengths)
        starts = np.flatnonzero(np.diff(places, prepend=-1))
        for name, matrix in weights.items() if len(places) else ():
            products = values[:, None] * matrix[columns & (len(matrix) - 1)]
            outputs[name][start + places[starts]] = np.add.reduceat(products, starts)
        start = stop
    return outputs


def _read(data: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The features of some texts: the row of each, ascending, its column of MOST_COLUMNS, and its value, float32."""
    entries = data[:, 0].astype(np.int64) | data[:, 1].astype(np.int64) << 8 | data[:, 2].astype(np.int64) << 16
    counts, places = entries >> COUNT, np.repeat(np.arange(len(lengths)), lengths)
    second = np.flatnonzero(counts == 0)
    counts[second - 1] = entries[second]
    is_feature = np.ones(len(entries), bool)
    is_feature[second] = False
    entries, counts, places = entries[is_feature], counts[is_feature], places[is_feature]
    values, group = 1 + np.log(counts), 2 * places + (entries >> LETTERS & 1)
    sizes = np.sqrt(np.bincount(group, np.square(values), 2 * len(lengths)))
    values /= np.maximum(sizes, 1.0)[group]
    signed = np.where(entries >> SIGN & 1, -values, values)
    return places, entries & (MOST_COLUMNS - 1), signed.astype(np.float32)
