"""The advice: the choice for each task, its reasons, the cost of the next better one, and the value of more labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from polyhead.advise.labels import LearningCurve
from polyhead.plan.cost.allocate import Allocation, AllocationOption, LayerPrice, frontier
from polyhead.values import Value

Unit = Literal["layers", "ms", "bytes"]
UNITS: Mapping[Unit, str] = {"layers": "layers", "ms": "ms", "bytes": "bytes of weights"}
WORTH = 1.0  # points that a layer must gain, without a budget (docs/guides/branches.md)
MARGIN = 0.5  # points on validation by which a trained trunk must win, since it binds all tasks together
MICRO = "microseconds"  # milliseconds as integers


class Budget(Value):
    """The cost that one text may have with all tasks, and the limits of the comparison."""

    amount: float | None = None  # None: a layer must gain a point
    unit: Unit = "layers"
    minutes: float | None = None
    frozen: bool = False  # exclude trained trunks
    epochs: int | None = None  # maximum passes for ways that run layers in training

    @property
    def how(self) -> str:
        """The criterion, in words."""
        if self.amount is None:
            return f"a layer must be worth {WORTH:g} point"
        return f"the best mean within {self.amount:g} {UNITS[self.unit]}"

    def most(self, price: LayerPrice) -> float:
        """The budget in the unit of this price."""
        if self.amount is None:
            return float("inf")
        return self.amount * scale_of(price)


class Improvement(Value):
    """A better option than the choice, and its cost."""

    score: float  # mean over the tasks on validation, points
    cost: float  # in addition to the choice, in the budget's unit
    changes: dict[str, str]  # by task: its option


class TaskAdvice(Value):
    """The choice for one task."""

    chosen: str
    score: float  # on validation, points
    tried: dict[str, float]  # by option
    why: str
    curve: LearningCurve | None = None
    labels: float | None = None  # expected gain from twice as many labels, in points
    layers: float = 0.0  # points by which the best option tried exceeds the choice
    says: str = ""  # which of the two helps more


class TrunkTrial(Value):
    """Every task's default over one encoder."""

    name: str
    tasks: dict[str, float]  # points on validation
    score: float  # their mean
    tokens: int  # of the text that is counted
    flops: int  # of that text and all tasks
    layers: int
    is_affordable: bool  # within the budget


class Advice(Value):
    """All choices, their cost, the options tried and those left out."""

    tasks: dict[str, TaskAdvice]
    learned: bool  # whether the trunk is trained with the tasks
    score: float  # mean over the tasks on validation, points
    cost: float
    unit: Unit
    budget: float | None
    retrained: str  # when a task is added
    next: Improvement | None
    left_out: tuple[str, ...]
    seconds: float  # of work
    trunks: tuple[TrunkTrial, ...] = ()  # the encoders that were tried, if several were given
    why_trunk: tuple[str, ...] = ()


def scale_of(price: LayerPrice) -> int:
    """The number of the price's units in one of the budget's."""
    return 1000 if price.unit == MICRO else 1


def task_advice(chosen: str, tried: Mapping[str, float], curve: LearningCurve | None, how: str) -> TaskAdvice:
    """The choice for one task; `tried` are the scores of all its options."""
    score = tried[chosen]
    shown = ", ".join(f"{name} {value:.2f}" for name, value in tried.items())
    gain = max(tried.values()) - score
    labels = None if curve is None else round(curve.doubled, 2)
    return TaskAdvice(
        chosen=chosen,
        score=round(score, 3),
        tried={name: round(value, 3) for name, value in tried.items()},
        why=f"{shown} on validation; {how}",
        curve=curve,
        labels=labels,
        layers=round(gain, 3),
        says="" if curve is None else _compared(curve, gain),
    )


def _compared(curve: LearningCurve, layers: float) -> str:
    """A sentence on whether more labels or more layers help more."""
    labels = curve.doubled
    if labels <= 0 and layers <= 0:
        return f"neither twice the {curve.rows[-1]:,} labels nor more layers would help, as far as these rows show"
    which = "labels" if labels > layers else "layers"
    return (
        f"twice the {curve.rows[-1]:,} labels are worth about {labels:.1f} points, more layers {layers:.1f}: "
        f"more {which} would help more"
    )


def next_step(
    options: Sequence[AllocationOption], price: LayerPrice, chosen: Allocation, *, score: float, cost: int
) -> Improvement | None:
    """The cheapest choice that scores better than `score`; None if none does."""
    for point in frontier(options, price):
        if point.score > score + 1e-9 and point.cost > cost:
            changes = {
                task: option.name for task, option in point.chosen.items() if option.name != chosen.chosen[task].name
            }
            return Improvement(score=round(point.score, 3), cost=(point.cost - cost) / scale_of(price), changes=changes)
    return None
