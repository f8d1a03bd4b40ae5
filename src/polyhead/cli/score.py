"""`polyhead score`."""

from __future__ import annotations

from typing import Annotated, Any

import click
import msgspec

from polyhead.cli.command import option, verb
from polyhead.cli.options import Column, FamiliarOptions, Folder, SessionOptions, Tasks, TokenColumns
from polyhead.cli.output import Printer, check_kept_files, counted, note, stoppable
from polyhead.engine.session import Session
from polyhead.progress import duration, pace
from polyhead.store.jobs import ScoreRequest, Summary, score


class TableOptions(TokenColumns):
    """Which columns of a table are read, and what is written of it."""

    question: Annotated[Column, option("Column of the question, for multiple_choice and span [default: question].")] = (
        None
    )
    context: Annotated[Column, option("Column of the context that a question is about [default: context].")] = None
    choices: Annotated[Column, option("Column of the list of options [default: options, or choices].")] = None
    keep: Annotated[tuple[str, ...], option("Columns of the table to write; by default all.", metavar="COLUMNS")] = ()
    prefix: Annotated[str, option("Start the names of the columns that tasks add with TEXT.", metavar="TEXT")] = ""
    scores: Annotated[bool, option("Also write the scores of labels or options, in TASK.scores.")] = False
    fresh: Annotated[bool, option("Discard an unfinished run for the written table, and start again.")] = False

    def request(self, tasks: tuple[str, ...], **more: Any) -> ScoreRequest:
        """What is answered for every row."""
        more = {"kept": self.keep or None, **more}
        return ScoreRequest(tasks=tasks, columns=self.roles, prefix=self.prefix, scores=self.scores, **more)


@verb("score")
def command(
    bundle: Folder,
    source: str = option(type=click.Path(), metavar="IN"),
    target: str = option(type=click.Path(), metavar="OUT"),
    *,
    tasks: Tasks = option("Answer these tasks only, with commas between them; by default all."),
    table: TableOptions,
    calibrated: bool = option(
        "Also write what calibration makes of the answers: TASK.calibrated, .probability, .unsure, .set, .interval."
    ),
    known: FamiliarOptions,
    only_answers: bool = option("Copy no column of the table."),
    how: SessionOptions,
    printer: Printer,
) -> Any:
    """Answer tasks of BUNDLE for every row of IN, and write the rows to OUT with a column for each task.

    IN ends in .jsonl, .json, .csv, .tsv (each also .gz), .xlsx or .parquet, OUT in .jsonl, .csv (each also .gz) or
    .parquet. A row may be a text, a pair, tokens, or a question with its context or options. A task that does not fit
    the row gets null. Column "error" gives the reason for a row that cannot be read or that no task can answer.

    OUT appears when it is complete, and replaces a file of that name. Until then its pieces are in the hidden folder
    .OUT.pieces next to it. If the command is interrupted, run it again: it continues where it stopped, and writes the
    same bytes. IN may have any length: a few thousand rows are in memory at a time.
    """
    if table.keep and only_answers:
        raise click.UsageError("--keep and --only-answers contradict each other: give one of them")
    check_kept_files(target)
    kept = {"kept": ()} if only_answers else {}
    request = table.request(tasks, calibrated=calibrated, **msgspec.structs.asdict(known), **kept)
    return answer_rows(printer, how.open(bundle, tasks), source, target, request, fresh=table.fresh)


def answer_rows(
    printer: Printer, session: Session, source: str, target: str, wish: ScoreRequest, *, fresh: bool
) -> Summary:
    """Writes the rows of `source` with their answers to `target`, and prints what that took."""
    again = "the same command without --fresh" if fresh else "the same command"
    with stoppable(f"{again} goes on from there"):
        done = score(session, source, target, wish, fresh=fresh, show=printer.show)
    printer.lines(_lines(done))
    _notes(done)
    return done


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
