"""Texts stand in rows one after another: none is cut, none overlaps another, and few rows are needed."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyhead.encoder.shape import Architecture
from polyhead.plan import Embed, Layers, Path, cost, merge
from polyhead.text.batch import ROW, batch_indices, best_fit, few, pack_texts, work

MIXED = np.random.default_rng(0).integers(2, 60, 200)


@pytest.mark.parametrize("lengths", [MIXED, MIXED[:32], [1], [64] * 5, [300, 2, 64, 300], [33] * 9, []])
def test_every_text_stands_whole_in_one_row_and_none_on_another(lengths):
    lengths = np.array(lengths, np.int64)
    found = pack_texts(lengths, width=384)
    assert found.tokens % max(ROW, lengths.max(initial=1)) == 0
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
    assert best_fit(lengths, tokens=ROW).rows <= 11 / 9 * least + 4


def test_texts_that_fill_rows_exactly_waste_nothing():
    assert pack_texts(np.array([20, 44] * 30), width=384).rows == 30
    assert pack_texts(np.array([10, 21, 33] * 20), width=384).rows == 20


def test_equal_lengths_pack_equally():
    one, other = pack_texts(MIXED, width=384), pack_texts(MIXED.copy(), width=384)
    assert np.array_equal(one.row, other.row) and np.array_equal(one.start, other.start)


def test_rows_are_longer_where_texts_would_leave_half_of_them_free():
    """Texts of 36 tokens: one fills a row of 64 to 56 %, five a row of 192 to 94 %."""
    lengths = np.full(40, 36)
    found = pack_texts(lengths, width=384)
    assert (found.rows, found.tokens) == (8, 192)
    assert work(8, 192, width=384) < work(40, 64, width=384)
    assert pack_texts(np.full(40, 31), width=384).tokens == ROW


def test_work_is_what_cost_counts():
    shape = Architecture(layers=3, width=48, heads=4, feed_forward=192, vocabulary=9)
    layers = merge({"t": Path(nodes=(Embed(trunk="x"), Layers(start=0, stop=3)))})
    for tokens in (16, 64, 100):
        wanted = cost.flops(layers, shape, tokens)
        assert work(1, tokens, width=48) * 3 * 24 * 48**2 == pytest.approx(wanted)


@settings(max_examples=80, deadline=None)
@given(lengths=st.lists(st.integers(1, 150), max_size=60), budget=st.sampled_from([1, 64, 200, 512, 2048]))
def test_texts_that_stand_together_are_each_there_once_within_the_budget(lengths, budget):
    sizes, seen = np.array(lengths, np.int64), []
    for members in batch_indices(sizes, budget=budget, width=384):
        seen += members.tolist()
        own = sizes[members]
        assert len(members) and (own[:-1] >= own[1:]).all(), "the longest first"
        found = pack_texts(own, width=384)
        assert min(found.rows * found.tokens, len(own) * own[0]) <= max(budget, 3 * max(ROW, own[0]))
    assert sorted(seen) == list(range(len(lengths)))


def test_texts_of_many_lengths_fill_their_rows_and_few_shapes():
    """Texts of like length would leave a row's end free: of 1,000 they would take a tenth more positions."""
    sizes = np.minimum(2 + np.random.default_rng(0).gamma(3, 9, 1000).astype(np.int64), 120)
    batches = list(batch_indices(sizes, budget=2048, width=384))
    shapes = [pack_texts(sizes[members], width=384) for members in batches]
    positions = sum(one.rows * one.tokens for one in shapes)
    assert positions < 1.03 * sizes.sum()
    in_order = np.split(np.sort(sizes)[::-1], range(64, 1000, 64))
    assert positions < 0.93 * sum(one.rows * one.tokens for one in (pack_texts(s, width=384) for s in in_order))


@pytest.mark.parametrize("length", [40, 65, 90])
def test_texts_of_one_length_stand_as_they_take_the_least_work(length):
    sizes = np.full(200, length)
    for members in list(batch_indices(sizes, budget=2048, width=384))[:-1]:
        found = pack_texts(sizes[members], width=384)
        rows, positions = min(
            [(found.rows, found.tokens), (len(members), length)], key=lambda one: work(*one, width=384)
        )
        assert work(*few(rows, positions), width=384) <= 1.2 * length * len(members)
