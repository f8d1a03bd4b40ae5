"""Scores of simple answers, beside which a task's own stand: constant, linear, and without an encoder."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np

from polyhead.machine import one_blas_thread, processors
from polyhead.project.strategies.base import HeadCandidate
from polyhead.project.strategies.pooled import baseline_of
from polyhead.train.candidates import baseline_path, constant_scores
from polyhead.train.data.prepared import Prepared, Split
from polyhead.train.data.source import FeatureSource
from polyhead.train.events import Events
from polyhead.train.heads import tf_idf
from polyhead.train.heads.selection_rule import choosing_score
from polyhead.train.heads.trials import Trial, Trials
from polyhead.train.record.draft import Baselines, Trained


def with_baselines(prepared: Prepared, trained: Trained, source: FeatureSource) -> Trained:
    """The same with the scores of baselines, if it has none yet."""
    if trained.baselines:
        return trained
    with one_blas_thread():
        trials = Trials(prepared, source, checkpoints=None, events=Events())
        linear_trials = []
        path = baseline_path(prepared, trained.path, source)
        if path is not None:
            strategy = baseline_of(prepared.task)
            linear_trials = [trials.tried(HeadCandidate(name="linear", strategy=strategy, solver="linear"), path)]
        baselines = baselines_of(prepared, trials, linear_trials, source)
    return msgspec.structs.replace(trained, baselines=baselines)


def baselines_of(prepared: Prepared, trials: Trials, tried: Sequence[Trial], source: FeatureSource) -> Baselines:
    """Scores of baselines on the selection rows, and on test; the linear one is the best of those tried.

    The baseline of words reads no encoder: it is what a task would score without one.
    """
    baselines: Baselines = {"constant": constant_scores(prepared, trials.held)}
    best = trials.best_linear(tried)
    if best is not None:
        baselines["linear"] = {"validation": trials.held.scores(prepared.task, best.outputs)}
        if prepared.test is not None:
            outputs = trials.outputs(best.path, trials.kept(best)[0], prepared.test)
            baselines["linear"]["test"] = prepared.test.examples.scores(prepared.task, outputs)
    if tf_idf.can_read(prepared.task):
        baselines["tf-idf"] = _word_scores(prepared, trials)
    return baselines


def _word_scores(prepared: Prepared, trials: Trials) -> dict[str, dict[str, float]]:
    """The scores of TF-IDF with logistic regression, its penalty chosen by score; on test learned from all rows."""
    task, outputs = prepared.task, {strength: list[np.ndarray]() for strength in tf_idf.STRENGTHS}

    def answered(sides: tuple[Split, Split]) -> dict[float, list[np.ndarray]]:
        train, held = sides
        return tf_idf.answers_to(task, held.examples, train=train.examples)

    with ThreadPoolExecutor(processors(), "polyhead-words") as pool:  # products of matrices leave Python to others
        for answers in pool.map(answered, trials.sides):
            for strength, outputs_of_strength in answers.items():
                outputs[strength] += outputs_of_strength
    best = max(outputs, key=lambda strength: choosing_score(task, trials.held, outputs[strength]))
    scores = {"validation": trials.held.scores(task, outputs[best])}
    if prepared.test is not None:
        test, whole = prepared.test.examples, prepared.whole or prepared.train.examples
        scores["test"] = test.scores(task, tf_idf.answers_to(task, test, train=whole, strengths=[best])[best])
    return scores
