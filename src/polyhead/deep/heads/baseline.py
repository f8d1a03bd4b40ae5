"""The simple answers that every trained part is compared with, which a linear head gives."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from polyhead.deep.examples import module_outputs
from polyhead.deep.features import examples_of
from polyhead.deep.heads.select import Trial, Trials, best_linear
from polyhead.deep.nn.runtime import single_thread
from polyhead.project.strategies.base import HeadCandidate
from polyhead.project.strategies.pooled import baseline_of
from polyhead.train.data.prepared import Prepared
from polyhead.train.data.source import FeatureSource
from polyhead.train.events import Events
from polyhead.train.heads import baseline_path, constant_scores
from polyhead.train.record.draft import Baselines, Trained


def with_baselines(prepared: Prepared, trained: Trained, source: FeatureSource) -> Trained:
    """The same with the scores of simple answers, where it has none yet."""
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
    """Scores of simple answers on the rows that choose, and on test; the linear one is the best of those tried."""
    baselines: Baselines = {"constant": constant_scores(prepared, trials.held)}
    best = best_linear(several)
    if best is not None:
        baselines["linear"] = {"validation": trials.held.scores(prepared.task, best.outputs)}
        if prepared.test is not None:
            module, _ = trials.kept(best)
            outputs = module_outputs(module, examples_of(prepared, prepared.test, best.path, source))
            baselines["linear"]["test"] = prepared.test.examples.scores(prepared.task, outputs)
    return baselines
