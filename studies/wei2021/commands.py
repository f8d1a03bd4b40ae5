"""`python -m studies wei2021`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from polyhead.cli.output import Printer, text_table
from studies.seen import marked, seen_lines
from studies.shared.lines import draw_study, missing_lines, number, otherwise_lines, study_options, tell_study, there
from studies.shared.options import check_drawable, plot_option
from studies.trained import mark_lines

if TYPE_CHECKING:
    from polyhead.plan.cost.allocate import AllocationOption
    from studies.shared.rows import Split
    from studies.wei2021 import Line, Run, Statistic, Table

Command = TypeVar("Command", bound=Callable[..., Any])
ROWS = Path("results/branches_quality.json")
JOINT = Path("results/branches_mtdnn.json")
MAKE = "python -m studies wei2021 run"
_tell = partial(tell_study, make=MAKE, default=ROWS)
_draw = partial(draw_study, make=MAKE)


@click.group("wei2021", short_help="Wei et al. 2021: a flexible multi-task model.")
def command() -> None:
    """Wei et al. 2021, "A Flexible Multi-Task Model for BERT Serving".

    Each command prints the paper's numbers, what follows from them counted anew, and then the same from the runs of
    our own study on a trunk of six layers.
    """


def statistic_option(default: Statistic) -> Callable[[Command], Command]:
    """Adds `--statistic` with this default."""
    return click.option(
        "--statistic",
        type=click.Choice(["max", "mean", "median"]),
        default=default,
        show_default=True,
        help="Over the seeds of our study; the paper takes the max of 5.",
    )


@command.command("table1")
@statistic_option("max")
@study_options(ROWS)
def table1(files: tuple[str, ...], split: Split, statistic: Statistic, json_to: str | None) -> None:
    """Score by number of layers fine-tuned; * marks 99 % of a task's best."""
    from studies import wei2021 as paper

    printer, runs = Printer(json_to), _runs(files)
    published = paper.published_table1()
    printer.lines(["Table 1 as printed: dev scores of BERT-base, the largest of 5 seeds", ""])
    printer.lines(_depth_lines(published, statistic="max"))
    ours = paper.table1(runs, statistic=statistic, split=split) if runs else None
    _tell(printer, f"{split} scores, {statistic} over the seeds", {run.seed for run in runs})
    if ours is not None:
        printer.lines([*_depth_lines(ours, statistic=statistic), *_marks(ours), *missing_lines(ours.notes)])
    printer.json({"published": published, "study": ours})


@command.command("table2")
@click.option("--c", type=click.FloatRange(0), default=1.0, show_default=True, help="Of the mixed model's rule.")
@click.option(
    "--joint",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help=f"Runs of joint training, for the MT-DNN rows; without --rows by default {JOINT}, if it is there.",
)
@statistic_option("mean")
@study_options(ROWS)
def table2(
    c: float, joint: str | None, files: tuple[str, ...], split: Split, statistic: Statistic, json_to: str | None
) -> None:
    """Full fine-tuning, students, and the mixed model: scores, and layers run for all tasks."""
    from studies import wei2021 as paper

    printer, runs = Printer(json_to), _runs(files)
    if joint or not files:  # rows of a study of its own are not mixed with ours of joint training
        runs = (*runs, *_runs([joint] if joint else [], JOINT))
    published = paper.published_table2(c)
    printer.lines(["Table 2 as printed; averages, layers and overheads counted anew", ""])
    printer.lines([*_method_lines(published), *otherwise_lines(paper.printed_otherwise(published))])
    ours = paper.table2(runs, c, statistic=statistic, split=split) if runs else None
    _tell(
        printer, f"{split} scores, {statistic} over the seeds, choices made on validation", {run.seed for run in runs}
    )
    if ours is not None:
        printer.lines([*_method_lines(ours), *_marks(ours), *missing_lines(ours.notes)])
    printer.json({"published": published, "study": ours})


@command.command("table5")
@click.option(
    "--c",
    "costs",
    default="1,2,3",
    show_default=True,
    metavar="NUMBERS",
    help="Prices of a layer in points, with commas between them.",
)
@statistic_option("mean")
@study_options(ROWS)
def table5(costs: str, files: tuple[str, ...], split: Split, statistic: Statistic, json_to: str | None) -> None:
    """The mixed model by the price c of a layer, and the best choice of equally many layers.

    A cell says tap+layers; * marks a branch that was not distilled.
    """
    from studies import wei2021 as paper

    printer, runs, prices = Printer(json_to), _runs(files), _numbers(costs)
    published = paper.published_table5(prices)
    printer.lines(["Table 5 counted from the rows of tables 1 and 2: tap+layers of each task", ""])
    printer.lines([*_choice_lines(published), *otherwise_lines(paper.printed_otherwise(published))])
    ours = paper.table5(runs, prices, statistic=statistic, split=split) if runs else None
    _tell(
        printer,
        f"averages of {split} scores, {statistic} over the seeds, chosen on validation",
        {run.seed for run in runs},
    )
    if ours is not None:
        printer.lines([*_choice_lines(ours, on="validation"), *_marks(ours), *missing_lines(ours.notes)])
    printer.json({"published": published, "study": ours})


