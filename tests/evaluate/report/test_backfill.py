"""Counts of a backfill over a whole store, by hand."""

import numpy as np

from polyhead.evaluate.report.backfill import ColumnCounts, plot_counts, row_counts
from polyhead.store.corpus.plain import PlainStore
from polyhead.store.jobs.answers import ResultColumn
from polyhead.tasks.task import Task
from store.test_corpus import SCHEMA, documents


def column(name):
    return ResultColumn(name=name, task=name, version="v0001", record="r", all_scores=False)


def store_with(folder, name, *arrays):
    store = PlainStore.create(str(folder / "store"), SCHEMA)
    start = 0
    for each in (*arrays, None):
        rows = 1 if each is None else len(next(iter(each.values())))
        store.append(*documents(range(start, start + rows)))
        start += rows
        if each is not None:
            store.put_results(store.fragments[-1].name, name, each)
    return store


def test_labels_and_scores_are_counted_over_fragments_that_have_them(tmp_path):
    task = Task(name="mood", kind="single_label", labels=("bad", "good"))
    parts = [
        {"label": np.int32([0, 1, 1]), "score": np.float32([0.5, 0.99, 1.0])},
        {"label": np.int32([1, -1]), "score": np.float32([0.72, np.nan])},
    ]
    found = row_counts(store_with(tmp_path, "mood", *parts), column("mood"), task)
    assert (found.documents, found.labels) == (4, {"bad": 1, "good": 3})
    assert {edge: count for edge, count in enumerate(found.bins) if count} == {10: 1, 14: 1, 19: 2}
    plot_counts([found], tmp_path / "counts.svg")
    assert "mood: 4 documents" in (tmp_path / "counts.svg").read_text() or (tmp_path / "counts.svg").stat().st_size


def test_several_labels_a_document_are_each_counted(tmp_path):
    task = Task(name="topics", kind="multi_label", labels=("a", "b", "c"))
    labels = np.array([[True, True, False], [False, False, False], [True, False, False]])
    parts = [{"labels": labels, "score": np.float32([0.9, 0.1, np.nan])}]
    found = row_counts(store_with(tmp_path, "topics", *parts), column("topics"), task)
    assert (found.documents, found.labels) == (2, {"a": 1, "b": 1, "c": 0})


def test_values_are_counted_in_the_range_of_their_task(tmp_path):
    task = Task(name="urgency", kind="regression", range=(0.0, 5.0))
    found = row_counts(store_with(tmp_path, "urgency", {"value": np.float32([0, 5, 2.6])}), column("urgency"), task)
    assert isinstance(found, ColumnCounts) and found.labels == {} and (found.low, found.high) == (0, 5)
    assert {edge: count for edge, count in enumerate(found.bins) if count} == {0: 1, 10: 1, 19: 1}
    plot_counts([found], tmp_path / "counts.png")
