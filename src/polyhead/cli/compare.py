"""`polyhead compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polyhead.cli.command import option, verb
from polyhead.cli.options import Figure, OptionalFolder, Output, comma_names
from polyhead.cli.output import Printer, text_table, writing_file
from polyhead.progress import duration
from polyhead.train.events import Events
from polyhead.values import to_json

if TYPE_CHECKING:
    from polyhead.advise.compare import WayComparison


@verb("compare", again="the same command goes on from there")
def command(
    project: str = option(default="polyhead.toml", type=click.Path(dir_okay=False)),
    *,
    only: str | None = option("Compare these ways, or ways of these strategies, with commas between.", metavar="NAMES"),
    list_: bool = option("Name the ways and what each takes, and train nothing.", "--list"),
    seeds: int = option("Seeds of each way: 1 to this.", 1, ge=1),
    minutes: float | None = option("Minutes of work to spend: runs that would take longer are left out.", ge=0),
    epochs: int | None = option("Passes at most of ways in which layers run as they learn.", ge=1),
    folder: OptionalFolder = option(
        "Folder for rows, features and project files; by default NAME-compare, next to the project file."
    ),
    keep_bundles: bool = option("Keep the trained bundles too, in the folder."),
    html: Output = option("Write the page here; by default compare.html in the folder."),
    plot: Figure = option("Draw quality against cost into FILE (.svg, .png or .pdf)."),
    printer: Printer,
) -> Any:
    """Train the tasks of PROJECT (polyhead.toml) in every way of sharing, and show what each scores and costs.

    The ways are poolers over frozen features, branches of several depths and a student, prompts, adapters, layers on
    top, with a frozen encoder and with one that learns, and a fine-tuned encoder for each task. Strategy, recipe and
    numbers of training in the project are not read, but for class weights and precision: each way has its own defaults.

    First says how long it will take. A row is written as each run ends, and the same command goes on from there. Ways
    come by cost, cheapest first; a star marks those that no cheaper way equals. Each way's project file is in the
    folder, for `polyhead train`, and so are the page and the report.
    """
    from polyhead.advise.compare import Comparing, Settings
    from polyhead.advise.plot import plot_svg
    from polyhead.advise.sharing_ways import read_task_set
    from polyhead.advise.tables import comparison_page

    file = Path(project).resolve()
    tasks = read_task_set(project)
    home = Path(folder).resolve() if folder else file.with_name(f"{file.stem}-compare")
    numbers = tuple(range(1, seeds + 1))
    settings = Settings(
        only=comma_names(only or ""), seeds=numbers, minutes=minutes, epochs=epochs, keep_bundles=keep_bundles
    )
    comparing = Comparing(tasks, file.name, home, settings, Events(say=printer.line, show=printer.show))
    if list_:
        runs = comparing.runs()[: len(comparing.ways)]
        rows = [["way", "about", "what"], *([r.way.name, duration(r.estimated), r.way.title] for r in runs)]
        printer.lines(text_table(rows, left=3))
        return [{"name": r.way.name, "title": r.way.title, "seconds": r.estimated} for r in runs]
    comparison = comparing.run()
    printer.lines(["", *ways_lines(comparison)])
    target = html or str(home / "compare.html")
    pages = {target: comparison_page(comparison).encode(), str(home / "compare.json"): to_json(comparison)}
    for name, content in pages.items():
        with writing_file(name) as out:
            out.write(content)
    if plot is not None:
        plot_svg(comparison, plot)
    printer.lines(["", f"page: {target}"])
    return comparison


def ways_lines(comparison: WayComparison) -> list[str]:
    """The tables, and what must be known beside them."""
    from polyhead.advise.tables import notes, speed_rows, table_rows, task_rows

    if not comparison.ways:
        return [*notes(comparison), "no way has a row yet"]
    rows = table_rows(comparison)
    return [
        *text_table(rows),
        "",
        "* no cheaper way equals it; the cost is FLOPs of 8 tasks. Two numbers are for 1 and 8 tasks.",
        *notes(comparison),
        "",
        "Each task, in points",
        "",
        *text_table(task_rows(comparison)),
        "",
        "Milliseconds of one text / texts a second",
        "",
        *text_table(speed_rows(comparison)),
    ]
