"""What is advised: the choice for each task, why, what the next better one would cost, and what labels would bring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from polyhead.advise.labels import LearningCurve
from polyhead.plan.cost.allocate import Allocation, AllocationOption, LayerPrice, frontier
from polyhead.values import Value

Unit = Literal["layers", "ms", "bytes"]
UNITS: Mapping[Unit, str] = {"layers": "layers", "ms": "ms", "bytes": "bytes of weights"}
WORTH = 1.0  # points that a layer must be worth, where there is no budget (docs/guides/branches.md)
MARGIN = 0.5  # points on validation by which a trunk that learns must win: every task is then bound to it
MICRO = "microseconds"  # milliseconds as whole numbers


class Budget(Value):
    """What one text may cost with all tasks, and what may be spent on finding out."""

    amount: float | None = None  # None: a layer must be worth a point
    unit: Unit = "layers"
    minutes: float | None = None
    frozen: bool = False  # no trunk that learns
    epochs: int | None = None  # passes at most where layers run as they learn

    @property
    def how(self) -> str:
        """What decides, in words."""
        if self.amount is None:
            return f"a layer must be worth {WORTH:g} point"
        return f"the best mean within {self.amount:g} {UNITS[self.unit]}"

    def most(self, price: LayerPrice) -> float:
        """The amount as costs of this price are counted."""
        if self.amount is None:
            return float("inf")
        return self.amount * scale_of(price)


class Improvement(Value):
    """A better choice than the one taken, and what it would cost."""

    score: float  # mean over the tasks on validation, points
    cost: float  # more than the choice, in the budget's unit
    changes: dict[str, str]  # by task: its option there


class TaskAdvice(Value):
    """The choice for one task."""

    chosen: str
    score: float  # on validation, points
    tried: dict[str, float]  # by option
    why: str
    curve: LearningCurve | None = None
    labels: float | None = None  # points that twice as many labels are expected to gain
    layers: float = 0.0  # points by which the best option that was tried is above the choice
    says: str = ""  # which of both helps more


class Advice(Value):
    """All choices, their cost, what was tried and what was left out."""

    tasks: dict[str, TaskAdvice]
    learned: bool  # whether the trunk learns with the tasks
    score: float  # mean over the tasks on validation, points
    cost: float
    unit: Unit
    budget: float | None
    retrained: str  # when a task is added
    next: Improvement | None
    left_out: tuple[str, ...]
    seconds: float  # of work


def scale_of(price: LayerPrice) -> int:
    """How many of the price's units make one of the budget's."""
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
    """Whether more labels or more layers help more, in a sentence."""
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
    """The cheapest choice that scores better than `score`; None where none does."""
    for point in frontier(options, price):
        if point.score > score + 1e-9 and point.cost > cost:
            changes = {
                task: option.name for task, option in point.chosen.items() if option.name != chosen.chosen[task].name
            }
            return Improvement(score=round(point.score, 3), cost=(point.cost - cost) / scale_of(price), changes=changes)
    return None
