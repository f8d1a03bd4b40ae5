"""Soft labels of files: a probability for each label of a row, checked row by row."""

import json

import msgspec
import numpy as np
import pytest

from polyhead.data.read import Source, read
from polyhead.errors import BadValue, ConfigError, EmptyData, MissingColumn, UnknownLabel
from polyhead.tasks.task import Task

MOOD = Task(name="mood", kind="single_label", labels=("bad", "good"))
TOPICS = Task(name="topics", kind="multi_label", labels=("a", "b", "c"))
AGE = Task(name="age", kind="regression", range=(0.0, 1.0))


def source(folder, rows, name="rows.jsonl", soft="soft", **columns):
    path = folder / name
    path.write_text(rows if isinstance(rows, str) else "".join(json.dumps(row) + "\n" for row in rows))
    return Source(path=str(path), soft=soft, **columns)


def test_lists_and_objects_are_read_and_the_target_is_the_label_or_the_most_probable_one(tmp_path):
    rows = [
        {"text": "one", "soft": [0.75, 0.25]},
        {"text": "two", "soft": {"good": 1}, "label": "bad"},
        {"text": "three", "soft": None, "label": "good"},
        {"text": "four"},
        {"text": "five", "soft": {"good": 0.5, "bad": 0.5}},
    ]
    found = read(source(tmp_path, rows), MOOD)
    assert found.rows == [1, 2, 3, 5] and found.report.unlabelled == 1 and found.report.used == 4
    assert [int(target) for target in found.targets] == [0, 0, 1, 0]
    np.testing.assert_array_equal(np.stack(found.taught), [[0.75, 0.25], [0, 1], [0, 1], [0.5, 0.5]])
    part = found.take([2, 0])
    np.testing.assert_array_equal(np.stack(part.taught), [[0, 1], [0.75, 0.25]])


def test_probabilities_of_several_labels_need_not_sum_to_one(tmp_path):
    rows = [
        {"text": "one", "soft": [0.9, 0.6, 0.1]},
        {"text": "two", "soft": {"c": 0.2}},
        {"text": "x", "label": ["b"]},
    ]
    found = read(source(tmp_path, rows), TOPICS)
    np.testing.assert_array_equal(np.stack(found.targets), [[1, 1, 0], [0, 0, 0], [0, 1, 0]])
    np.testing.assert_allclose(np.stack(found.taught), [[0.9, 0.6, 0.1], [0, 0, 0.2], [0, 1, 0]], atol=1e-7)


def test_cells_hold_json_or_one_number_a_column(tmp_path):
    cells = 'text,soft\none,"[0.25, 0.75]"\ntwo,"{""bad"": 1.0}"\nthree,\n'
    np.testing.assert_array_equal(np.stack(read(source(tmp_path, cells, "a.csv"), MOOD).taught), [[0.25, 0.75], [1, 0]])
    columns = "text,p_bad,p_good\none,0.3,0.7\ntwo,,\nthree,1,0\n"
    examples = read(source(tmp_path, columns, "b.csv", soft=("p_bad", "p_good")), MOOD)
    np.testing.assert_allclose(np.stack(examples.taught), [[0.3, 0.7], [1, 0]], atol=1e-7)
    assert examples.rows == [1, 3]
    rows = [{"text": "one", "p_bad": "0.3", "p_good": "0.7 "}, {"text": "two", "p_bad": "True", "p_good": "false"}]
    examples = read(source(tmp_path, rows, soft=("p_bad", "p_good")), MOOD)
    np.testing.assert_allclose(np.stack(examples.taught), [[0.3, 0.7], [1, 0]], atol=1e-7)


