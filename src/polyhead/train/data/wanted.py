"""The inputs, or windows of them, for which a task needs features."""

from __future__ import annotations

from polyhead.plan import Path
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.train.data.prepare import rows_read, single_inputs
from polyhead.train.data.prepared import Prepared, Split
from polyhead.train.data.source import FeatureRequest, FeatureSource
from polyhead.train.data.windows import WindowedExamples, windowed


def wanted(prepared: Prepared, path: Path, source: FeatureSource) -> list[FeatureRequest]:
    """Every input of every split whose features the task needs, or every window of it."""
    return [request for split in prepared.splits for request in wanted_of(prepared, split, path, source)]


def wanted_of(prepared: Prepared, split: Split, path: Path, source: FeatureSource) -> list[FeatureRequest]:
    """The same of one split."""
    return requests_of(prepared.task, split, path, windowed(prepared.task, split.examples, source.tokenizer))


def requests_of(task: Task, split: Split, path: Path, windows: WindowedExamples | None) -> list[FeatureRequest]:
    """The requests of one split, its windows where `windows` has them."""
    words = split.examples.words if kind_of(task).per_word else None
    origin, rows = f"task '{task.name}', {split.name}", rows_read(split.examples)
    return [
        FeatureRequest(path=path, inputs=inputs, words=words, origin=origin, rows=rows).each(windows)
        for inputs in single_inputs(split.examples.inputs, task)
    ]
