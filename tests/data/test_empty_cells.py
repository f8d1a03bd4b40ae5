"""Empty cells of labels: none of them applies, or nobody said; rows are never dropped without a word."""

import csv
import io
import itertools

import pytest

from polyhead.data.columns import Source
from polyhead.data.read import read
from polyhead.errors import ConfigError, EmptyData
from polyhead.project.tables import TaskEntry
from polyhead.tasks.kinds import KINDS
from polyhead.tasks.task import Task
from polyhead.values import to_value

TOPICS = Task(name="topics", kind="multi_label", labels=("a", "b"))
OTHERS = {
    "single_label": Task(name="t", kind="single_label", labels=("a", "b")),
    "regression": Task(name="t", kind="regression", range=(0.0, 1.0)),
    "multiple_choice": Task(name="t", kind="multiple_choice"),
    "span": Task(name="t", kind="span"),
    "summarization": Task(name="t", kind="summarization"),
    "tagging": Task(name="t", kind="tagging", labels=("O", "B-a", "I-a")),
}


def write(folder, form, cells):
    """Rows "row 0", "row 1", ... with these label cells, as text of the form."""
    path, file = folder / f"rows.{form}", io.StringIO(newline="")
    writer = csv.writer(file, delimiter="\t" if form == "tsv" else ",")
    writer.writerows([("text", "label"), *((f"row {i}", cell) for i, cell in enumerate(cells))])
    path.write_text(file.getvalue())
    return str(path)


def targets(cells, order):
    """By hand: a row's target is which of the labels its cell names."""
    return [[float(label in cell.split(";")) for label in order] for cell in cells]


CELLS = [list(some) for some in itertools.product(("", "a", "a;b"), repeat=2)]


@pytest.mark.parametrize("form", ["csv", "tsv"])
@pytest.mark.parametrize("empty", [None, "none", "skip"])
@pytest.mark.parametrize("cells", CELLS, ids=["|".join(some) for some in CELLS])
def test_an_empty_cell_of_several_labels_is_a_row_without_any_unless_it_is_to_be_skipped(tmp_path, form, empty, cells):
    """True negatives were dropped: an empty cell counted as a row that nobody labelled."""
    source = Source(path=write(tmp_path, form, cells), separator=";", empty=empty)
    blank = cells.count("")
    if empty == "skip":
        kept = [cell for cell in cells if cell]
        if not kept:
            with pytest.raises(EmptyData, match="2 without a label"):
                read(source, TOPICS)
            return
        found = read(source, TOPICS)
        assert (found.report.unlabelled, found.report.none) == (blank, 0)
    else:
        kept, found = cells, read(source, TOPICS)
        assert (found.report.unlabelled, found.report.none) == (0, blank)
    assert [target.tolist() for target in found.targets] == targets(kept, TOPICS.labels)
    assert found.report.rows == found.report.used + found.report.unlabelled == 2


@pytest.mark.parametrize(
    ("line", "used", "none"),
    [
        ('{"text": "x", "label": ""}', 1, 1),
        ('{"text": "x", "label": " "}', 1, 1),
        ('{"text": "x", "label": []}', 1, 0),
        ('{"text": "x", "label": null}', 0, 0),
        ('{"text": "x"}', 0, 0),
        ('{"text": " ", "label": ""}', 0, 0),
    ],
    ids=["empty string", "blank string", "empty list", "null", "missing", "no text"],
)
def test_null_and_a_missing_key_are_never_a_statement_about_labels(tmp_path, line, used, none):
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"text": "y", "label": ["a"]}}\n{line}\n')
    report = read(Source(path=str(path)), TOPICS).report
    assert (report.used - 1, report.none) == (used, none)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"multi_label"}))
def test_for_other_kinds_an_empty_cell_cannot_say_that_no_label_applies(tmp_path, kind):
    columns = {"text_b": "context"} if kind == "span" else {}
    if kind == "tagging":
        columns = {"tokens": "tokens", "tags": "tags"}
    with pytest.raises(ConfigError, match="'multi_label' alone") as caught:
        read(Source(path=write(tmp_path, "csv", ["a"]), empty="none", **columns), OTHERS[kind])
    assert "skip" in str(caught.value.allowed)


@pytest.mark.parametrize("empty", [None, "skip"])
def test_for_other_kinds_an_empty_cell_is_a_row_that_nobody_labelled(tmp_path, empty):
    found = read(Source(path=write(tmp_path, "csv", ["a", "", "b"]), empty=empty), OTHERS["single_label"])
    assert (found.report.used, found.report.unlabelled, found.report.none) == (2, 1, 0)


def test_a_project_says_it_in_the_tables_of_its_tasks(tmp_path):
    entry = to_value(
        {"name": "t", "kind": "multi_label", "labels": ["a"], "train": "x.csv", "empty": "skip"},
        TaskEntry,
        source="here",
    )
    assert entry.source(entry.train, tmp_path).empty == "skip"
    with pytest.raises(ConfigError, match="empty"):
        to_value({"name": "t", "kind": "multi_label", "train": "x", "empty": "zero"}, TaskEntry, source="here")