def test_a_row_of_parquet_holds_a_list_or_a_struct(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    table = pa.table({"text": ["one", "two"], "soft": [[0.5, 0.5], [0.1, 0.9]]})
    pq.write_table(table, tmp_path / "lists.parquet")
    structs = pa.table({"text": ["one"], "soft": [{"good": 0.2, "bad": 0.8}]})
    pq.write_table(structs, tmp_path / "structs.parquet")
    lists, objects = (
        read(Source(path=str(tmp_path / name), soft="soft"), MOOD).taught
        for name in ("lists.parquet", "structs.parquet")
    )
    np.testing.assert_allclose(np.stack(lists), [[0.5, 0.5], [0.1, 0.9]], atol=1e-7)
    np.testing.assert_allclose(np.stack(objects), [[0.8, 0.2]], atol=1e-7)


def test_rounding_is_allowed_and_taken_out(tmp_path):
    three = Task(name="t", kind="single_label", labels=("a", "b", "c"))
    (found,) = read(source(tmp_path, [{"text": "one", "soft": [0.33, 0.33, 0.33]}]), three).taught
    np.testing.assert_allclose(found, [1 / 3] * 3, atol=1e-7)


@pytest.mark.parametrize(
    ("soft", "words"),
    [
        ([0.5, 0.4], ("sum to 1", "0.9", "0.02 of rounding")),
        ([1.5, -0.5], ("'bad' is no probability", "1.5", "from 0 to 1")),
        ([True, False], ("'bad' is no probability", "True")),
        ([0.5, "half"], ("'good' is no probability", "half")),
        ([0.5], ("1 numbers", "list of 2 numbers", "['bad', 'good']")),
        ("good", ("good", "list of 2 numbers")),
        ([float("nan"), 1.0], ("'bad' is no probability", "nan")),
        ([float("inf"), 0.0], ("'bad' is no probability", "inf")),
        ([10**400, 0], ("'bad' is no probability",)),
        ([[0.5], [0.5]], ("'bad' is no probability",)),
        ([0, 0], ("sum to 1",)),
    ],
    ids=["sum", "range", "booleans", "text", "short", "label", "nan", "inf", "huge", "nested", "zeros"],
)
def test_a_wrong_row_is_refused_with_its_number_what_was_given_and_what_is_allowed(tmp_path, soft, words):
    rows = [{"text": "one", "soft": [1.0, 0.0]}, {"text": "two", "soft": soft}]
    with pytest.raises(BadValue) as caught:
        read(source(tmp_path, rows), MOOD)
    assert "rows.jsonl row 2" in str(caught.value) and caught.value.row == 2
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("cell", ["0.5;0.5", "[0.5, 0.5", "x,0.5", "0.5,", "1_0,0.5"], ids=repr)
def test_a_wrong_cell_is_refused(tmp_path, cell):
    one = cell.startswith(("0.5;", "["))
    header, soft = ("soft", "soft") if one else ("p_bad,p_good", ("p_bad", "p_good"))
    written = f"text,{header}\none,{json.dumps(cell) if one else cell}\n"
    with pytest.raises(BadValue, match=r"a\.csv row 1"):
        read(source(tmp_path, written, "a.csv", soft=soft), MOOD)


def test_an_object_may_name_the_tasks_labels_alone(tmp_path):
    with pytest.raises(UnknownLabel, match="row 1: label 'better'"):
        read(source(tmp_path, [{"text": "one", "soft": {"better": 1.0}}]), MOOD)


def test_declarations_that_mean_nothing_are_refused(tmp_path):
    rows = [{"text": "one", "soft": [1.0, 0.0]}]
    with pytest.raises(ConfigError, match="'soft' is for tasks of kind 'single_label' or 'multi_label'"):
        read(source(tmp_path, rows), AGE)
    with pytest.raises(ConfigError, match="a column for each label"):
        read(source(tmp_path, rows, soft=("one",)), MOOD)
    with pytest.raises(ConfigError, match="names no column"):
        read(source(tmp_path, rows, soft="store:"), MOOD)


def test_columns_that_are_not_there_are_named(tmp_path):
    with pytest.raises(MissingColumn, match="no column 'soft'"):
        read(source(tmp_path, [{"text": "one", "label": "bad"}]), MOOD)
    with pytest.raises(MissingColumn, match="no column 'gold'"):
        read(source(tmp_path, [{"text": "one", "soft": [1, 0]}], label="gold"), MOOD)
    with pytest.raises(MissingColumn, match="no column 'label'"):  # without a store its task is read by labels
        read(source(tmp_path, [{"text": "one"}], soft="store:mood"), MOOD)
    with pytest.raises(EmptyData):
        read(source(tmp_path, [{"text": "one", "soft": None}]), MOOD)


def test_scores_of_a_store_count_where_they_are_given(tmp_path):
    rows = [{"text": "one"}, {"text": "two", "label": "good"}, {"text": "three"}, {"text": "four", "label": "bad"}]

    def stored(examples):
        known = {"one": np.array([0.25, 0.75], np.float32), "four": np.array([0.0, 1.0], np.float32)}
        return [known.get(example.input[0]) for example in examples]

    found = read(source(tmp_path, rows, soft="store:mood"), MOOD, stored=stored)
    assert found.rows == [1, 2, 4] and [int(target) for target in found.targets] == [1, 1, 0]
    np.testing.assert_array_equal(np.stack(found.taught), [[0.25, 0.75], [0, 1], [0, 1]])


def test_gold_does_not_depend_on_the_threshold_of_answers(tmp_path):
    """A threshold is learned after training; gold read with it must stay what training read."""
    rows = source(tmp_path, [{"text": "one", "soft": [0.3, 0.9, 0.5]}])
    before, after = (read(rows, msgspec.structs.replace(TOPICS, threshold=cut)) for cut in (0.5, 0.25))
    assert before.targets[0].tolist() == after.targets[0].tolist() == [0, 1, 1]
    assert before.digest == after.digest
