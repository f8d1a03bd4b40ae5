"""What a claim about quality needs to count as shown: three seeds, and an interval that excludes the other side.

Every study's claims about scores are made by `judged`. A claim about speed, size or a count of cases says yes or no by
itself.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from polyhead.values import Value
from studies.results import LEAST_SEEDS, Claim
from studies.shared.rows import Spread
from studies.trained import CONVERGED, Learned

SURE = 0.95
Side = Literal["least", "above", "most"]  # of its target a value is to be: at least, above, at most


class Estimate(Value):
    """A mean over seeds or draws with its 95 % interval; of one seed there is none."""

    mean: float
    low: float | None
    high: float | None
    seeds: int

    @property
    def is_enough(self) -> bool:
        """Whether a claim can rest on it."""
        return self.seeds >= LEAST_SEEDS and self.low is not None


def estimate(points: Iterable[float]) -> Estimate:
    """The mean of a number a seed or draw, and its interval by Student's t."""
    values = [float(value) for value in points]
    count = len(values)
    if not count:
        return Estimate(mean=math.nan, low=None, high=None, seeds=0)
    if count == 1:
        return Estimate(mean=values[0], low=None, high=None, seeds=1)
    return _within(statistics.mean(values), statistics.stdev(values) / math.sqrt(count), count - 1, count)


def proportion(count: int, of: int) -> Estimate:
    """A share of draws that came out so."""
    share = count / of
    return _within(share, math.sqrt(share * (1 - share) / (of - 1)), of - 1, of)


def by_draw(points: Mapping[str, Mapping[int, float]]) -> Estimate:
    """The mean over all tasks or sets, by seed or draw that all of them have, and its interval over these."""
    common = set.intersection(*(set(by_seed) for by_seed in points.values())) if points else set()
    if points and all(points.values()) and not common:  # each has draws, and no draw has them all
        return Estimate(mean=statistics.mean(map(_mean, points.values())), low=None, high=None, seeds=0)
    return estimate(statistics.mean(by_seed[seed] for by_seed in points.values()) for seed in sorted(common))


def unpaired(pairs: Sequence[tuple[Spread, Spread]]) -> Estimate:
    """The mean over pairs of the first's mean less the second's, from means and deviations alone (Welch 1947)."""
    mean = statistics.mean(first.mean - second.mean for first, second in pairs)
    seeds = min(side.seeds for pair in pairs for side in pair)
    if seeds < 2:
        return Estimate(mean=mean, low=None, high=None, seeds=seeds)
    parts = [((side.deviation or 0.0) ** 2 / side.seeds, side.seeds) for pair in pairs for side in pair]
    squares = sum(part for part, _ in parts)
    if not squares:
        return Estimate(mean=mean, low=mean, high=mean, seeds=seeds)
    degrees = squares**2 / sum(part**2 / (count - 1) for part, count in parts)
    return _within(mean, math.sqrt(squares) / len(pairs), degrees, seeds)


def least(of: Iterable[Estimate]) -> Estimate:
    """The lowest of several means; its interval ends at the lowest ends of theirs."""
    return _end(list(of), min)


def most(of: Iterable[Estimate]) -> Estimate:
    """The highest of several means; its interval ends at the highest ends of theirs."""
    return _end(list(of), max)


def distance(of: Estimate, point: float = 0.0) -> Estimate:
    """How far the mean is from a point, to either side."""
    mean = abs(of.mean - point)
    if of.low is None or of.high is None:
        return msgspec.structs.replace(of, mean=mean)
    ends = sorted((abs(of.low - point), abs(of.high - point)))
    return Estimate(mean=mean, low=0.0 if of.low <= point <= of.high else ends[0], high=ends[1], seeds=of.seeds)


def counted(of: Mapping[str, Estimate], limit: float, *, side: Side) -> Estimate:
    """How many are on this side of a limit by their means; from those that surely are to those that may be."""
    verdicts = [verdict(one, limit, side) for one in of.values()]
    return Estimate(
        mean=sum(is_on(one.mean, limit, side) for one in of.values()),
        low=verdicts.count(True),
        high=len(verdicts) - verdicts.count(False),
        seeds=min((one.seeds for one in of.values()), default=0),
    )


def verdict(found: Estimate, target: float, side: Side) -> bool | None:
    """True or False where three seeds and the whole interval say so; else None."""
    if not found.is_enough or found.low is None or found.high is None:
        return None
    first, last = is_on(found.low, target, side), is_on(found.high, target, side)
    return first if first == last else None


def is_on(value: float, target: float, side: Side) -> bool:
    """Whether a value is on this side of its target."""
    if side == "most":
        return value <= target
    return value > target if side == "above" else value >= target


def judged(
    id: str,
    text: str,
    found: Estimate,
    *,
    target: float,
    side: Side = "least",
    unit: str = "points",
    digits: int = 2,
    note: str = "",
    ours: Learned | None = None,
    against: Learned | None = None,
    lacking: str = "",
) -> Claim:
    """The claim that a value is on this side of its target, shown or refuted only where the rules allow it.

    `ours` and `against` say how far two compared sides had learned, where they train layers: the one that is behind
    must have converged, or nothing is claimed. `lacking` says which runs are not there: nothing is claimed either.
    """
    outcome = verdict(found, target, side)
    behind = against if is_on(found.mean, target, side) else ours
    reasons = [lacking] if lacking else []
    if not found.is_enough and not lacking:
        reasons.append(f"{found.seeds} of {LEAST_SEEDS} seeds or draws")
    elif found.is_enough and outcome is None:
        reasons.append("the interval holds both sides of the target")
    if behind is not None and behind.state != CONVERGED:
        reasons.append(behind.why)
    return Claim(
        id=id,
        text=text,
        target=target,
        value=0.0 if math.isnan(found.mean) else round(found.mean, digits),  # of no seed there is no value
        unit=unit,
        holds=None if reasons else outcome,
        note="; ".join([*([f"not shown: {', and '.join(reasons)}"] if reasons else []), *([note] if note else [])]),
        seeds=found.seeds,
        interval=None if found.low is None or found.high is None else (round(found.low, 4), round(found.high, 4)),
        loser=behind.state if behind is not None else "",
    )


def _mean(by_seed: Mapping[int, float]) -> float:
    return statistics.mean(by_seed.values())


def _within(mean: float, error: float, degrees: float, seeds: int) -> Estimate:
    from scipy.stats import t

    half = float(t.ppf((1 + SURE) / 2, degrees)) * error
    return Estimate(mean=mean, low=mean - half, high=mean + half, seeds=seeds)


def _end(several: Sequence[Estimate], pick: Callable[[Iterable[float]], float]) -> Estimate:
    lows, highs = [one.low for one in several], [one.high for one in several]
    known = [low for low in lows if low is not None], [high for high in highs if high is not None]
    whole = len(known[0]) == len(several)
    return Estimate(
        mean=pick(one.mean for one in several),
        low=pick(known[0]) if whole else None,
        high=pick(known[1]) if whole else None,
        seeds=min(one.seeds for one in several),
    )
