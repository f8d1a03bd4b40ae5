"""One task, from kept features to a trained part with its scores."""

from __future__ import annotations

from pathlib import Path as FilePath
from typing import Literal

import msgspec
import numpy as np
import torch

from polyhead.plan import Codec, Path
from polyhead.sharing.pooled import PooledPart, pooled_path
from polyhead.strategy import Pooled
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.text.question import read_alone
from polyhead.train.events import Events
from polyhead.train.examples import FeatureExamples, options_in, outputs_of, tell_unread
from polyhead.train.extract import Extractor, Wanted
from polyhead.train.fit import Course, Fitted, stream
from polyhead.train.loss import LOSSES
from polyhead.train.prepare import Prepared, Split, single_inputs
from polyhead.train.windows import Windowed, windowed

CANDIDATES: tuple[Literal["first", "mean", "attention"], ...] = ("first", "mean", "attention")


class Trained(msgspec.Struct, frozen=True, kw_only=True):
    """A trained part, where it sits, and how it did on whole splits."""

    path: Path
    arrays: dict[str, np.ndarray]
    scores: dict[str, dict[str, float]]  # split -> metric -> value
    fitted: Fitted
    tried: dict[str, float]  # pooler -> validation score, where it was chosen


def chosen(strategy: Pooled, prepared: Prepared) -> tuple[Pooled, ...]:
    """The strategies to try: the one asked for, or one for each frozen pooler."""
    if strategy.positions != "auto" or kind_of(prepared.task).per_word:
        return (
            strategy if strategy.positions != "auto" else msgspec.structs.replace(strategy, positions="mean"),
        )
    return tuple(msgspec.structs.replace(strategy, positions=positions) for positions in CANDIDATES)


def paths_of(prepared: Prepared, extractor: Extractor, codec: Codec) -> list[Path]:
    """A path for each strategy to try."""
    assert isinstance(prepared.strategy, Pooled)
    shape = extractor.data.architecture
    return [
        pooled_path(prepared.task, strategy, trunk=extractor.digest, shape=shape, codec=codec)
        for strategy in chosen(prepared.strategy, prepared)
    ]


def wanted(prepared: Prepared, path: Path, extractor: Extractor) -> list[Wanted]:
    """Every input of every split whose features the task needs, or every window of it."""
    task, tokeniser = prepared.task, extractor.tokeniser
    return [
        one
        for split in prepared.splits
        for one in _wanted(task, split, path, windowed(task, split.examples, tokeniser))
    ]


def _wanted(task: Task, split: Split, path: Path, windows: Windowed | None) -> list[Wanted]:
    words = split.examples.words if kind_of(task).per_word else None
    several = single_inputs(split.examples.inputs, task)
    return [Wanted(path=path, inputs=inputs, words=words).each(windows) for inputs in several]


def train_task(
    prepared: Prepared,
    paths: list[Path],
    extractor: Extractor,
    *,
    checkpoints: FilePath | None,
    events: Events,
) -> Trained:
    """Trains the task on each path and keeps the one with the best validation score (ties: the first, the cheapest).

    The test split is read once, by the part that is kept.
    """
    task = prepared.task
    tried: dict[str, float] = {}
    best: tuple[Path, PooledPart, Fitted] | None = None
    for path in paths:
        name = str(path.pool.positions)
        checkpoint = checkpoints / f"{task.name}-{name}.pt" if checkpoints else None
        module, fitted = _fit(prepared, path, extractor, checkpoint=checkpoint, events=events)
        tried[name] = fitted.score
        if best is None or fitted.score > best[2].score:
            best = (path, module, fitted)
    assert best is not None
    path, module, fitted = best
    scores = {
        split.name: evaluate_part(module, prepared, split, path, extractor)
        for split in prepared.splits
        if split.name != "train"
    }
    arrays = {name: value.detach().numpy().copy() for name, value in module.state_dict().items()}
    return Trained(
        path=path, arrays=arrays, scores=scores, fitted=fitted, tried=tried if len(paths) > 1 else {}
    )


def evaluate_part(
    module: PooledPart, prepared: Prepared, split: Split, path: Path, extractor: Extractor
) -> dict[str, float]:
    """All metrics of the task's kind on the whole split."""
    outputs = outputs_of(module, examples_of(prepared, split, path, extractor))
    return split.examples.scores(prepared.task, outputs)


def examples_of(prepared: Prepared, split: Split, path: Path, extractor: Extractor) -> FeatureExamples:
    """The split's targets over the features kept for the path."""
    task, examples, store, unread = prepared.task, split.examples, extractor.store(path), None
    windows = windowed(task, examples, extractor.tokeniser)
    features = [store.features(one.keys()) for one in _wanted(task, split, path, windows)]
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


def _fit(
    prepared: Prepared, path: Path, extractor: Extractor, *, checkpoint: FilePath | None, events: Events
) -> tuple[PooledPart, Fitted]:
    task, training, kind = prepared.task, prepared.training, kind_of(prepared.task)
    generator = torch.Generator().manual_seed(stream(training.seed, "init", task.name))
    width = extractor.data.architecture.width
    module = PooledPart(path, width, dropout=training.dropout, generator=generator)
    train = examples_of(prepared, prepared.train, path, extractor)
    tell_unread(prepared, train, extractor.data.settings.max_tokens, events)
    validation = examples_of(prepared, prepared.validation, path, extractor)
    metric = kind.default_metric(task)

    def score() -> float:
        return prepared.validation.examples.scores(task, outputs_of(module, validation))[metric]

    balanced = kind.class_weights(task, prepared.train.examples.targets) if training.class_weights else None
    weights = None if balanced is None else torch.from_numpy(balanced)
    fitted = Course(
        module,
        train,
        loss=LOSSES[kind.loss],
        score=score,
        training=training,
        weights=weights,
        checkpoint=checkpoint,
        events=events,
        label=f"{task.name} ({path.pool.positions})",
    ).train()
    return module, fitted
