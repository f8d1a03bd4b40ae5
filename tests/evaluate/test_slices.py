"""Scores of the rows of each value of a column."""

import json

import msgspec
import numpy as np
import pytest

from polyhead import Session
from polyhead.data.columns import Source
from polyhead.errors import MissingColumn
from polyhead.evaluate.scores import EMPTY, OTHERS, columns_read, evaluation_of, grouped, outputs_of_split, sliced
from support import tiny_project


@pytest.fixture
def session(home):
    return Session(home / "bundle", backend="reference")


def test_each_slice_has_the_score_of_a_file_of_its_rows(session, tmp_path):
    rows = [
        {**row, "channel": ("mail", "chat", None)[number % 3]}
        for number, row in enumerate(tiny_project.messages(30, 4))
    ]
    rows[2]["mood"] = None  # not labelled: numbers of rows are those of the file
    file = tiny_project.write_jsonl(tmp_path / "all.jsonl", rows)
    answered = outputs_of_split(session, "mood", Source(path=str(file), label="mood"))
    values = columns_read(str(file), ["channel"], answered.examples.rows)["channel"]
    found = sliced(answered, "channel", values)
    assert {each.value: each.rows for each in found.slices} == {"mail": 10, "chat": 10, EMPTY: 9}
    for each, channel in ((each, None if each.value == EMPTY else each.value) for each in found.slices):
        own = tiny_project.write_jsonl(tmp_path / "own.jsonl", [row for row in rows if row["channel"] == channel])
        score = evaluation_of(session, "mood", Source(path=str(own), label="mood")).score
        assert each.score == pytest.approx(score.scores["accuracy"])
        assert each.interval.low <= each.score <= each.interval.high


@pytest.mark.parametrize(
    ("name", "metric", "column"),
    [
        ("mood", "f1", ["good", "bad"] * 15),
        ("mood", "matthews", ["both", "good"] * 15),
        ("topics", "macro_f1", ["some", "none"] * 15),
        ("names", "span_f1", ["some", "none"] * 15),
        ("urgency", "pearson", ["all", "one"] * 15),
    ],
    ids=["no positive row", "one label", "no label", "no span", "one number"],
)
def test_a_slice_whose_rows_define_no_score_has_none(session, tmp_path, name, metric, column):
    """It had 0, and looked badly answered."""
    rows, labels = tiny_project.messages(30, 4), {"topics": [], "urgency": 0.5}
    for place, (row, part) in enumerate(zip(rows, column, strict=True)):
        row["tags"] = ["O"] * len(row["tokens"]) if part == "none" else row["tags"]
        row["mood"] = part if part in ("good", "bad") else ("good", "bad")[place // 2 % 2]
        row |= labels if part in ("none", "one") else {"topics": ["order"], "urgency": place / 30}
    file = tiny_project.write_jsonl(tmp_path / "all.jsonl", rows)
    read = Source(path=str(file), **({"tokens": "tokens", "tags": "tags"} if name == "names" else {"label": name}))
    answered = rightly(outputs_of_split(session, name, read))
    settings = {"metric": metric, "positive": "good" if metric == "f1" else None}
    answered = msgspec.structs.replace(answered, task=msgspec.structs.replace(answered.task, **settings))
    first, second = sorted(sliced(answered, "part", column).slices, key=lambda each: each.score is None)
    assert first.score is not None and second.value == column[1]
    assert (second.score, second.interval, second.shown_score) == (None, None, "-")
    if name in ("mood", "topics", "names") and metric != "matthews":  # what is answered wrongly scores 0, as elsewhere
        outputs = [-of for of in answered.outputs]
        wrong = sliced(msgspec.structs.replace(answered, outputs=outputs), "part", column).slices
        assert [each.score for each in wrong] == [0.0, 0.0]


def rightly(answered):
    """The same with outputs that answer every row as its target says; numbers are left as they are."""
    task, outputs = answered.task, answered.outputs
    if task.kind == "multi_label":
        outputs = [9 * (2 * target - 1) for target in answered.examples.targets]
    elif task.kind != "regression":
        places = np.eye(len(task.labels), dtype=np.float32)
        outputs = [9 * places[np.asarray(target)] for target in answered.examples.targets]
    return msgspec.structs.replace(answered, outputs=outputs)


def test_many_numbers_are_cut_into_quarters_and_few_are_values():
    numbers = [*range(100), None]
    parts = grouped(numbers)
    assert [len(places) for places in parts.values()] == [25, 25, 25, 25, 1] and list(parts)[-1] == EMPTY
    assert list(parts)[0] == "0 to 24.75"
    assert sorted(np.concatenate(list(parts.values()))) == list(range(101))
    assert {name: len(places) for name, places in grouped([1, 2, "2", 1, 2]).items()} == {"2": 3, "1": 2}


def test_a_number_is_a_plain_decimal_and_nan_is_no_value():
    """2023_01 was the number 202301, and one NaN made categories of all numbers."""
    months = [f"20{year}_{month:02}" for year in (23, 24) for month in range(1, 9)]
    assert list(grouped(months)) == months
    parts = grouped([float(number) for number in range(100)] + [float("nan"), None])
    assert [len(places) for places in parts.values()] == [25, 25, 25, 25, 2] and list(parts)[-1] == EMPTY


def test_rare_values_stand_together():
    values = [f"v{number}" for number in range(25) for _ in range(30 - number)]
    found = grouped(values)
    assert len(found) == 21 and list(found)[0] == "v0" and len(found[OTHERS]) == 10 + 9 + 8 + 7 + 6
    assert sum(map(len, found.values())) == len(values)


def test_a_column_that_is_not_there_is_told(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"text": "a", "chanel": "x"}) + "\n")
    with pytest.raises(MissingColumn, match="did you mean 'chanel'"):
        columns_read(str(file), ["channel"], [1])


def test_quarters_of_large_numbers_that_lie_close_have_names_of_their_own():
    for numbers in (
        [1_700_000_000 + i for i in range(100)],
        [1e15 + i / 8 for i in range(100)],
        [20240100 + i for i in range(31)],
    ):
        parts = grouped(numbers)
        assert len(parts) == 4
        assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(len(numbers)))
