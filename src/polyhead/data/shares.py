"""Soft labels: the probability of each label instead of one label, from cells of a file or columns of a store."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence

import numpy as np

from polyhead.data.guess_kind import is_missing
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.kinds.base import as_float, bad_value, label_index, spelled
from polyhead.tasks.task import Example, Task

STORED = "store:"  # prefix of the name of a column of scores in the store that training reads
PLAIN = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")  # a number in a cell
MARKS = {"false": 0.0, "true": 1.0}
Stored = Callable[[Sequence[Example]], list[np.ndarray | None]]
"""The scores that a store has for examples, each (labels,); None for an example without an answer."""


def is_stored(soft: str | tuple[str, ...] | None) -> bool:
    """Whether soft labels come from a store."""
    return isinstance(soft, str) and soft.startswith(STORED)


def columns_in(soft: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """The columns of a file with soft labels."""
    if soft is None or is_stored(soft):
        return ()
    return (soft,) if isinstance(soft, str) else soft


def value_of(cells: Sequence[object], *, is_list: bool) -> object:
    """The content of these columns in one row: a list, an object, or an invalid value; None if they are empty."""
    values = [cell if not isinstance(cell, str) or cell.strip() else None for cell in cells]
    if all(value is None for value in values):
        return None
    if is_list:
        return [_number(value) for value in values]
    return parsed(values[0]) if isinstance(values[0], str) else values[0]


def shares_of(task: Task, value: object, example: Example) -> np.ndarray:
    """The probability of each label, float32 (labels,), from a list in the order of the labels or an object.

    A label missing from an object has probability 0. Raises BadValue or UnknownLabel with the row.
    """
    if isinstance(value, dict):
        listed: list[object] = [0.0] * len(task.labels)
        for name, number in value.items():
            listed[label_index(task, name, example)] = number
        value = listed
    if not isinstance(value, list | tuple | np.ndarray) or len(value) != len(task.labels):
        got = f"{len(value)} numbers" if isinstance(value, list | tuple | np.ndarray) else value
        allowed = f"a list of {len(task.labels)} numbers, in the order {list(task.labels)}, or an object by label"
        raise bad_value(task, example, "soft labels are a probability for each label", got=got, allowed=allowed)
    numbers = [_share(number) for number in value]
    wrong = {label: entry for label, entry, number in zip(task.labels, value, numbers, strict=True) if number is None}
    if wrong:
        problem = f"soft label {next(iter(wrong))!r} is no probability"
        raise bad_value(task, example, problem, got=next(iter(wrong.values())), allowed="a finite number from 0 to 1")
    return kind_of(task).shares(task, np.array(numbers, np.float64), example)


def weight_of(cell: object) -> float | None:
    """The weight of a row, a finite number of 0 or more; None for any other value."""
    value = parsed(cell) if isinstance(cell, str) else cell
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    weight = as_float(value)
    return weight if 0 <= weight < math.inf else None


def row_group(cell: object) -> str | None:
    """The group of a row: the cell as a label is spelled, else as text; None for an empty cell."""
    name = spelled(cell)
    if name is None and not is_missing(cell):
        name = str(cell)
    return name or None


def most_of_one(weights: Sequence[float]) -> list[float]:
    """The same weights with a maximum of 1, so that a part of the rows never counts for more than it has; or all 0."""
    most = max(weights, default=0.0) or 1.0
    return [weight / most for weight in weights]


def _share(number: object) -> float | None:
    """The number, if it is one from 0 to 1."""
    if isinstance(number, bool) or not isinstance(number, int | float | np.floating):
        return None
    value = as_float(float(number) if isinstance(number, np.floating) else number)
    return value if math.isfinite(value) and 0 <= value <= 1 else None


def parsed(cell: str) -> object:
    """The list or object that a cell spells; any other cell unchanged."""
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        return cell


def _number(value: object) -> object:
    """The number that a value of its own column is or spells, in any format: 1 for true; any other value unchanged."""
    if isinstance(value, str):
        text = value.strip()
        return float(text) if PLAIN.fullmatch(text) else MARKS.get(text.lower(), value)
    return float(value) if isinstance(value, bool) else value
