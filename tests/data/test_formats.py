"""Tables of every format hold the same rows."""

import codecs
import csv
import gzip
import io
import json
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyhead.data.foreign import recoded, without_header
from polyhead.data.rows import Rows
from polyhead.data.tables import dialect
from polyhead.data.tables.dialect import SEPARATORS, delimiter_of
from polyhead.errors import BadValue, DataError, MissingExtra

TABLE = [["text", "label", "n"], ["a, b; c", "x", "1"], ['"quoted"\tand|barred', "y", "2.5"], ["ü\nline", "x", ""]]
NAMES = st.text("abcdefgh_ ", min_size=1, max_size=8).filter(str.strip)
CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12)


def table(rows, separator):
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=separator).writerows(rows)
    return file.getvalue()


def values(path):
    return [dict(row.values) for row in Rows(str(path), ())]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("separator", SEPARATORS)
def test_a_table_of_any_separator_is_read(tmp_path, separator, packed):
    raw = table(TABLE, separator).encode()
    path = tmp_path / ("x.csv.gz" if packed else "x.csv")
    path.write_bytes(gzip.compress(raw) if packed else raw)
    assert values(path) == [dict(zip(TABLE[0], row, strict=True)) for row in TABLE[1:]]


@settings(max_examples=150, deadline=None)
@given(data=st.data(), separator=st.sampled_from(SEPARATORS))
def test_what_the_csv_module_writes_reads_back(tmp_path_factory, data, separator):
    header = data.draw(st.lists(NAMES, min_size=2, max_size=5, unique=True))
    row = st.lists(CELLS, min_size=len(header), max_size=len(header))
    rows = data.draw(st.lists(row, min_size=1, max_size=8))
    path = tmp_path_factory.mktemp("sniffed") / "x.csv"
    path.write_bytes(table([header, *rows], separator).encode())
    assert [list(row.values()) for row in values(path)] == rows


@pytest.mark.parametrize(
    ("sample", "separator"),
    [
        ("a,b;c\n1,2;3\n", ","),
        ("a;b,c;d\n1;2;3\n4;5;6\n7;8;9\n", ";"),
        ("text|more\nplain\nlines\nalone\n", ","),
        ("text\na;b\nc;d\n", ","),
        ("a;b\n", ";"),
        ('"a;b",c\n', ","),
        ("", ","),
    ],
)
def test_a_comma_stands_unless_another_mark_fits_better(sample, separator):
    assert delimiter_of(sample, is_whole=True) == separator


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("separator", SEPARATORS)
def test_a_line_that_says_the_separator_is_no_header(tmp_path, separator, end):
    """As spreadsheets write it; it was read as the names of the columns."""
    for name, mark in (("x.csv", ""), ("y.csv", "\ufeff")):
        text = f"{mark}sep={separator}{end}" + table(TABLE, separator)
        (tmp_path / name).write_bytes(text.encode())
        assert values(tmp_path / name) == [dict(zip(TABLE[0], row, strict=True)) for row in TABLE[1:]]
    (tmp_path / "z.csv").write_text("sep=,text\na,b\n")
    assert values(tmp_path / "z.csv") == [{"sep=": "a", "text": "b"}]


def test_columns_without_a_name_may_be_several(tmp_path):
    (tmp_path / "x.csv").write_text("text,label,,\na,x,,\n,,,\n")
    assert [(row["text"], row["label"]) for row in values(tmp_path / "x.csv")] == [("a", "x"), ("", "")]
    (tmp_path / "y.csv").write_text("text,text\na,b\n")
    with pytest.raises(DataError, match="two columns of one name"):
        values(tmp_path / "y.csv")


