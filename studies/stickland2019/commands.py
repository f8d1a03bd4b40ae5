"""`python -m studies stickland2019`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polyhead.cli.output import Printer, text_table
from studies.seen import marked, seen_lines
from studies.shared.lines import (
    MISSING,
    draw_study,
    missing_lines,
    number,
    rows_option,
    study_options,
    tell_study,
    there,
)
from studies.shared.options import check_drawable, json_option, plot_option
from studies.shared.rows import rows_of_files
from studies.trained import mark_lines

if TYPE_CHECKING:
    from studies.aghajanyan2021 import Table
    from studies.shared.rows import Split
    from studies.stickland2019 import Cell, Row, Run, Spent

ROWS = Path("results/conditioning_adapters.json")
MAKE = "python -m studies stickland2019 run"
_tell = partial(tell_study, make=MAKE, default=ROWS)
_draw = partial(draw_study, make=MAKE)
ABOUT = "mean of eight tasks, ± standard error, trunk minilm"


@click.group("stickland2019", short_help="Stickland and Murray 2019: functions of a task's own inside the encoder.")
def command() -> None:
    """Stickland and Murray 2019, "BERT and PALs: Projected Attention Layers ... in Multi-Task Learning".

    Tables are printed as in the paper, and then as our own study has them: the same eight tasks of GLUE at 2,000 rows
    each in the mean, on a trunk of six layers.
    """


@command.command("table1")
@json_option
def table1(json_to: str | None) -> None:
    """Parameters of eight tasks by formula and as our arrays hold them, on BERT-base and on minilm."""
    from studies import stickland2019 as paper
    from studies.du2020.counts import MINILM

    printer, formulas = Printer(json_to), paper.table1()
    ours = {row.method: paper.costs(paper.METHODS[row.method], MINILM) for row in formulas}
    heads: list[object] = ["method", "formula", "by formula", "counted", "× all", "× layers", "× minilm"]
    cells = [heads]
    for row in formulas:
        counts = [f"{row.value:,}", f"{row.counted.own:,}"]
        ratios = [f"{r:.3f}" for r in (row.counted.ratio, row.counted.layer_ratio, ours[row.method].ratio)]
        cells.append([paper.title(row.method), row.formula, *counts, *ratios])
    printer.lines(["Table 1: eight tasks' functions on BERT-base, matrices alone; T tasks, d wide, n layers", ""])
    printer.lines([*text_table(cells, left=2), ""])
    printer.line("Ratios are of all parameters with biases, over one encoder with its pooler; and over its layers.")
    printer.line(paper.RATIO_NOTE)
    printer.lines([f"On minilm, {note}" for note in paper.size_notes(MINILM)])
    printer.json({"rows": formulas, "minilm": ours})


command.add_command(table1, "params")


@command.command("table2")
@study_options(ROWS)
def table2(files: tuple[str, ...], split: Split, json_to: str | None) -> None:
    """Scores by task: GLUE test in the paper, our reported splits at our scale."""
    from studies import stickland2019 as paper
    from studies.stickland2019.claims import single_learned
    from studies.stickland2019.study import GLUE

    printer, published = Printer(json_to), paper.published_table2()
    printer.lines(["Table 2 as printed: GLUE test; the mean is that of nine columns, F1 of QQP and MRPC", ""])
    printer.lines(_printed_lines(published))
    rows, _ = _study(printer, files, f"{split} points by task, annealed sampling, trunk minilm")
    methods = paper.by_task(rows, split=split) if rows else ()
    if rows:
        heads = [marked(task).replace(task, title) for task, title in GLUE.items()]
        cells: list[list[object]] = [["method", *heads, "mean of 8", *COSTS]]
        single = single_learned(_raw(files))
        for method in methods:
            marks = {task: one.mark for task, one in single.items()} if method.method == "single" else {}
            shown = [*(_mean(method.tasks.get(task)) + marks.get(task, "") for task in GLUE), _mean(method.average)]
            cells.append([method.title, *shown, *_costs(method.costs)])
        printer.lines([*text_table(cells), *mark_lines("a trunk a task", single), *seen_lines(GLUE)])
        printer.lines([*missing_lines(paper.missing(rows)), "", COLUMNS])
    printer.json({"published": published, "study": methods})


@command.command("table3")
@plot_option("Draw the means of our study into FILE (.svg, .png or .pdf).")
@study_options(ROWS)
def table3(plot: str | None, files: tuple[str, ...], split: Split, json_to: str | None) -> None:
    """Method by sampling: mean of eight tasks, parameters, new layers; ours with layers evaluated and FLOPs."""
    from studies import stickland2019 as paper

    check_drawable(plot)
    printer, samplings = Printer(json_to), list(paper.SAMPLINGS)[:3]
    printed = paper.table3()
    cells: list[list[object]] = [["method", "parameters", "counted", "new layers", *samplings]]
    for line in printed:
        ratio = MISSING if line.printed_ratio is None else f"{line.printed_ratio:.2f} ×"
        shown = [_mean(line.published.get(s), digits=2) for s in samplings]
        cells.append([line.title, ratio, f"{line.ratio:.3f} ×", line.new_layers, *shown])
    printer.lines(["Table 3 as printed: GLUE dev, mean of eight tasks, ± standard error of 3 seeds", ""])
    printer.lines([*text_table(cells), "", paper.RATIO_NOTE])
    rows, _ = _study(printer, files, f"{split}, {ABOUT}")
    lines = paper.table3(rows, split=split) if rows else ()
    if rows:
        cells = [["method", *COSTS, *samplings]]
        for line in lines:
            if line.costs is not None and line.measured:
                shown = [_mean(line.measured.get(s), digits=2) for s in samplings]
                cells.append([line.title, *_costs(line.costs), *shown])
        printer.lines([*text_table(cells), *missing_lines(paper.missing(rows)), "", COLUMNS])
    names = [line.name for line in paper.TABLE3]
    _draw(printer, plot, rows, lambda file: paper.plot_methods(rows, file, methods=names, split=split))
    printer.json({"published": printed, "study": lines})


@command.command("ablations")
@plot_option("Draw the means of our study into FILE (.svg, .png or .pdf).")
@study_options(ROWS)
def ablations(plot: str | None, files: tuple[str, ...], split: Split, json_to: str | None) -> None:
    """Every method and sampling that has runs, against PALs annealed; the paper has these in words alone."""
    from studies import stickland2019 as paper
    from studies.du2020.counts import MINILM
    from studies.stickland2019.claims import ends as ends_of

    check_drawable(plot)
    printer = Printer(json_to)
    rows, _ = _study(printer, files, f"{split}, {ABOUT}")
    methods = paper.compared(rows, split=split) if rows else ()
    if rows:
        heads: list[object] = ["method", "sampling", *COSTS, "mean"]
        cells, raw = [[*heads, "above PALs", "seeds", "learned", "at last epoch"]], _raw(files)
        for method in methods:
            ended, runs = ends_of(raw, method.method, method.sampling)
            shown = [_mean(method.average, digits=2), _mean(method.above_pals, digits=2, signed=True)]
            last = MISSING if method.method == "single" else f"{ended} of {runs}"
            ends = [method.average.seeds, method.costs.learned, last]
            cells.append([method.title, method.sampling, *_costs(method.costs), *shown, *ends])
        printer.lines([*text_table(cells, left=2), *missing_lines(paper.missing(rows)), "", COLUMNS])
        printer.lines(paper.size_notes(MINILM))
    _draw(printer, plot, rows, lambda file: paper.plot_methods(rows, file, split=split))
    printer.json({"study": methods})


@command.command("curves", short_help="Validation score by update and task: PALs and low rank.")
@click.option("--methods", default="pals,low-rank", show_default=True, help="Names of the study's methods.")
@plot_option("Draw the curves of our study into FILE (.svg, .png or .pdf).")
@rows_option(ROWS)
@json_option
def curves(methods: str, plot: str | None, files: tuple[str, ...], json_to: str | None) -> None:
    """Figure 1 of the appendix: each task's validation score while it learns, annealed; mean and deviation of seeds."""
    from studies import stickland2019 as paper

    check_drawable(plot)
    printer = Printer(json_to)
    printer.line("Figure 1 of the appendix is a drawing without numbers: mean and deviation of 4 seeds.")
    names = [name.strip() for name in methods.split(",")]
    curved = [name for name in paper.METHODS if name != "single"]  # its tasks have no updates in common
    unknown = [name for name in names if name not in curved]
    if unknown:
        known = ", ".join(curved)
        raise click.UsageError(f"--methods: the study has no {', '.join(unknown)}; it has {known}")
    rows, runs = _study(printer, files, "validation points by update, ± standard deviation, trunk minilm")
    points_by_task = paper.curves(runs, rows, names) if rows else {}
    steps = sorted({p.step for lines in points_by_task.values() for points in lines.values() for p in points})
    cells: list[list[object]] = [["task", "method", *steps]]
    for task, lines in points_by_task.items():
        for name, points in lines.items():
            at = {point.step: number(point.mean, point.deviation) for point in points}
            cells.append([task, paper.title(name), *(at.get(step, MISSING) for step in steps)])
    printer.lines(text_table(cells, left=2) if steps else [])
    _draw(printer, plot, rows, lambda file: paper.plot_curves(points_by_task, file))
    printer.json({"curves": points_by_task})


