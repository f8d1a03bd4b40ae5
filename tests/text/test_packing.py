"""Texts stand in rows one after another: none is cut, none overlaps another, and few rows are needed."""

import math

import numpy as np
import pytest

from polyhead.text.packing import ROW, packed

MIXED = np.random.default_rng(0).integers(2, 60, 200)


@pytest.mark.parametrize("lengths", [MIXED, MIXED[:32], [1], [64] * 5, [300, 2, 64, 300], [33] * 9, []])
def test_every_text_stands_whole_in_one_row_and_none_on_another(lengths):
    lengths = np.array(lengths, np.int64)
    found = packed(lengths)
    assert found.tokens == max(ROW, lengths.max(initial=1))
    taken = np.zeros((found.rows, found.tokens), int)
    for row, start, size in zip(found.row, found.start, lengths, strict=True):
        assert start + size <= found.tokens
        taken[row, start : start + size] += 1
    assert taken.max(initial=0) <= 1
    assert taken.sum() == lengths.sum()
    assert all(taken.any(axis=1))


@pytest.mark.parametrize("lengths", [MIXED, MIXED[:32], [33] * 9, [20, 44] * 30, [10, 21, 33] * 20])
def test_rows_are_few(lengths):
    """At most 11/9 of what the tokens need, and 4; texts of more than half a row need one each."""
    lengths = np.array(lengths)
    least = max(math.ceil(lengths.sum() / ROW), int((lengths > ROW / 2).sum()))
    assert packed(lengths).rows <= 11 / 9 * least + 4


def test_texts_that_fill_rows_exactly_waste_nothing():
    assert packed(np.array([20, 44] * 30)).rows == 30
    assert packed(np.array([10, 21, 33] * 20)).rows == 20


def test_equal_lengths_pack_equally():
    one, other = packed(MIXED), packed(MIXED.copy())
    assert np.array_equal(one.row, other.row) and np.array_equal(one.start, other.start)
