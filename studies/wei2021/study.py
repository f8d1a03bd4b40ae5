"""Runs of our own study: their rows, the options that validation scores make of them, and the scores of a choice."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

import msgspec

from polyhead.errors import DataError
from polyhead.plan.cost.allocate import Allocation, AllocationOption, allocation_of, by_rule
from polyhead.values import Value
from studies.shared.rows import Split, rows_in, typed_row
from studies.trained import Fit, Learned, learned
from studies.wei2021.table import ONE_A_LAYER

Method = Literal["full", "half", "branch", "student", "together", "left-out"]
TASKS = ("cola", "sst2", "mrpc", "rte", "stsb", "qnli", "emotion", "offensive")
EPOCHS = 3  # the last one of every run
METHODS: tuple[Method, ...] = get_args(Method)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One finished run of the study; keys of its row that are not here are of no use to the tables."""

    task: str
    seed: int
    method: Method
    layers: int  # private ones; of whole models all
    validation: float  # score, 0 to 1
    test: float
    metric: str = ""
    init: str = ""  # of a student: "teacher" or "pretrained"
    tap: int = 0
    best_epoch: int | None = None
    train_rows: int = 0

    @property
    def option(self) -> str:
        """Name of the option that the run is one seed of."""
        from_elsewhere = f" from {self.init}" if self.init not in ("", "teacher") else ""
        return f"{self.method}-{self.layers}{from_elsewhere}"

    def points(self, split: Split) -> float:
        """The score on a split, 0 to 100."""
        return 100 * (self.test if split == "test" else self.validation)


class Mixed(Value):
    """What a rule chose on validation, what it costs in layers, and what each seed's run of it scores."""

    allocation: Allocation
    scores: dict[str, dict[int, float]]  # task -> seed -> points

    @property
    def seeds(self) -> dict[int, float]:
        """Mean over the tasks of each seed that all of them have."""
        common = set.intersection(*(set(by_seed) for by_seed in self.scores.values()))
        return {seed: statistics.mean(by_seed[seed] for by_seed in self.scores.values()) for seed in sorted(common)}


def read_runs(path: Path | str) -> tuple[Run, ...]:
    """Runs of a results file ("rows") or of a study's JSON lines; raises DataError with the row's number."""
    return runs_of(rows_in(path, make="python -m studies wei2021 run"), source=str(path))


def runs_of(rows: Iterable[Mapping[str, object]], *, source: str = "the study") -> tuple[Run, ...]:
    """The rows that are runs; those of other methods (a search's price) are left out.

    A student that was run anew from a teacher of another depth replaces the earlier one. Raises DataError for a
    row that lacks a key, and for two rows of one run.
    """
    runs: dict[tuple[str, int, str], Run] = {}
    for number, row in enumerate(rows, 1):
        if row.get("method") not in METHODS:
            continue
        run = typed_row(row, Run, number, source)
        key = (run.task, run.seed, run.option)
        if key in runs and runs[key].tap == run.tap:
            raise DataError(
                f"row {number} of {source} is a second one of the same run",
                got=f"{run.option} of task '{run.task}', seed {run.seed}",
                do="keep one of them",
                row=number,
            )
        runs[key] = run
    if not runs:
        raise DataError(f"{source} holds no run", allowed=f"rows with a method {', '.join(METHODS)}")
    return tuple(runs.values())


def tasks_of(runs: Sequence[Run]) -> tuple[str, ...]:
    """The study's tasks that have runs, in its order, then any others."""
    there = dict.fromkeys(run.task for run in runs)
    return (*(task for task in TASKS if task in there), *(task for task in there if task not in TASKS))


def full_learned(runs: Sequence[Run]) -> dict[str, Learned]:
    """How far full fine-tuning had learned each task."""
    fits = [
        Fit(task=run.task, score=run.points("test"), best_epoch=run.best_epoch, metric=run.metric, rows=run.train_rows)
        for run in runs
        if run.method == "full"
    ]
    return learned(fits, allowed=EPOCHS)


def depth_of(runs: Sequence[Run]) -> int:
    """Layers of the trunk."""
    return max(run.tap + run.layers for run in runs)


