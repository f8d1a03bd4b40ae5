"""Helpers and checks that several kinds share."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Collection
from pathlib import PurePath

import numpy as np

from polyhead.arguments import twice_in
from polyhead.errors import BadValue, ConfigError, DataError, EmptyData, UnknownLabel
from polyhead.tasks.limits import CHARACTERS_OF_LABEL, LABELS_OF_TASK
from polyhead.tasks.task import Arrays, Example, Task
from polyhead.text.tokenize import lone_surrogates

BOOLEANS = frozenset({"false", "true"})
MOST_WHOLE = 2**53  # below it a float represents every integer


def listed(cell: str, otherwise: object) -> object:
    """The list that a cell spells, in JSON or as a Python literal (as data frames do); `otherwise` for anything else.

    A cell that begins like a list but is not one is returned unchanged.
    """
    if not cell.lstrip().startswith("["):
        return otherwise
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(cell.strip())
        # a thousand nested brackets are not a list either
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        return value if isinstance(value, list) else cell
    return cell


def parts_of_cell(cell: str, separator: str | None) -> object:
    """The list that a cell spells, as JSON or with separators, of which one may follow the last part; or the cell."""
    if not separator:
        return listed(cell, cell)
    parts = cell.split(separator)
    return listed(cell, parts if parts[-1].strip() else parts[:-1])


def single(value: object) -> object:
    """The label of a one-item list, as tools write a single choice; None for an empty list, other values unchanged."""
    return (value[0] if value else None) if isinstance(value, list) and len(value) < 2 else value


def as_float(number: float) -> float:
    """The number as a float; infinity for an integer of more than 308 digits."""
    try:
        return float(number)
    except OverflowError:
        return math.inf


def spelled(label: object) -> str | None:
    """The spelling of a label in a task's list; None for values that cannot be labels (fractions, lists).

    1.0 becomes 1: data frames hold integers as floats if a cell is empty.
    """
    if isinstance(label, bool):
        return "true" if label else "false"
    if isinstance(label, float) and label.is_integer() and abs(label) < MOST_WHOLE:
        return str(int(label))
    return str(label) if isinstance(label, (str, int)) else None


def label_index(task: Task, label: object, example: Example) -> int:
    """The index of a label in the task's list."""
    name = spelled(label)
    if name is None:
        raise bad_value(
            task,
            example,
            f"a label cannot be {_type(label)}",
            got=label,
            allowed=task.labels,
            do="write it as a string",
        )
    places = _places_of(task.labels)
    spelling = name if name in places else other_spelling(name, task.labels)
    if spelling in places:
        return places[spelling]
    raise UnknownLabel(
        f"{where(task, example)}: label '{name}' is not one of the task's",
        allowed=task.labels,
        do="add it to the task's labels or fix the row",
        task=task.name,
        source=example.source,
        row=example.row,
        label=name,
    )


def other_spelling(name: str, labels: Collection[str]) -> str:
    """The name as other programs and files write it: 1.0 for 1, 1 for 1.0, and one of the labels true and false.

    Data frames write an integer in either way, depending on empty cells in its column, and booleans as True in CSV,
    where spreadsheets write TRUE. Where the labels are not these two alone, true and True differ.
    """
    if len(labels) == len(BOOLEANS):
        booleans = {label.lower(): label for label in labels}
        if booleans.keys() == BOOLEANS:
            return booleans.get(name.lower(), name)
    whole = name.removesuffix(".0")
    if not whole.removeprefix("-").isdecimal():
        return name
    return whole if whole != name else f"{name}.0"


_KEPT: list[tuple[tuple[str, ...], dict[str, int]]] = []  # for the tasks used last


def _places_of(labels: tuple[str, ...]) -> dict[str, int]:
    """The index of each label, computed once per task: a linear search would grow with the number of labels."""
    for kept, places in _KEPT:
        if kept is labels:
            return places
    places = {label: index for index, label in enumerate(labels)}
    _KEPT.insert(0, (labels, places))
    del _KEPT[8:]
    return places


def bad_value(
    task: Task, example: Example, problem: str, *, got: object, allowed: object, do: str = "fix the row"
) -> BadValue:
    """The error for one row, with the facts that every such error includes."""
    problem, source, row = f"{where(task, example)}: {problem}", example.source, example.row
    return BadValue(problem, got=got, allowed=allowed, do=do, task=task.name, source=source, row=row)


