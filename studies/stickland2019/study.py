"""What the rows of the study say: points by method, sampling, task and seed, means over tasks, paired differences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from studies.shared.glue import TITLES
from studies.shared.rows import (
    BySeed,
    Split,
    no_task_rows,
    over_seeds,
    paired,
    rows_of_files,
    seeds_with_all,
    typed_rows,
)
from studies.stickland2019.methods import ABLATION_SEEDS, METHODS, PLANNED
from studies.stickland2019.published import Cell

MAKE = "python -m studies stickland2019 run"
GLUE = TITLES
QUESTIONS = {"squad": "SQuAD", "socialiqa": "SocialIQA"}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One task of one run; other keys of its row are of no use to the tables. Scores are 0 to 1."""

    method: str
    sampling: str
    seed: int
    task: str
    metric: str
    validation: float  # by that metric
    test: float
    metrics: dict[str, float]  # all of them, on the reported split
    ratio: float  # parameters of what serves all tasks, over one encoder
    ratio_bert_base: float  # the same on BERT-base
    layers: int  # evaluated for one text and all tasks
    share: float  # of the FLOPs of an encoder a task
    new_layers: int
    learned: str
    scale: str = ""  # a digest of what all methods have in common: data, updates, rates, lengths
    settings: str = ""


class Epoch(msgspec.Struct, frozen=True, kw_only=True):
    """How a run stood after an epoch."""

    step: int
    validation: dict[str, dict[str, float]]  # task -> metric -> value


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The curve of one run."""

    method: str
    sampling: str
    seed: int
    tasks: tuple[str, ...]
    curve: tuple[Epoch, ...]
    settings: str = ""
    steps: int = 0  # updates
    examples: dict[str, int] = {}  # training rows by task


def read_rows(paths: Iterable[Path | str]) -> tuple[tuple[Row, ...], tuple[Run, ...]]:
    """All rows of these files, results files or JSON lines; raises DataError where they hold none."""
    raw, source = rows_of_files(paths, make=MAKE)
    rows = rows_of(raw, source=source)
    return rows, beside(runs_of(raw), rows)


def rows_of(raw: Iterable[Mapping[str, Any]], *, source: str = "the study") -> tuple[Row, ...]:
    """The rows of tasks, each once; of a run that was made under several settings those that came last.

    Runs of a task count only beside each other: those made under another scale than the last one's are left out.
    Raises DataError for a row that lacks a key.
    """
    typed = typed_rows(raw, Row, ("task",), source=source)
    if not typed:
        raise no_task_rows(source, MAKE)
    last = {(row.method, row.sampling, row.task): row.settings for row in typed}
    scale = {row.task: row.scale for row in typed}
    by_run = {(row.method, row.sampling, row.task, row.seed, row.settings): row for row in typed}
    return tuple(
        row
        for row in by_run.values()
        if row.settings == last[row.method, row.sampling, row.task] and row.scale == scale[row.task]
    )


def runs_of(raw: Iterable[Mapping[str, Any]], *, source: str = "the study") -> tuple[Run, ...]:
    """The curves, each once; of one that was made under several settings those that came last."""
    typed = typed_rows(raw, Run, ("run",), source=source)
    last = {(run.method, run.sampling, run.tasks): run.settings for run in typed}
    by_run = {(run.method, run.sampling, run.tasks, run.seed, run.settings): run for run in typed}
    return tuple(run for run in by_run.values() if run.settings == last[run.method, run.sampling, run.tasks])


def beside(runs: Iterable[Run], rows: Iterable[Row]) -> tuple[Run, ...]:
    """The runs whose tasks are in these rows, which are all of one scale."""
    known = {(row.method, row.sampling, row.settings) for row in rows}
    return tuple(run for run in runs if (run.method, run.sampling, run.settings) in known)


def scale_of(runs: Sequence[Run]) -> str:
    """The training data of the runs on the eight tasks, in words; "" without a run."""
    its = [run for run in runs if run.examples.keys() >= GLUE.keys() and run.sampling != "alone"]
    if not its:
        return ""
    rows = its[-1].examples.values()
    return f", {sum(rows) / len(rows):,.0f} training rows a task in the mean, {its[-1].steps:,} updates"


def scores(rows: Sequence[Row], method: str, sampling: str, *, split: Split = "test") -> dict[str, BySeed]:
    """Points on the eight tasks by seed, by each task's own metric."""
    points: dict[str, BySeed] = {task: {} for task in GLUE}
    for row in rows:
        if (row.method, row.sampling) == (method, sampling) and row.task in points:
            points[row.task][row.seed] = 100 * (row.test if split == "test" else row.validation)
    return points


def averages(rows: Sequence[Row], method: str, sampling: str, *, split: Split = "test") -> BySeed:
    """The mean over the eight tasks, of each seed that has them all."""
    return seeds_with_all(scores(rows, method, sampling, split=split).values())


def differences(rows: Sequence[Row], way: tuple[str, str], other: tuple[str, str], *, split: Split = "test") -> BySeed:
    """How much higher the first's average is than the other's, each a method and a sampling, by seed that both have."""
    return paired(averages(rows, *way, split=split), averages(rows, *other, split=split))


def cell_of(points: BySeed) -> Cell | None:
    """Mean and standard error over seeds; None without a seed."""
    spread = over_seeds(points)
    if spread is None:
        return None
    error = None if spread.deviation is None else spread.deviation / spread.seeds**0.5
    return Cell(mean=spread.mean, error=error, seeds=spread.seeds)


def ways(rows: Sequence[Row]) -> tuple[tuple[str, str], ...]:
    """The methods and samplings that have rows on the eight tasks, in the study's order of methods."""
    there = dict.fromkeys((row.method, row.sampling) for row in rows if row.task in GLUE)
    order = list(METHODS)
    return tuple(sorted(there, key=lambda way: order.index(way[0]) if way[0] in order else len(order)))


def missing(rows: Sequence[Row]) -> tuple[str, ...]:
    """Runs on the eight tasks that are lacking: of the study's main part, and of what else was begun."""
    lines = []
    for method, sampling in dict.fromkeys([*PLANNED, *ways(rows)]):
        seeds = set(PLANNED.get((method, sampling), ABLATION_SEEDS))
        lacking = len(seeds - averages(rows, method, sampling).keys())
        if lacking:
            title = METHODS[method].title if method in METHODS else method
            lines.append(f"{len(seeds) - lacking} of {len(seeds)} seeds of {title}, {sampling}")
    return tuple(lines)
