"""Guesses of a kind: each with a case that makes it and one that does not."""

import json
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyhead.data.columns import Columns
from polyhead.data.guess_columns import layout_of, table_of
from polyhead.data.guess_kind import kind_of_labels, plain, separator_between, separator_of
from polyhead.errors import ConfigError, EmptyData
from support.cases import cases


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
        ([0.0, 1.0] * 9, "single_label", None, ()),
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


def test_a_single_label_or_row_is_counted_as_one():
    """It was "1 different labels"."""
    assert kind_of_labels(["a", "a"]).why == "1 different label in 2 rows"
    assert kind_of_labels(["a"]).why == "1 different label in 1 row"


@pytest.mark.parametrize("labels", [[], [None, "", float("nan")], [f"text {i}" for i in range(20)], ["long " * 40] * 9])
def test_what_is_no_label_makes_no_kind(labels):
    with pytest.raises(EmptyData):
        kind_of_labels(labels)


def test_numbers_with_a_decimal_comma_are_told_from_labels_by_a_person():
    """They were taken for two labels each."""
    with pytest.raises(ConfigError, match="decimal comma") as caught:
        kind_of_labels(["3", "1,25", "0,5"] * 9)
    assert caught.value.got == "1,25"


CODES = {
    "a leading zero": ["007.1", "008.45", "038.11"],
    "a leading zero of a whole number": ["01", "02", "12"],
    "one number in two spellings": ["1.1", "1.10", "2.0"],
    "one whole number in two spellings": ["250.0", "250.00", "401.9"],
    "versions of three parts": ["1.2.3", "1.10.0"],
    "telephone numbers": ["+493012345", "+442071234567"],
    "letters among numbers": ["E11", "250"],
    "dates": ["2024-01-31", "2024-02-29"],
}


@cases("labels", CODES.values(), ids=CODES)
def test_codes_are_labels_and_no_numbers(labels):
    """007.1 was 7.1, and 1.10 was 1.1."""
    guess = kind_of_labels(labels * 9)
    assert (guess.kind, guess.rivals) == ("single_label", ())
    assert guess.why


ASKED = {
    "ratings": [1, 2, 3, 4, 5],
    "ratings of frames with an empty cell": [1.0, 2.0, 5.0, None],
    "half stars": ["1.5", "2.0", "4.5"],
    "codes that somebody read as numbers": [7.1, 8.45, 38.11],
    "one number with and without a point": ["1", "1.0", "2"],
    "two whole numbers with a point": ["0.0", "1.0"],
    "years": ["2019", "2020", "2024"],
    "many whole numbers of five digits": [str(10000 + 37 * i) for i in range(40)],
}


@cases("labels", ASKED.values(), ids=ASKED)
def test_numbers_that_may_be_names_are_left_to_a_person(labels):
    assert kind_of_labels(labels * 9).rivals == ("regression",)


def test_the_name_of_a_column_tells_codes_from_measures():
    halves, plain_codes = ["1.5", "2.0", "4.5"] * 9, ["10115", "80331", "20095"] * 9
    assert (kind_of_labels(halves, name="avg_score").kind, kind_of_labels(halves, name="avg_score").rivals) == (
        "regression",
        (),
    )
    for name in ("zip", "zipCode", "Postal code"):
        assert (kind_of_labels(plain_codes, name=name).kind, kind_of_labels(plain_codes, name=name).rivals) == (
            "single_label",
            (),
        )
    with pytest.raises(EmptyData, match="nearly all are different"):
        kind_of_labels([str(10000 + 37 * i) for i in range(40)], name="zip")


@cases(
    "labels",
    [
        [0.1, 0.5, 0.9] * 9,
        ["0.25", "0.75", "1.0"] * 9,
        [-1.5, 2.5, 3.5] * 9,
        [len("a" * i) / 3 for i in (4, 5, 7)] * 9,
        [i / 7 for i in range(40)],
        [f"{1 + i / 6:.3f}" for i in range(24)],
        ["12.50", "12.5", "99.99", "7.25", "3.10", "4.20"],
        list(range(0, 3000, 30)),
    ],
)
def test_measures_are_numbers_without_a_question(labels):
    guess = kind_of_labels(labels)
    assert (guess.kind, guess.rivals) == ("regression", ())


@cases(
    "labels",
    [
        [0.0, 1.0, float("nan")],
        [0, 1, None],
        ["0.0", "1.0", ""],
        ["0", "1", None],
        [np.float32(0), np.float64(1), np.float32("nan")],
        [np.int64(0), np.bool_(True).astype(int), np.datetime64("NaT")],
        [Decimal("0"), Decimal("1.0"), Decimal("NaN")],
    ],
)
def test_zero_and_one_are_labels_however_a_frame_writes_them(labels):
    """pandas makes floats of whole numbers where a cell is empty; Python trained a regression."""
    guess = kind_of_labels(labels * 9)
    assert (guess.kind, guess.rivals) == ("single_label", ())


