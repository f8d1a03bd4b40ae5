"""The training of one task, from kept features to a part with its scores and those of baselines."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path as FilePath

import msgspec
import numpy as np

from polyhead.deep.examples import module_outputs
from polyhead.deep.features import examples_of
from polyhead.deep.heads import tf_idf
from polyhead.deep.heads.inputs import scaled
from polyhead.deep.heads.trials import Trial, Trials
from polyhead.deep.nn.runtime import single_thread
from polyhead.deep.sharing.part import PooledPart
from polyhead.plan import Path
from polyhead.project.strategies.base import HeadCandidate
from polyhead.project.strategies.pooled import baseline_of
from polyhead.tasks.kinds import kind_of
from polyhead.train.candidates import baseline_path, candidates, constant_scores, feature_paths, left_out
from polyhead.train.data.prepare import wanted
from polyhead.train.data.prepared import Prepared, Split
from polyhead.train.data.source import FeatureRequest, FeatureSource
from polyhead.train.events import Events
from polyhead.train.heads.rule import choosing_score
from polyhead.train.heads.temperature import best_scale
from polyhead.train.heads.transitions import choose_weight, with_transitions
from polyhead.train.job import Trainer
from polyhead.train.record.draft import Baselines, HeldRows, Trained

TOLD_FROM = 10_000  # training rows from which each head takes a while, so that its score is reported as it ends


class HeadTrainer(Trainer):
    """Trains each task's heads on kept features of the frozen trunk, one task at a time."""

    def paths(self) -> dict[str, list[Path]]:
        """The path of every candidate, of the tasks to train; reports the omitted ones."""
        for p in self.todo:
            names = left_out(p, self.job.source)
            if names:
                kept = "the store does not keep what they read"
                self.job.events.line(f"{p.task.name}: these heads are not tried, since {kept}: {'; '.join(names)}")
        paths = feature_paths(self.todo, self.prepared, self.job.source, self.job.bundle)
        codecs = {path.pool.codec.name: path.pool.codec.format for several in paths.values() for path in several}
        for codec in (name for name, codec in codecs.items() if not codec.has_graph):
            answers = "torch or the reference alone answer from it, and nothing proves or exports it"
            self.job.events.line(f"codec '{codec}' has no method `graph`: {answers}")
        return paths

    def requests(self, prepared: Prepared, path: Path) -> list[FeatureRequest]:
        """The features of every split."""
        return wanted(prepared, path, self.job.source)

    def train(self) -> None:
        """Trains the tasks; a task's checkpoints are deleted when it is in the bundle."""
        for p in self.todo:
            folder = self.job.folder("checkpoints", p)
            paths = self.job.paths[p.task.name]
            trained = train_task(p, paths, self.job.source, checkpoints=folder, events=self.job.events)
            self.job.commit([(p, trained)], checkpoints=folder)


