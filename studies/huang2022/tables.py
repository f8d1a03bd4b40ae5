"""The study in the form of the paper's tables: medians over seeds, with what each method costs."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence

from polyhead.values import Value
from studies.huang2022.methods import ABLATION, ABLATION_SEEDS, GRID, MAIN, METHODS, SEARCH, SEARCH_SEEDS, tried_for
from studies.huang2022.published import TABLE2
from studies.huang2022.study import Measure, Row, averages, missing, scores, tasks_of
from studies.huang2022.table import Line, Table
from studies.shared.rows import BySeed, over_seeds


class Cell(Value):
    """Figure 2: the average for so many rows of each task's prompt and shared rows."""

    rows: int
    shared: int
    average: float
    seeds: int
    passes: int
    layers: int  # evaluated
    over_plain: float  # FLOPs for a text of mean length, over a plain pass of the encoder
    parameters: int


def table1(rows: Sequence[Row], measure: Measure = "validation") -> Table:
    """Table 1: the methods of the study that have runs."""
    lines = [_line(rows, method.name, measure, method.title) for method in MAIN]
    return _table(rows, [line for line in lines if line.seeds], [method.name for method in MAIN])


def table2(rows: Sequence[Row], measure: Measure = "test") -> Table:
    """Table 2: its methods that have runs on GLUE."""
    methods = [method for method in MAIN if method.title in TABLE2]
    lines = [_line(rows, method.name, measure, method.title) for method in methods]
    names = [method.name for method in methods]
    return _table(rows, [line for line in lines if line.seeds], names, seeds=ABLATION_SEEDS)


def table3(rows: Sequence[Row], measure: Measure = "validation") -> Table:
    """Table 3, the rows that have runs, over the seeds that all of these have."""
    there = {number: averages(rows, method.name, measure) for number, method in ABLATION.items()}
    there = {number: points for number, points in there.items() if points}
    common = set.intersection(*(set(points) for points in there.values())) if there else set()
    lines = [_line(rows, ABLATION[number].name, measure, _numbered(number), seeds=common) for number in there]
    methods = [method.name for number, method in ABLATION.items() if number != 1]
    return _table(rows, lines, methods, seeds=ABLATION_SEEDS)


def search(rows: Sequence[Row], measure: Measure = "validation") -> Table:
    """Ours: the methods of both targets at other learning rates, and isolated prompts of other rows and starts.

    Each after the method of the study that it was tried for, over the seeds of the search.
    """
    lines: list[Line] = []
    for method in MAIN:
        tried = tried_for(method)
        for candidate in (method, *tried) if tried else ():
            lines.append(_line(rows, candidate.name, measure, candidate.title, seeds=SEARCH_SEEDS[candidate.way]))
    return _table(rows, [line for line in lines if line.seeds], [method.name for method in SEARCH])


def grid(rows: Sequence[Row], measure: Measure = "validation") -> tuple[Cell, ...]:
    """Figure 2: the cells that have runs, over the seeds that all of these have."""
    there = {place: averages(rows, method.name, measure) for place, method in GRID.items()}
    there = {place: points for place, points in there.items() if points}
    common = set.intersection(*(set(points) for points in there.values())) if there else set()
    cells = []
    for (own, shared), points in there.items() if common else ():
        costs = next(row for row in rows if row.method == GRID[own, shared].name)
        cells.append(
            Cell(
                rows=own,
                shared=shared,
                average=statistics.mean(points[seed] for seed in common),
                seeds=len(common),
                passes=costs.passes,
                layers=costs.layers,
                over_plain=costs.over_plain,
                parameters=costs.parameters,
            )
        )
    return tuple(cells)


def _numbered(number: int) -> str:
    """A method of the ablation as the paper numbers it; what is not in the paper is called ours."""
    return f"({number or 'ours'}) {ABLATION[number].title}"


def _table(
    rows: Sequence[Row], lines: Sequence[Line], methods: Sequence[str], *, seeds: Collection[int] | None = None
) -> Table:
    return Table(tasks=tasks_of(rows), lines=tuple(lines), notes=missing(rows, methods, seeds=seeds))


def _line(
    rows: Sequence[Row], method: str, measure: Measure, name: str, *, seeds: Collection[int] | None = None
) -> Line:
    """Medians over the seeds that have every task (or these of them), and mean and deviation of their averages."""
    points_by_seed = averages(rows, method, measure)
    points_by_seed = (
        points_by_seed if seeds is None else {seed: value for seed, value in points_by_seed.items() if seed in seeds}
    )
    by_task = scores(rows, method, measure).values()
    columns: list[BySeed] = [{seed: points[seed] for seed in points_by_seed} for points in by_task]
    spreads = [over_seeds(column) for column in columns]
    whole = over_seeds(points_by_seed)
    costs = next((row for row in rows if row.method == method), None)
    return Line(
        name=name,
        scores=tuple(statistics.median(column.values()) if column else None for column in columns),
        spreads=tuple(spread.deviation if spread else None for spread in spreads),
        average=statistics.median(points_by_seed.values()) if points_by_seed else None,
        mean=whole.mean if whole else None,
        spread=whole.deviation if whole else None,
        seeds=len(points_by_seed),
        passes=costs.passes if costs else None,
        layers=costs.layers if costs else None,
        over_plain=costs.over_plain if costs else None,
        parameters=costs.parameters if costs else None,
        learned=METHODS[method].learned,
    )
