"""`python -m studies aghajanyan2021`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    otherwise_lines,
    rows_option,
    spread_of,
    study_options,
    tell_study,
    there,
)
from studies.shared.options import check_drawable, json_option, plot_option
from studies.shared.rows import over_seeds, rows_of_files
from studies.trained import mark_lines

if TYPE_CHECKING:
    from studies.aghajanyan2021 import Table
    from studies.aghajanyan2021.study import Row, Trunk
    from studies.aghajanyan2021.tables import Compared, Way
    from studies.shared.rows import Split
    from studies.trained import Learned

ROWS = Path("results/together_quality.json")
MAKE = "python -m studies aghajanyan2021 run"
_tell = partial(tell_study, make=MAKE, default=ROWS)
_draw = partial(draw_study, make=MAKE)
OURS = "frozen minilm trunk with pooled heads, plain and after pre-finetuning"
BLEND = (
    "learned: the weights as the paper has them, but for an epoch of heads alone before; "
    "blended: 0.7 of them, 0.3 of the plain ones"
)
NO_DECODER = "No encoder-decoder is pre-finetuned here; for summaries in a small mixture see `run-summaries`."
TABLE3 = ("rte", "mrpc")  # the paper's tasks that our trunks never saw
TABLE4 = ("commonsenseqa",)
TABLE5 = ("emotion", "cola", "stsb", "banking77", "snips_slots")
SCHEMES = ("heterogeneous", "batch", "dataset")
OTHER_WAYS = ("unscaled", "proportional", "square-root", "annealed")


@click.group("aghajanyan2021", short_help="Aghajanyan et al. 2021: pre-finetuning on many tasks.")
def command() -> None:
    """Aghajanyan et al. 2021, "Muppet: Massive Multi-task Representations with Pre-Finetuning".

    Each command prints the paper's numbers, and then those of our own study: trunks of six layers that learned from up
    to 24 sets, with heads on eight tasks that they never saw.
    """


@command.command("table1")
@rows_option(ROWS)
@json_option
def table1(files: tuple[str, ...], json_to: str | None) -> None:
    """Sets and rows of pre-finetuning by kind."""
    from studies import aghajanyan2021 as paper
    from studies.aghajanyan2021.tables import families

    printer, published = Printer(json_to), paper.published_table1()
    cells: list[list[object]] = [["family", "sets", "training rows", "evaluation rows"]]
    cells += [[f.name, f.sets, f"{f.train:,},000", f"{f.evaluated:,},000"] for f in published]
    sums = [sum(getattr(f, name) for f in published) for name in ("sets", "train", "evaluated")]
    cells.append(["together", sums[0], *(f"{rows:,},000" for rows in sums[1:])])
    printer.lines(["Table 1 as printed: what was pre-finetuned on", "", *text_table(cells)])
    printer.lines(otherwise_lines(paper.families_printed_otherwise()))
    _, trunks = _study(files)
    ours = families(trunks)
    names = [name for family in ours for name in family.sets]
    rows_title = "training rows" if trunks else "training rows at most"
    printer.lines(["", "At our scale: the sets of the largest mix", ""])
    cells = [["kind", "sets", rows_title, "which"]]
    cells += [[f.name, len(f.sets), f"{f.rows:,}", ", ".join(map(marked, f.sets))] for f in ours]
    cells.append(["together", sum(len(f.sets) for f in ours), f"{sum(f.rows for f in ours):,}", ""])
    printer.lines(_last_to_the_left(cells))
    printer.lines([*seen_lines(names), "", NO_DECODER])
    printer.json({"published": published, "study": ours})


@command.command("table3")
@study_options(ROWS)
def table3(files: tuple[str, ...], split: Split, json_to: str | None) -> None:
    """Sentence prediction and SQuAD, before and after pre-finetuning."""
    from studies.aghajanyan2021 import published_table3

    note = "MNLI, QQP, QNLI, SST-2 and SQuAD are among the sets that our trunks learn from, and so are not held out."
    _before_and_after("Table 3", published_table3(), TABLE3, files, split, json_to, note)


@command.command("table4")
@study_options(ROWS)
def table4(files: tuple[str, ...], split: Split, json_to: str | None) -> None:
    """Commonsense, and summaries by BART, before and after pre-finetuning."""
    from studies.aghajanyan2021 import published_table4

    _before_and_after("Table 4", published_table4(), TABLE4, files, split, json_to, NO_DECODER)


@command.command("table5")
@study_options(ROWS)
def table5(files: tuple[str, ...], split: Split, json_to: str | None) -> None:
    """Tasks of other sets than those of pre-finetuning; ours are five more that were held out."""
    from studies.aghajanyan2021 import published_table5

    note = f"Parsing has no kind here and is left out; SNIPS slots stand where chunking does. {NO_DECODER}"
    _before_and_after("Table 5", published_table5(), TABLE5, files, split, json_to, note)


@command.command("table6")
@json_option
def table6(json_to: str | None) -> None:
    """ANLI by what is trained on: the paper's numbers alone."""
    from studies import aghajanyan2021 as paper

    printer, published = Printer(json_to), paper.published_table6()
    printer.lines(["Table 6 as printed: dev accuracy on the rounds of ANLI, by training sets", ""])
    printer.lines([*_pairs(published), *otherwise_lines(paper.printed_otherwise(published))])
    printer.lines(["", "Ours is left out: ANLI needs its training data, and only its evaluation rows are here."])
    printer.json({"published": published, "study": None})


