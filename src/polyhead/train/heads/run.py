"""The training of one task, from kept features to a part with its scores and those of baselines."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from math import inf
from pathlib import Path as FilePath

import msgspec
import numpy as np

from polyhead.errors import MissingExtra
from polyhead.machine import Clock, one_blas_thread
from polyhead.plan import Path
from polyhead.progress import duration
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.kinds.tagged import log_transitions
from polyhead.tasks.task import Task
from polyhead.train.candidates import (
    candidates,
    every_candidate,
    feature_paths,
    left_out,
    needing_torch,
    tries_branches,
)
from polyhead.train.data.prepare import wanted
from polyhead.train.data.prepared import Prepared, Split
from polyhead.train.data.source import FeatureRequest, FeatureSource
from polyhead.train.events import Events
from polyhead.train.heads import selection_rule
from polyhead.train.heads.baselines import baselines_of
from polyhead.train.heads.inputs import scaled
from polyhead.train.heads.temperature import best_scale
from polyhead.train.heads.trials import Trial, Trials
from polyhead.train.job import Trainer
from polyhead.train.record.draft import HeldOutRows, Trained
from polyhead.train.runs import deep

GAIN = "about one task in five"  # in 23 of 123 runs of results/heads_defaults.json
TOLD_FROM = 10_000  # training rows from which each head takes a while, so that its score is reported as it ends
TRANSITION_WEIGHTS = (0.0, 0.15, 0.3, 0.45, 0.6)
"""Factors of the logarithms that are tried. On test texts of four sets, all gained with 0.3 and three lost with 1
(docs/project/log.md)."""


class HeadTrainer(Trainer):
    """Trains each task's heads on kept features of the frozen trunk, one task at a time."""

    def paths(self) -> dict[str, list[Path]]:
        """The path of every candidate, of the tasks to train; reports the omitted ones."""
        for p in self.todo:
            names = left_out(p, self.job.source)
            if names:
                kept = "the store does not keep what they read"
                self.job.events.line(f"{p.task.name}: these heads are not tried, since {kept}: {'; '.join(names)}")
        self._tell_without_torch()
        paths = feature_paths(self.todo, self.prepared, self.job.source, self.job.bundle)
        codecs = {path.pool.codec.name: path.pool.codec.format for task_paths in paths.values() for path in task_paths}
        for codec in (name for name, codec in codecs.items() if not codec.has_graph):
            answers = "torch or the reference alone answer from it, and nothing proves or exports it"
            self.job.events.line(f"codec '{codec}' has no method `graph`: {answers}")
        return paths

    def _tell_without_torch(self) -> None:
        """Says which heads are not tried; raises MissingExtra if no other is left."""
        without_torch = dict[str, list[str]]()
        for p in self.todo:
            lost, tried = needing_torch(p, self.job.source), every_candidate(p, self.job.source)
            if lost and any(candidate.solver != "linear" for candidate in tried):
                raise MissingExtra("torch", "train", f"task '{p.task.name}': a head that is trained in steps")
            for candidate in lost:
                without_torch.setdefault(candidate.name, []).append(p.task.name)
        for name, tasks in without_torch.items():
            self.job.events.line(
                f"{', '.join(tasks)}: a head '{name}', the best for {GAIN}, is not tried without torch: "
                "pip install 'polyhead[train]', then train such a task again (--retrain, in Python `fit`)"
            )

    def requests(self, prepared: Prepared, path: Path) -> list[FeatureRequest]:
        """The features of every split."""
        return wanted(prepared, path, self.job.source)

    def train(self) -> None:
        """Trains the tasks; a task's checkpoints are deleted when it is in the bundle."""
        if any(candidate.solver != "linear" for p in self.todo for candidate in candidates(p, self.job.source)):
            deep("nn.runtime:within_limits")()
        for p in self.todo:
            folder = self.job.folder("checkpoints", p)
            paths = self.job.paths[p.task.name]
            trained = train_task(p, paths, self.job.source, checkpoints=folder, events=self.job.events)
            if tries_branches(p, self.job.source):
                p, trained = deep("branch.alternatives:or_branch")(self.job, p, trained)
            self.job.commit([(p, trained)], checkpoints=folder)


