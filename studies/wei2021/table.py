"""The form that the paper's tables and ours have in common: lines of scores with what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from polyhead.plan.cost.allocate import AllocationOption, LayerPrice
from polyhead.values import Value
from studies.shared.tables import differs
from studies.trained import Learned

ONE_A_LAYER = LayerPrice(shared=1, private=1, unit="layers")
FULL = "full fine-tuning"
NEAR = 0.99  # of a column's best: what table 1 shades


class Printed(Value):
    """What the paper prints for a line, where it can be counted anew."""

    average: float | None = None
    layers: int | None = None
    overhead: float | None = None


class Line(Value):
    """Scores in points, one a task (None: not there), their average, and layers evaluated for all tasks."""

    name: str
    scores: tuple[float | None, ...]
    spreads: tuple[float | None, ...] = ()  # standard deviations over seeds
    average: float | None = None
    spread: float | None = None  # of the average
    layers: int | None = None
    overhead: float | None = None  # percent of one whole encoder a task
    of_full: float | None = None  # percent of full fine-tuning's average
    chosen: tuple[AllocationOption, ...] = ()
    marks: tuple[str, ...] = ()  # of scores that had not converged, one a task
    printed: Printed | None = None
    note: str = ""


class Table(Value):
    """Lines over the same tasks; `full` is how many layers one whole encoder a task evaluates."""

    tasks: tuple[str, ...]
    full: int
    lines: tuple[Line, ...]
    depths: dict[str, int] = {}  # private layers that were chosen for each task's teacher
    notes: tuple[str, ...] = ()
    learned: dict[str, Learned] = {}  # how far full fine-tuning had learned each task, of our runs


def table_of(
    tasks: Sequence[str],
    full: int,
    lines: Sequence[Line],
    *,
    depths: dict[str, int] | None = None,
    notes: Sequence[str] = (),
    learned: Mapping[str, Learned] | None = None,
) -> Table:
    """The table, overheads counted, and shares of full fine-tuning's average where that had learned."""
    marks = tuple(learned[task].mark if task in learned else "" for task in tasks) if learned else ()
    against = None if any(marks) else next((line.average for line in lines if line.name == FULL), None)
    filled = [
        msgspec.structs.replace(
            line,
            marks=marks if line.name == FULL else (),
            overhead=100 * line.layers / full if line.layers is not None and full else None,
            of_full=100 * line.average / against if line.average is not None and against else None,
        )
        for line in lines
    ]
    return Table(
        tasks=tuple(tasks),
        full=full,
        lines=tuple(filled),
        depths=dict(depths or {}),
        notes=tuple(notes),
        learned=dict(learned or {}),
    )


def near_best(lines: Sequence[Line]) -> list[list[bool]]:
    """For each line and task whether the score is at least 99 % of the task's best among these lines."""
    columns = zip(*(line.scores for line in lines), strict=True)
    best = [max((score for score in column if score is not None), default=None) for column in columns]
    return [
        [
            score is not None and top is not None and score >= NEAR * top
            for score, top in zip(line.scores, best, strict=True)
        ]
        for line in lines
    ]


def printed_otherwise(table: Table) -> list[str]:
    """Each number of the paper that is not what its own rows give, with that."""
    lines = []
    for line in table.lines:
        printed = line.printed or Printed()
        for what in ("average", "layers", "overhead"):
            lines += differs(f"{line.name}: {what}", getattr(printed, what), getattr(line, what), digits=1)
    return lines
