"""A chart of a backfill: the number of documents by label, and the confidence of their answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from polyhead.errors import MissingExtra
from polyhead.store.corpus.base import CorpusStore
from polyhead.store.jobs.answers import ResultColumn
from polyhead.tasks.task import Task
from polyhead.values import Value

BINS = 20
LONGEST = 30  # labels drawn, the most frequent ones
BLUE, ORANGE = "#2f6db3", "#d1581b"


class ColumnCounts(Value):
    """Counts of one column over a whole store."""

    column: str
    documents: int  # documents with an answer
    labels: dict[str, int]  # documents by label; empty for a task whose answers are numbers
    low: float  # of the first bin
    high: float  # of the last one
    bins: tuple[int, ...]  # documents by score, or by value


def row_counts(store: CorpusStore, column: ResultColumn, task: Task) -> ColumnCounts:
    """Counts of a task's column of answers, fragment by fragment."""
    low, high = task.range or (0.0, 1.0)
    labels, bins, documents = np.zeros(len(task.labels), np.int64), np.zeros(BINS, np.int64), 0
    for fragment in store.fragments:
        arrays = store.results(fragment.name, column.name)
        if arrays is None:
            continue
        if "text" in arrays:  # which has no number to draw
            documents += int(np.count_nonzero(arrays["text"] != ""))
            continue
        numbers = arrays["score" if "score" in arrays else "value"]
        is_there = np.isfinite(numbers)
        documents += int(is_there.sum())
        bins += np.histogram(np.clip(numbers[is_there], low, high), BINS, (low, high))[0]
        if "label" in arrays:
            labels += np.bincount(arrays["label"][is_there], minlength=len(labels))
        elif "labels" in arrays:
            labels += arrays["labels"][is_there].sum(axis=0)
    named = dict(zip(task.labels, labels.tolist(), strict=True))
    return ColumnCounts(
        column=column.name, documents=documents, labels=named, low=low, high=high, bins=tuple(bins.tolist())
    )


def plot_counts(columns: Sequence[ColumnCounts], path: Path | str) -> None:
    """Draws documents by label and by score, one row per column, into `path` (.svg, .png or .pdf).

    Raises MissingExtra without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "plots", "drawing a backfill") from None
    heights = [max(2.4, 0.22 * min(LONGEST, len(shown.labels)) + 1.2) for shown in columns]
    figure = Figure(figsize=(9, sum(heights)), layout="constrained")
    grid = figure.subplots(len(columns), 2, squeeze=False, height_ratios=heights)
    for (left, right), shown in zip(grid, columns, strict=True):
        frequent = sorted(shown.labels.items(), key=lambda item: item[1])[-LONGEST:]
        left.barh([label for label, _ in frequent], [count for _, count in frequent], color=BLUE)
        left.set(title=f"{shown.column}: {shown.documents:,} documents", xlabel="documents")
        if not frequent:
            left.set_axis_off()
        edges = np.linspace(shown.low, shown.high, BINS + 1)
        right.stairs(shown.bins, edges, fill=True, color=ORANGE)
        xlabel = "score of the answer" if shown.labels else "value"
        right.set(xlabel=xlabel, ylabel="documents", xlim=(shown.low, shown.high))
    figure.savefig(path, dpi=120)