@command.command("squad", short_help="SQuAD together with a multiple-choice set.")
@rows_option(ROWS)
@json_option
def squad(files: tuple[str, ...], json_to: str | None) -> None:
    """Table 1 of the appendix: SQuAD and SWAG, round robin; ours has SocialIQA in the place of SWAG."""
    from studies import stickland2019 as paper

    printer = Printer(json_to)
    cells: list[list[object]] = [["method", "mean"]]
    cells += [[method.title, _mean(method.published, digits=3)] for method in paper.questions()]
    printer.lines(["Table 1 of the appendix as printed: mean of SQuAD's EM and F1 and of SWAG's accuracy", ""])
    printer.lines(text_table(cells))
    about = "SQuAD and SocialIQA, 2,000 rows each, round robin, 250 updates of 16, ± standard error, trunk minilm"
    rows, _ = _study(printer, files, about, questions=True)
    methods = [method for method in paper.questions(rows) if method.scores] if rows else []
    cells = [["method", "SQuAD EM", "SQuAD F1", "SocialIQA accuracy", "mean", "seeds", *COSTS]]
    for method in methods:
        shown = [_mean(method.scores.get(name)) for name in ("EM", "F1", "accuracy")]
        seeds = method.average.seeds if method.average else MISSING
        cells.append([method.title, *shown, _mean(method.average, digits=2), seeds, *_costs(method.costs)])
    printer.lines([*text_table(cells), "", COLUMNS] if methods else [])
    printer.json({"published": paper.published_questions(), "study": methods})


