"""What a pooled task reads of the store: the inputs that it needs encoded, and its examples over kept features."""

from __future__ import annotations

from polyhead.plan import Path
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.text.question import read_alone
from polyhead.train.data.examples import FeatureExamples, options_in
from polyhead.train.data.extract import Extractor, FeatureRequest
from polyhead.train.data.prepare import single_inputs
from polyhead.train.data.prepared import Prepared, Split
from polyhead.train.data.windows import WindowedExamples, windowed


def wanted(prepared: Prepared, path: Path, extractor: Extractor) -> list[FeatureRequest]:
    """Every input of every split whose features the task needs, or every window of it."""
    task, tokenizer = prepared.task, extractor.tokenizer
    return [
        request
        for split in prepared.splits
        for request in _wanted(task, split, path, windowed(task, split.examples, tokenizer))
    ]


def examples_of(prepared: Prepared, split: Split, path: Path, extractor: Extractor) -> FeatureExamples:
    """The split's targets over the features kept for the path."""
    task, examples, store, unread = prepared.task, split.examples, extractor.store(path), None
    windows = windowed(task, examples, extractor.tokenizer)
    features = [store.features(request.keys()) for request in _wanted(task, split, path, windows)]
    if windows is None and examples.words is not None and kind_of(task).per_word:
        unread = extractor.unread(read_alone(examples.inputs), examples.words)
    return FeatureExamples(
        features[0],
        examples.targets,
        second=features[1] if len(features) > 1 else None,
        unread=unread,
        options=options_in(examples.inputs),
        windows=windows,
    )


def _wanted(task: Task, split: Split, path: Path, windows: WindowedExamples | None) -> list[FeatureRequest]:
    words = split.examples.words if kind_of(task).per_word else None
    several = single_inputs(split.examples.inputs, task)
    return [FeatureRequest(path=path, inputs=inputs, words=words).each(windows) for inputs in several]
