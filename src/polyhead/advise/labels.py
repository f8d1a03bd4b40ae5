"""The value of more labels: a linear head over kept features, trained on fewer rows and on all."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec
import numpy as np

from polyhead.machine import one_blas_thread
from polyhead.plan import Codec, Path
from polyhead.project.strategies.base import HeadCandidate
from polyhead.project.strategies.pooled import baseline_of
from polyhead.tasks.kinds import kind_of
from polyhead.train.data.prepare import wanted
from polyhead.train.data.prepared import Prepared, Split
from polyhead.train.data.source import FeatureSource
from polyhead.train.events import Events
from polyhead.train.heads.selection_rule import choosing_score
from polyhead.train.heads.trials import Trials
from polyhead.train.runs import stream
from polyhead.values import Value

SHARES = (8, 4, 2, 1)  # shares of the rows: an eighth, a quarter, half, all
DRAWS = 3  # samples of each share but all
LEAST = 16  # rows of the smallest sample


class LearningCurve(Value):
    """Validation scores of a linear head by its number of training rows."""

    rows: tuple[int, ...]
    scores: tuple[float, ...]  # points

    @property
    def doubled(self) -> float:
        """Expected gain in points from twice as many rows: the mean slope of the last two doublings, at most the last.

        Curves flatten, so this is rather too high than too low; 0 for a falling curve.
        """
        if len(self.scores) < 2:
            return 0.0
        gains = [after - before for before, after in zip(self.scores, self.scores[1:], strict=False)][-2:]
        return max(0.0, min(gains[-1], statistics.mean(gains)))


def curve_of(prepared: Prepared, source: FeatureSource) -> LearningCurve | None:
    """The task's curve; None for kinds without a linear head, and for too few rows."""
    task = prepared.task
    count = len(prepared.train.examples.targets)
    if kind_of(task).loss == "span_cross_entropy" or count < LEAST * 2:
        return None
    shares = [share for share in SHARES if count // share >= LEAST]
    strategy = baseline_of(task)
    path = strategy.path(task, trunk=source.facts.digest, shape=source.facts.architecture, codec=Codec())
    train_only = msgspec.structs.replace(prepared, whole=None)
    source.fill(wanted(train_only, path, source))
    candidate = HeadCandidate(name="linear", strategy=strategy, solver="linear")
    scores = [statistics.mean(_scores(train_only, source, candidate, path, count // share, share)) for share in shares]
    return LearningCurve(
        rows=tuple(count // share for share in shares), scores=tuple(round(100 * score, 3) for score in scores)
    )


def _scores(
    prepared: Prepared, source: FeatureSource, candidate: HeadCandidate, path: Path, rows: int, share: int
) -> list[float]:
    scores = []
    with one_blas_thread():
        for draw in range(DRAWS if share > 1 else 1):
            seed = stream(prepared.training.seed, "curve", prepared.task.name, draw, rows)
            prepared_draw = msgspec.structs.replace(prepared, train=_drawn(prepared.train, rows, seed))
            trials = Trials(prepared_draw, source, checkpoints=None, events=Events())
            trial = trials.tried(candidate, path)
            scores.append(choosing_score(prepared.task, trials.held, trial.outputs))
    return scores


def _drawn(split: Split, rows: int, seed: int) -> Split:
    members: Sequence[int] = np.random.default_rng(seed).permutation(len(split.examples.targets))[:rows].tolist()
    return Split(name=split.name, examples=split.examples.take(sorted(members)))
