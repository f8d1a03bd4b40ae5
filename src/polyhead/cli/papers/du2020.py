"""`polyhead papers du2020`."""

from __future__ import annotations

import click

from polyhead.cli.output import Printer, json_option, table
from polyhead.cli.plots import check_drawable, plot_option


@click.group("du2020", short_help="Du et al. 2020: general purpose text embeddings.")
def du2020() -> None:
    """Du et al. 2020, "General Purpose Text Embeddings ... for Scalable Inference"."""


@du2020.command("figure4")
@click.option(
    "--tasks", type=click.IntRange(1, 1000), default=14, show_default=True, help="Up to so many tasks."
)
@plot_option("Also draw the figure into FILE (.svg, .png or .pdf).")
@json_option
def figure4(tasks: int, plot: str | None, json_to: str | None) -> None:
    """GFLOPs for one text of 51 tokens by number of tasks: four schemes of the paper, and the folded pooler."""
    from polyhead.papers import du2020 as paper

    printer = Printer(json_to)
    check_drawable(plot)
    found = paper.figure4(range(1, tasks + 1))
    schemes = list(dict.fromkeys(row.scheme for row in found))
    by_place = {(row.tasks, row.scheme): row.gflops for row in found}
    rows: list[list[object]] = [["tasks", *(scheme.replace("_", " ") for scheme in schemes)]]
    rows += [[n, *(f"{by_place[n, scheme]:.1f}" for scheme in schemes)] for n in range(1, tasks + 1)]
    printer.lines(["GFLOPs for one text of 51 tokens, RoBERTa-large (distilled: DistilRoBERTa)", ""])
    printer.lines(table(rows))
    first = paper.break_even(found, "frozen_attention")
    said = "at no number of tasks shown" if first is None else f"from {first} tasks on"
    printer.lines(["", f"frozen attention is cheaper than one distilled model a task {said}"])
    if plot is not None:
        paper.plot_figure4(found, plot)
        printer.line(f"drawn into {plot}")
    printer.json({"rows": found, "break_even": first})


@du2020.command("storage")
@json_option
def storage(json_to: str | None) -> None:
    """Bytes kept for one text of 50 tokens (Table 2), with what the paper prints for them."""
    from polyhead.papers import du2020 as paper

    printer, found = Printer(json_to), paper.storage_table()
    rows: list[list[object]] = [["layers", "positions", "float16", "uint8", "1 bit", "as printed"]]
    for row in found:
        counted = [f"{size:,}" for size in (row.float16, row.uint8, row.sign)]
        rows.append([row.layers, row.positions, *counted, " / ".join(row.printed)])
    printer.lines(["Bytes kept for one text of 50 tokens, RoBERTa-large", "", *table(rows, left=2)])
    printer.json({"rows": found})