@command.command("figure1", short_help="Gain by number of sets that the trunk learned from.")
@plot_option("Draw the curve of our study into FILE (.svg, .png or .pdf).")
@study_options(ROWS)
def figure1(plot: str | None, files: tuple[str, ...], split: Split, json_to: str | None) -> None:
    """Gain over the plain trunk by number of sets, which are nested."""
    from studies.aghajanyan2021 import FIGURE1_SETS, figures, study

    printer = Printer(json_to)
    check_drawable(plot)
    sizes = ", ".join(map(str, FIGURE1_SETS))
    printer.line(f"Figure 1 of the paper is a drawing without numbers: {sizes} sets, then five fine-tunings.")
    rows = _rows(printer, files, f"mean {split} points above the plain frozen trunk")
    points_by_count = study.nested(rows, split=split) if rows else {}
    cells: list[list[object]] = [["sets", *map(marked, study.tasks_of(rows)), "mean"]]
    for count, points in points_by_count.items():
        each = study.gains(rows, f"sets-{count}", split=split) if count else {}
        line = [spread_of(over_seeds(each.get(task, {})), signed=True) for task in study.tasks_of(rows)]
        cells.append([count, *line, spread_of(over_seeds(points), signed=True)])
    printer.lines(
        [*text_table(cells), *seen_lines(study.tasks_of(rows)), *missing_lines(study.missing(rows))] if rows else []
    )
    _draw(printer, plot, rows, lambda file: figures.plot_nested(rows, file, split=split))
    printer.json({"nested": points_by_count})


@command.command("figure2", short_help="Ways of mixing: what an update holds; losses scaled or not; samplers.")
@plot_option("Draw the bars of our study into FILE (.svg, .png or .pdf).")
@study_options(ROWS)
def figure2(plot: str | None, files: tuple[str, ...], split: Split, json_to: str | None) -> None:
    """Heterogeneous, batch-homogeneous and dataset-homogeneous updates; and the other ways of mixing of our study."""
    from studies.aghajanyan2021 import BATCHINGS, figures
    from studies.aghajanyan2021.tables import ways

    printer, names = Printer(json_to), (*SCHEMES, *OTHER_WAYS)
    check_drawable(plot)
    printer.line(f"Figure 2 of the paper is a drawing without numbers: {', '.join(BATCHINGS)}; the last is best.")
    rows = _rows(printer, files, f"mean {split} points above the plain frozen trunk, 12 sets")
    ways_of_mixing = ways(rows, names, split=split) if rows else ()
    printer.lines(_way_lines(ways_of_mixing) if rows else [])
    _draw(printer, plot, rows, lambda file: figures.plot_mixes(rows, names, file, split=split))
    printer.json({"ways": ways_of_mixing})


