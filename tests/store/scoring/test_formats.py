"""Rows in and out: each format, what its values become, and rows that cannot be read."""

import csv
import datetime
import decimal
import io
import itertools
import json

import pytest

from polyhead.data.rows import open_file
from polyhead.data.tables import parquet as tables
from polyhead.data.tables.written import text_of_cell
from polyhead.engine.inputs import Passage
from polyhead.errors import ConfigError, DataError
from polyhead.text.prefix import LONGEST_TEXT
from polyhead.text.question import Question
from support.cases import cases
from support.scoring_files import read, run, texts, write

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

INPUTS = (".jsonl", ".jsonl.gz", ".csv", ".csv.gz", ".tsv", ".parquet")
OUTPUTS = (".jsonl", ".jsonl.gz", ".csv", ".csv.gz", ".parquet")


def pairings():
    """Every format of each side at least once, and all plain ones with each other."""
    plain = set(itertools.product((".jsonl", ".csv", ".parquet"), repeat=2))
    return sorted(plain | {(".jsonl.gz", ".csv.gz"), (".csv.gz", ".jsonl.gz"), (".tsv", ".jsonl")})


@pytest.mark.parametrize(("given", "wanted"), pairings())
def test_every_format_gives_the_sessions_answers_in_order(session, tmp_path, given, wanted):
    rows = texts(7)
    source, out = write(tmp_path / f"in{given}", rows), tmp_path / f"out{wanted}"
    done = run(session, source, out, tasks=("mood", "topics", "urgency"))
    results = session.predict([row["text"] for row in rows], tasks=("mood", "topics", "urgency"))
    found = read(out)
    assert [str(row["id"]) for row in found] == [str(row["id"]) for row in rows]
    assert [row["text"] for row in found] == [row["text"] for row in rows]
    for row, result in zip(found, results, strict=True):
        topics = json.loads(row["topics"]) if ".csv" in wanted else row["topics"]
        assert row["mood"] == result.answers["mood"]["label"]
        assert topics == result.answers["topics"]["labels"]
        assert float(row["urgency"]) == pytest.approx(result.answers["urgency"]["value"], abs=1e-6)
        assert not row.get("error")
    assert (done.counts.rows, done.counts.errors, done.counts.passes) == (7, 0, 7)
    assert done.counts.tokens == sum(result.receipt.tokens for result in results)


@pytest.mark.parametrize("given", INPUTS)
def test_a_file_is_read_on_from_any_row(tmp_path, given):
    rows = texts(11)
    source = open_file(str(write(tmp_path / f"in{given}", rows)))
    assert source.survey(lambda text: None).rows == 11
    for start, size in itertools.product((0, 1, 3, 4, 10, 11), (1, 3, 4, 20)):
        chunks = list(source.chunks(("text",), start=start, size=size))
        found = [row["text"] for chunk in chunks for row in chunk.kept(("text",))]
        assert found == [row["text"] for row in rows[start:]]
        assert all(len(chunk) == size for chunk in chunks[:-1])


