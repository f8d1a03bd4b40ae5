"""`python -m studies huang2022`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from polyhead.cli.output import Printer, text_table
from studies.seen import marked, seen_lines
from studies.shared.lines import (
    MISSING,
    draw_study,
    missing_lines,
    number,
    otherwise_lines,
    rows_option,
    tell_study,
    there,
)
from studies.shared.lines import study_options as split_options
from studies.shared.options import check_drawable, json_option, plot_option
from studies.shared.rows import rows_of_files

if TYPE_CHECKING:
    from collections.abc import Mapping

    from studies.huang2022 import Cell, Line, Measure, Row, Table
    from studies.shared.rows import Split

Command = TypeVar("Command", bound=Callable[..., Any])
ROWS = Path("results/conditioning_nhc.json")
MAKE = "python -m studies huang2022 run"
GLUE_ROWS, GLUE_MAKE = Path("results/conditioning_glue.json"), "python -m studies huang2022 run-glue"
COSTS = ("passes", "layers", "FLOPs", "parameters")
LAST = (
    "at last epoch: trainings that kept the last epoch that was allowed; such a method has not "
    "converged, and no gain over it is claimed"
)
COLUMNS = "passes, layers: for one text and all tasks; FLOPs: over those of one plain pass of the encoder"
_tell = partial(tell_study, make=MAKE, default=ROWS)
_draw = partial(draw_study, make=MAKE)


@click.group("huang2022", short_help="Huang et al. 2022: every task in one pass, by prompts.")
def command() -> None:
    """Huang et al. 2022, "All Birds with One Stone", multi-task text classification with one forward pass (MTOP).

    Tables are printed as in the paper, and then as our own study has them: seven tasks about headlines, or eight of
    GLUE at 2,000 rows each in the mean, on a trunk of six layers.
    """


def study_options(command: Command) -> Command:
    """`--rows`, `--measure` and `--json`."""
    measured = click.option(
        "--measure",
        type=click.Choice(["validation", "test", "recall"]),
        default="validation",
        show_default=True,
        help="Of our study: accuracy on the builder's split, as in the paper; accuracy on all of huffpost41's test, "
        "where few texts are a task's own; or the mean recall of both labels there.",
    )
    return json_option(rows_option(ROWS)(measured(command)))


@command.command("nhc", short_help="Build the tasks from headlines, as JSON lines.")
@click.argument("out", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder with the sets huffpost41 (its test split is reported, none of its texts is trained on), huffpost_news "
    "and subj.",
)
@click.option(
    "--full",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="All headlines: the file of the News Category Dataset, JSON lines with headline and category. They are then "
    "taken from here alone.",
)
@click.option("--size", type=int, help="Headlines of a category; by default 2,000, or as many as all categories have.")
@click.option("--seed", type=int, default=0, show_default=True, help="Which headlines are chosen and held out.")
@json_option
def nhc(out: Path, data: Path | None, full: Path | None, size: int | None, seed: int, json_to: str | None) -> None:
    """Build the NHC tasks into the folder OUT: is this headline of HuffPost about politics, wellness, ...?

    Seven binary tasks of a category's headlines and as many random others, a fifth held out; `subj`, subjective or
    objective, as the eighth. OUT/TASK/{train,validation,test}.jsonl, a card, and the hashes of all files.
    """
    from studies import huang2022 as paper

    if data is None and full is None:
        raise click.UsageError("give --data DIR, --full FILE or both: headlines come from there")
    printer = Printer(json_to)
    card = paper.write(paper.build(paper.source_in(data, full), size=size, seed=seed), out)
    splits = ("train", "validation", "test")
    cells: list[list[object]] = [["task", "labels", *splits]]
    for task in card.tasks:
        cells.append([task.name, ", ".join(task.labels), *(f"{task.rows.get(s, 0):,}" for s in splits)])
    printer.lines([*text_table(cells, left=2), ""])
    printer.line(f"{card.headlines:,} headlines could be chosen; {card.left_out:,} rows hold a text of the test split")
    printer.line(f"written into {out}; README.md and card.json say what and from what")
    printer.json(card)


@command.command("table1")
@plot_option("Draw the averages of our study into FILE (.svg, .png or .pdf).")
@study_options
def table1(plot: str | None, files: tuple[str, ...], measure: Measure, json_to: str | None) -> None:
    """NHC: accuracy by method, and passes of the encoder; ours with what learned and what it costs."""
    from studies import huang2022 as paper

    check_drawable(plot)
    printer, published = Printer(json_to), paper.published_table1()
    printer.lines(["Table 1 as printed: accuracy on NHC, median of 5 runs", ""])
    printer.lines(_printed_lines(published))
    rows = _rows(printer, files, measure)
    ours = paper.table1(rows, measure) if rows else None
    if ours is not None:
        printer.lines([*_our_lines(ours, _ends(files)), *missing_lines(ours.notes), "", COLUMNS])
    printer.lines(["", paper.OPINION])
    _draw(printer, plot, rows, lambda file: paper.plot_methods(rows, file, measure=measure))
    printer.json({"published": published, "study": ours})


@command.command("table2")
@split_options(GLUE_ROWS)
def table2(files: tuple[str, ...], split: Split, json_to: str | None) -> None:
    """GLUE: test in the paper, our reported splits at our scale, beside simple answers."""
    from studies import huang2022 as paper

    printer, published = Printer(json_to), paper.published_table2()
    printer.lines(["Table 2 as printed: GLUE test, mean of nine columns", ""])
    printer.lines(_printed_lines(published))
    ours = _glue(printer, files, partial(paper.table2, measure=split))
    printer.json({"published": published, "study": ours})


@command.command("table3")
@plot_option("Draw the averages of our study into FILE (.svg, .png or .pdf).")
@study_options
def table3(plot: str | None, files: tuple[str, ...], measure: Measure, json_to: str | None) -> None:
    """Ablation: how prompts and poolers begin, and the gradient stop; the paper on GLUE, ours on NHC and on GLUE."""
    from studies import huang2022 as paper

    check_drawable(plot)
    printer, published = Printer(json_to), paper.published_table3()
    printer.lines(["Table 3 as printed: GLUE dev, median of 5 runs", ""])
    printer.lines([*_printed_lines(published), "", paper.TABLE3_NOTE])
    rows = _rows(printer, files, measure)
    ours = paper.table3(rows, measure) if rows else None
    if ours is not None:
        printer.lines([*_our_lines(ours, _ends(files)), *missing_lines(ours.notes), "", COLUMNS])
    on_glue = _glue(printer, files, partial(paper.table3, measure="test"))
    methods = tuple(paper.ABLATION.values())
    _draw(printer, plot, rows, lambda file: paper.plot_methods(rows, file, methods=methods, measure=measure))
    printer.json({"published": published, "study": ours, "glue": on_glue})


@command.command("search")
@study_options
def search(files: tuple[str, ...], measure: Measure, json_to: str | None) -> None:
    """Ours: other learning rates, rows and starts of the methods that the study compares."""
    from studies import huang2022 as paper

    printer = Printer(json_to)
    rows = _rows(printer, files, measure)
    ours = paper.search(rows, measure) if rows else None
    if ours is not None:
        printer.lines([*_our_lines(ours, _ends(files)), *missing_lines(ours.notes), "", COLUMNS])
    printer.json({"study": ours})


@command.command("figure2", short_help="Average by rows of each task's prompt and shared rows.")
@plot_option("Draw the heat map of our study into FILE (.svg, .png or .pdf).")
@study_options
def figure2(plot: str | None, files: tuple[str, ...], measure: Measure, json_to: str | None) -> None:
    """Average by rows of each task's prompt and rows that all tasks share."""
    from studies import huang2022 as paper

    check_drawable(plot)
    printer, (own, shared) = Printer(json_to), paper.BEST_ROWS
    printer.line(f"Figure 2 of the paper is a drawing without numbers; best are {own} rows a task and {shared} shared.")
    rows = _rows(printer, files, measure)
    cells_of_grid = paper.grid(rows, measure) if rows else ()
    cells: list[list[object]] = [["rows of a task", "shared rows", "average", "seeds", *COSTS]]
    cells += [[cell.rows, cell.shared, number(cell.average), cell.seeds, *_costs(cell)] for cell in cells_of_grid]
    printer.lines([*text_table(cells), "", COLUMNS] if cells_of_grid else [])
    _draw(printer, plot, rows, lambda file: paper.plot_figure2(rows, file, measure=measure))
    printer.json({"grid": cells_of_grid})


