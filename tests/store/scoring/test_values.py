"""Arrays of pyarrow as plain values: those of pyarrow, and texts for what Python has no value for."""

import datetime

import pytest

from polyhead.data.tables.arrow import values_of
from polyhead.data.tables.written import text_of_cell
from support.cases import cases
from support.scoring_files import read, run

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

TEXT, WHOLE = pyarrow.string(), pyarrow.int64()
LISTS = [[7], [1], None, [], [2, None]]
# One row of them has entries, and is null all the same.
HIDDEN = [False, True, False]


def plain_arrays():
    places = pyarrow.array([0, 1, None, 3], pyarrow.int32())
    return {
        "list": pyarrow.array(LISTS, pyarrow.list_(WHOLE)),
        "large_list": pyarrow.array(LISTS, pyarrow.large_list(WHOLE)),
        "list_view": pyarrow.array(LISTS, pyarrow.list_view(WHOLE)),
        "fixed": pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(range(6)), 2, mask=pyarrow.array(HIDDEN)),
        "map": pyarrow.array([[("z", 0)], [("a", 1)], None, [], [("b", 2), ("b", None)]], pyarrow.map_(TEXT, WHOLE)),
        "map_with_null": pyarrow.MapArray.from_arrays(places, pyarrow.array(["a", "b", "c"]), pyarrow.array([1, 2, 3])),
        "struct": pyarrow.StructArray.from_arrays([pyarrow.array([1, 2, None])], ["x"], mask=pyarrow.array(HIDDEN)),
        "no_fields": pyarrow.array([{}, None], pyarrow.struct([])),
        "deep": pyarrow.array([[{"x": ["a"]}], [], None, [{"x": None}, None]]),
        "codes": pyarrow.array(["a", "b", None, "a"]).dictionary_encode(),
        "codes_in_lists": pyarrow.array([["a"], None], pyarrow.list_(pyarrow.dictionary(WHOLE, TEXT))),
        "null": pyarrow.nulls(3),
        "bytes": pyarrow.array([b"\xff", None]),
        "days": pyarrow.array([[datetime.date(2024, 5, 17)], None], pyarrow.list_(pyarrow.date32())),
        "moments": pyarrow.array([0, 1, None], pyarrow.timestamp("us", "Europe/Berlin")),
        "times": pyarrow.array([0, 86_399_999, None], pyarrow.time32("ms")),
    }


@cases("name", list(plain_arrays()))
def test_ordinary_values_are_those_of_pyarrow_from_any_row_on(name):
    array = plain_arrays()[name]
    for start in range(len(array) + 1):
        for end in range(start, len(array) + 1):
            assert values_of(array[start:end]) == array[start:end].to_pylist()


FAR = 10**15  # milliseconds: the year 33,658
STRANGE = {
    "late_day": (pyarrow.array([0, 2_932_897], pyarrow.date32()), ["1970-01-01", "10000-01-01"]),
    "no_day": (pyarrow.array([0, 2**31 - 1], pyarrow.date32()), ["1970-01-01", f"<value out of range: {2**31 - 1}>"]),
    "early": (
        pyarrow.array([0, -62_135_596_801_000], pyarrow.timestamp("ms")),
        ["1970-01-01T00:00:00", "0000-12-31 23:59:59.000"],
    ),
    "far": (pyarrow.array([0, FAR], pyarrow.timestamp("ms")), ["1970-01-01T00:00:00", f"<value out of range: {FAR}>"]),
    "nested_nanoseconds": (
        pyarrow.array([[1], None], pyarrow.list_(pyarrow.timestamp("ns"))),
        ['["1970-01-01 00:00:00.000000001"]', "null"],
    ),
    "nanoseconds_in_structs": (
        pyarrow.array([{"at": [1]}, {"at": None}], pyarrow.struct([("at", pyarrow.list_(pyarrow.time64("ns")))])),
        ['{"at":["00:00:00.000000001"]}', '{"at":null}'],
    ),
    "nested_durations": (
        pyarrow.array([[1], [90_061_500_000_001]], pyarrow.list_(pyarrow.duration("ns"))),
        ['["PT0.000000001S"]', '["P1DT3661.500000001S"]'],
    ),
    "durations_in_maps": (
        pyarrow.array([[("a", 1)], []], pyarrow.map_(TEXT, pyarrow.duration("ns"))),
        ['[["a","PT0.000000001S"]]', "[]"],
    ),
    "far_in_structs": (
        pyarrow.array([{"d": 0}, {"d": 2_932_897}], pyarrow.struct([("d", pyarrow.date32())])),
        ['{"d":"1970-01-01"}', '{"d":"10000-01-01"}'],
    ),
    "unknown_zone": (
        pyarrow.array([0, 1], pyarrow.timestamp("us", "Mars/Olympus")),
        ["1970-01-01T00:00:00Z", "1970-01-01T00:00:00.000001Z"],
    ),
    "unknown_zone_and_nanoseconds": (
        pyarrow.array([0, 1], pyarrow.timestamp("ns", "Mars/Olympus")),
        ["1970-01-01 00:00:00.000000000Z", "1970-01-01 00:00:00.000000001Z"],
    ),
}


@pytest.mark.parametrize("name", list(STRANGE))
def test_dates_and_times_that_python_has_not_are_texts(session, tmp_path, name):
    """They were found when their row came up, and the job could never end."""
    array, wanted = STRANGE[name]
    assert [text_of_cell(value) for value in values_of(array)] == wanted
    made = pyarrow.table({"text": ["good", "bad"], "when": array})
    parquet.write_table(made, tmp_path / "in.parquet", store_schema=True)
    for ending in (".csv", ".jsonl", ".parquet"):
        run(session, tmp_path / "in.parquet", tmp_path / f"out{ending}", tasks=("mood",), piece_rows=1)
    assert [row["when"] for row in read(tmp_path / "out.csv")] == [w if w != "null" else "" for w in wanted]
    assert [text_of_cell(row["when"]) for row in read(tmp_path / "out.jsonl")] == wanted
    column = parquet.read_table(tmp_path / "out.parquet").column("when")
    assert column.equals(parquet.read_table(tmp_path / "in.parquet").column("when"))


def test_bytes_of_a_text_that_are_not_utf8_are_replaced_and_counted(session, tmp_path):
    """One such row stopped the whole job each time."""
    ends = pyarrow.array([0, 9, 12], pyarrow.int32()).buffers()[1]
    damaged = pyarrow.Array.from_buffers(TEXT, 2, [None, ends, pyarrow.py_buffer(b"the \xff lapbad")])
    parquet.write_table(pyarrow.table({"text": damaged}), tmp_path / "in.parquet")
    for ending in (".csv", ".jsonl"):
        done = run(session, tmp_path / "in.parquet", tmp_path / f"out{ending}", tasks=("mood",))
        assert [row["text"] for row in read(tmp_path / f"out{ending}")] == ["the \ufffd lap", "bad"]
        assert (done.counts.repaired, done.counts.errors) == (1, 0)
