"""`python -m studies du2020`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from polyhead.cli.output import Printer, text_table
from studies.results import LEAST_SEEDS
from studies.seen import marked, seen_lines
from studies.shared.lines import (
    MISSING,
    draw_study,
    missing_lines,
    no_runs,
    number,
    otherwise_lines,
    rows_option,
    study_options,
    tell_study,
    there,
)
from studies.shared.options import check_drawable, json_option, plot_option
from studies.shared.rows import rows_of_files
from studies.trained import mark_lines

if TYPE_CHECKING:
    from studies.du2020 import Table
    from studies.du2020.orderings import Ordering
    from studies.shared.rows import Split

ROWS = Path("results/together_leave_out.json")
SWEEP = Path("results/together_sweep.json")
MAKE = "python -m studies du2020 run-leave-out"


@click.group("du2020", short_help="Du et al. 2020: general purpose text embeddings.")
def command() -> None:
    """Du et al. 2020, "General Purpose Text Embeddings ... for Scalable Inference".

    Tables 1, 3 and 4 are printed as in the paper, and then as our own study has them: eight of its fourteen tasks in
    its five groups, on a trunk of six layers.
    """


@command.command("table1")
@rows_option(ROWS)
@json_option
def table1(files: tuple[str, ...], json_to: str | None) -> None:
    """Rows of each task; ours with the group that it belongs to."""
    from studies import du2020 as paper
    from studies.du2020.study import notes_of, used
    from studies.shared.rows import rows_in

    printer, published = Printer(json_to), paper.published_table1()
    cells: list[list[object]] = [["task", "training rows", "evaluation rows"]]
    cells += [[size.task, f"{size.train:,}", f"{size.evaluated:,}"] for size in published]
    printer.lines(["Table 1: rows with labels in the data that the paper names", "", *text_table(cells)])
    printer.lines(otherwise_lines(paper.sizes_printed_otherwise()))
    ours = used(row for file in there(files, ROWS) for row in rows_in(file, make=MAKE))
    splits = ("train", "validation", "test")
    cells = [["task", "group", *splits]]
    cells += [[task.task, task.group, *(task.rows.get(split, MISSING) for split in splits)] for task in ours]
    printer.lines(["", "At our scale: rows that are used", "", *text_table(cells, left=2), ""])
    runs = [task.task for task in ours if task.rows]
    printer.lines([*([] if runs else [no_runs(MAKE, ROWS)]), *notes_of(runs or [task.task for task in ours])])
    printer.json({"published": published, "study": ours})


@command.command("table3")
@plot_option("Draw the frozen trunks of our study by group of tasks into FILE (.svg, .png or .pdf).")
@study_options(ROWS)
def table3(plot: str | None, files: tuple[str, ...], split: Split, json_to: str | None) -> None:
    """Accuracy by group of tasks, and GFLOPs of one text for all tasks; then which orderings hold."""
    from studies.du2020.figures import plot_groups

    _blocks("Table 3", _group_lines, plot_groups, files, split, plot, json_to)


@command.command("table4")
@plot_option("Draw the frozen trunks of our study by task into FILE (.svg, .png or .pdf).")
@study_options(ROWS)
def table4(plot: str | None, files: tuple[str, ...], split: Split, json_to: str | None) -> None:
    """Accuracy by task; then which orderings hold."""
    from studies.du2020.figures import plot_tasks

    _blocks("Table 4", _task_lines, plot_tasks, files, split, plot, json_to)


@command.command("figure4")
@click.option("--tasks", type=click.IntRange(1, 1000), default=14, show_default=True, help="Up to so many tasks.")
@plot_option("Also draw the figure into FILE (.svg, .png or .pdf).")
@json_option
def figure4(tasks: int, plot: str | None, json_to: str | None) -> None:
    """GFLOPs for one text of 51 tokens by number of tasks: four schemes of the paper, and the folded pooler."""
    from studies import du2020 as paper

    printer = Printer(json_to)
    check_drawable(plot)
    counted = paper.figure4(range(1, tasks + 1))
    schemes = list(dict.fromkeys(row.scheme for row in counted))
    by_place = {(row.tasks, row.scheme): row.gflops for row in counted}
    rows: list[list[object]] = [["tasks", *(scheme.replace("_", " ") for scheme in schemes)]]
    rows += [[n, *(f"{by_place[n, scheme]:.1f}" for scheme in schemes)] for n in range(1, tasks + 1)]
    printer.lines(["GFLOPs for one text of 51 tokens, RoBERTa-large (distilled: DistilRoBERTa)", ""])
    printer.lines(text_table(rows))
    first = paper.break_even(counted, "frozen_attention")
    text = "at no number of tasks shown" if first is None else f"from {first} tasks on"
    printer.lines(["", f"frozen attention is cheaper than one distilled model a task {text}"])
    if plot is not None:
        paper.plot_figure4(counted, plot)
        printer.line(f"drawn into {plot}")
    printer.json({"rows": counted, "break_even": first})


@command.command("storage")
@click.option("--measured", is_flag=True, help="Also write such features to disk and weigh them.")
@json_option
def storage(measured: bool, json_to: str | None) -> None:
    """Bytes kept for one text of 50 tokens (Table 2), with what the paper prints for them."""
    from studies import du2020 as paper
    from studies.du2020.measured import measured as weighed

    printer, sizes = Printer(json_to), paper.storage_table()
    rows: list[list[object]] = [["layers", "positions", "float16", "uint8", "1 bit", "as printed"]]
    for row in sizes:
        counted = [f"{size:,}" for size in (row.float16, row.uint8, row.sign)]
        rows.append([row.layers, row.positions, *counted, " / ".join(row.printed)])
    printer.lines(["Bytes kept for one text of 50 tokens, RoBERTa-large", "", *text_table(rows, left=2)])
    on_disk = weighed() if measured else ()
    if on_disk:
        rows = [["layers", "positions", "float16", "uint8", "1 bit"]]
        for row_on_disk in on_disk:
            rows.append(
                [
                    row_on_disk.layers,
                    row_on_disk.positions,
                    *(f"{size:,}" for size in (row_on_disk.float16, row_on_disk.uint8, row_on_disk.sign)),
                ]
            )
        printer.lines(["", "On disk, with keys, offsets and hashes", "", *text_table(rows, left=2)])
    printer.json({"rows": sizes, **({"measured": on_disk} if on_disk else {})})


command.add_command(storage, "table2")


@command.command("sweep")
@plot_option("Draw the averages by m and codec into FILE (.svg, .png or .pdf).")
@study_options(SWEEP)
def sweep(plot: str | None, files: tuple[str, ...], split: Split, json_to: str | None) -> None:
    """How many layers to average, and whether to shrink before or after the mean: our study."""
    from studies.du2020 import sweep as study

    check_drawable(plot)
    printer, known = Printer(json_to), there(files, SWEEP)
    runs = study.read_sweep(known) if known else ()
    lines = study.sweep_lines(runs, split=split) if runs else ()
    printer.line("The paper says: m of 16 (of 24 layers) is best most of the time; one bit of each layer before the")
    printer.line("mean is slightly better than one bit of the mean; at 8 bits the order does not matter.")
    what = f"{split} accuracy, plain frozen minilm, attention over the mean of the last m layers"
    seeds = set(study.compared(runs)[1]) if runs else set()
    tell_study(printer, what, seeds, make=study.MAKE, default=SWEEP)
    if lines:
        cells: list[list[object]] = [["layers or codec", *map(marked, lines[0].scores), "average"]]
        cells += [
            [line.name, *map(number, line.scores.values()), number(line.average, line.deviation)] for line in lines
        ]
        printer.lines([*text_table(cells), *seen_lines(lines[0].scores), *missing_lines(study.missing(runs)), ""])
        printer.line(f"Codecs stand before or after the mean of {study.AT} layers.")
        for codec in study.CODECS:
            gains = study.order(runs, codec, split=split)
            by_seed = ", ".join(f"{gain:+.2f}" for gain in gains)
            printer.line(f"{codec} before minus after, by seed: {by_seed or MISSING}")
    draw_study(printer, plot, lines, lambda file: study.plot_sweep(lines, file, split=split), make=study.MAKE)
    printer.json({"study": lines})


def _blocks(
    name: str,
    lines: Callable[[Table], list[str]],
    draw: Callable[..., None],
    files: tuple[str, ...],
    split: Split,
    plot: str | None,
    json_to: str | None,
) -> None:
    """The paper's rows by block and ours, each with the orderings that hold in it; ours drawn where asked for."""
    from studies import du2020 as paper
    from studies.du2020.claims import full_learned
    from studies.du2020.leave_out import FULL, FULL_LEARNED
    from studies.du2020.orderings import orderings
    from studies.du2020.study import missing, read_cells, study_table

    check_drawable(plot)
    printer, published = Printer(json_to), paper.published_table4()
    printer.lines([f"{name} as printed: accuracy; averages, groups and GFLOPs counted anew", ""])
    printer.lines([*lines(published), *otherwise_lines(paper.printed_otherwise(published))])
    holding = {"published": orderings(published), "study": ()}
    printer.lines(_ordering_lines(holding["published"]))
    known = there(files, ROWS)
    cells = read_cells(known) if known else ()
    ours = study_table(cells, split=split) if cells else None
    seeds = {cell.seed for cell in cells}
    tell_study(printer, f"{split} accuracy, trunk minilm", seeds, make=MAKE, default=ROWS)
    if ours is not None:
        holding["study"] = orderings(ours)
        raw = rows_of_files(known, make=MAKE)[0]
        full = {row: full_learned(raw, row) for row in (FULL, FULL_LEARNED)}
        printer.lines([*lines(ours), *missing_lines(missing(cells))])
        printer.lines([line for name, learned in full.items() for line in mark_lines(f"a, {name}", learned)])
        printer.lines([*seen_lines(ours.tasks), *_ordering_lines(holding["study"], seeds=len(seeds))])
        printer.lines(["", *ours.notes])
    whole = [] if ours is None else [ours]
    draw_study(printer, plot, whole, lambda file: draw(whole[0], file, split=split), make=MAKE)
    printer.json({"published": published, "study": ours, "orderings": holding})