def options_of(runs: Sequence[Run], seed: int | None = None) -> list[AllocationOption]:
    """Every branch, and every student that began as its teacher, with its validation score in points.

    The score is that of one seed, or the mean over the seeds that ran; where seeds' students have different taps
    (each searched its own depth), the option has the deepest.
    """
    runs_by_option: dict[tuple[str, str], list[Run]] = {}
    for run in _offered(runs):
        if seed is None or run.seed == seed:
            runs_by_option.setdefault((run.task, run.option), []).append(run)
    return [
        AllocationOption(
            task=task,
            name=name,
            tap=max(run.tap for run in several),
            layers=several[0].layers,
            score=statistics.mean(run.points("validation") for run in several),
        )
        for (task, name), several in runs_by_option.items()
    ]


def teachers_of(options: Sequence[AllocationOption]) -> dict[str, AllocationOption]:
    """Of each task the branch that its students learned from, which stands at their tap.

    Of a task without students the branch with the best score, of equals the one of fewer layers.
    """
    teachers: dict[str, AllocationOption] = {}
    taps = {option.task: option.tap for option in options if option.name.startswith("student")}
    for option in options:
        if not option.name.startswith("branch") or option.tap != taps.get(option.task, option.tap):
            continue
        best = teachers.get(option.task)
        if best is None or _rank(option) > _rank(best):
            teachers[option.task] = option
    return teachers


def students_of(options: Sequence[AllocationOption], layers: int) -> dict[str, AllocationOption]:
    """Of each task the student of so many layers; a task whose teacher has no more of them keeps the teacher."""
    teachers = teachers_of(options)
    students = {task: teacher for task, teacher in teachers.items() if teacher.layers <= layers}
    return students | {o.task: o for o in options if o.name == f"student-{layers}"}


def as_published(options: Sequence[AllocationOption]) -> list[AllocationOption]:
    """What the paper chooses from: the students and, undistilled, their teacher alone."""
    teachers = teachers_of(options)
    return [o for o in options if not o.name.startswith("branch") or teachers[o.task] is o]


def mixed(runs: Sequence[Run], c: float, *, split: Split = "test") -> Mixed:
    """The mixed model: `by_rule` over what the paper chooses from, on mean validation scores."""
    return scored(runs, by_rule(as_published(options_of(runs)), c), split=split)


def scored(runs: Sequence[Run], chosen: Mapping[str, AllocationOption], *, split: Split = "test") -> Mixed:
    """What a choice, however it was made, costs and scores: each task's runs of the chosen option by seed."""
    scores: dict[str, dict[int, float]] = {task: {} for task in chosen}
    for run in runs:
        if run.task in chosen and run.option == chosen[run.task].name:
            scores[run.task][run.seed] = run.points(split)
    return Mixed(allocation=allocation_of(chosen, ONE_A_LAYER), scores=scores)


def missing(runs: Sequence[Run]) -> tuple[str, ...]:
    """Runs that the study still lacks against its own other tasks and seeds: "1 of 3 runs of student-1 on rte".

    No student is missed that would be as deep as its teacher or deeper.
    """
    seeds, tasks = {run.seed for run in runs}, tasks_of(runs)
    counts = Counter((run.option, run.task) for run in runs)
    teachers = teachers_of(options_of(runs))
    lines = []
    for name, layers in dict.fromkeys((run.option, run.layers) for run in runs):
        for task in tasks:
            is_needless = name.startswith("student") and task in teachers and teachers[task].layers <= layers
            if counts[name, task] < len(seeds) and not is_needless:
                lines.append(f"{counts[name, task]} of {len(seeds)} runs of {name} on {task}")
    return tuple(lines)


def _rank(option: AllocationOption) -> tuple[float, int]:
    return round(option.score, 9), -option.layers


def _offered(runs: Sequence[Run]) -> list[Run]:
    order = {task: index for index, task in enumerate(tasks_of(runs))}
    offered = [
        run for run in runs if run.method == "branch" or (run.method == "student" and run.init in ("", "teacher"))
    ]
    return sorted(offered, key=lambda run: (order[run.task], run.method, run.layers, run.seed))
