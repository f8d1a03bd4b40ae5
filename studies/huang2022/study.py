"""What the rows of the study say: points by method, task and seed, averages over the tasks, and paired differences."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from studies.huang2022.methods import METHODS, PLANNED
from studies.huang2022.nhc import TASKS
from studies.shared.glue import TITLES
from studies.shared.rows import BySeed, no_task_rows, paired, rows_of_files, seeds_with_all, typed_rows

Measure = Literal["validation", "test", "recall"]
MEASURES: dict[Measure, str] = {
    "validation": "accuracy on the builder's split, on which checkpoints are chosen",
    "test": "accuracy on the test split of huffpost41, of whose texts 2 to 3 of 100 are a task's own",
    "recall": "mean recall of both labels on the test split of huffpost41",
}
MAKE = "python -m studies huang2022 run"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One task of one run; other keys of its row are of no use to the tables. Scores are 0 to 1."""

    method: str
    seed: int
    task: str
    validation: float
    test: float
    recall: float = math.nan  # of NHC alone
    passes: int  # of the encoder, for one text and all tasks
    layers: int  # evaluated
    over_plain: float = 0.0  # FLOPs of the same for a text of mean length, over a plain pass of the encoder
    parameters: int  # of all that serves all tasks
    learned: str
    rows: int = 0  # of the task that were trained on
    device: str = "cpu"  # where the trunk learned
    scale: str = ""  # a digest of what all methods have in common: data, epochs, rates, lengths
    settings: str = ""
    metric: str = "accuracy"  # of both splits


def read_rows(paths: Iterable[Path | str], *, tasks: Collection[str] = TASKS) -> tuple[Row, ...]:
    """The rows of these tasks in results files or JSON lines; raises DataError if they are missing."""
    raw, source = rows_of_files(paths, make=MAKE)
    return rows_of(raw, tasks=tasks, source=source)


def rows_of(
    raw: Iterable[Mapping[str, Any]], *, tasks: Collection[str] = TASKS, source: str = "the study"
) -> tuple[Row, ...]:
    """The rows of tasks, each once; of a method that was run under several settings those that came last.

    Of other tasks than `tasks` rows are left out. Raises DataError for a row that lacks a key.
    """
    typed = typed_rows(raw, Row, ("task",), source=source)
    if not typed:
        raise no_task_rows(source, MAKE)
    typed = [row for row in typed if row.task in tasks]
    last = {row.method: row.settings for row in typed}
    by_run = {(row.method, row.settings, row.task, row.seed): row for row in typed}
    return tuple(row for row in by_run.values() if row.settings == last[row.method])


def tasks_of(rows: Sequence[Row]) -> tuple[str, ...]:
    """The tasks that have rows, in the order of NHC or of GLUE."""
    there = {row.task for row in rows}
    return tuple(task for task in (*TASKS, *TITLES) if task in there)


def scores(rows: Sequence[Row], method: str, measure: Measure) -> dict[str, BySeed]:
    """Points by task and seed."""
    points: dict[str, BySeed] = {task: {} for task in tasks_of(rows)}
    for row in rows:
        if row.method == method and row.task in points:
            points[row.task][row.seed] = 100 * float(getattr(row, measure))
    return points


def averages(rows: Sequence[Row], method: str, measure: Measure) -> BySeed:
    """The mean over the tasks, of each seed that has them all."""
    return seeds_with_all(scores(rows, method, measure).values())


def differences(rows: Sequence[Row], method: str, other: str, measure: Measure) -> BySeed:
    """How much higher the first one's average is, by seed that both have."""
    return paired(averages(rows, method, measure), averages(rows, other, measure))


def missing(rows: Sequence[Row], methods: Iterable[str], *, seeds: Collection[int] | None = None) -> tuple[str, ...]:
    """Runs that these methods lack: of these seeds, by default of those that the study has of each method."""
    lines = []
    for method in methods:
        planned = set(PLANNED[method] if seeds is None else seeds)
        lacking = len(planned - averages(rows, method, "validation").keys())
        if lacking:
            lines.append(f"{len(planned) - lacking} of {len(planned)} seeds of {METHODS[method].title}")
    return tuple(lines)