def test_each_form_of_input_is_answered_by_the_tasks_that_fit_it(session, tmp_path):
    context = "anna was late today. ben is good"
    rows = [
        {"text": "the lamp is good"},
        {"text": "the lamp is good", "text_b": "the box is bad"},
        {"question": "who is good?", "context": context},
        {"question": "who is good?", "options": ["anna", "ben", "you"]},
        {"tokens": ["the", "lamp"]},
        {"text_a": "the lamp is good"},
    ]
    inputs = [
        ("the lamp is good",),
        ("the lamp is good", "the box is bad"),
        Passage(question="who is good?", context=context),
        Question(text="who is good?", options=("anna", "ben", "you")),
        ("the lamp",),
        ("the lamp is good",),
    ]
    run(session, write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl", kept=(), scores=True)
    run(session, write(tmp_path / "in.csv", rows), tmp_path / "out.csv", kept=(), scores=True)
    run(session, tmp_path / "in.jsonl", tmp_path / "out.parquet", kept=(), scores=True)
    found, cells, table_rows = (read(tmp_path / f"out{e}") for e in (".jsonl", ".csv", ".parquet"))
    seen = set()
    for at, result in enumerate(session.predict(inputs)):
        for name, answer in result.answers.items():
            seen.add(name)
            kind = session.tasks[name].kind
            value = {
                "single_label": lambda a: a["label"],
                "multi_label": lambda a: a["labels"],
                "regression": lambda a: a["value"],
                "tagging": lambda a: a["spans"],
                "multiple_choice": lambda a: a["ranked"],
                "span": lambda a: a,
            }[kind](answer)
            assert close(found[at][name], value)
            as_json = kind in ("tagging", "span")
            assert close(json.loads(table_rows[at][name]) if as_json else table_rows[at][name], value)
            cell = cells[at][name]
            assert close(cell if isinstance(value, str) else json.loads(cell), value)
            if kind in ("single_label", "multi_label", "multiple_choice"):
                assert close(found[at][f"{name}.scores"], answer["scores"])
                assert close(json.loads(cells[at][f"{name}.scores"]), answer["scores"])
                assert close(table_rows[at][f"{name}.scores"], answer["scores"])
        for name in result.skipped:
            assert found[at][name] is None and cells[at][name] == "" and table_rows[at][name] is None
    assert seen == set(session.tasks)


def close(one, other):
    """Equal, but for the last bits of numbers: other rows were in the batch."""
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(close(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(close, one, other))
    return one == pytest.approx(other, abs=1e-5) if isinstance(other, float) else one == other


STRANGE = (
    'two\nlines, "quoted"',
    "carriage\rreturn",
    "both\r\nends",
    "line\u2028separator",
    "👩‍👩‍👧 ünïcode",
    " spaces ",
    "a\tb",
    "=1+1",
)


@pytest.mark.parametrize(("given", "wanted"), sorted(itertools.product((".jsonl", ".csv", ".parquet"), repeat=2)))
def test_strange_characters_come_through_every_format(session, tmp_path, given, wanted):
    rows = [{"note": text, "text": f"{text} lamp"} for text in STRANGE]
    out = tmp_path / f"out{wanted}"
    run(session, write(tmp_path / f"in{given}", rows), out, tasks=("mood",))
    assert [{"note": row["note"], "text": row["text"]} for row in read(out)] == rows
    assert all(row["mood"] in ("good", "bad") for row in read(out))


def test_rows_that_cannot_be_read_have_the_reason_and_all_others_are_answered(session, tmp_path):
    lines = [
        b'{"text": "the lamp is good", "id": 1}',
        b"{broken",
        b"\xff\xfe",
        b"[1]",
        b'{"text": 5, "id": 5}',
        b'{"text": null}',
        b'{"other": "x"}',
        b'{"text": "  "}',
        b'{"text": "a", "text_b": "b"}',
        b'{"text": "good", "more": {"n": 1, "n": 2}}',
        b"",
        b'{"text": "the box is bad", "id": 11}',
    ]
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"\n".join(lines))
    done = run(session, source, tmp_path / "out.jsonl", tasks=("mood",))
    found = read(tmp_path / "out.jsonl")
    assert len(found) == 11  # the blank line is none
    reasons = [row.get("error") for row in found]
    assert reasons[0] is None and reasons[10] is None and found[10]["id"] == 11
    expected = (
        "row 2: the line is not JSON",
        "row 3: the line is not UTF-8",
        "row 4: the row is not a JSON object",
        "row 5: column 'text' must hold a string. Got: 5",
        "row 6: column 'text' is empty",
        "row 7: column 'text' is empty",
        "the text is empty",
        "this task reads one text, a pair was given",
        "row 10: an object names a key twice. Got: n",
    )
    for reason, said in zip(reasons[1:10], expected, strict=True):
        assert said in reason
    assert all(row["mood"] is None for row in found[1:10])
    assert (done.counts.errors, done.counts.unanswered, done.counts.passes) == (9, {"mood": 9}, 2)


def test_a_blank_line_between_two_kinds_of_line_end_counts(session, tmp_path):
    """CR CR LF ends two lines; it was taken for the end of one."""
    source = tmp_path / "in.jsonl"
    source.write_bytes(b'{"text": "good"}\r\r\n{"text": "bad"}\r{broken\r\n\r\r\n[1]')
    run(session, source, tmp_path / "out.jsonl", tasks=("mood",))
    errors = [row["error"] for row in read(tmp_path / "out.jsonl") if "error" in row]
    assert [error.split(":")[0] for error in errors] == ["in.jsonl row 4", "in.jsonl row 7"]


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_a_table_in_utf_16_is_answered(session, tmp_path, ending, encoding):
    """It was refused, where `init` read it."""
    content = "\ufeffid\ttext\r\n1\tthe lamp\r\n"
    (tmp_path / f"in{ending}").write_bytes(content.encode(encoding))
    (tmp_path / f"same{ending}").write_bytes(content.encode())
    for name in ("in", "same"):
        run(session, tmp_path / f"{name}{ending}", tmp_path / f"{name}.out.csv", tasks=("mood",))
    assert read(tmp_path / "in.out.csv") == read(tmp_path / "same.out.csv")


def test_a_header_that_is_not_utf8_is_shown(session, tmp_path):
    source = tmp_path / "in.csv"
    source.write_bytes(b"id,t\xe9xt\n1,a\n")
    with pytest.raises(DataError, match="header of .* is not UTF-8. Got: id, t.*xt. Do: save the file as UTF-8"):
        run(session, source, tmp_path / "out.csv", tasks=("mood",))


def test_records_that_are_not_csv_have_the_reason(session, tmp_path):
    source = tmp_path / "in.csv"
    source.write_bytes(b'id,text\n1,good\n2,"a"b\n3,x,y\n4,\n5,\xff\n6,"two\nlines"\n7,"open\n8,bad\n')
    run(session, source, tmp_path / "out.csv", tasks=("mood",))
    found = read(tmp_path / "out.csv")
    assert [row["id"] for row in found] == [str(number) for number in range(1, 9)]
    assert [bool(row["mood"]) for row in found] == [True, False, False, False, False, True, False, True]
    said = ("", "row 2: the record is not CSV", "a different number of columns", "column 'text' is empty", "not UTF-8")
    for row, piece in zip(found, (*said, "", "row 7: the record is not CSV", ""), strict=True):
        assert piece in row["error"] and bool(piece) == bool(row["error"])


def test_a_quote_that_is_never_closed_costs_its_own_line_alone(session, tmp_path):
    """It swallowed all lines up to the next quote, and these rows were nowhere."""
    source = tmp_path / "in.csv"
    lines = ['1,"open', "2,the lamp is good", "3,the box is late", '4,"a bill"', '5,"two\nlines"', "6,bad"]
    source.write_text("\n".join(["id,text", *lines, ""]))
    run(session, source, tmp_path / "out.csv", tasks=("mood",))
    found = read(tmp_path / "out.csv")
    assert [row["id"] for row in found] == [str(number) for number in range(1, 7)]
    assert "row 1: the record is not CSV" in found[0]["error"] and all(row["mood"] for row in found[1:])


def test_a_blank_line_of_one_column_is_a_row_unless_it_is_the_last(session, tmp_path):
    """An empty text is written so; it was dropped, and what stood below it moved up."""
    source = tmp_path / "in.csv"
    source.write_text("text\nthe lamp\n\n\nthe box\n\n")
    run(session, source, tmp_path / "out.csv", tasks=("mood",))
    found = read(tmp_path / "out.csv")
    assert [row["text"] for row in found] == ["the lamp", "", "", "the box"]
    assert [bool(row["error"]) for row in found] == [False, True, True, False]


def test_deep_values_with_lone_surrogates_are_written(session, tmp_path):
    deep = "[" * 600 + '"\\ud800"' + "]" * 600
    (tmp_path / "in.jsonl").write_text('{"text": "the lamp", "more": ' + deep + "}\n")
    run(session, tmp_path / "in.jsonl", tmp_path / "out.jsonl", tasks=("mood",))
    (found,) = read(tmp_path / "out.jsonl")
    assert found["mood"] and json.dumps(found["more"]) == deep.replace("\\ud800", "\\ufffd")


def test_a_quote_that_is_never_closed_swallows_no_more_than_the_limit(session, tmp_path, monkeypatch):
    from polyhead.data.tables import delimited as module

    kept = csv.field_size_limit(40)
    monkeypatch.setattr(module, "CELL_LIMIT", 40)
    try:
        source = tmp_path / "in.csv"
        source.write_text('id,text\n0,"open\n' + "".join(f"{i},the lamp is good\n" for i in range(1, 9)))
        run(session, source, tmp_path / "out.csv", tasks=("mood",))
    finally:
        csv.field_size_limit(kept)
    found = read(tmp_path / "out.csv")
    assert "field larger than field limit" in found[0]["error"]
    assert [row["id"] for row in found] == list(map(str, range(9)))
    assert all(row["mood"] for row in found[1:])


def test_types_of_parquet_are_kept(session, tmp_path):
    moment = datetime.datetime(2024, 5, 17, 12, 30, 0, 1)
    made = pyarrow.table(
        {
            "text": pyarrow.array(["good", "bad", None, "late"], pyarrow.large_string()),
            "code": pyarrow.array(["a", "b", "a", None]).dictionary_encode(),
            "when": pyarrow.array([1, 2, 3, None], pyarrow.timestamp("ns", "UTC")),
            "day": pyarrow.array([moment] * 4, pyarrow.timestamp("us")),
            "price": pyarrow.array([decimal.Decimal("1.10")] * 4),
            "raw": pyarrow.array([b"\x00\xff"] * 4),
            "items": pyarrow.array([[{"x": 1}], [], None, [{"x": None}]]),
            "size": pyarrow.array([1, 2, 3, 4], pyarrow.int8()),
            "ratio": pyarrow.array([0.5, float("nan"), float("inf"), None]),
        }
    )
    parquet.write_table(made, tmp_path / "in.parquet", row_group_size=3)
    endings = (".parquet", ".jsonl", ".csv")
    done = [run(session, tmp_path / "in.parquet", tmp_path / f"out{ending}", tasks=("mood",)) for ending in endings]
    assert [each.counts.nulled for each in done] == [0, 2, 2]
    whole = parquet.read_table(tmp_path / "out.parquet")
    assert whole.column_names == [*made.column_names, "mood", "error"]
    for name in made.column_names:
        wanted = made.column(name)
        if name == "code":
            wanted = wanted.cast(pyarrow.string())
        assert whole.schema.field(name).type == wanted.type
        if name != "ratio":  # NaN is not itself
            assert whole.column(name).combine_chunks().equals(wanted.combine_chunks()), name
    row, third = read(tmp_path / "out.jsonl")[0], read(tmp_path / "out.jsonl")[2]
    assert {key: row[key] for key in made.column_names} == {
        "text": "good",
        "code": "a",
        "when": "1970-01-01 00:00:00.000000001Z",
        "day": "2024-05-17T12:30:00.000001",
        "price": "1.10",
        "raw": "AP8=",
        "items": [{"x": 1}],
        "size": 1,
        "ratio": 0.5,
    }
    assert third["ratio"] is None and "row 3: column 'text' is empty" in third["error"]
    cells = read(tmp_path / "out.csv")[0]
    assert (cells["day"], cells["items"], cells["size"]) == ("2024-05-17T12:30:00.000001", '[{"x":1}]', "1")


def test_types_of_json_become_those_of_parquet(session, tmp_path):
    rows = [
        {"text": "good", "n": 1, "x": 1, "b": True, "l": [1], "m": 1, "big": 2**70, "none": None},
        {"text": "bad", "n": None, "x": 0.5, "b": False, "l": {"a": "ü"}, "m": "one", "big": 1},
        {"text": "late", "later": "here"},
    ]
    run(session, write(tmp_path / "in.jsonl", rows), tmp_path / "out.parquet", tasks=("mood",))
    found = parquet.read_table(tmp_path / "out.parquet")
    types = {field.name: str(field.type) for field in found.schema}
    assert types == {
        "text": "string",
        "n": "int64",
        "x": "double",
        "b": "bool",
        "l": "string",
        "m": "string",
        "big": "string",
        "none": "string",
        "later": "string",
        "mood": "string",
        "error": "string",
    }
    assert found.column("l").to_pylist() == ["[1]", '{"a":"ü"}', None]
    assert found.column("m").to_pylist() == ["1", "one", None]
    assert found.column("big").to_pylist() == [str(2**70), "1", None]
    assert found.column("x").to_pylist() == [1.0, 0.5, None]
    assert found.column("later").to_pylist() == [None, None, "here"]


@pytest.mark.parametrize("large", [2**53 + 1, -(2**53) - 1, 2**63 - 1], ids=["above", "below", "largest"])
def test_numbers_that_no_column_of_parquet_holds_are_text(session, tmp_path, large):
    """It was a fault of polyhead itself, after a finished piece."""
    rows = [{"text": "good", "n": 1.5, "m": 0.5}, {"text": "bad", "n": 1, "m": 2**53}, {"text": "late", "n": large}]
    source = write(tmp_path / "in.jsonl", rows)
    run(session, source, tmp_path / "out.parquet", tasks=("mood",), piece_rows=1)
    found = parquet.read_table(tmp_path / "out.parquet")
    assert found.column("n").to_pylist() == ["1.5", "1", str(large)]
    assert found.column("m").to_pylist() == [0.5, float(2**53), None]
    write(source, [{"text": "good", "n": 1}, {"text": "bad", "n": large}])
    run(session, source, tmp_path / "out.parquet", tasks=("mood",), piece_rows=1)
    assert parquet.read_table(tmp_path / "out.parquet").column("n").to_pylist() == [1, large]


def test_pieces_are_joined_into_large_row_groups(session, tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "GROUP_ROWS", 6)
    source, out = write(tmp_path / "in.jsonl", texts(20)), tmp_path / "out.parquet"
    run(session, source, out, tasks=("mood",), piece_rows=4)
    footer = parquet.ParquetFile(out).metadata
    assert [footer.row_group(at).num_rows for at in range(footer.num_row_groups)] == [8, 8, 4]


def test_lone_surrogates_are_replaced_and_counted(session, tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "the \\ud800 lamp", "more": [{"\\udfff": "\\ud800"}]}\n{"text": "a", "\\udfff": 1}\n')
    for ending in (".jsonl", ".csv", ".parquet"):
        done = run(session, source, tmp_path / f"out{ending}", tasks=("mood",))
        assert done.counts.repaired == 1
        row, nameless = read(tmp_path / f"out{ending}")
        assert row["text"] == "the \ufffd lamp"
        assert row["more"] == ([{"\ufffd": "\ufffd"}] if ending == ".jsonl" else '[{"\ufffd":"\ufffd"}]')
        assert "row 2: a column's name is no text" in nameless["error"]


def test_a_long_text_is_cut_and_counted(session, tmp_path):
    done = run(session, write(tmp_path / "in.csv", [{"text": "lamp " * 1000}]), tmp_path / "out.csv", tasks=("mood",))
    assert (done.counts.errors, done.counts.tokens) == (0, 48) and done.counts.cut == 1000 - 46


def test_columns_are_kept_as_asked_and_added_ones_named(session, tmp_path):
    source = write(tmp_path / "in.csv", [{"id": 1, "text": "good", "mood": "x", "error": "y"}])
    run(session, source, tmp_path / "a.csv", tasks=("mood",), kept=("mood", "id"), prefix="our ")
    assert list(read(tmp_path / "a.csv")[0]) == ["mood", "id", "our mood", "our error"]
    run(session, source, tmp_path / "b.jsonl", tasks=("mood",), kept=())
    assert list(read(tmp_path / "b.jsonl")[0]) == ["mood"]


def test_records_that_we_write_are_those_of_the_csv_module():
    from polyhead.data.tables.delimited import record_bytes

    rows = [["a", "b,c"], ['q"q', "x\ny"], ["x\ry", ""], [""], ["", ""]]
    raw = b"".join(map(record_bytes, rows)).decode()
    assert list(csv.reader(io.StringIO(raw, newline=""))) == rows
    assert "\r\n" not in raw


@cases(
    ("value", "text"),
    [
        ("a", "a"),
        (1, "1"),
        (True, "true"),
        (0.5, "0.5"),
        ([1, "ü"], '[1,"ü"]'),
        (datetime.date(2024, 5, 17), "2024-05-17"),
        (b"\x00", "AA=="),
        (2**80, str(2**80)),
    ],
)
def test_values_as_cells(value, text):
    assert text_of_cell(value) == text


def test_numbers_that_are_not_finite_are_null_in_every_format(session, tmp_path):
    """In cells of CSV, and in strings of Parquet, they were the text `null`."""
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "good", "x": NaN, "mixed": -Infinity}\n{"text": "bad", "x": 1e400, "mixed": "null"}\n')
    endings = (".jsonl", ".csv", ".parquet")
    done = [run(session, source, tmp_path / f"out{ending}", tasks=("mood",)) for ending in endings]
    assert [each.counts.nulled for each in done] == [3, 3, 1]  # of Parquet only what it has as JSON
    cells, values, rows = (read(tmp_path / f"out{ending}") for ending in (".csv", ".jsonl", ".parquet"))
    assert [(row["x"], row["mixed"]) for row in cells] == [("", ""), ("", "null")]
    assert [(row["x"], row["mixed"]) for row in values] == [(None, None), (None, "null")]
    assert [row["mixed"] for row in rows] == [None, "null"]
    assert str(rows[0]["x"]) == "nan" and rows[1]["x"] == float("inf")


