"""The study in the form of the paper's tables: means and standard errors over seeds, with what each method costs."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence

from polyhead.values import Value
from studies.huang2022.counts import BERT_BASE
from studies.shared.rows import BySeed, Split, seeds_with_all
from studies.stickland2019.counts import costs
from studies.stickland2019.methods import ASKED, METHODS, SAMPLINGS, TABLE3
from studies.stickland2019.published import RATIOS, Cell, published_questions, published_table3
from studies.stickland2019.study import GLUE, QUESTIONS, Row, Run, averages, cell_of, differences, scores, ways


class Spent(Value):
    """What a method costs on our trunk, for all tasks and one text."""

    ratio: float
    layers: int
    share: float
    new_layers: int
    learned: str


class Table3Line(Value):
    """A method in the paper and in our study, by sampling."""

    method: str
    title: str
    printed_ratio: float | None  # of parameters
    ratio: float  # counted, of BERT-base
    new_layers: int  # of BERT-base
    published: dict[str, Cell]
    measured: dict[str, Cell]
    costs: Spent | None  # None: no run


class ByTask(Value):
    """A method's scores by task, and their mean."""

    method: str
    title: str
    sampling: str
    tasks: dict[str, Cell]
    average: Cell | None
    costs: Spent | None


class Compared(Value):
    """A method under a sampling, and how it stands to PALs annealed, paired by seed."""

    method: str
    title: str
    sampling: str
    average: Cell
    above_pals: Cell | None
    costs: Spent


class Point(Value):
    """A curve's mean and standard deviation over seeds after so many steps."""

    step: int
    mean: float
    deviation: float | None
    seeds: int


class Questions(Value):
    """A method on questions: SQuAD's exact match and F1, the options' accuracy, and their mean."""

    method: str
    title: str
    published: Cell
    scores: dict[str, Cell]
    average: Cell | None
    costs: Spent | None  # of the two tasks; None: no run


def table3(rows: Sequence[Row] = (), *, split: Split = "test") -> tuple[Table3Line, ...]:
    """Table 3: every method of the paper's, with ours where there are runs."""
    published, lines = published_table3(), []
    for method in TABLE3:
        counted = costs(method, BERT_BASE)
        cells = {s: cell_of(averages(rows, method.name, s, split=split)) for s in SAMPLINGS}
        lines.append(
            Table3Line(
                method=method.name,
                title=method.title,
                printed_ratio=RATIOS.get(method.name),
                ratio=counted.ratio,
                new_layers=counted.new_layers,
                published=published[method.name],
                measured=_there(cells),
                costs=_costs(rows, method.name),
            )
        )
    return tuple(lines)


def by_task(rows: Sequence[Row], *, sampling: str = "annealed", split: Split = "test") -> tuple[ByTask, ...]:
    """Every method that has runs of this sampling, and tasks alone, task by task."""
    lines = []
    for method, its in ways(rows):
        if its in (sampling, "alone"):
            points = scores(rows, method, its, split=split)
            lines.append(
                ByTask(
                    method=method,
                    title=title(method),
                    sampling=its,
                    tasks=_there({task: cell_of(points[task]) for task in GLUE}),
                    average=cell_of(averages(rows, method, its, split=split)),
                    costs=_costs(rows, method),
                )
            )
    return tuple(lines)


def compared(rows: Sequence[Row], *, split: Split = "test") -> tuple[Compared, ...]:
    """Every method and sampling that has a whole seed, against PALs annealed."""
    lines = []
    for method, sampling in ways(rows):
        average, its = cell_of(averages(rows, method, sampling, split=split)), _costs(rows, method)
        above = cell_of(differences(rows, (method, sampling), ("pals", "annealed"), split=split))
        if average is not None and its is not None:
            lines.append(
                Compared(
                    method=method, title=title(method), sampling=sampling, average=average, above_pals=above, costs=its
                )
            )
    return tuple(lines)


def curves(
    runs: Sequence[Run],
    rows: Sequence[Row],
    methods: Iterable[str] = ("pals", "low-rank"),
    *,
    sampling: str = "annealed",
) -> dict[str, dict[str, tuple[Point, ...]]]:
    """Validation points by task, method and step; figure 1 of the appendix."""
    metrics = {row.task: row.metric for row in rows}
    points_by_task: dict[str, dict[str, tuple[Point, ...]]] = {task: {} for task in GLUE if task in metrics}
    for method in methods:
        its = [r for r in runs if (r.method, r.sampling) == (method, sampling) and set(GLUE) <= set(r.tasks)]
        for task in points_by_task if its else ():
            by_step: dict[int, list[float]] = {}
            for epoch in (epoch for run in its for epoch in run.curve):
                value = 100 * epoch.validation[task][metrics[task]]
                by_step.setdefault(epoch.step, []).append(value)
            points_by_task[task][method] = tuple(_point(step, values) for step, values in sorted(by_step.items()))
    return points_by_task


def questions(rows: Sequence[Row] = ()) -> tuple[Questions, ...]:
    """Table 1 of the appendix, on the reported splits; round robin."""
    published, lines = published_questions(), []
    for method in ASKED:
        points: dict[str, BySeed] = {"EM": {}, "F1": {}, "accuracy": {}}
        for row in rows:
            if (row.method, row.sampling) == (method.name, "round-robin") and row.task in QUESTIONS:
                names = {"exact_match": "EM", "f1": "F1", "accuracy": "accuracy"}
                for metric, value in row.metrics.items():
                    points[names[metric]][row.seed] = 100 * value
        lines.append(
            Questions(
                method=method.name,
                title=method.title,
                published=published[method.name],
                scores=_there({name: cell_of(several) for name, several in points.items()}),
                average=cell_of(seeds_with_all(points.values())),
                costs=_costs(rows, method.name, among=QUESTIONS),
            )
        )
    return tuple(lines)


def title(method: str) -> str:
    """The method's name in a table."""
    return METHODS[method].title if method in METHODS else method


def _there(cells: Mapping[str, Cell | None]) -> dict[str, Cell]:
    return {name: cell for name, cell in cells.items() if cell is not None}


def _costs(rows: Sequence[Row], method: str, *, among: Collection[str] = GLUE) -> Spent | None:
    row = next((row for row in rows if row.method == method and row.task in among), None)
    if row is None:
        return None
    return Spent(ratio=row.ratio, layers=row.layers, share=row.share, new_layers=row.new_layers, learned=row.learned)


def _point(step: int, values: Sequence[float]) -> Point:
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Point(step=step, mean=statistics.mean(values), deviation=deviation, seeds=len(values))
