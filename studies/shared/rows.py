"""Rows of a study: read from files, given types, and taken together over seeds and tasks."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from polyhead.errors import DataError
from polyhead.values import Value

Split = Literal["test", "validation"]
BySeed = dict[int, float]
Typed = TypeVar("Typed")


class _File(msgspec.Struct):
    rows: list[dict[str, Any]]


class Spread(Value):
    """Mean and standard deviation over seeds."""

    mean: float
    deviation: float | None  # None: one seed
    seeds: int


def rows_in(path: Path | str, *, make: str) -> list[dict[str, Any]]:
    """The rows of a results file ("rows") or of JSON lines, whose last one may be cut short.

    `make` is the command that writes such a file. Raises DataError for a file that is neither.
    """
    path = Path(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}", got=error.strerror) from None
    try:
        return msgspec.json.decode(raw, type=_File).rows
    except msgspec.MsgspecError:
        lines = [line for line in raw.splitlines() if line.strip()]
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(msgspec.json.decode(line, type=dict[str, Any]))
        except msgspec.MsgspecError as error:
            if rows and number == len(lines):  # a line that a kill cut short, or that is being written
                break
            raise DataError(
                f"{path} is neither a results file nor JSON lines", got=error, do=f"write it again with `{make}`"
            ) from None
    return rows


def rows_of_files(paths: Iterable[Path | str], *, make: str) -> tuple[list[dict[str, Any]], str]:
    """The rows of all files, and the files' names for messages."""
    paths = list(paths)
    return [row for path in paths for row in rows_in(path, make=make)], ", ".join(map(str, paths))


def typed_rows(
    raw: Iterable[Mapping[str, Any]], kind: type[Typed], stages: Collection[str], *, source: str = "the study"
) -> list[Typed]:
    """The rows of these stages, each as a `kind`; raises DataError, with the row's number, where a key is missing."""
    typed = []
    for number, row in enumerate(raw, 1):
        if row.get("stage") in stages:
            typed.append(typed_row(row, kind, number, source))
    return typed


def typed_row(row: Mapping[str, Any], kind: type[Typed], number: int, source: str) -> Typed:
    """One row as a `kind`; raises DataError, with its number, where a key is missing."""
    try:
        return msgspec.convert(dict(row), kind)
    except msgspec.ValidationError as error:
        raise DataError(f"row {number} of {source} is not a run", got=error, row=number) from None


def no_task_rows(source: str, make: str) -> DataError:
    """For files without a row of a task."""
    return DataError(
        f"{source} holds no run of a task", allowed="rows of stage task", do=f"run {make}, or name its rows"
    )


def seeds_with_all(columns: Iterable[Mapping[int, float]]) -> BySeed:
    """The mean over these columns (tasks) by seed, of each seed that has them all."""
    columns = list(columns)
    common = set.intersection(*(set(column) for column in columns)) if columns else set()
    return {seed: statistics.mean(column[seed] for column in columns) for seed in sorted(common)}


def over_seeds(points: BySeed) -> Spread | None:
    """Mean and deviation; None without a seed."""
    values = list(points.values())
    if not values:
        return None
    return Spread(mean=statistics.mean(values), deviation=deviation_of(values), seeds=len(values))


def deviation_of(values: Sequence[float]) -> float | None:
    """The standard deviation; None for fewer than two values."""
    return statistics.stdev(values) if len(values) > 1 else None


def paired(points: Mapping[int, float], others: Mapping[int, float]) -> BySeed:
    """How much higher `points` are than `others`, by seed that both have."""
    return {seed: value - others[seed] for seed, value in points.items() if seed in others}
