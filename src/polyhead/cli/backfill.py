"""`polyhead backfill`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from polyhead.bundle.read import Bundle
from polyhead.cli.command import OutputFile, option, verb
from polyhead.cli.options import BackendOptions, Figure, File, Folder, Store, TaskArguments, TextColumns, is_typed
from polyhead.cli.output import Printer, counted, note, writing_file
from polyhead.data.rows import Rows, open_rows
from polyhead.data.tables.base import NewColumn
from polyhead.evaluate.report.backfill import plot_counts
from polyhead.evaluate.report.backfill import row_counts as counts_of
from polyhead.progress import duration, pace
from polyhead.store.corpus import open_corpus
from polyhead.store.jobs.answers import ResultColumn
from polyhead.store.jobs.backfill import BackfillRequest, BackfillSummary, backfill
from polyhead.store.jobs.columns import roles_of
from polyhead.store.jobs.labels import LabelRequest, label_rows
from polyhead.store.jobs.resample import SampleAgreement, resampled
from polyhead.store.jobs.stored_answers import StoredAnswers
from polyhead.store.jobs.table import WRITTEN, stored_rows, table_columns, write_answers


@verb("backfill", again="the same command goes on from there")
def command(
    bundle: Folder,
    tasks: TaskArguments = option(metavar="[TASK]...", default=()),
    *,
    store: Store = option(
        "The store whose documents are answered, or a file of `polyhead features switch` that names it.",
        "--features",
        metavar="STORE",
        required=True,
    ),
    request: BackfillRequest,
    sample_from: File = option("Encode a sample of this file's texts anew, and compare."),
    sample: int = option("Texts of --sample-from.", 200, ge=1),
    columns: TextColumns,
    output: File = option(
        "Also write a table to FILE (.csv, .jsonl or .parquet): a row per document: id, answers, requested columns.",
        "-o",
        "--output",
        type=OutputFile(*WRITTEN),
    ),
    texts: File = option("With -o: the file that was extracted; the table then has its texts, each once."),
    how: BackendOptions,
    picture: Figure = option("Draw counts of labels and scores (.png, .svg or .pdf)."),
    printer: Printer,
) -> Any:
    """Answer TASKs of BUNDLE for every document of STORE, from its features: no text is read and no encoder runs.

    Without a TASK all that STORE can answer are answered. Answers become columns of STORE, named by the task, its
    version and the beginning of the version's digest. If the command is interrupted, run it again: fragments that have
    the columns are done. Others may append, backfill and compact meanwhile.

    Before it begins it tries some documents, and says what all will take. --backend and --precision are of the encoder
    that --sample-from needs.
    """
    if texts is not None and output is None:
        raise click.UsageError("--texts goes with -o: it names the texts of the table.")
    if sample_from is None and how != BackendOptions():
        raise click.UsageError("--backend and --precision go with --sample-from: nothing else is encoded.")
    if sample_from is None and is_typed("sample"):
        raise click.UsageError("--sample goes with --sample-from: it is how many of its texts are encoded.")
    if sample_from is None and texts is None and columns.roles:
        raise click.UsageError("--text and --text-b go with --texts or --sample-from: no other file is read.")
    check = None if output is None else partial(_table, Bundle.open(bundle), columns.roles)
    files = {read: open_rows(read) for read in (texts, sample_from) if read is not None}
    for read, rows in files.items():  # a wrong column is refused before any work
        roles_of(read, rows.survey(printer.show), columns.roles)
    request = msgspec.structs.replace(request, tasks=tasks)
    done = backfill(store, bundle, request, show=printer.show, tell=note, check=check)
    printer.lines(_lines(done))
    if output is not None:
        _write(output, bundle, store, done, None if texts is None else files[texts], columns.roles, printer)
    if picture is not None:
        _draw(bundle, store, done, picture)
    sampled: list[SampleAgreement] = []
    if sample_from is not None:  # last, since all else is there if it fails
        sampled = _sampled(bundle, store, done, files[sample_from], columns.roles, sample, how, printer)
        printer.lines([each.line() for each in sampled])
    else:
        note("no document was encoded anew to check the answers: name the texts' file with --sample-from to have that")
    return {"backfill": done, "sample": sampled}


def _sampled(
    bundle: str,
    store: str,
    done: BackfillSummary,
    source: Rows,
    roles: dict[str, str],
    rows: int,
    how: BackendOptions,
    printer: Printer,
) -> list[SampleAgreement]:
    import numpy as np

    printer.show(f"encoding {rows} texts of {source} anew")
    names = tuple(dict.fromkeys(column.task for column in done.columns))
    session = how.open(bundle, names)
    rng = np.random.default_rng(0)
    return resampled(
        open_corpus(store), session, done.columns, source, roles=roles, rows=rows, rng=rng, show=printer.show
    )


def _write(
    output: str,
    bundle: str,
    store: str,
    done: BackfillSummary,
    texts: Rows | None,
    roles: dict[str, str],
    printer: Printer,
) -> None:
    """Writes the answers as a table."""
    answers = StoredAnswers(store, bundle)
    wish, columns = _table(answers.bundle, roles, done.columns)
    rows = stored_rows(answers, wish)
    if texts is not None:
        rows = label_rows(answers, texts, wish, show=printer.show)
    with writing_file(output) as file:
        written = write_answers(file, Path(output).suffix.lower(), rows, columns)
    printer.line(f"{output}: {counted(written, 'row')}")
    if lacking := answers.documents - written:
        rowless = f"{lacking:,} of {counted(answers.documents, 'document')}"
        note(f"{rowless} have no row: no answer, no text in {texts}, or they are later windows of a text")


def _table(
    bundle: Bundle, roles: dict[str, str], columns: Sequence[ResultColumn]
) -> tuple[LabelRequest, tuple[NewColumn, ...]]:
    """The table that `-o` writes of stored columns; raises ConfigError if two of its columns have one name."""
    names = tuple(dict.fromkeys(column.task for column in columns))
    beside = tuple(column for column in columns if not column.is_answer)
    wish = LabelRequest(tasks=names, columns=roles, beside=beside)
    return wish, table_columns({name: bundle.tasks[name].task for name in names}, wish)


def _draw(bundle: str, store: str, done: BackfillSummary, picture: str) -> None:
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