def test_durations_are_texts_outside_of_parquet(session, tmp_path):
    """In nanoseconds they could not be written at all, in microseconds they are what they were."""
    nanoseconds = [90_061_500_000_001, -1_500_000_000, 0, None]
    made = pyarrow.table(
        {
            "text": ["good", "bad", "late", "lamp"],
            "ns": pyarrow.array(nanoseconds, pyarrow.duration("ns")),
            "us": pyarrow.array([datetime.timedelta(days=3), None, None, None], pyarrow.duration("us")),
            "s": pyarrow.array([2**62, -1, 86_400, None], pyarrow.duration("s")),
        }
    )
    parquet.write_table(made, tmp_path / "in.parquet")
    for ending in (".parquet", ".jsonl", ".csv"):
        run(session, tmp_path / "in.parquet", tmp_path / f"out{ending}", tasks=("mood",))
    found, cells = read(tmp_path / "out.jsonl"), read(tmp_path / "out.csv")
    assert [row["ns"] for row in found] == ["P1DT3661.500000001S", "-PT1.5S", "P0D", None]
    days, seconds = divmod(2**62, 86_400)
    assert [row["s"] for row in found] == [f"P{days}DT{seconds}S", "-PT1S", "P1D", None]
    assert found[0]["us"] == "P3D" and [row["ns"] for row in cells][-2:] == ["P0D", ""]
    assert parquet.read_table(tmp_path / "out.parquet").column("ns").equals(made.column("ns"))


