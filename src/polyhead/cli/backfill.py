"""`polyhead backfill`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from polyhead.cli.options import DRAWN, backend_option, names_in, open_session, precision_option, store_place
from polyhead.cli.output import Printer, check_writable, counted, json_option, note, stoppable
from polyhead.progress import duration, pace
from polyhead.store.jobs.executors import EXECUTORS

if TYPE_CHECKING:
    from polyhead.store.jobs.backfill import BackfillSummary
    from polyhead.store.jobs.resample import SampleAgreement


@click.command("backfill")
@click.argument("bundle", type=click.Path(file_okay=False))
@click.argument("tasks", nargs=-1, metavar="[TASK]...")
@click.option(
    "--features",
    "store",
    required=True,
    metavar="STORE",
    type=store_place,
    help="The store whose documents are answered, or a file of `polyhead migrate switch` that names it.",
)
@click.option("--scores", is_flag=True, help="Also keep the scores of all labels, in a column of their own.")
@click.option(
    "--calibrated", is_flag=True, help="Also keep what calibration makes of the answers, in a column of their own."
)
@click.option(
    "--executor",
    type=click.Choice(list(EXECUTORS)),
    help="Who works: this process, several processes, or a Ray cluster [default: inline for few documents, else "
    "processes].",
)
@click.option("--workers", type=click.IntRange(1), help="How many work [default: one a processor].")
@click.option("--address", metavar="ADDRESS", help="Of the Ray cluster; without it a local one is started.")
@click.option("--price", type=click.FloatRange(0), metavar="DOLLARS", help="What all workers cost an hour.")
@click.option("--sample-from", metavar="FILE", help="Encode a sample of this file's texts anew, and compare.")
@click.option("--sample", type=click.IntRange(1), default=200, show_default=True, help="Texts of --sample-from.")
@click.option("--text", metavar="COLUMN", help="Column of the text in --sample-from [default: text, or text_a].")
@click.option("--text-b", metavar="COLUMN", help="Column of the second text of a pair [default: text_b].")
@backend_option()
@precision_option
@click.option("--picture", metavar="FILE", help="Draw counts of labels and scores (.png, .svg or .pdf).")
@json_option
def command(
    bundle: str,
    tasks: tuple[str, ...],
    store: str,
    scores: bool,
    calibrated: bool,
    executor: str | None,
    workers: int | None,
    address: str | None,
    price: float | None,
    sample_from: str | None,
    sample: int,
    text: str | None,
    text_b: str | None,
    backend: str | None,
    precision: str | None,
    picture: str | None,
    json_to: str | None,
) -> None:
    """Answer TASKs of BUNDLE for every document of STORE, from its features: no text is read and no encoder runs.

    Without a TASK all that STORE can answer are answered. Answers become columns of STORE, named by the task, its
    version and the beginning of the version's digest. If the command is interrupted, run it again: fragments that have
    the columns are done. Others may append, backfill and compact meanwhile.

    Before it begins it tries some documents, and says what all will take. --backend and --precision are of the encoder
    that --sample-from needs.
    """
    from polyhead.store.jobs.backfill import BackfillRequest, backfill

    if picture is not None:
        if not picture.endswith(DRAWN):
            raise click.BadParameter(f"end it in {', '.join(DRAWN)}", param_hint="'--picture'")
        check_writable(picture)
    printer = Printer(json_to)
    wish = BackfillRequest(
        tasks=names_in(tasks, "TASK"),
        all_scores=scores,
        calibrated=calibrated,
        executor=executor,
        workers=workers,
        address=address,
        dollars_an_hour=price,
    )
    try:
        with stoppable("the same command goes on from there"):
            done = backfill(store, bundle, wish, show=printer.show, tell=note)
            sampled: list[SampleAgreement] = []
            if sample_from is not None:
                roles = {role: column for role, column in (("text", text), ("text_b", text_b)) if column is not None}
                sampled = _sampled(bundle, store, done, sample_from, roles, sample, backend, precision, printer)
    finally:
        printer.show("")
    printer.lines(_lines(done))
    printer.lines([each.line() for each in sampled])
    if sample_from is None:
        note("no document was encoded anew to check the answers: name the texts' file with --sample-from to have that")
    if picture is not None:
        _draw(bundle, store, done, picture)
    printer.json({"backfill": done, "sample": sampled})


def _sampled(
    bundle: str,
    store: str,
    done: BackfillSummary,
    source: str,
    roles: dict[str, str],
    rows: int,
    backend: str | None,
    precision: str | None,
    printer: Printer,
) -> list[SampleAgreement]:
    import numpy as np

    from polyhead.store.corpus.open import open_corpus
    from polyhead.store.jobs.resample import resampled

    printer.show(f"encoding {rows} texts of {source} anew")
    names = tuple(dict.fromkeys(column.task for column in done.columns))
    session = open_session(bundle, names, backend=backend, precision=precision, deterministic=False)
    rng = np.random.default_rng(0)
    return resampled(
        open_corpus(store), session, done.columns, source, roles=roles, rows=rows, rng=rng, show=printer.show
    )


def _draw(bundle: str, store: str, done: BackfillSummary, picture: str) -> None:
    from polyhead.bundle.read import Bundle
    from polyhead.evaluate.report.backfill import plot_counts
    from polyhead.evaluate.report.backfill import row_counts as counts_of
    from polyhead.store.corpus.open import open_corpus

    tasks, read = Bundle.open(bundle).tasks, open_corpus(store)
    answers = [column for column in done.columns if column.is_answer]
    plot_counts([counts_of(read, column, tasks[column.task].task) for column in answers], picture)


def _lines(done: BackfillSummary) -> list[str]:
    by = f" by {counted(done.workers, 'worker')} ({done.executor})"
    lines = [
        f"{done.store}: {counted(done.documents, 'document')}, {done.filled:,} answered now",
        f"in {duration(done.seconds)}, {pace(done.documents_a_second, 'documents')}{by}",
    ]
    if done.price is not None and done.price_error is not None:
        lines.append(f"the estimate was {done.price.seconds:,.1f} s, it took {done.seconds:,.1f} s")
    return [*lines, *(f"column {column.name}" for column in done.columns)]