def train_task(
    prepared: Prepared, paths: list[Path], source: FeatureSource, *, checkpoints: FilePath | None, events: Events
) -> Trained:
    """Tries a head on each path, and keeps one of them; only the kept part reads the test split, once."""
    task, began = prepared.task, time.monotonic()
    with single_thread() as threads:
        trials = Trials(prepared, source, checkpoints=checkpoints, events=events, threads=threads)
        several = list[Trial]()
        for candidate, path in zip(candidates(prepared, source), paths, strict=True):
            if not trials.is_beaten(candidate):
                several.append(trials.tried(candidate, path))
                if len(prepared.train.examples.targets) >= TOLD_FROM:
                    score = choosing_score(task, trials.held, several[-1].outputs)
                    metric = kind_of(task).default_metric(task)
                    events.line(f"{task.name}: {candidate.name}: validation {metric} {score:.4f}")
                continue
            rows = f"the {len(trials.held.targets):,} rows held out"
            events.line(f"{task.name}: {candidate.name} is not tried: a linear head's score on {rows} is perfect")
        best = trials.best(several)
        module, fitted = trials.kept(best)
        scale = best_scale(task, best.outputs, trials.held.taught)
        module, outputs = scaled(module, scale), [np.asarray(row * np.float32(scale)) for row in best.outputs]
        scores = {"validation": trials.held.scores(task, outputs)}
        baselines = baselines_of(prepared, trials, several, source) if len(paths) > 1 else {}
        weight, decoded = choose_weight(task, trials.sides, outputs)
        if weight:
            scores["validation"] = decoded
        learned = prepared.whole if trials.learns_all(best) and prepared.whole else prepared.train.examples
        task = with_transitions(task, learned.targets, weight)
        if prepared.test is not None:
            answering = msgspec.structs.replace(prepared, task=task)
            scores["test"] = evaluate_part(module, answering, prepared.test, best.path, source)
    arrays = {name: value.detach().numpy().copy() for name, value in module.state_dict().items()}
    tried = {trial.candidate.name: choosing_score(task, trials.held, trial.outputs) for trial in several}
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
        held=HeldRows(examples=trials.held, outputs=outputs, folds=trials.folds),
        transitions=task.transitions,
        scale=scale,
    )


def evaluate_part(
    module: PooledPart, prepared: Prepared, split: Split, path: Path, source: FeatureSource
) -> dict[str, float]:
    """All metrics of the task's kind on the whole split."""
    outputs = module_outputs(module, examples_of(prepared, split, path, source))
    return split.examples.scores(prepared.task, outputs)


def with_baselines(prepared: Prepared, trained: Trained, source: FeatureSource) -> Trained:
    """The same with the scores of baselines, if it has none yet."""
    if trained.baselines:
        return trained
    with single_thread():
        trials = Trials(prepared, source, checkpoints=None, events=Events())
        several = []
        path = baseline_path(prepared, trained.path, source)
        if path is not None:
            strategy = baseline_of(prepared.task)
            several = [trials.tried(HeadCandidate(name="linear", strategy=strategy, solver="linear"), path)]
        baselines = baselines_of(prepared, trials, several, source)
    return msgspec.structs.replace(trained, baselines=baselines)


def baselines_of(prepared: Prepared, trials: Trials, several: Sequence[Trial], source: FeatureSource) -> Baselines:
    """Scores of baselines on the selection rows, and on test; the linear one is the best of those tried.

    That of words reads no encoder: it is what a task would score without one.
    """
    baselines: Baselines = {"constant": constant_scores(prepared, trials.held)}
    best = trials.best_linear(several)
    if best is not None:
        baselines["linear"] = {"validation": trials.held.scores(prepared.task, best.outputs)}
        if prepared.test is not None:
            module, _ = trials.kept(best)
            outputs = module_outputs(module, examples_of(prepared, prepared.test, best.path, source))
            baselines["linear"]["test"] = prepared.test.examples.scores(prepared.task, outputs)
    if tf_idf.can_read(prepared.task):
        baselines["tf-idf"] = _word_scores(prepared, trials)
    return baselines


def _word_scores(prepared: Prepared, trials: Trials) -> dict[str, dict[str, float]]:
    """The scores of TF-IDF with logistic regression, its penalty chosen by score; on test learned from all rows."""
    task, outputs = prepared.task, {strength: list[np.ndarray]() for strength in tf_idf.STRENGTHS}
    for train, held in trials.sides:
        for strength, answered in tf_idf.answers_to(task, held.examples, train=train.examples).items():
            outputs[strength] += answered
    best = max(outputs, key=lambda strength: choosing_score(task, trials.held, outputs[strength]))
    scores = {"validation": trials.held.scores(task, outputs[best])}
    if prepared.test is not None:
        test, whole = prepared.test.examples, prepared.whole or prepared.train.examples
        scores["test"] = test.scores(task, tf_idf.answers_to(task, test, train=whole, strengths=[best])[best])
    return scores