@pytest.mark.parametrize("unit", ["ms", "us"])
def test_durations_are_written_as_those_of_python_are(unit):
    for count in (0, 1, -1, 999, -1500, 86_400_000, 3_661_000_001, -90_061_000_005):
        array = pyarrow.array([count], pyarrow.duration(unit))
        chunk = tables.ArrowChunk(pyarrow.table({"d": array}), "in.parquet", 0)
        assert chunk.kept(("d",)) == [{"d": text_of_cell(array.to_pylist()[0])}]


def test_a_column_that_cannot_be_a_text_is_left_out_as_the_error_says(session, tmp_path):
    """The second command was refused: the first had left a job without a piece."""
    ones = pyarrow.array([1, 2])
    twins = pyarrow.StructArray.from_arrays([ones, ones], ["x", "x"])
    parquet.write_table(pyarrow.table({"text": ["good", "bad"], "twins": twins}), tmp_path / "in.parquet")
    source, out = tmp_path / "in.parquet", tmp_path / "out.jsonl"
    with pytest.raises(DataError, match="column 'twins'.*cannot be written as text.*--keep"):
        run(session, source, out, tasks=("mood",))
    assert [path.name for path in tmp_path.iterdir()] == ["in.parquet"]
    run(session, source, out, tasks=("mood",), kept=("text",))
    assert [row["text"] for row in read(out)] == ["good", "bad"]


