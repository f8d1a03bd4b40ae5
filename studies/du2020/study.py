"""Tables 3 and 4 at our scale, from the rows of leaving out tasks and groups (`papers.together.leave_out`)."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from polyhead.errors import DataError
from polyhead.values import Value
from studies.du2020.counts import MINILM, scheme_flops
from studies.du2020.leave_out import FULL, FULL_LEARNED, MORE, OF_GROUP, OF_PLAIN, OWN, POOLERS, SETS
from studies.du2020.published import BLOCKS, SCHEMES_OF, Block
from studies.du2020.table import Line, Table, table_of
from studies.shared.rows import Split, deviation_of, rows_of_files, typed_rows

MAKE = "python -m studies du2020 run-leave-out"
ROWS: dict[Block, tuple[str, ...]] = {
    "a": (FULL, FULL_LEARNED),
    "b": OF_PLAIN,
    "c": tuple(POOLERS),
    "d": OF_GROUP,
    "e": (OWN,),
}
GROUPS_OF = {source.task: source.group for source in (*SETS, *MORE)}
OTHERS = ("tweets",)  # sets of ours that the paper has not


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One cell: a row of a block on one task; other keys of its row are of no use to the tables."""

    block: Block
    name: str
    task: str
    rows: int  # training rows
    seed: int
    validation: float  # accuracy, 0 to 1
    test: float
    digest: str = ""  # of the study's settings


class Used(Value):
    """A task at our scale."""

    task: str
    group: str
    rows: dict[str, int]  # by split; empty until there is a run of it


def read_cells(paths: Iterable[Path | str]) -> tuple[Cell, ...]:
    """All cells of these files, results files or JSON lines; raises DataError where they hold none."""
    raw, source = rows_of_files(paths, make=MAKE)
    return cells_of(raw, source=source)


def cells_of(raw: Iterable[Mapping[str, Any]], *, source: str = "the study") -> tuple[Cell, ...]:
    """Each cell once; where rows have several settings, those that came last count."""
    cells: dict[tuple[object, ...], Cell] = {}
    for cell in typed_rows(raw, Cell, ("task",), source=source):
        cells.setdefault((cell.block, cell.name, cell.task, cell.seed, cell.digest), cell)
    if not cells:
        raise DataError(f"{source} holds no run", allowed="rows of stage task, of a block a to e")
    last = next(reversed(cells.values())).digest
    return tuple(cell for cell in cells.values() if cell.digest == last)


def tasks_of(cells: Sequence[Cell]) -> tuple[str, ...]:
    """Its tasks, in the study's order."""
    there = {cell.task for cell in cells}
    return (*(task for task in GROUPS_OF if task in there), *sorted(there - GROUPS_OF.keys()))


def notes_of(tasks: Collection[str]) -> tuple[str, ...]:
    """What to know of a study of these tasks: which of the paper's and of ours it has not, and which it has besides."""
    lacking = [dataset.task for dataset in SETS if dataset.task not in tasks]
    further = [dataset.task for dataset in MORE if dataset.task not in tasks]
    besides = [task for task in OTHERS if task in tasks]
    notes = ["Amazon-5, Amazon-2, Yelp-5 and Yelp-2 of the paper's fourteen tasks are not here"]
    if lacking:
        notes.append(f"without runs yet: {', '.join(lacking)}")
    if further:
        notes.append(f"left out unless asked for with --more: {', '.join(further)}")
    if besides:
        notes.append(f"not of the paper: {', '.join(besides)}")
    return (*notes, "where a task is a group of its own, leaving out either is the same run")


def study_table(cells: Sequence[Cell], *, blocks: Sequence[Block] = tuple(BLOCKS), split: Split = "test") -> Table:
    """The rows of the paper's tables 3 and 4 that the study has, means over seeds, GFLOPs of our trunk."""
    tasks = tasks_of(cells)
    groups: dict[str, list[str]] = {}
    for task in tasks:
        groups.setdefault(GROUPS_OF.get(task, "other"), []).append(task)
    lines = [
        _line(block, name, cells, tasks, split)
        for block in blocks
        for name in ROWS[block]
        if any((cell.block, cell.name) == (block, name) for cell in cells)
    ]
    return table_of(tasks, groups, lines, notes=notes_of(tasks))


def whole_seeds(cells: Sequence[Cell]) -> tuple[int, ...]:
    """Seeds that have every row of every block on every task of the study."""
    rows = [(block, name, task) for block, names in ROWS.items() for name in names for task in tasks_of(cells)]
    there = {(cell.block, cell.name, cell.task, cell.seed) for cell in cells}
    return tuple(seed for seed in sorted({cell.seed for cell in cells}) if all((*row, seed) in there for row in rows))


def missing(cells: Sequence[Cell], seeds: Iterable[int] = ()) -> tuple[str, ...]:
    """Cells that the study still lacks: rows of a block on its own tasks, for these seeds and every one that it has."""
    seeds = sorted({*seeds, *(cell.seed for cell in cells)})
    there = {(cell.block, cell.name, cell.task, cell.seed) for cell in cells}
    lacking = []
    for block, names in ROWS.items():
        for name in names:
            lacking_cells = [(t, s) for t in tasks_of(cells) for s in seeds if (block, name, t, s) not in there]
            if lacking_cells:
                tasks = ", ".join(dict.fromkeys(task for task, _ in lacking_cells))
                lacking.append(f"block {block}, {name}: {tasks}")
    return tuple(lacking)


def used(raw: Iterable[Mapping[str, Any]]) -> tuple[Used, ...]:
    """Which tasks the study has, and how many rows of each."""
    rows: dict[str, dict[str, int]] = {}
    for row in raw:
        counts = {name: row.get(f"{name}_rows") for name in ("train", "validation", "test")}
        if row.get("stage") == "task" and all(isinstance(count, int) for count in counts.values()):
            rows[str(row["task"])] = {name: count for name, count in counts.items() if count is not None}
    tasks = [dataset.task for dataset in SETS] + [dataset.task for dataset in MORE if dataset.task in rows]
    return tuple(Used(task=task, group=GROUPS_OF[task], rows=rows.get(task, {})) for task in tasks)


def _line(block: Block, name: str, cells: Sequence[Cell], tasks: Sequence[str], split: Split) -> Line:
    scores: dict[str, list[float]] = {}
    for cell in cells:
        if (cell.block, cell.name) == (block, name):
            scores.setdefault(cell.task, []).append(100 * (cell.test if split == "test" else cell.validation))
    several = [scores.get(task, []) for task in tasks]
    scheme = "full" if block == "a" else SCHEMES_OF[name]
    return Line(
        block=block,
        name=name,
        scores=tuple(statistics.mean(values) if values else None for values in several),
        spreads=tuple(deviation_of(values) for values in several),
        gflops=scheme_flops(scheme, len(tasks), shape=MINILM) / 1e9,
    )