@command.command("counts")
@json_option
def counts(json_to: str | None) -> None:
    """Parameters that a task adds, and what prompt rows add to the FLOPs of a pass; BERT-base."""
    from studies.huang2022.counts import parameters_added, ratios

    printer, added, ratios_of_passes = Printer(json_to), parameters_added(), ratios()
    cells: list[list[object]] = [["what", "parameters", "% of BERT-base"]]
    cells += [[row.what, f"{row.parameters:,}", f"{row.share:.2f}"] for row in added]
    printer.lines(["Prompt of 2 rows, pooler and head", "", *text_table(cells), ""])
    printer.lines(["FLOPs of the encoder over those of one plain pass, and layers evaluated", ""])
    cells = [["tasks", "tokens", "one input", "layers", "isolated", "layers", "a pass each", "layers"]]
    for row in ratios_of_passes:
        shares = zip((row.together, row.isolated, row.apart), row.layers, strict=True)
        cells.append([row.tasks, row.tokens, *(cell for share, n in shares for cell in (f"{share:.2f}", n))])
    printer.lines(text_table(cells))
    printer.json({"parameters": added, "flops": ratios_of_passes})


def _printed_lines(published: Table) -> list[str]:
    from studies.huang2022 import averages_printed_otherwise

    passes = any(line.passes is not None for line in published.lines)
    heads: list[object] = ["method", *published.tasks, "average", "learned"]
    cells = [[*heads, *(["passes"] if passes else [])]]
    for line in published.lines:
        ends = [number(line.average), line.learned or MISSING, *([line.passes] if passes else [])]
        cells.append([line.name, *map(number, line.scores), *ends])
    return [*text_table(cells), *otherwise_lines(averages_printed_otherwise(published))]