def test_every_mark_of_a_missing_value_is_none():
    pandas = pytest.importorskip("pandas")
    marks = [None, float("nan"), np.float32("nan"), np.datetime64("NaT"), Decimal("NaN"), pandas.NA, pandas.NaT]
    assert [plain(mark) for mark in marks] == [None] * len(marks)
    kept = ["", "nan", 0, 0.0, False, "NA", [], {}, Decimal("Infinity")]
    assert [plain(value) for value in kept] == kept
    for dtype in ("Int64", "boolean", "string", "category", "Float64"):
        values = {"string": ["a", "b", None], "category": ["a", "b", None]}.get(dtype, [0, 1, None])
        series = pandas.Series(values * 9, dtype=dtype)
        assert [plain(value) for value in series][2::3] == [None] * 9
        assert kind_of_labels(series).kind == "single_label", dtype


MARKED = [["1,234", "12,500", "999"], ["1.234,56", "99,5"], ["1 234", "5 678"], ["1.234", "12.500", "999"]]


@cases("labels", MARKED)
def test_marks_between_thousands_never_become_other_numbers(labels):
    """1.234 may be a thousand and more, or little more than one."""
    with pytest.raises(ConfigError, match="between thousands") as caught:
        kind_of_labels(labels * 3)
    assert caught.value.got in labels


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ([[1, 0], [0, 1]], "what it is called"),
        (np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]), "what it is called"),
        ([[True, False], [False, False]], "what it is called"),
        ([{"sport": 1, "trade": 0}, {"sport": 0, "trade": 1}], "objects or lists"),
        ([[(0, 3, "name")], []], "objects or lists"),
        ([[["Hardware", "Other"]], [["Software", "Other"]]], "objects or lists"),
    ],
    ids=["marks", "marks of numpy", "bools", "cats", "places without names", "paths"],
)
def test_lists_and_objects_that_name_no_label_are_refused(labels, said):
    with pytest.raises(ConfigError, match=said):
        kind_of_labels(labels)


@pytest.mark.parametrize(
    ("labels", "kind"),
    [([1.0, 0.0, None], "multiple_choice"), (["1.0", "0", "x"], "multiple_choice"), (["²", "1", "0"], None)],
    ids=["floats", "cells", "a digit that is no number"],
)
def test_a_choice_is_guessed_from_indices_as_frames_write_them(tmp_path, labels, kind):
    file = tmp_path / "rows.jsonl"
    rows = [{"question": f"what is {label}?", "choices": ["x", "y"], "label": label} for label in labels]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows * 4))
    assert layout_of(table_of(str(file)), Columns()).kind == kind


ASKED = ["what is it?", "who was it?", "where is it?"] * 4
PLACES = [0, 2, 1] * 4
TEXTS = [["a cat", "the dog", "an ox"]] * 12
AS_ARC = [{"text": texts, "label": ["1", "2", "3"]} for texts in TEXTS]


@pytest.mark.parametrize(
    "columns",
    [
        {"question": ASKED, "options": TEXTS, "answer": ["ABC"[place] for place in PLACES]},
        {"question": ASKED, "choices": AS_ARC, "answerKey": [str(place + 1) for place in PLACES]},
        {"question": ASKED, "choices": [[], *TEXTS[1:]], "label": PLACES},
        {"question": ASKED, "choices": [None, *TEXTS[1:]], "label": PLACES},
    ],
    ids=["letters", "marks", "a row without options", "a row with none"],
)
def test_a_choice_is_guessed_as_hubs_write_it(tmp_path, columns):
    """It was guessed as a label of the question alone, without its options."""
    layout = layout_of(table_of(_written(tmp_path, columns)), Columns())
    names = [*columns]
    assert [layout.kind, layout.text, layout.choices, layout.label] == ["multiple_choice", *names]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"question": ASKED, "choices": TEXTS, "label": [place + 1 for place in PLACES]}, "1, 2, 3, beside options in"),
        ({"question": ASKED, "options": TEXTS, "correct": ["abc"[place] for place in PLACES]}, "in options.*--kind"),
        (
            {"premise": ASKED, "choice1": ASKED[1:] + ASKED[:1], "choice2": ASKED[::-1], "label": [0, 1] * 6},
            "choice1, choice2.*one column with the list of options",
        ),
        (
            {"context": ASKED, "answerA": ASKED, "answerB": ASKED, "answerC": ASKED, "label": ["1", "2", "3"] * 4},
            "answerA, answerB, answerC",
        ),
    ],
    ids=["counted from 1", "small letters", "a column for each of two", "a column for each of three"],
)
def test_a_label_that_may_name_an_option_is_refused(tmp_path, columns, said):
    """A classifier was made that reads no option, or two options and no question."""
    table = table_of(_written(tmp_path, columns))
    with pytest.raises(ConfigError, match=said):
        layout_of(table, Columns())
    label = [*columns][-1]
    assert layout_of(table, Columns(text=[*columns][0]), "single_label").label == label


def _written(folder, columns):
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / "rows.jsonl")


def test_a_separator_is_certain_where_labels_come_in_several_combinations():
    assert separator_of(["x;y", "y"]) == (";", True)
    assert separator_of(["x;y", "z"]) == (";", False)
    assert separator_of(["x", "y"]) is None
    assert separator_between(["x; y;", "y;"], ("x", "y", "z")) == separator_between([";x", "y;;z"], "xyz") == ";"
    assert separator_between(["a;b|", "c|"], ("a;b", "c")) == "|"


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
