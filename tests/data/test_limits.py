"""Rows that are too large: an error in their place, named, and the rows around them are read."""

import gzip
import json

import pytest

from polyhead.data import rows
from polyhead.data.rows import Row, Rows
from polyhead.data.tables import delimited, json_rows
from polyhead.engine.inputs import Passage, checked_inputs
from polyhead.errors import BadValue, DataError
from polyhead.tasks import limits
from polyhead.text.question import Question
from support.cases import cases

LONG = "x" * 200


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Texts of 100 characters, lines of 500 bytes, 40 values a row."""
    monkeypatch.setattr(limits, "LONGEST_TEXT", 100)
    monkeypatch.setattr(rows, "LONGEST_TEXT", 100)
    for module in (limits, json_rows, delimited):
        monkeypatch.setattr(module, "LONGEST_LINE", 500)
    for module in (limits, json_rows):
        monkeypatch.setattr(module, "MOST_VALUES", 40)


def written(path, content):
    raw = content.encode()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return str(path)


def lines(*texts):
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)


TOO_LARGE = {
    "a text of 101": "x" * 101,
    "a text of 400": "y" * 400,
    "a line": "z" * 2000,
    "a longer line": "z " * 10**6,
}


@pytest.mark.parametrize("large", TOO_LARGE)
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("form", [".jsonl", ".jsonl.gz", ".csv", ".csv.gz", ".tsv", ".tsv.gz"])
def test_a_row_that_is_too_large_is_named_and_the_others_are_read(tmp_path, form, place, large):
    texts = ["one", "two"]
    texts.insert(place, TOO_LARGE[large])
    body = lines(*texts) if form.startswith(".jsonl") else "".join(f"{one}\n" for one in ["text", *texts])
    found = list(Rows(written(tmp_path / f"a{form}", body), ("text",)).each())
    assert [one.values["text"] for one in found if isinstance(one, Row)] == ["one", "two"]
    (error,) = (one for one in found if isinstance(one, BadValue))
    assert found.index(error) == place and error.row == place + 1
    assert f"row {place + 1}" in str(error) and "too l" in str(error) + "too l" * ("CSV" in str(error))
    with pytest.raises(BadValue, match=f"row {place + 1}"):
        list(Rows(written(tmp_path / f"a{form}", body), ("text",)))


def test_a_text_of_the_largest_size_is_read(tmp_path):
    for form, body in ((".jsonl", lines("x" * 100)), (".csv", "text\n" + "x" * 100 + "\n")):
        (row,) = Rows(written(tmp_path / f"a{form}", body), ("text",))
        assert row.values["text"] == "x" * 100


@pytest.mark.parametrize("value", ["[" + "[]," * 60 + "0]", '{"a":' * 50 + "1" + "}" * 50, "[" + "0," * 60 + "0]"])
def test_a_line_of_too_many_values_is_named(tmp_path, value):
    path = written(tmp_path / "a.jsonl", f'{{"text": "one"}}\n{{"text": {value}}}\n')
    first, second = Rows(path, ("text",)).each()
    assert first.values["text"] == "one" and "too many values" in str(second) and second.row == 2


def test_two_columns_of_one_name_are_found_among_many(tmp_path, monkeypatch):
    """Every name was counted anew: 100,000 columns took minutes."""
    monkeypatch.setattr(delimited, "LONGEST_LINE", 10**8)
    names = [f"c{number}" for number in range(100_000)]
    with pytest.raises(DataError, match="two columns"):
        list(Rows(written(tmp_path / "a.csv", ",".join([*names, "c7"]) + "\n"), ("text",)))


class Column:
    def __init__(self, name, size, packed):
        self.path_in_schema, self.total_uncompressed_size, self.total_compressed_size = name, size, packed


class Group:
    def __init__(self, count, *columns):
        self.num_rows, self.num_columns, self.column = count, len(columns), columns.__getitem__


class Footer:
    def __init__(self, *groups):
        self.num_row_groups, self.row_group = len(groups), groups.__getitem__


FINE = Group(1000, Column("text", 10**5, 10**4), Column("other", 10**12, 10))


@pytest.mark.parametrize(
    "bad",
    [
        Group(1, Column("text", 2 * 10**9, 10**6)),
        Group(3, Column("text", 2000, 2000)),
        Group(10**9, Column("text", 2**29, 2**20)),
        Group(10**9, Column("text.list.element", 2**29, 2**20)),
    ],
)
def test_a_row_group_that_unpacks_to_too_much_is_named_unread(bad):
    limits.check_packing(Footer(FINE), ["text"], "a.parquet")
    with pytest.raises(DataError, match="rows 1,001 to"):
        limits.check_packing(Footer(FINE, bad), ["text"], "a.parquet")
    limits.check_packing(Footer(FINE, bad), ["label"], "a.parquet")


def test_a_text_of_parquet_that_is_too_large_is_named(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"text": ["one", "x" * 101, "two"]})
    parquet.write_table(table, tmp_path / "a.parquet")
    found = list(Rows(str(tmp_path / "a.parquet"), ("text",)).each())
    assert [isinstance(one, BadValue) for one in found] == [False, True, False]
    assert found[1].row == 2


INPUTS = {
    "a text": LONG,
    "a text in a tuple": (LONG,),
    "the first of a pair": (LONG, "b"),
    "the second of a pair": ("a", LONG),
    "a context": Passage(question="a", context=LONG),
    "a question": Passage(question=LONG, context="a"),
    "an option": Question(text="a", options=("b", LONG)),
    "the context of a question": Question(text="a", options=("b", "c"), context=LONG),
}


@cases("name", INPUTS)
def test_an_input_that_is_too_long_is_named(name):
    assert len(checked_inputs(["a", ("b", "c")])) == 2
    with pytest.raises(BadValue, match="input 1 is too long"):
        checked_inputs(["a", INPUTS[name]])