def _tried(trials: Trials, paths: Sequence[Path]) -> list[Trial]:
    """A head on each path, but those that cannot win, or would end after the minutes of effort 'best'.

    The first that is trained in steps is begun in any case: the default tries it too.
    """
    prepared, events, trials_done = trials.prepared, trials.events, list[Trial]()
    task, metric = prepared.task, kind_of(prepared.task).default_metric(prepared.task)
    most = 60 * (prepared.training.minutes or inf) if prepared.training.effort == "best" else inf
    clock, longest = Clock(), 0.0  # seconds of a head trained in steps, which the next one may take too
    for candidate, path in zip(candidates(prepared, trials.source), paths, strict=True):
        if trials.is_beaten(candidate):
            rows = f"the {len(trials.held.targets):,} rows held out"
            events.line(f"{task.name}: {candidate.name} is not tried: a linear head's score on {rows} is perfect")
        elif longest and clock.wall + longest > most:
            events.line(f"{task.name}: {candidate.name} is not begun: {duration(clock.wall)} are spent")
        else:
            trial_clock = Clock()
            trials_done.append(trials.tried(candidate, path))
            longest = max(longest, trial_clock.wall if candidate.solver == "steps" else 0.0)
            if len(prepared.train.examples.targets) >= TOLD_FROM:
                score = selection_rule.choosing_score(task, trials.held, trials_done[-1].outputs)
                events.line(f"{task.name}: {candidate.name}: validation {metric} {score:.4f}")
    return trials_done


def train_task(
    prepared: Prepared, paths: list[Path], source: FeatureSource, *, checkpoints: FilePath | None, events: Events
) -> Trained:
    """Tries a head on each path, and keeps one of them; only the kept part reads the test split, once."""
    task, began = prepared.task, time.monotonic()
    with one_blas_thread():
        trials = Trials(prepared, source, checkpoints=checkpoints, events=events)
        trials_done = _tried(trials, paths)
        best = trials.best(trials_done)
        arrays, fitted = trials.kept(best)
        scale = best_scale(task, best.outputs, trials.held.taught)
        arrays, outputs = scaled(arrays, scale), [np.asarray(row * np.float32(scale)) for row in best.outputs]
        baselines = baselines_of(prepared, trials, trials_done, source) if len(paths) > 1 else {}
        weight = choose_weight(task, trials.sides, outputs)
        learned = prepared.whole if trials.learns_all(best) and prepared.whole else prepared.train.examples
        task = with_transitions(task, learned.targets, weight)
        score_of = selection_rule.choosing_score
        tried = {trial.candidate.name: score_of(task, trials.held, trial.outputs) for trial in trials_done}
        if prepared.finds_threshold:
            task = selection_rule.with_threshold(task, trials.held, outputs)
        scores = {"validation": trials.held.scores(task, outputs)}  # as `evaluate` scores these rows later
        if prepared.test is not None:
            test = trials.outputs(best.path, arrays, prepared.test)
            scores["test"] = prepared.test.examples.scores(task, test)
    return Trained(
        path=best.path,
        arrays=arrays,
        scores=scores,
        fitted=msgspec.structs.replace(fitted, seconds=time.monotonic() - began),
        tried=tried if len(paths) > 1 else {},
        chosen=best.candidate.name,
        folds=trials.folds,
        refitted=trials.learns_all(best),
        baselines=baselines,
        held=HeldOutRows(examples=trials.held, outputs=outputs, folds=trials.folds),
        task=task,
        scale=scale,
    )


def with_transitions(task: Task, targets: Iterable[np.ndarray], weight: float) -> Task:
    """The task with the transitions in these labels, times a weight."""
    if not weight:
        return task
    learned = weight * log_transitions(targets, len(task.labels))
    return msgspec.structs.replace(task, transitions=tuple(map(tuple, learned.round(4).tolist())))


def choose_weight(task: Task, sides: Sequence[tuple[Split, Split]], outputs: Sequence[np.ndarray]) -> float:
    """The weight with the best score of held-out rows, the first among equals.

    `outputs` are those of the rows that each of `sides` holds out, side after side, answered with transitions of the
    rows that it learns from. Scores are averaged over rows. The weight is 0 for a task without a decoder.
    """
    best = (0.0, -np.inf)
    metric, counts = kind_of(task).default_metric(task), [len(held.examples.targets) for _, held in sides]
    bounds = np.cumsum([0, *counts]).tolist()
    for weight in TRANSITION_WEIGHTS if task.decoder == "constrained" else (0.0,):
        side_scores = [
            held.examples.scores(with_transitions(task, train.examples.targets, weight), outputs[start:stop])[metric]
            for (train, held), start, stop in zip(sides, bounds, bounds[1:], strict=False)
        ]
        if (score := float(np.average(side_scores, weights=counts))) > best[1]:
            best = (weight, score)
    return best[0]
