"""Branches as alternatives to a task's heads: the last trial of effort 'best', within its minutes."""

from __future__ import annotations

import msgspec
import numpy as np

from polyhead.deep.branch.task import branch_paths, chosen_part, grow
from polyhead.deep.features import wanted_taps
from polyhead.deep.training_time import frozen_seconds, rates_of, sizes_of
from polyhead.machine import Clock
from polyhead.plan.cost.allocate import AllocationOption, by_rule
from polyhead.progress import counted, duration
from polyhead.project.strategies import Branch
from polyhead.project.strategies.branch import BRANCH_TRAINING
from polyhead.text.question import texts_of
from polyhead.train.candidates import baseline_path
from polyhead.train.data.extract import Extractor
from polyhead.train.data.prepare import wanted
from polyhead.train.data.prepared import Prepared
from polyhead.train.events import Events
from polyhead.train.heads import selection_rule
from polyhead.train.heads.selection_rule import LEAST_ROWS
from polyhead.train.job import TrainingJob, extractor_of
from polyhead.train.record.draft import Trained


def or_branch(job: TrainingJob, prepared: Prepared, trained: Trained) -> tuple[Prepared, Trained]:
    """The task's best head, or its best branch if it is worth its layers by `[allocation]`'s c, beyond chance.

    Depths are searched by halving, none deeper than what ends within the task's minutes by its estimate. Both are
    compared on the validation rows, of which a head in folds has seen none either, each with its own threshold or
    transitions.
    """
    extractor, events, name = extractor_of(job), job.events, prepared.task.name
    grown = _within(prepared, extractor, events, spent=trained.fitted.seconds)
    if grown is None:
        return prepared, trained
    _encode(grown, extractor, events)
    folder, precision, c = job.folder("branches", prepared), extractor.precision, job.allocation.c
    clock = Clock()
    search = grow(grown, extractor, precision=precision, folder=folder, events=events)
    unseen = msgspec.structs.replace(grown, test=None)
    parts = {
        option.name: chosen_part(unseen, search, option, extractor, precision=precision, folder=folder)
        for option in search.options()
    }
    score_of = selection_rule.selection_score
    by_branch = {name: score_of(prepared.task, part.scores["validation"]) for name, part in parts.items()}
    options = [msgspec.structs.replace(option, score=100 * by_branch[option.name]) for option in search.options()]
    task, outputs = trained.task or prepared.task, _of_validation(prepared, trained)
    score = selection_rule.choosing_score(task, prepared.validation.examples, outputs)
    head = AllocationOption(task=name, name="", tap=extractor.data.architecture.layers, layers=0, score=100 * score)
    chosen = by_rule([head, *options], c)[name]
    branches = {counted(option.layers, "layer"): option.score / 100 for option in options}
    shown = ", ".join(f"{layers} {reached:.4f}" for layers, reached in branches.items())
    shown += f" beside {score:.4f} of the best head on {counted(len(outputs), 'validation row')}"
    tried = trained.tried | {f"branch of {layers}": reached for layers, reached in branches.items()}
    seconds = trained.fitted.seconds + clock.wall
    if chosen.layers:
        part = parts[chosen.name]
        assert part.held is not None and part.task is not None
        if selection_rule.best_of(task, part.held.examples, [outputs, part.held.outputs], tasks=[task, part.task]):
            part = chosen_part(grown, search, chosen, extractor, precision=precision, folder=folder)
            events.line(f"{name}: a branch is kept: {shown}; each text costs its {counted(chosen.layers, 'layer')} too")
            fitted = msgspec.structs.replace(part.fitted, seconds=seconds)
            return grown, msgspec.structs.replace(part, tried=tried, fitted=fitted)
    points = "1 point" if c == 1 else f"{c:g} points"
    events.line(f"{name}: no branch is kept: {shown}; a layer must gain {points}, and more than chance would")
    fitted = msgspec.structs.replace(trained.fitted, seconds=seconds)
    return prepared, msgspec.structs.replace(trained, tried=tried, fitted=fitted)


def _within(prepared: Prepared, extractor: Extractor, events: Events, *, spent: float) -> Prepared | None:
    """The task as a search of branches that ends within its minutes, `spent` seconds of them gone.

    None if none does, or if rows are too few to choose by.
    """
    wish, name, shape = prepared.training, prepared.task.name, extractor.data.architecture
    rows = len(prepared.validation.examples.targets)
    if rows < LEAST_ROWS:
        few = f"{counted(rows, 'validation row')} cannot show that one is better: label more, or give {LEAST_ROWS}"
        events.line(f"{name}: branches are not begun: {few}")
        return None
    training = msgspec.structs.replace(
        BRANCH_TRAINING, seed=wish.seed, class_weights=wish.class_weights, precision=wish.precision
    )
    grown = msgspec.structs.replace(prepared, training=training, strategy=Branch(layers=1))
    sizes, rates = sizes_of(extractor.data, prepared), rates_of(extractor.data, [prepared])
    seconds_left, least = np.inf if wish.minutes is None else 60 * wish.minutes - spent, 0.0
    for most in range(shape.layers, 0, -1):
        strategy = Branch(most=most) if most > 1 else Branch(layers=1)
        grown = msgspec.structs.replace(grown, strategy=strategy)
        least = frozen_seconds(grown, sizes, rates, shape)
        if least <= seconds_left:
            depths = "branches of 1 layer" if most == 1 else f"branches of 1 to {most} layers, by halving"
            events.line(f"{name}: {depths}: about {duration(least)}")
            return grown
    budget = f"{wish.minutes:g} minutes were given, and {duration(spent)} are spent"
    events.line(f"{name}: branches are not begun: they take {duration(least)} or more, {budget}")
    return None


def _encode(grown: Prepared, extractor: Extractor, events: Events) -> None:
    """Keeps the states at every tap, and what the baseline of a branch reads."""
    progress = events.progress(extractor.doing, unit="texts")
    paths = branch_paths(grown, extractor)
    requests = [request for path in paths for request in wanted_taps(grown, path, extractor)]
    compared = baseline_path(grown, paths[0], extractor)
    requests += [] if compared is None else wanted(grown, compared, extractor)
    extractor.fill(requests, update=progress.update)
    progress.finish()


def _of_validation(prepared: Prepared, trained: Trained) -> list[np.ndarray]:
    """The head's outputs for validation rows; with folds, those of the fold that held a row out."""
    assert trained.held is not None
    if not trained.held.folds:
        return trained.held.outputs
    held = zip(trained.held.examples.inputs, trained.held.outputs, strict=True)
    known = {(type(text), texts_of(text)): outputs for text, outputs in held}
    return [known[type(text), texts_of(text)] for text in prepared.validation.examples.inputs]
