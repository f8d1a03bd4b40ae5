"""Estimates of training time, given beforehand: from rates measured first, and from earlier runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from polyhead.advise.ways import Way
from polyhead.deep.prices import STOPPED, UPDATE, Sizes, frozen_seconds, work_on_path
from polyhead.deep.rates import Rates
from polyhead.encoder.shape import Architecture as Shape
from polyhead.project.recipes import FineTune
from polyhead.train.data.prepared import Prepared


def seconds_of(way: Way, prepared: Sequence[Prepared], sizes: Mapping[str, Sizes], rates: Rates, shape: Shape) -> float:
    """Seconds of training the way, evaluation included; kept states are charged in part, since ways share them."""
    total = 0.0
    for p in prepared:
        for strategy in (p.strategy, *way.besides):
            with_strategy, size = msgspec.structs.replace(p, strategy=strategy), sizes[p.task.name]
            if way.trunk_learns:
                total += _learned_seconds(way, with_strategy, size, rates, shape)
            else:
                total += frozen_seconds(with_strategy, size, rates, shape)
    return total


def _learned_seconds(way: Way, p: Prepared, size: Sizes, rates: Rates, shape: Shape) -> float:
    """The same of one task, where the trunk learns with it."""
    work, steps = work_on_path(p, shape), max(1, math.ceil(size.rows / p.training.batch))
    passes = p.training.schedule(steps).most_updates / steps
    stopped = passes * (STOPPED if isinstance(way.recipe, FineTune) else 1.0)
    learned = size.train * rates.learn + size.held * rates.encode
    ended = (size.held + size.test) * rates.encode * work.run
    return stopped * (learned * work.run + steps * 4 * UPDATE) + 2 * ended


class Corrections:
    """Ratios of actual to estimated durations, by way, and over all for ways that never ran."""

    def __init__(self, done: Iterable[tuple[str, float, float]] = ()) -> None:
        self._done: dict[str, list[tuple[float, float]]] = {}
        for way, estimated, seconds in done:
            self.add(way, estimated, seconds)

    def add(self, way: str, estimated: float, seconds: float) -> None:
        """Records a finished run; `estimated` is without corrections."""
        self._done.setdefault(way, []).append((estimated, seconds))

    def corrected(self, way: str, estimated: float) -> float:
        """The estimate times measured over estimated seconds of this way's runs, or of all runs if it has none."""
        runs = self._done.get(way) or [pair for pairs in self._done.values() for pair in pairs]
        if not runs:
            return estimated
        return estimated * sum(taken for _, taken in runs) / max(1e-9, sum(estimate for estimate, _ in runs))