@command.command("costs", short_help="Parameters, layers and FLOPs by number of tasks.")
@click.option("--tokens", type=click.IntRange(2, 512), default=128, show_default=True, help="Of the text.")
@json_option
def costs(tokens: int, json_to: str | None) -> None:
    """Layers evaluated and FLOPs for one text and 1, 8 and 21 tasks; BERT-base, poolers and heads left out."""
    from studies import stickland2019 as paper
    from studies.huang2022.counts import BERT_BASE

    printer = Printer(json_to)
    names = dict.fromkeys([*(method.name for method in paper.TABLE3), *paper.FORMULAS])
    costs_by_method = {
        name: {n: paper.costs(paper.METHODS[name], BERT_BASE, tasks=n, tokens=tokens) for n in paper.NUMBERS}
        for name in names
    }
    heads: list[object] = ["method", "parameters"]
    for count in paper.NUMBERS:
        heads += [f"layers, {count}", "GFLOPs", "share"]
    cells = [heads]
    for name, by_number in costs_by_method.items():
        line: list[object] = [paper.title(name), f"{by_number[8].ratio:.3f} ×"]
        for counted in by_number.values():
            line += [counted.layers, f"{counted.flops / 1e9:.1f}", f"{counted.share:.3f}"]
        cells.append(line)
    printer.lines([f"BERT-base, one text of {tokens} tokens; parameters of 8 tasks over one encoder", ""])
    printer.lines([*text_table(cells), "", "share: of the FLOPs of an encoder a task"])
    printer.json({"rows": costs_by_method})


COSTS = ("parameters", "new layers", "layers", "FLOPs")
COLUMNS = (
    "parameters: over one encoder with its pooler; layers: evaluated for one text and all tasks; FLOPs: over those of "
    "an encoder a task"
)


def _costs(spent: Spent | None) -> list[object]:
    if spent is None:
        return [MISSING] * len(COSTS)
    return [f"{spent.ratio:.3f} ×", spent.new_layers, spent.layers, f"{spent.share:.3f} ×"]


def _mean(cell: Cell | None, *, digits: int = 1, signed: bool = False) -> str:
    """A mean with its standard error."""
    if cell is None:
        return MISSING
    error = "" if cell.error is None else f" ±{cell.error:.{digits}f}"
    return f"{cell.mean:{'+' if signed else ''}.{digits}f}{error}"


def _printed_lines(published: Table) -> list[str]:
    cells: list[list[object]] = [["method", *published.columns, "counted"]]
    for line in published.lines:
        cells.append([line.name, *map(number, line.scores), f"{line.counted['average']:.2f}"])
    return text_table(cells)


def _raw(files: tuple[str, ...]) -> list[dict[str, Any]]:
    """The rows as the files have them."""
    return rows_of_files(there(files, ROWS), make=MAKE)[0]


def _study(
    printer: Printer, files: tuple[str, ...], what: str, *, questions: bool = False
) -> tuple[Sequence[Row], Sequence[Run]]:
    """The study's rows, on the eight tasks or on questions, after the line that says what they are."""
    from studies.stickland2019 import read_rows, scale_of
    from studies.stickland2019.study import GLUE, QUESTIONS

    known = there(files, ROWS)
    rows, runs = read_rows(known) if known else ((), ())
    rows = tuple(row for row in rows if row.task in (QUESTIONS if questions else GLUE))
    _tell(printer, what if questions else what + scale_of(runs), {row.seed for row in rows})
    return rows, runs