def test_a_damaged_page_is_said_and_leaves_nothing(session, tmp_path):
    source = tmp_path / "in.parquet"
    rows = pyarrow.table({"text": [f"the lamp {i} {i * 7919 % 101}" for i in range(2000)]})
    parquet.write_table(rows, source, use_dictionary=False)
    raw = bytearray(source.read_bytes())
    raw[200:260] = b"\xff" * 60
    source.write_bytes(raw)
    with pytest.raises(DataError, match="cannot read .*in.parquet"):
        run(session, source, tmp_path / "out.jsonl", tasks=("mood",))
    assert [path.name for path in tmp_path.iterdir()] == ["in.parquet"]


def test_a_column_whose_name_holds_a_comma_is_kept(session, tmp_path):
    """It was taken for two columns."""
    rows = [{"id": 1, "price, EUR": 5, "text": "good"}]
    source, out = write(tmp_path / "in.jsonl", rows), tmp_path / "out.csv"
    for kept, wanted in (
        (("price, EUR",), ["price, EUR"]),
        (("price, EUR", "text , id"), ["price, EUR", "text", "id"]),
    ):
        run(session, source, out, tasks=("mood",), kept=kept)
        assert list(read(out)[0]) == [*wanted, "mood", "error"]
    for kept, said in (("id,price, EUR", "no column 'price', 'EUR' to keep.*of its own"), (",", "no column ','")):
        with pytest.raises(ConfigError, match=said):
            run(session, source, out, tasks=("mood",), kept=(kept,))