def _glue(printer: Printer, files: tuple[str, ...], table: Callable[[Sequence[Row]], Table]) -> Table | None:
    """Prints our own table on GLUE, the simple answers under it, and what the marks mean; None without rows."""
    from studies.huang2022 import METHODS, rows_of
    from studies.huang2022.claims import glue_epochs, glue_learned, glue_simple, method_ends
    from studies.shared.glue import TITLES
    from studies.shared.tables import mean
    from studies.trained import SIMPLE, whole

    known = there(files, GLUE_ROWS)
    raw = rows_of_files(known, make=GLUE_MAKE)[0] if known else []
    rows = rows_of(raw, tasks=TITLES) if raw else ()
    about = (
        "eight tasks of GLUE by a metric of each, mean of eight; trunk minilm, 2,000 training rows a task in the mean"
    )
    tell_study(printer, about, {row.seed for row in rows}, make=GLUE_MAKE, default=GLUE_ROWS)
    if not rows:
        return None
    ours, states, simple = table(rows), glue_learned(raw), glue_simple(raw)
    marks = {METHODS[name].title: [tasks[t].mark for t in ours.tasks] for name, tasks in states.items()}
    beside: list[list[object]] = []
    for name, title in SIMPLE.items():
        scores = [simple.get(task, {}).get(name) for task in ours.tasks]
        if any(score is not None for score in scores):
            beside.append([title, *map(number, scores), MISSING, number(mean(scores))])
    printer.lines(_our_lines(ours, method_ends(raw, allowed=glue_epochs(raw) or 0), marks=marks, beside=beside))
    told = {name: whole(METHODS[name].title, tasks) for name, tasks in states.items()}
    printer.lines([f"{state.mark} {state.why}" for state in told.values() if state.mark])
    printer.lines([*seen_lines(ours.tasks), *missing_lines(ours.notes), "", COLUMNS])
    return ours


def _ends(files: tuple[str, ...]) -> dict[str, str]:
    from studies.huang2022.claims import method_ends

    return method_ends(rows_of_files(there(files, ROWS), make=MAKE)[0])


def _our_lines(
    ours: Table,
    ends_of: Mapping[str, str],
    *,
    marks: Mapping[str, Sequence[str]] | None = None,
    beside: Sequence[list[object]] = (),
) -> list[str]:
    """Medians by task with their marks, then of the averages the median, and the mean with its deviation."""
    heads: list[object] = ["method", *map(marked, ours.tasks), "median", "mean", "seeds", "learned", "at last epoch"]
    cells = [[*heads, *COSTS]]
    for line in ours.lines:
        last = next((count for title, count in ends_of.items() if line.name.endswith(title)), MISSING)
        ends = [number(line.average), number(line.mean, line.spread), line.seeds, line.learned, last]
        behind = next(
            (each for title, each in (marks or {}).items() if line.name.endswith(title)), [""] * len(ours.tasks)
        )
        scores = [number(score) + mark for score, mark in zip(line.scores, behind, strict=True)]
        cells.append([line.name, *scores, *ends, *_costs(line)])
    cells += [[*row, *[""] * (len(cells[0]) - len(row))] for row in beside]
    return [*text_table(cells), "", LAST]


def _costs(line: Line | Cell) -> list[object]:
    passes, layers, parameters = (
        MISSING if count is None else f"{count:,}" for count in (line.passes, line.layers, line.parameters)
    )
    return [passes, layers, f"{line.over_plain:.2f}" if line.over_plain else MISSING, parameters]


def _rows(printer: Printer, files: tuple[str, ...], measure: Measure) -> Sequence[Row]:
    """The study's rows, after the line that says what their numbers are, or that there are none."""
    from studies.huang2022 import MEASURES, read_rows

    known = there(files, ROWS)
    rows = read_rows(known) if known else ()
    sizes = " or ".join(f"{size:,}" for size in sorted({row.rows for row in rows}))
    scale = f"trunk minilm, {sizes} training rows a task, 5 epochs where a trunk learns"
    _tell(printer, f"{MEASURES[measure]}, {scale}", {row.seed for row in rows})
    return rows
