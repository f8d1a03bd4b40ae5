"""`polyhead backfill`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from polyhead.cli.options import names_in
from polyhead.cli.output import Printer, counted, json_option, stoppable
from polyhead.jobs.executors import EXECUTORS, HERE
from polyhead.processor import processors
from polyhead.progress import duration

if TYPE_CHECKING:
    from polyhead.jobs.backfill import BackfillSummary


@click.command("backfill")
@click.argument("bundle", type=click.Path(file_okay=False))
@click.argument("tasks", nargs=-1, metavar="[TASK]...")
@click.option("--features", "store", required=True, metavar="STORE", help="The store whose documents are answered.")
@click.option("--scores", is_flag=True, help="Also keep the scores of all labels, in a column of their own.")
@click.option("--executor", type=click.Choice(list(EXECUTORS)), default=HERE, show_default=True, help="Who works.")
@click.option("--workers", type=click.IntRange(1), help="How many work [default: one a processor].")
@click.option("--address", metavar="ADDRESS", help="Of the Ray cluster; without it a local one is started.")
@json_option
def command(
    bundle: str,
    tasks: tuple[str, ...],
    store: str,
    scores: bool,
    executor: str,
    workers: int | None,
    address: str | None,
    json_to: str | None,
) -> None:
    """Answer TASKs of BUNDLE for every document of STORE, from its features: no text is read and no encoder runs.

    Without a TASK all that STORE can answer are answered. Answers become columns of STORE, named by the task, its
    version and the beginning of the version's digest. If the command is interrupted, run it again: fragments that have
    the columns are done. Others may append, backfill and compact meanwhile.
    """
    from polyhead.jobs.backfill import BackfillRequest, backfill

    printer = Printer(json_to)
    wish = BackfillRequest(
        tasks=names_in(tasks, "TASK"),
        all_scores=scores,
        executor=executor,
        workers=workers or processors(),
        address=address,
    )
    try:
        with stoppable("the same command goes on from there"):
            done = backfill(store, bundle, wish, show=printer.show)
    finally:
        printer.show("")
    printer.lines(_lines(done))
    printer.json(done)


def _lines(done: BackfillSummary) -> list[str]:
    return [
        f"{done.store}: {counted(done.documents, 'document')}, {done.filled:,} answered now",
        f"in {duration(done.seconds)}, {done.documents_a_second:,.0f} documents a second",
        *(f"column {column.name}" for column in done.columns),
    ]
