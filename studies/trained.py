"""Whether a method that trains layers has learned: it ended before its last epoch, and no simple answer beats it.

Simple answers are the constant one, logistic or ridge regression on mean vectors, and for pairs the untrained cosine.
Their scores come from the rows of the study of defaults: the same trunk, metric and whole reported splits, and at most
as many training rows as the method had.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Literal

from polyhead.values import Value
from studies.settings import results_rows

State = Literal["converged", "not converged", "not known to have converged"]
CONVERGED: State = "converged"
NOT: State = "not converged"
UNKNOWN: State = "not known to have converged"
MARKS: dict[State, str] = {CONVERGED: "", NOT: "!", UNKNOWN: "?"}
SIMPLE = {
    "constant": "the constant answer",
    "mean vectors": "logistic regression on mean vectors",
    "ridge": "ridge regression on mean vectors",
    "cosine": "the untrained cosine",
}
_ROWS = "heads_defaults"


class Fit(Value):
    """One training of one task: its score on the reported split in points, and the epoch that was kept."""

    task: str
    score: float
    best_epoch: int | None = None  # None: not in the rows
    metric: str = ""
    rows: int = 0  # training rows


class Learned(Value):
    """How far a method had learned, and why it is said."""

    state: State
    why: str
    runs: int = 0
    ended: int = 0  # of the runs, at the last epoch that was allowed
    below: str = ""  # the simple score that is higher

    @property
    def mark(self) -> str:
        """What stands behind its scores in a table."""
        return MARKS[self.state]


def learned(
    fits: Iterable[Fit], *, allowed: int | None, simple: Mapping[str, Mapping[str, float]] | None = None
) -> dict[str, Learned]:
    """By task. `allowed` is the last epoch that training could reach; None where the rows do not tell.

    `simple` has points of the simple answers by task, where a study has its own; None: of the study of defaults.
    """
    by_task: dict[str, list[Fit]] = {}
    for fit in fits:
        by_task.setdefault(fit.task, []).append(fit)
    return {
        task: _learned(task, several, allowed, None if simple is None else simple.get(task, {}))
        for task, several in by_task.items()
    }


def whole(what: str, tasks: Mapping[str, Learned]) -> Learned:
    """The method over all its tasks: the worst of them, and which these are."""
    for state in (NOT, UNKNOWN):
        those = [task for task, one in tasks.items() if one.state == state]
        if those:
            return Learned(state=state, why=f"{what} is {state} on {len(those)} of {len(tasks)} tasks{_summary(tasks)}")
    return Learned(state=CONVERGED, why=f"{what} converged")


def unknown(what: str) -> Learned:
    """Of a method whose rows hold no epochs."""
    return Learned(state=UNKNOWN, why=f"{what} is {UNKNOWN} (its rows hold no epochs)")


def simple_scores(task: str, metric: str, rows: int) -> dict[str, float]:
    """Points of the simple answers to a task by this metric, learned from at most so many rows; empty: not known."""
    found: dict[str, float] = {}
    for row in _simple_rows():
        if (row["set"], row["metric"]) == (task, metric) and row["rows"] <= rows:
            for name in SIMPLE.keys() & row["baselines"].keys():
                found.setdefault(name, 0.0)
                found[name] = max(found[name], row["mean"][name])
    return found


def mark_lines(what: str, tasks: Mapping[str, Learned]) -> list[str]:
    """What the marks behind a method's scores mean; empty without one."""
    marked = {state: [task for task in tasks if tasks[task].state == state] for state in (NOT, UNKNOWN)}
    lines = [f"{MARKS[NOT]} {what}, {NOT}: {tasks[task].why}" for task in marked[NOT]]
    if marked[UNKNOWN]:
        lines.append(f"{MARKS[UNKNOWN]} {what}, {UNKNOWN}, no simple score beside it: {', '.join(marked[UNKNOWN])}")
    return ["", *lines, "no ratio is made from what is marked so"] if lines else []


def _summary(tasks: Mapping[str, Learned]) -> str:
    ended, runs = (sum(getattr(one, name) for one in tasks.values()) for name in ("ended", "runs"))
    below = [one.below for one in tasks.values() if one.below]
    parts = [*([f"{ended} of {runs} runs end at the last epoch"] if ended else []), *below]
    return f" ({'; '.join(parts)})" if parts else ""


def _learned(task: str, fits: list[Fit], allowed: int | None, simple: Mapping[str, float] | None) -> Learned:
    score, rows = statistics.mean(fit.score for fit in fits), min(fit.rows for fit in fits)
    simple = simple_scores(task, fits[0].metric, rows) if simple is None else simple
    last = sum(fit.best_epoch == allowed for fit in fits) if allowed is not None else 0
    higher = max(simple, key=simple.__getitem__, default=None)
    below = ""
    if higher is not None and score < simple[higher]:
        below = f"{task} {score:.1f} is below {SIMPLE[higher]}, {simple[higher]:.1f}"
    if last or below:
        ended = [f"{last} of {len(fits)} runs end at the last epoch"] if last else []
        why = ", ".join([*ended, *([below.removeprefix(f"{task} ")] if below else [])])
        return Learned(state=NOT, why=f"{task}: {why}", runs=len(fits), ended=last, below=below)
    if not simple or allowed is None or any(fit.best_epoch is None for fit in fits):
        return Learned(state=UNKNOWN, why=task, runs=len(fits), ended=last, below=below)
    return Learned(state=CONVERGED, why=task, runs=len(fits), ended=last, below=below)


@cache
def _simple_rows() -> tuple[dict[str, Any], ...]:
    """One row a set and size of the study of defaults, with the means of its baselines over draws, in points."""
    by_size: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in results_rows(_ROWS):
        by_size.setdefault((row["set"], row["size"]), []).append(row)
    return tuple(
        {
            **several[0],
            "mean": {
                name: 100 * statistics.mean(row["baselines"][name] for row in several)
                for name in several[0]["baselines"]
            },
        }
        for several in by_size.values()
    )