@command.command("figure3", short_help="Gain by training rows of the held-out task.")
@plot_option("Draw the heat map of our study into FILE (.svg, .png or .pdf).")
@study_options(ROWS)
def figure3(plot: str | None, files: tuple[str, ...], split: Split, json_to: str | None) -> None:
    """Gain over the plain trunk by training rows of the held-out task."""
    from studies.aghajanyan2021 import figures, study

    printer = Printer(json_to)
    check_drawable(plot)
    printer.line("Figure 3 of the paper is a heat map without numbers: QNLI and CoLA, 10 to 100 % of their rows.")
    rows = _rows(printer, files, f"{split} points that frozen heads gain, by training rows")
    sizes = study.sizes_of(rows)
    gains = {size: study.gains(rows, size=size, split=split) for size in sizes}
    cells: list[list[object]] = [["task", *(f"{size} rows" for size in sizes)]]
    for task in study.tasks_of(rows):
        spreads = [over_seeds(gains[size].get(task, {})) for size in sizes]
        cells.append([marked(task), *(spread_of(spread, signed=True) for spread in spreads)])
    means = [over_seeds(study.mean_by_seed(rows, gains[size])) for size in sizes]
    cells.append(["mean", *(spread_of(spread, signed=True) for spread in means)])
    printer.lines(
        [*text_table(cells), *seen_lines(study.tasks_of(rows)), *missing_lines(study.missing(rows))] if rows else []
    )
    _draw(printer, plot, rows, lambda file: figures.plot_heat(rows, file, split=split))
    printer.json({"gains": gains})


@command.command("weights")
@json_option
def weights(json_to: str | None) -> None:
    """1 / ln n by the outcomes that compete, and what a uniform guess loses with and without it."""
    from studies.aghajanyan2021 import scaling

    printer, factors = Printer(json_to), scaling.factors()
    cells: list[list[object]] = [["outcomes n", "ln n", "1 / ln n", "for example"]]
    cells += [[f"{f.outcomes:,}", f"{f.log:.3f}", f"{f.factor:.3f}", f.example] for f in factors]
    printer.lines(["Losses are divided by ln n, n the outcomes that compete (section 3)", ""])
    printer.lines([*_last_to_the_left(cells), ""])
    guesses = scaling.uniform_guesses()
    cells = [["kind", "outcomes", "plain loss", "scaled loss"]]
    for guess in guesses:
        cells.append([guess.kind, guess.outcomes, f"{guess.plain:.4f}", f"{guess.scaled:.4f}"])
    printer.lines(["What a uniform guess loses, by the losses that training uses", "", *text_table(cells, left=2)])
    printer.json({"factors": factors, "uniform_guesses": guesses})


def _before_and_after(
    name: str,
    published: Table,
    tasks: tuple[str, ...],
    files: tuple[str, ...],
    split: Split,
    json_to: str | None,
    note: str,
) -> None:
    from studies.aghajanyan2021 import study
    from studies.aghajanyan2021.claims import full_learned
    from studies.aghajanyan2021.mixes import WHOLE_MIX
    from studies.aghajanyan2021.tables import compared

    printer = Printer(json_to)
    printer.lines([f"{name} as printed: dev scores before and after pre-finetuning, and the gain", ""])
    printer.lines([*_pairs(published), *(["", *published.notes] if published.notes else [])])
    rows = _rows(printer, files, f"{split} points, {OURS} on {study.BEST.removeprefix('sets-')} sets")
    whole_ones = compared(rows, WHOLE_MIX.name, tasks=tasks, split=split)
    blended, closed = compared(rows, tasks=tasks, split=split), study.gap_closed(rows, split=split)
    of_all = full_learned(_raw(files))
    full = {task: one for task, one in of_all.items() if task in tasks}
    if rows:
        printer.lines(_compared_lines(whole_ones, blended, full))
        printer.lines(["", BLEND, *mark_lines("full fine-tuning", full), *seen_lines(tasks)])
        if closed is not None and closed.share is not None and not any(one.mark for one in of_all.values()):
            gain, gap = spread_of(closed.gain, signed=True), spread_of(closed.gap, signed=True)
            words = f"over all {len(study.tasks_of(rows))} held-out tasks the blend gains {gain} of a gap of {gap}"
            printer.lines(["", f"{words}: {100 * closed.share:.0f} % of it are closed"])
        printer.lines(missing_lines(study.missing(rows)))
        if not any(task.full_mixed is not None for task in (*whole_ones, *blended)):
            printer.lines(["", "full fine-tuning from the pre-finetuned trunk was not run (--jobs full-mixed)"])
    printer.lines(["", note])
    printer.json({"published": published, "study": blended, "whole": whole_ones, "gap_closed": closed})