def test_the_command_keeps_such_a_column_too(bundle, tmp_path):
    from click.testing import CliRunner

    from polyhead.cli.score import command

    source = write(tmp_path / "in.jsonl", [{"id": 1, "price, EUR": 5, "text": "good"}])
    words = [bundle.root, source, tmp_path / "out.csv", "--tasks", "mood", "--backend", "reference"]
    words += ["--keep", "price, EUR", "--keep", "text,id"]
    done = CliRunner().invoke(command, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    assert list(read(tmp_path / "out.csv")[0]) == ["price, EUR", "text", "id", "mood", "error"]


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".parquet"])
def test_a_row_that_cannot_be_read_keeps_its_id(session, tmp_path, ending):
    """A row with a cell too many or too few had the reason alone, so that nobody could tell which row it was."""
    if ending == ".parquet":
        pytest.importorskip("pyarrow.parquet")
    source = tmp_path / "in.csv"
    records = b"7,the lamp,en\n8,late, and bad,en\n9,late\n,a,b,c\n10,l\xe9,en\n\xe9,a,b,c\n"
    source.write_bytes(b"ticket_id,text,lang\n" + records)
    run(session, source, tmp_path / f"out{ending}", tasks=("mood",))
    rows = read(tmp_path / f"out{ending}")
    assert [row.get("ticket_id") or None for row in rows] == ["7", "8", "9", None, "10", None]
    assert [bool(row.get("error")) for row in rows] == [False, True, True, True, True, True]
    assert [row.get("lang") or None for row in rows] == ["en", None, None, None, "en", None]
    assert [row.get("text") or None for row in rows] == ["the lamp"] + [None] * 5


def test_a_row_whose_text_is_too_long_keeps_what_else_it_holds(session, tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps({"text": "a" * (LONGEST_TEXT + 1), "id": 5}) + '\n{"text": "good", "id": 6}\n')
    run(session, source, tmp_path / "out.jsonl", tasks=("mood",))
    long, good = read(tmp_path / "out.jsonl")
    assert long.keys() == {"id", "mood", "error"} and (long["id"], good["id"]) == (5, 6)


def test_the_first_cell_of_a_ragged_row_is_kept_only_where_its_column_says_which_row_it_is(session, tmp_path):
    """A text that is cut at its comma would look like the text."""
    source = tmp_path / "in.csv"
    source.write_text("text,id\nlate, and bad,8\ngood,9\n")
    run(session, source, tmp_path / "out.jsonl", tasks=("mood",))
    ragged, _ = read(tmp_path / "out.jsonl")
    assert ragged.keys() == {"mood", "error"}
