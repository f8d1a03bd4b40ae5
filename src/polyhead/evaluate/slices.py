"""Scores of the rows that have a value in a column, value by value."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from polyhead.data.columns import no_column
from polyhead.data.rows import Rows
from polyhead.evaluate.bootstrap import Interval, intervals
from polyhead.evaluate.scores import SplitOutputs
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.kinds.base import spelled
from polyhead.values import Value

MOST = 20  # values of a column, the most frequent ones
PARTS = 4  # of numbers, as many rows in each
FEW_NUMBERS = 12  # different numbers that are values like any other
EMPTY, OTHERS = "(empty)", "(other values)"
LONGEST = 200  # characters of a value that are shown


class Slice(Value):
    """The rows of one value, or of one range of numbers."""

    value: str
    rows: int
    score: float
    interval: Interval | None


class Sliced(Value):
    """A column's slices, by the task's metric."""

    column: str
    metric: str
    slices: tuple[Slice, ...]


def columns_read(path: str, columns: Sequence[str], rows: Sequence[int]) -> dict[str, list[object]]:
    """What stands in columns of some rows of a file; raises MissingColumn for a column that it does not have."""
    wanted, read, values = set(rows), Rows(path, columns), dict[int, list[object]]()
    for row in read:
        if row.number in wanted:
            values[row.number] = [row.values.get(column) for column in columns]
    for column in columns:
        if column not in read.columns:
            raise no_column(path, column, list(read.columns))
    return {column: [values[row][place] for row in rows] for place, column in enumerate(columns)}


def sliced(answered: SplitOutputs, column: str, values: Sequence[object]) -> Sliced:
    """The task's score on the rows of each value of a column, the most frequent first; numbers in ascending parts."""
    task, examples = answered.task, answered.examples
    kind, each, slices = kind_of(task), examples.each(), []
    metric = kind.default_metric(task)
    for name, rows in grouped(values).items():
        members = rows.tolist()
        outputs, targets, own = ([of[row] for row in members] for of in (answered.outputs, examples.targets, each))
        recount = kind.judged(task, outputs, targets, own).recount
        slices.append(
            Slice(
                value=name,
                rows=len(rows),
                score=kind.evaluate(task, outputs, targets, own)[metric],
                interval=None if recount is None else intervals(recount, len(rows))[metric],
            )
        )
    return Sliced(column=column, metric=metric, slices=tuple(slices))


def grouped(values: Sequence[object]) -> dict[str, np.ndarray]:
    """The places of each value, int64 (rows,): by name, or in PARTS where there are many numbers."""
    names = [_name(value) for value in values]
    numbers = np.array([_number(name) for name in names])
    is_number = np.isfinite(numbers)
    if (is_number | (np.array(names) == EMPTY)).all() and len(np.unique(numbers[is_number])) > FEW_NUMBERS:
        return _parts(numbers, is_number)
    frequent = [name for name, _ in Counter(names).most_common(MOST)]
    places: dict[str, list[int]] = {name: [] for name in (*frequent, OTHERS)}
    for place, name in enumerate(names):
        places[name if name in places else OTHERS].append(place)
    return {name: np.array(several, np.int64) for name, several in places.items() if several}


def _parts(numbers: np.ndarray, is_number: np.ndarray) -> dict[str, np.ndarray]:
    edges = np.unique(np.quantile(numbers[is_number], np.linspace(0, 1, PARTS + 1)))
    part = np.clip(np.searchsorted(edges, numbers, side="right") - 1, 0, max(len(edges) - 2, 0))
    groups = {}
    for number, (low, high) in enumerate(zip(edges[:-1], edges[1:], strict=True)):
        groups[f"{low:.6g} to {high:.6g}"] = np.flatnonzero((part == number) & is_number)
    groups[EMPTY] = np.flatnonzero(~is_number)
    return {name: places for name, places in groups.items() if len(places)}


def _name(value: object) -> str:
    if value is None or (isinstance(value, str) and not value.strip()):
        return EMPTY
    name = spelled(value)
    name = str(value) if name is None else name
    return name if len(name) <= LONGEST else f"{name[:LONGEST]}…"


def _number(name: str) -> float:
    try:
        return float(name)
    except ValueError:
        return math.nan
