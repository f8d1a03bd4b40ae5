"""Batches hold every input once, within the budget, whatever the lengths."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyhead.errors import ConfigError
from polyhead.text.batch import batches
from polyhead.text.tokenize import Encoded

PAD = 99


def encoded(lengths):
    def one(row, size):
        ids = np.arange(size, dtype=np.int32) + 1000 * row
        zeros = np.zeros(size, np.int32)
        return Encoded(
            row=row,
            window=0,
            ids=ids,
            segments=ids % 2,
            offsets=np.zeros((size, 2), np.int32),
            sequence=zeros.astype(np.int8),
            cut=0,
            repaired=0,
        )

    return [one(row, size) for row, size in enumerate(lengths)]


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 40), max_size=30),
    budget=st.integers(1, 200),
    multiple=st.sampled_from([1, 4, 8]),
    fixed=st.sampled_from([None, 1, 3, 8]),
)
def test_every_input_is_in_one_batch_as_it_was_given(lengths, budget, multiple, fixed):
    inputs, seen, before = encoded(lengths), [], None
    for batch in batches(inputs, token_budget=budget, pad_id=PAD, multiple_of=multiple, fixed_rows=fixed):
        rows, tokens = batch.ids.shape
        assert batch.mask.shape == batch.segments.shape == batch.ids.shape
        assert (batch.ids.dtype, batch.mask.dtype) == (np.int64, bool)
        assert tokens % multiple == 0
        assert rows == fixed if fixed else (rows == len(batch.members) and (rows * tokens <= budget or rows == 1))
        assert before is None or tokens <= before
        before = tokens
        for row, member in enumerate(batch.members):
            one = inputs[member]
            np.testing.assert_array_equal(batch.ids[row][batch.mask[row]], one.ids)
            np.testing.assert_array_equal(batch.segments[row][batch.mask[row]], one.segments)
            assert np.all(batch.ids[row][~batch.mask[row]] == PAD)
        assert np.all(batch.mask[len(batch.members) :].sum(axis=1) == 1)
        seen += batch.members.tolist()
    assert sorted(seen) == list(range(len(lengths)))


def test_answers_go_back_in_order():
    inputs = encoded([3, 9, 1, 9, 4])
    answers = np.zeros(5, np.int64)
    for batch in batches(inputs, token_budget=18, pad_id=PAD):
        answers[batch.members] = batch.mask.sum(axis=1)
    assert answers.tolist() == [3, 9, 1, 9, 4]


def test_lengths_are_not_rounded_up_beyond_the_trunks_limit():
    sizes = [
        batch.ids.shape[1]
        for batch in batches(encoded([9, 3]), token_budget=10, pad_id=PAD, multiple_of=8, max_tokens=10)
    ]
    assert sizes == [10, 8]


def test_no_inputs_make_no_batch():
    assert list(batches([], token_budget=8, pad_id=PAD)) == []


@pytest.mark.parametrize("wrong", [{"token_budget": 0}, {"multiple_of": 0}, {"fixed_rows": 0}], ids=str)
def test_numbers_that_make_no_batch_are_refused(wrong):
    with pytest.raises(ConfigError, match="batches"):
        list(batches(encoded([3]), **({"token_budget": 8, "pad_id": PAD} | wrong)))