def where(task: Task, example: Example) -> str:
    """`task 'cola', train.jsonl row 17`, or the part of it that is known."""
    file, row = PurePath(example.source).name, example.row
    place = " ".join(part for part in (file, "" if row is None else f"row {row}") if part)
    return f"task '{task.name}'" + (f", {place}" if place else "")


def check_labels(task: Task, *, least: int) -> None:
    """Raises ConfigError unless the task declares at least `least` distinct, writable labels."""
    labels = task.labels
    longest = max(map(len, labels), default=0)
    if len(labels) > LABELS_OF_TASK or longest > CHARACTERS_OF_LABEL:
        raise ConfigError(
            f"task '{task.name}' has too many labels, or one that is too long",
            got=f"{len(labels):,} labels, the longest of {longest:,} characters",
            allowed=f"{LABELS_OF_TASK:,} labels of {CHARACTERS_OF_LABEL:,} characters",
            do="split the task, or shorten its labels",
            task=task.name,
        )
    twice = twice_in(labels)
    unwritable = [label for label in labels if not label.strip() or lone_surrogates(label)]
    if len(labels) < least or twice or unwritable:
        raise ConfigError(
            f"task '{task.name}': kind '{task.kind}' needs an ordered list of labels",
            got=(f"twice: {twice}" if twice else f"unwritable: {unwritable}" if unwritable else list(labels)),
            allowed=f"at least {least} different labels",
            do="declare them all in the order of the outputs; they are never guessed from the data",
            task=task.name,
        )


def check_split(task: Task, outputs: Arrays, targets: Arrays) -> None:
    """Raises EmptyData for a split without rows, DataError when outputs and targets do not match."""
    if len(outputs) != len(targets):
        raise DataError(
            f"task '{task.name}': as many outputs as targets are needed",
            got=f"{len(outputs)} outputs, {len(targets)} targets",
        )
    if not len(targets):
        raise EmptyData(f"task '{task.name}': a split without rows has no score", do="give a split that has rows")


def balanced(targets: np.ndarray, labels: int) -> np.ndarray:
    """`n / (k n_c)` for each of the k labels c that occur, scikit-learn's 'balanced'; 1 for the others.

    Targets are labels (rows,), or probabilities times the row's weight (rows, labels): `n_c` is then the sum of a
    column, raised to the mean of the rows' sums where it is less.
    """
    counts = targets.sum(axis=0, dtype=np.float64) if targets.ndim == 2 else np.bincount(targets, minlength=labels)
    total, occurs = float(counts.sum()), counts > 0
    least = max(total / max(len(targets), 1), np.finfo(np.float64).tiny)
    weights = total / (max(1, np.count_nonzero(occurs)) * np.maximum(counts, least))
    return np.where(occurs, weights, 1.0).astype(np.float32)


def sigmoid(outputs: np.ndarray) -> np.ndarray:
    """Probabilities 1 / (1 + exp(-x)), in float64, without overflow."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * np.asarray(outputs, np.float64))))


def softmax(outputs: np.ndarray) -> np.ndarray:
    """Probabilities over the last axis, in float64."""
    shifted = np.asarray(outputs, np.float64)
    shifted = np.exp(shifted - shifted.max(axis=-1, keepdims=True, initial=-math.inf))
    return np.asarray(shifted / shifted.sum(axis=-1, keepdims=True))


def softmax_of_each(outputs: Arrays) -> list[np.ndarray]:
    """`softmax` of several arrays (rows, width) of any widths above 0, bit-equal to single calls, in fewer steps."""
    if not sum(map(len, outputs)):
        return [softmax(rows) for rows in outputs]
    widths = np.repeat([rows.shape[1] for rows in outputs], [len(rows) for rows in outputs])  # maximum of every row
    stops = np.cumsum(widths)
    flat = np.concatenate([rows.ravel() for rows in outputs], dtype=np.float64)
    flat = np.exp(flat - np.repeat(np.maximum.reduceat(flat, stops - widths), widths))
    ends = np.cumsum([rows.size for rows in outputs]).tolist()
    parts = [flat[end - rows.size : end].reshape(rows.shape) for rows, end in zip(outputs, ends, strict=True)]
    totals = np.concatenate(
        [np.add.reduce(part, axis=-1) for part in parts]
    )  # row by row, in the order of additions of `softmax`
    flat /= np.repeat(totals, widths)
    return parts


def _type(value: object) -> str:
    names = {float: "a number with a fraction", list: "a list", dict: "an object", type(None): "missing"}
    return names.get(type(value), type(value).__name__)
