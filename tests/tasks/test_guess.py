"""Guesses of a kind: each with a case that makes it and one that does not."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyhead.errors import ConfigError, EmptyData
from polyhead.tasks.guess import kind_of_labels, separator_of


@pytest.mark.parametrize(
    ("labels", "kind", "separator", "rivals"),
    [
        (["a", "b", None, " "] * 9, "single_label", None, ()),
        ([True, False] * 4, "single_label", None, ()),
        ([0, 1] * 9, "single_label", None, ()),
        (["0", "1", "2"] * 9, "single_label", None, ()),
        ([1, 2, 3, 4, 5] * 9, "single_label", None, ("regression",)),
        ([0.5, 1.0, 2.25], "regression", None, ()),
        (["0.5", "1e3", "2.25"], "regression", None, ()),
        ([0.0, 1.0] * 9, "regression", None, ()),
        (["0.0", "1.0"] * 9, "single_label", None, ("regression",)),
        (["1,2", "2,3,4", "1"] * 9, "multi_label", ",", ()),
        (["['a', 'b']", "[]", "['a']"] * 3, "multi_label", None, ()),
        (list(range(5, 90)) * 3, "regression", None, ()),
        (list(range(50)), "regression", None, ()),
        (["1", "2", "x"] * 9, "single_label", None, ()),
        ([["a"], [], ["b", "a"]], "multi_label", None, ()),
        ([json.dumps(value) for value in (["a"], [], ["b", "a"])], "multi_label", None, ()),
        (["a;b", "b", "a", ""] * 3, "multi_label", ";", ()),
        (["a;b", "c"] * 3, "multi_label", ";", ("single_label",)),
        (["a|b", "b|c"] * 3, "multi_label", "|", ()),
        (["a, b", "b", "a"] * 3, "multi_label", ",", ()),
        (["Food, drink", "Arts, culture", "Sport"] * 3, "single_label", None, ()),
        (["Food, drink", "Arts, drink", "Sport", "News", "Law"] * 3, "single_label", None, ()),
        ([["B-x", "I-x", "O"], ["O"]], "tagging", None, ()),
        ([["B-x", "other"], ["O"]], "multi_label", None, ()),
        ([[{"start": 0, "end": 1, "label": "x"}], []], "tagging", None, ()),
        ([[{"start": 0, "text": "x"}], []], "span", None, ()),
        ([{"text": ["x"], "answer_start": [0]}], "span", None, ()),
        (np.array([0, 1, 1, 0]), "single_label", None, ()),
        (np.array([0.5, 1.25, np.nan]), "regression", None, ()),
        ([np.array(["a", "b"]), np.array(["a"])], "multi_label", None, ()),
        ([("a", "b"), ("a",)], "multi_label", None, ()),
    ],
)
def test_a_kind_is_guessed_from_labels(labels, kind, separator, rivals):
    guess = kind_of_labels(labels)
    assert (guess.kind, guess.separator, guess.rivals) == (kind, separator, rivals)
    assert guess.why


@pytest.mark.parametrize("labels", [[], [None, "", float("nan")], [f"text {i}" for i in range(20)], ["long " * 40] * 9])
def test_what_is_no_label_makes_no_kind(labels):
    with pytest.raises(EmptyData):
        kind_of_labels(labels)


def test_numbers_with_a_decimal_comma_are_told_from_labels_by_a_person():
    """They were taken for two labels each."""
    with pytest.raises(ConfigError, match="decimal comma") as caught:
        kind_of_labels(["3", "1,25", "0,5"] * 9)
    assert caught.value.got == "1,25"


def test_a_separator_is_certain_where_labels_come_in_several_combinations():
    assert separator_of(["x;y", "y"]) == (";", True)
    assert separator_of(["x;y", "z"]) == (";", False)
    assert separator_of(["x", "y"]) is None


@given(
    sets=st.lists(st.sets(st.sampled_from("abcdef"), min_size=1), min_size=4, max_size=30), mark=st.sampled_from(";|")
)
def test_labels_that_are_joined_are_told_apart_by_their_separator(sets, mark):
    """One label a cell needs none; the certainty is that some label stands in two different cells."""
    cells = [mark.join(sorted(labels)) for labels in sets]
    different = {frozenset(labels) for labels in sets}
    if all(len(labels) == 1 for labels in sets):
        assert separator_of(cells) is None
        return
    again = any(a is not b and a & b for a in different for b in different)
    assert separator_of(cells) == (mark, again)