@command.command("figure2", short_help="Students from their teacher's layers and from pre-trained ones: box plots.")
@plot_option("Draw the box plots of our study into FILE (.svg, .png or .pdf).")
@study_options(ROWS)
def figure2(plot: str | None, files: tuple[str, ...], split: Split, json_to: str | None) -> None:
    """Students that begin as their teacher's layers against those from pre-trained layers: quartiles over seeds."""
    from studies import wei2021 as paper

    printer, runs = Printer(json_to), _runs(files)
    check_drawable(plot)
    printer.line("Figure 2 of the paper is a drawing without numbers: over 5 seeds, students of 1 to 3 layers.")
    _tell(printer, f"{split} scores, quartiles over the seeds", {run.seed for run in runs})
    boxes = paper.boxes(runs, split=split) if runs else ()
    if runs:
        cells: list[list[object]] = [["task", "start", "layers", "seeds", "min", "25 %", "median", "75 %", "max"]]
        for box in boxes:
            quartiles = (box.low, box.first, box.median, box.third, box.high)
            shown = [f"{value:.1f}" for value in quartiles]
            cells.append([marked(box.task), box.init, box.layers, len(box.scores), *shown])
        gains = paper.gains(boxes)
        better = sum(gain > 0 for gain in gains.values())
        printer.lines([*text_table(cells, left=2), *seen_lines([box.task for box in boxes]), ""])
        printer.line(f"the teacher's layers have the higher median in {better} of {len(gains)} comparisons")
    _draw(printer, plot, runs, lambda file: paper.plot_figure2(runs, file, split=split))
    printer.json({"boxes": boxes})


def _runs(files: Sequence[str], default: Path = ROWS) -> tuple[Run, ...]:
    from studies.wei2021 import read_runs

    return tuple(run for file in there(files, default) for run in read_runs(file))


def _depth_lines(shown: Table, *, statistic: Statistic) -> list[str]:
    from studies.wei2021 import near_best

    *depths, full = shown.lines
    marks = [*near_best(depths), [False] * len(shown.tasks)]
    cells: list[list[object]] = [["layers", *(f"{head} " for head in _heads(shown))]]
    for line, near_ones in zip((*depths, full), marks, strict=True):
        none = (None,) * len(line.scores)
        spreads = (line.spreads if statistic == "mean" else none) or none
        ends = ["*" if near else " " for near in near_ones]
        if line.marks:
            ends = [mark or " " for mark in line.marks]
        shown_scores = zip(line.scores, spreads, ends, strict=True)
        cells.append([line.name, *(number(score, spread) + end for score, spread, end in shown_scores)])
    cells.append(["chosen", *(f"L = {shown.depths[t]} " if t in shown.depths else "- " for t in shown.tasks)])
    return text_table(cells)


def _method_lines(shown: Table) -> list[str]:
    cells: list[list[object]] = [["method", *_heads(shown), "average", "layers", "overhead", "of full"]]
    for line in shown.lines:
        marks = line.marks or ("",) * len(line.scores)
        scores = [number(score) + mark for score, mark in zip(line.scores, marks, strict=True)]
        cells.append([line.name, *scores, number(line.average, line.spread), *_costs(line)])
    notes = [f"{line.name}: {line.note}" for line in shown.lines if line.note]
    return [*text_table(cells), *(["", *notes] if notes else [])]


def _choice_lines(shown: Table, *, on: str | None = None) -> list[str]:
    """`on` names the split by whose scores was chosen, if the averages are of another."""
    heads = ["choice", *_heads(shown), *([on] if on else []), "average", "layers", "overhead", "of full"]
    cells: list[list[object]] = [[*heads]]
    for line in shown.lines:
        options = [_choice(option) for option in line.chosen] or ["-"] * len(shown.tasks)
        chosen_on = _average([option.score for option in line.chosen])
        averages = [*([number(chosen_on)] if on else []), number(line.average, line.spread)]
        cells.append([line.name, *options, *averages, *_costs(line)])
    return text_table(cells)


def _heads(shown: Table) -> list[str]:
    """The tasks, in our own tables with marks of what the trunk had seen."""
    return [marked(task) if shown.learned else task for task in shown.tasks]


def _marks(shown: Table) -> list[str]:
    """What marks in our own tables mean."""
    return [*mark_lines("full fine-tuning", shown.learned), *seen_lines(shown.tasks)]


def _average(scores: Sequence[float]) -> float | None:
    return sum(scores) / len(scores) if scores else None


def _choice(option: AllocationOption) -> str:
    is_student = option.name.startswith(("KD", "student"))
    return f"{option.tap}+{option.layers}{' ' if is_student else '*'}"


def _costs(line: Line) -> list[object]:
    shares = [f"{share:.1f} %" if share is not None else "-" for share in (line.overhead, line.of_full)]
    return [line.layers if line.layers is not None else "-", *shares]


def _numbers(option: str) -> list[float]:
    try:
        prices = [float(word) for word in option.split(",") if word.strip()]
    except ValueError:
        prices = []
    if not prices or any(not 0 <= number < float("inf") for number in prices):
        raise click.BadParameter("numbers from 0, with commas between them", param_hint="'--c'")
    return list(dict.fromkeys(prices))