def _group_lines(shown: Table) -> list[str]:
    cells: list[list[object]] = [["", "row", "GFLOPs", *shown.groups, "average"]]
    for line in shown.lines:
        flops = MISSING if line.gflops is None else f"{line.gflops:.3g}"
        cells.append([line.block, line.name, flops, *map(number, line.groups), number(line.average)])
    return _with_blocks(cells, shown)


def _task_lines(shown: Table) -> list[str]:
    cells: list[list[object]] = [["", "row", *(marked(task) for task in shown.tasks), "average"]]
    for line in shown.lines:
        spreads = line.spreads or (None,) * len(line.scores)
        scores = [number(score, spread) for score, spread in zip(line.scores, spreads, strict=True)]
        cells.append([line.block, line.name, *scores, number(line.average)])
    return _with_blocks(cells, shown)


def _with_blocks(cells: Sequence[Sequence[object]], shown: Table) -> list[str]:
    """The table, and what its blocks are."""
    from studies.du2020 import blocks_of

    there = {line.block for line in shown.lines}
    words = [f"{block}  {text}" for block, text in blocks_of(len(shown.tasks)).items() if block in there]
    return [*text_table(cells, left=2), "", *words]


def _ordering_lines(orderings: Sequence[Ordering], *, seeds: int | None = None) -> list[str]:
    """Each with what this table says; fewer than three seeds show nothing."""
    outcomes = {True: "held", False: "NOT HELD", None: "not known yet"}
    cells = [[outcomes[ordering.holds], number(ordering.value, signed=True), ordering.text] for ordering in orderings]
    width = max(len(cell[0]) for cell in cells)
    few = f", of {seeds} of {LEAST_SEEDS} seeds, so that none is shown" if seeds and seeds < LEAST_SEEDS else ""
    return ["", f"Orderings, in points{few}:", *(f"  {a:<{width}}  {b:>5}  {c}" for a, b, c in cells)]
