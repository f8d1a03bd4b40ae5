"""Tables 1, 2 and 5 at our scale, from the runs of a study: choices are made on validation scores."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec

from polyhead.plan.cost.allocate import AllocationOption, allocation_of, best_under, by_rule, greedy
from studies.shared.rows import Split, deviation_of
from studies.shared.tables import mean
from studies.wei2021.study import (
    Method,
    Run,
    as_published,
    depth_of,
    full_learned,
    missing,
    mixed,
    options_of,
    scored,
    students_of,
    tasks_of,
    teachers_of,
)
from studies.wei2021.table import FULL, ONE_A_LAYER, Line, Table, table_of

Statistic = Literal["max", "mean", "median"]
_STATISTICS: dict[Statistic, Callable[[Sequence[float]], float]] = {
    "max": max,
    "mean": statistics.mean,
    "median": statistics.median,
}
TOGETHER: dict[str, Method] = {"MT-DNN (full)": "together", "MT-DNN (leave-one-out)": "left-out"}
NO_RUNS = "no runs: `python -m studies wei2021 run-joint` makes them"


def table1(runs: Sequence[Run], *, statistic: Statistic = "max", split: Split = "test") -> Table:
    """Table 1: branches of 1 to N layers, then full fine-tuning; one statistic over the seeds, and their spread."""
    tasks, depth = tasks_of(runs), depth_of(runs)
    lines = [
        _line(f"L = {layers}", _scores(runs, f"branch-{layers}", split), tasks, statistic)
        for layers in range(1, depth + 1)
    ]
    lines.append(_line(FULL, _of_method(runs, "full", split), tasks, statistic))
    teachers = teachers_of(options_of(runs))
    depths = {task: teachers[task].layers for task in tasks if task in teachers}
    return table_of(tasks, depth * len(tasks), lines, depths=depths, notes=missing(runs), learned=full_learned(runs))


def table2(runs: Sequence[Run], c: float = 1.0, *, split: Split = "test", statistic: Statistic = "mean") -> Table:
    """Table 2: each method on all tasks, and how many layers it evaluates for them.

    A model that is no merge (full fine-tuning, half depth) evaluates all of its layers for each task, a merged one
    the trunk to the deepest tap and each task's private layers. A trunk that learned from all tasks is run once.
    """
    tasks, depth = tasks_of(runs), depth_of(runs)
    options = options_of(runs)
    lines = [_apart(FULL, runs, "full", split, statistic)]
    lines.append(_apart("half depth, distilled whole", runs, "half", split, statistic))
    lines += [_joint(name, runs, method, split, statistic) for name, method in TOGETHER.items()]
    for layers in sorted({o.layers for o in options if o.name.startswith("student")}):
        lines.append(_merged(f"student-{layers}", runs, students_of(options, layers), split, statistic))
    lines.append(_merged("without distillation", runs, teachers_of(options), split, statistic))
    if options:
        chosen = mixed(runs, c).allocation.chosen
        lines.append(_merged(f"mixed, c = {c:g}", runs, chosen, split, statistic))
    return table_of(tasks, depth * len(tasks), lines, notes=missing(runs), learned=full_learned(runs))


def table5(
    runs: Sequence[Run],
    costs: Sequence[float] = (1.0, 2.0, 3.0),
    *,
    split: Split = "test",
    statistic: Statistic = "mean",
) -> Table:
    """Table 5: the mixed model by c, the paper's wording, and the best of all depths within equally many layers."""
    tasks, depth = tasks_of(runs), depth_of(runs)
    options = options_of(runs)
    offered = as_published(options)
    lines = [_apart(FULL, runs, "full", split, statistic)]
    for c in costs if options else ():
        rule = by_rule(offered, c)
        count = allocation_of(rule, ONE_A_LAYER).layers
        for name, chosen in (
            (f"rule, c = {c:g}", rule),
            (f"greedy, c = {c:g}", greedy(offered, c)),
            (f"best within {count} layers", best_under(options, count, ONE_A_LAYER).chosen),
        ):
            lines.append(_merged(name, runs, chosen, split, statistic))
    return table_of(tasks, depth * len(tasks), lines, notes=missing(runs), learned=full_learned(runs))


def _apart(name: str, runs: Sequence[Run], method: str, split: Split, statistic: Statistic) -> Line:
    """One model a task, nothing shared."""
    layers = {run.task: run.layers for run in runs if run.method == method}
    tasks = tasks_of(runs)
    count = sum(layers.values()) if len(layers) == len(tasks) else None
    return _line(name, _of_method(runs, method, split), tasks, statistic, layers=count)


def _joint(name: str, runs: Sequence[Run], method: Method, split: Split, statistic: Statistic) -> Line:
    """One trunk for all tasks; where each task has one that it is new to, the paper counts no layers."""
    tasks, scores = tasks_of(runs), _of_method(runs, method, split)
    is_whole = method == "together" and set(scores) == set(tasks)
    line = _line(name, scores, tasks, statistic, layers=depth_of(runs) if is_whole else None)
    return line if scores else msgspec.structs.replace(line, note=NO_RUNS)


def _merged(
    name: str, runs: Sequence[Run], chosen: Mapping[str, AllocationOption], split: Split, statistic: Statistic
) -> Line:
    """The scores of a choice; layers and average only when every task has one."""
    tasks = tasks_of(runs)
    merged = scored(runs, chosen, split=split) if chosen else None
    is_whole = set(chosen) == set(tasks)
    return _line(
        name,
        merged.scores if merged else {},
        tasks,
        statistic,
        layers=merged.allocation.layers if merged and is_whole else None,
        chosen=tuple(chosen[task] for task in tasks) if is_whole else (),
    )


def _line(
    name: str,
    scores: Mapping[str, Mapping[int, float]],
    tasks: Sequence[str],
    statistic: Statistic,
    *,
    layers: int | None = None,
    chosen: tuple[AllocationOption, ...] = (),
) -> Line:
    """The average is that of the cells; its spread that of each seed's average."""
    by_task = [list(scores.get(task, {}).values()) for task in tasks]
    cells = tuple(_STATISTICS[statistic](points) if points else None for points in by_task)
    seeds = set.intersection(*(set(scores.get(task, {})) for task in tasks))
    averages = [statistics.mean(scores[task][seed] for task in tasks) for seed in sorted(seeds)]
    return Line(
        name=name,
        scores=cells,
        spreads=tuple(deviation_of(points) for points in by_task),
        average=mean(cells),
        spread=deviation_of(averages),
        layers=layers,
        chosen=chosen,
    )


def _of_method(runs: Sequence[Run], method: str, split: Split) -> dict[str, dict[int, float]]:
    points: dict[str, dict[int, float]] = {}
    for run in runs:
        if run.method == method:
            points.setdefault(run.task, {})[run.seed] = run.points(split)
    return points


def _scores(runs: Sequence[Run], option: str, split: Split) -> dict[str, dict[int, float]]:
    points: dict[str, dict[int, float]] = {}
    for run in runs:
        if run.option == option:
            points.setdefault(run.task, {})[run.seed] = run.points(split)
    return points