def _compared_lines(whole: Sequence[Compared], blended: Sequence[Compared], full: Mapping[str, Learned]) -> list[str]:
    """Both trunks side by side, the paper's method first."""
    heads: list[object] = ["task", "metric", "plain", "learned", "gain", "blended", "gain", "fully fine-tuned"]
    refined = any(task.full_mixed is not None for task in blended)
    cells: list[list[object]] = [[*heads, *(["fully, blended"] if refined else [])]]
    for one, task in zip(whole, blended, strict=True):
        shown = [spread_of(task.plain), spread_of(one.mixed), spread_of(one.gain, signed=True)]
        shown += [spread_of(task.mixed), spread_of(task.gain, signed=True)]
        mark = full[task.task].mark if task.task in full else ""
        more = [spread_of(task.full_mixed)] if refined else []
        cells.append([marked(task.task), task.metric, *shown, spread_of(task.full) + mark, *more])
    return text_table(cells, left=2)


def _raw(files: tuple[str, ...]) -> list[dict[str, Any]]:
    """The rows as the files have them."""
    return rows_of_files(there(files, ROWS), make=MAKE)[0]


def _way_lines(ways: Sequence[Way]) -> list[str]:
    cells: list[list[object]] = [["way of mixing", "mean gain", "by seed"]]
    for way in ways:
        seeds = ", ".join(number(points, signed=True) for points in way.seeds.values())
        cells.append([way.mix, spread_of(way.gain, signed=True), seeds or MISSING])
    return _last_to_the_left(cells)


def _pairs(published: Table) -> list[str]:
    """A line a column of the paper's table: each model before and after, and the gain."""
    models = published.lines[::2]
    cells: list[list[object]] = [["task", "metric", *(line.name for line in models)]]
    for index, (column, metric) in enumerate(zip(published.columns, published.metrics, strict=True)):
        shown = []
        for before, after in zip(published.lines[::2], published.lines[1::2], strict=True):
            shown.append(_gained(before.scores[index], after.scores[index]))
        cells.append([column, metric or MISSING, *shown])
    return text_table(cells, left=2)


def _gained(before: float | None, after: float | None) -> str:
    if before is None or after is None:
        return MISSING
    return f"{_as_printed(before)} to {_as_printed(after)} ({after - before:+.1f})"


def _as_printed(value: float) -> str:
    """One decimal, two for ROUGE."""
    return f"{value:.1f}" if round(value, 1) == value else f"{value:.2f}"


def _last_to_the_left(cells: Sequence[Sequence[object]]) -> list[str]:
    """A table whose last column is text."""
    lines, last = text_table([row[:-1] for row in cells]), [str(row[-1]) for row in cells]
    width = max(map(len, lines))
    return [f"{line.ljust(width)}  {words}".rstrip() for line, words in zip(lines, last, strict=True)]


def _study(files: tuple[str, ...]) -> tuple[tuple[Row, ...], tuple[Trunk, ...]]:
    from studies.aghajanyan2021.study import read_rows

    known = there(files, ROWS)
    return read_rows(known) if known else ((), ())


def _rows(printer: Printer, files: tuple[str, ...], what: str) -> tuple[Row, ...]:
    """The study's rows, after the line that says what their numbers are, or that there are none."""
    rows, _ = _study(files)
    _tell(printer, what, {row.seed for row in rows})
    return rows
