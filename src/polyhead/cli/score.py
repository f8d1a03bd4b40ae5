"""`polyhead score`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from polyhead.cli.options import names_in, open_session, session_options, tasks_option
from polyhead.cli.output import Printer, check_kept_files, counted, json_option, note, stoppable
from polyhead.progress import duration, pace

if TYPE_CHECKING:
    from polyhead.engine.session import Session
    from polyhead.store.jobs import ScoreRequest, Summary

ROLES = {
    "text": "Column of the text [default: text, or text_a].",
    "text_b": "Column of the second text of a pair [default: text_b].",
    "tokens": "Column of the list of tokens, instead of a text [default: tokens].",
    "question": "Column of the question, for multiple_choice and span [default: question].",
    "context": "Column of the context that a question is about [default: context].",
    "choices": "Column of the list of options [default: options, or choices].",
}


def role_options(command: click.decorators.FC) -> click.decorators.FC:
    """Adds an option for each role that a column may have; their values come by role."""
    for role, help_text in reversed(ROLES.items()):
        command = click.option(f"--{role.replace('_', '-')}", role, metavar="COLUMN", help=help_text)(command)
    return command


def table_options(command: click.decorators.FC) -> click.decorators.FC:
    """Adds `--keep`, `--prefix`, `--scores` and `--fresh`: what is written of a table."""
    options = (
        click.option("--keep", multiple=True, metavar="COLUMNS", help="Columns of the table to write; by default all."),
        click.option(
            "--prefix", default="", metavar="TEXT", help="Start the names of the columns that tasks add with TEXT."
        ),
        click.option("--scores", is_flag=True, help="Also write the scores of labels or options, in TASK.scores."),
        click.option("--fresh", is_flag=True, help="Discard an unfinished run for the written table, and start again."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command("score")
@click.argument("bundle", type=click.Path(file_okay=False))
@click.argument("source", metavar="IN", type=click.Path())
@click.argument("target", metavar="OUT", type=click.Path())
@tasks_option("Answer these tasks only, with commas between them; by default all.")
@role_options
@table_options
@click.option(
    "--calibrated",
    is_flag=True,
    help="Also write what calibration makes of the answers: TASK.calibrated, .probability, .unsure, .set, .interval.",
)
@click.option("--only-answers", is_flag=True, help="Copy no column of the table.")
@session_options
@json_option
def command(
    bundle: str,
    source: str,
    target: str,
    tasks: tuple[str, ...],
    keep: tuple[str, ...],
    calibrated: bool,
    only_answers: bool,
    prefix: str,
    scores: bool,
    backend: str | None,
    precision: str | None,
    deterministic: bool,
    fresh: bool,
    json_to: str | None,
    **roles: str | None,
) -> None:
    """Answer tasks of BUNDLE for every row of IN, and write the rows to OUT with a column for each task.

    IN ends in .jsonl, .json, .csv, .tsv (each also .gz), .xlsx or .parquet, OUT in .jsonl, .csv (each also .gz) or
    .parquet. A row may be a text, a pair, tokens, or a question with its context or options. A task that does not fit
    the row gets null. Column "error" gives the reason for a row that cannot be read or that no task can answer.

    OUT appears when it is complete, and replaces a file of that name. Until then its pieces are in the hidden folder
    .OUT.pieces next to it. If the command is interrupted, run it again: it continues where it stopped, and writes the
    same bytes. IN may have any length: a few thousand rows are in memory at a time.
    """
    from polyhead.store.jobs import ScoreRequest

    if keep and only_answers:
        raise click.UsageError("--keep and --only-answers contradict each other: give one of them")
    check_kept_files(target)
    printer, names = Printer(json_to), names_in(tasks)
    session = open_session(bundle, names, backend=backend, precision=precision, deterministic=deterministic)
    wish = ScoreRequest(
        tasks=names,
        columns={role: column for role, column in roles.items() if column is not None},
        kept=() if only_answers else keep or None,
        prefix=prefix,
        scores=scores,
        calibrated=calibrated,
    )
    answer_rows(printer, session, source, target, wish, fresh=fresh)


def answer_rows(
    printer: Printer, session: Session, source: str, target: str, wish: ScoreRequest, *, fresh: bool
) -> None:
    """Writes the rows of `source` with their answers to `target`, and prints what that took."""
    from polyhead.store.jobs import score

    again = "the same command without --fresh" if fresh else "the same command"
    try:
        with stoppable(f"{again} goes on from there"):
            done = score(session, source, target, wish, fresh=fresh, show=printer.show)
    finally:
        printer.show("")
    printer.lines(_lines(done))
    _notes(done)
    printer.json(done)


def _lines(done: Summary) -> list[str]:
    counts = done.counts
    before = f" ({done.done_before:,} were answered before)" if done.done_before else ""
    cut = f", {counts.cut:,} cut" if counts.cut else ""
    lines = [
        f"{done.output}: {counted(counts.rows, 'row')}, {counted(len(done.tasks), 'task')}",
        f"in {duration(done.seconds)}, {pace(done.texts_a_second, 'texts')}{before}",
        f"{counted(counts.passes, 'pass', several='passes')} of the trunk, {counts.tokens:,} tokens{cut}",
    ]
    for fault, by_task in (("the row does not fit the task", counts.unfit), ("the task failed", counts.failed)):
        if counts_by_task := {name: count for name, count in by_task.items() if count}:
            listed = ", ".join(f"{name} for {count:,}" for name, count in counts_by_task.items())
            lines.append(f"no answer, since {fault}: {listed}")
    return lines


def _notes(done: Summary) -> None:
    """Prints how many rows have a reason in the column of errors: rows without any answer, and rows with some."""
    counts, column = done.counts, done.columns[-1]
    if nothing := counts.errors - counts.partly:
        reasons = {
            "that could not be read": counts.unread,
            "that fit no task": counts.idle,
            "that failed": nothing - counts.unread - counts.idle,
        }
        listed = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items() if count)
        note(f"{counted(nothing, 'row')} not answered: column '{column}' says why ({listed})")
    if counts.partly:
        note(f"{counted(counts.partly, 'row')} not answered by every task: column '{column}' names those that failed")
