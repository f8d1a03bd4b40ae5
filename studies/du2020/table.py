"""The form that the paper's tables 3 and 4 and ours have in common: lines of accuracies with what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from polyhead.values import Value
from studies.shared.tables import differs, mean


class Printed(Value):
    """What the paper prints for a line, where it can be counted anew."""

    average: float | None = None
    groups: dict[str, float] = {}
    gflops: float | None = None  # two digits


class Line(Value):
    """Scores in points, one a task (None: not there), their means, and GFLOPs of one text for all tasks."""

    block: str
    name: str
    scores: tuple[float | None, ...]
    spreads: tuple[float | None, ...] = ()  # standard deviations over seeds
    groups: tuple[float | None, ...] = ()
    average: float | None = None  # of the tasks, not of the groups
    spread: float | None = None  # of the average
    gflops: float | None = None
    printed: Printed | None = None
    note: str = ""


class Table(Value):
    """Lines over the same tasks, and their means over the same groups of tasks."""

    tasks: tuple[str, ...]
    groups: tuple[str, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()


def table_of(
    tasks: Sequence[str], groups: Mapping[str, Sequence[str]], lines: Sequence[Line], *, notes: Sequence[str] = ()
) -> Table:
    """The table, with each line's average and means of groups counted; `groups` are tasks by the group's name."""
    filled = [
        msgspec.structs.replace(
            line, average=mean(line.scores), groups=groups_of(dict(zip(tasks, line.scores, strict=True)), groups)
        )
        for line in lines
    ]
    return Table(tasks=tuple(tasks), groups=tuple(groups), lines=tuple(filled), notes=tuple(notes))


def groups_of(scores: Mapping[str, float | None], groups: Mapping[str, Sequence[str]]) -> tuple[float | None, ...]:
    """The plain mean of each group's tasks; None where a score is missing."""
    return tuple(mean([scores.get(task) for task in tasks]) for tasks in groups.values())


def printed_otherwise(table: Table) -> list[str]:
    """Each number of the paper that is not what its own rows or the counts give, with that."""
    lines = []
    for line in table.lines:
        printed, name = line.printed or Printed(), f"{line.block}, {line.name}"
        counted = {"average": line.average, **dict(zip(table.groups, line.groups, strict=True))}
        for what, value in {"average": printed.average, **printed.groups}.items():
            lines += differs(f"{name}: {what}", value, counted[what])
        if line.gflops is not None and printed.gflops not in (None, float(f"{line.gflops:.2g}")):
            lines.append(f"{name}: GFLOPs printed {printed.gflops:g}, counted {line.gflops:.1f}")
    return lines