def test_a_table_in_another_encoding_is_known_by_its_bytes(tmp_path):
    """Windows-1252 by bytes that are no UTF-8, unless only some of its letters are broken; UTF-16 is read as it is."""
    text = "text,label\nthé café – 5 €,x\n"
    (tmp_path / "x.csv").write_bytes(text.encode("cp1252"))
    table = recoded(str(tmp_path / "x.csv"))
    assert (table.content.decode(), set(table.letters)) == (text, set("é–€"))
    others = [text.encode(), b"", text.encode() + b"\xff", b"a\0\xe9", b"\x81\xe9", text.encode("utf-16")]
    for content in others:
        (tmp_path / "x.csv").write_bytes(content)
        assert recoded(str(tmp_path / "x.csv")) is None, content
    assert recoded(str(tmp_path / "gone.csv")) is None


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("mark, encoding", [(codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")])
def test_a_file_in_utf_16_is_read_as_the_same_in_utf_8(tmp_path, mark, encoding, packed):
    """`init` read such a table, and `predict` and `evaluate` refused it; so may a block end within a character."""
    text = "caf\U0001f600é," * 3000
    rows = [{"id": str(i), "text": text[i:]} for i in range(3)]
    contents = {
        "x.csv": "id,text\r\n" + "".join(f'{row["id"]},"{row["text"]}"\r\n' for row in rows),
        "x.tsv": "id\ttext\n" + "".join(f"{row['id']}\t{row['text']}\n" for row in rows),
        "x.jsonl": "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows),
        "x.json": json.dumps(rows, ensure_ascii=False),
    }
    for name, content in contents.items():
        raw = mark + content.encode(encoding)
        path = tmp_path / (name + ".gz" if packed else name)
        path.write_bytes(gzip.compress(raw) if packed else raw)
        assert [dict(row.values) for row in Rows(str(path))] == rows, name


@pytest.mark.parametrize("encoding", ["utf-32-le", "utf-32-be"])
def test_a_file_in_utf_32_is_refused(tmp_path, encoding):
    """Its mark begins as that of UTF-16, as which it was read."""
    path = tmp_path / "x.csv"
    path.write_bytes("\ufeffid,text\n1,good\n".encode(encoding))
    with pytest.raises(DataError, match="UTF-32.*Do: save it as UTF-8"):
        list(Rows(str(path)).each())


@pytest.mark.parametrize(
    "column, is_kept",
    [("id", True), ("row_id", True), ("docId", True), ("", True), ("said", False), ("monkey", False), ("paid", False)],
)
def test_the_first_cell_of_a_ragged_row_is_kept_where_its_column_names_rows(tmp_path, column, is_kept):
    path = tmp_path / "x.csv"
    path.write_text(f"{column},label\nlate, and bad,x\n")
    (fault,) = Rows(str(path)).each()
    assert bool(fault.kept) is is_kept


@pytest.mark.parametrize(
    ("head", "row", "kept"),
    [
        ("id,text", 'a7,the "lamp" is "late', None),
        ("id,text", 'a7,"the "lamp" is late', {"id": "a7"}),
        ("id;text", '"a7";"the" lamp', {"id": "a7"}),
        ("id,text", '"a, 7,"the" lamp', {}),
        ("said,text", 'a7,"the" lamp', {}),
    ],
    ids=["whole", "a bare cell", "a quoted cell", "broken in the cell", "no name of rows"],
)
def test_a_row_with_broken_quotes_keeps_its_name(tmp_path, head, row, kept):
    """Its error had no id, by which its answers are found again."""
    path = tmp_path / "x.csv"
    path.write_text(f"{head}\n{row}\n{row.replace('7', '8')}\n")
    rows = list(Rows(str(path)).each())
    assert [getattr(each, "kept", None) for each in rows][0] == kept
    assert len(rows) == 2


def test_faults_of_utf_16_are_said(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes("id,text\n1,good\n2,bad\n".encode("utf-16")[:-1])
    with pytest.raises(DataError, match="is not whole UTF-16.*Do: save the file again, as UTF-8"):
        list(Rows(str(path)).each())
    path.write_bytes("id,text\n1,go\ud800od\n2,bad\n".encode("utf-16", "surrogatepass"))
    broken, good = Rows(str(path)).each()
    assert "row 1: the record is not UTF-8" in str(broken) and dict(good.values) == {"id": "2", "text": "bad"}


HEADERLESS = [("the lamp is broken", "late"), ("where is my box", "late"), ("so very happy with it", "fine")] * 3


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        (HEADERLESS, ["text", "label"]),
        ([(label, text) for text, label in HEADERLESS], ["label", "text"]),
        ([(f"{i}", text, label) for i, (text, label) in enumerate(HEADERLESS)], ["column_1", "text", "label"]),
        ([("text", "late"), *HEADERLESS], None),  # a column that is called as a label of it
        ([("what the customer wrote", "label"), *HEADERLESS], None),
        ([("where is it", "late")], None),
        ([], None),
    ],
)
def test_a_table_without_a_header_gets_one(tmp_path, rows, names):
    (tmp_path / "x.csv").write_text(table(rows, ","))
    read_rows = without_header(str(tmp_path / "x.csv"))
    assert read_rows == (None if names is None else [dict(zip(names, row, strict=True)) for row in rows])


def test_a_cut_last_record_does_not_count():
    assert delimiter_of("a;b;c\n1;2", is_whole=False) == ";"


def test_escapes_of_a_table_are_seen_wherever_a_file_is_cut(monkeypatch):
    """NULL is a whole cell, and a quote after a backslash stands inside a cell."""
    escaped = [b"text,label\na,\\N\n", b"a,\\N", b"\\N;a\n", b'"say \\"no",x\n', b"a\t\\N\r\n"]
    plain = [b"text,label\na,x\\N\n", b"a,\\Name\n", b'"C:\\",x\n', b'"x\\""y",x\n', b"", b"\\alpha,b\\N"]
    for size in (1, 2, 3, 5, 100):
        monkeypatch.setattr(dialect, "_BLOCK", size)
        assert all(dialect.has_escapes(io.BytesIO(content)) for content in escaped)
        assert not any(dialect.has_escapes(io.BytesIO(content)) for content in plain)


def test_json_arrays_and_lines_are_read_alike(tmp_path):
    rows = [{"text": "a", "label": ["x"]}, {"text": "ü", "n": 1}]
    (tmp_path / "a.json").write_text("\n " + json.dumps(rows, indent=1))
    (tmp_path / "b.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "c.json.gz").write_bytes(gzip.compress(json.dumps(rows).encode("utf-8-sig")))
    assert [values(tmp_path / name) for name in ("a.json", "b.json", "c.json.gz")] == [rows] * 3


@pytest.mark.parametrize("content", ["[", "[1,", '[{"a": 1}] x', "[" * 100_000])
def test_a_broken_array_is_named(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(DataError, match="no JSON array"):
        values(tmp_path / "a.json")


TWICE = ('[{"a": 1},\n {"b": 1, "b": 2}]', '{"data":\n[{"b": 1, "b": 1}]}', '{"b": [1], "b": [2]}')


@pytest.mark.parametrize("content", TWICE)
def test_a_key_twice_in_an_object_is_refused(tmp_path, content):
    """The last value was read, and the others were lost without a word."""
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(DataError, match=r"a.json: an object names a key twice. Got: b"):
        values(tmp_path / "a.json")
    (tmp_path / "b.jsonl").write_text('{"b": 1}\n' + content.replace("\n", ""))
    with pytest.raises(BadValue, match=r"b.jsonl row 2: an object names a key twice. Got: b"):
        values(tmp_path / "b.jsonl")


def test_a_value_of_an_array_that_is_no_object_is_named_by_its_number(tmp_path):
    (tmp_path / "a.json").write_text('[{"a": 1}, 2]')
    with pytest.raises(BadValue, match="row 2"):
        values(tmp_path / "a.json")


def workbook(path, rows):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    book.save(path)
    return path


def test_a_sheet_is_read_as_its_csv(tmp_path):
    import datetime

    rows = [["text", "label", None, "n"], ["a", True, "no name", 1], [None] * 4, ["b", "x", None, 2.5]]
    rows += [["c", datetime.date(2024, 5, 6), None, 3.0]]
    read = values(workbook(tmp_path / "x.xlsx", rows))
    assert [list(row) for row in read] == [["text", "label", "n"]] * 3
    assert [row["n"] for row in read] == ["1", "2.5", "3"]
    assert [row["label"] for row in read][:2] == ["true", "x"]
    assert read[2]["label"].startswith("2024-05-06")


def test_sheets_that_cannot_be_read_are_named(tmp_path, monkeypatch):
    (tmp_path / "x.xlsx").write_text("text,label\n")
    with pytest.raises(DataError, match=r"no \.xlsx workbook"):
        values(tmp_path / "x.xlsx")
    with pytest.raises(DataError, match="two columns of one name"):
        values(workbook(tmp_path / "y.xlsx", [["a", "a"], [1, 2]]))
    assert values(workbook(tmp_path / "z.xlsx", [])) == []
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(MissingExtra, match=r"polyhead\[xlsx\]"):
        values(tmp_path / "y.xlsx")


def test_a_workbook_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    from polyhead.data.tables import sheet as sheets

    path = workbook(tmp_path / "x.xlsx", [["text"], ["a"]])
    monkeypatch.setattr(sheets, "LARGEST", 10)
    with pytest.raises(DataError, match="too large"):
        values(path)


@pytest.mark.parametrize(
    ("name", "raw", "said"),
    [
        ("x.csv", b"PK\x03\x04\x14\x00\xff\x96\n", "zip archive.*Do: name it .xlsx"),  # it was "not UTF-8", all shown
        ("x.xls", b"\xd0\xcf\x11\xe0", "not known by its name.*Do: save it as .xlsx or .csv"),
    ],
    ids=["workbook", "old workbook"],
)
def test_a_workbook_of_another_name_is_told_what_to_be(tmp_path, name, raw, said):
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(DataError, match=said):
        list(Rows(str(tmp_path / name)).each())
