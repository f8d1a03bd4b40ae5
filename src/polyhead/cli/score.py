"""The rows of a table with their answers: what `predict` does with a table, and the older word `score`."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import click
import msgspec

from polyhead.cli.command import option, verb
from polyhead.cli.options import Column, FamiliarOptions, Folder, SessionOptions, Tasks, TokenColumns
from polyhead.cli.output import DASH, Printer, check_kept_files, counted, note, stoppable
from polyhead.data.tables.base import table_format
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
    calibrated: Annotated[
        bool,
        option(
            "Also write what calibration makes of the answers: TASK.calibrated, .probability, .unsure, .set, .interval."
        ),
    ] = False
    only_answers: Annotated[bool, option("Copy no column of the table.")] = False
    fresh: Annotated[bool, option("Discard an unfinished run for the written table, and start again.")] = False

    def request(self, tasks: tuple[str, ...], **more: Any) -> ScoreRequest:
        """What is answered for every row; click's errors for options that contradict each other."""
        if self.keep and self.only_answers:
            raise click.UsageError("--keep and --only-answers contradict each other: give one of them")
        kept = () if self.only_answers else self.keep or None
        more = {"prefix": self.prefix, "scores": self.scores, "calibrated": self.calibrated, **more}
        return ScoreRequest(tasks=tasks, columns=self.roles, kept=kept, **more)


def are_rows(file: str, output: str) -> bool:
    """Whether a file is a table whose rows are answered into `output`, though no option names a column."""
    if output == DASH or table_format(file) is None:
        return False
    return not all(name.lower().removesuffix(".gz").endswith(".jsonl") for name in (file, output))


@verb("score")
def command(
    bundle: Folder,
    source: str = option(type=click.Path(), metavar="IN"),
    target: str = option(type=click.Path(), metavar="OUT"),
    *,
    tasks: Tasks = option("Answer these tasks only, with commas between them; by default all."),
    table: TableOptions,
    known: FamiliarOptions,
    how: SessionOptions,
    printer: Printer,
) -> None:
    """Answer tasks of BUNDLE for every row of the table IN, and write the rows to OUT: see `polyhead predict`."""
    check_kept_files(target)
    request = table.request(tasks, **msgspec.structs.asdict(known))
    answer_rows(printer, how.open(bundle, tasks), source, target, request, fresh=table.fresh)


def answer_rows(
    printer: Printer, session: Session, source: str, target: str, wish: ScoreRequest, *, fresh: bool
) -> None:
    """Writes the rows of `source` with their answers to `target`, and tells what that took.

    Ends with exit code 1, after all is written, where no row has an answer.
    """
    again = "the same command without --fresh" if fresh else "the same command"
    with stoppable(f"{again} goes on from there"):
        done = score(session, source, target, wish, fresh=fresh, show=printer.show)
    printer.lines(_lines(done))
    _notes(done)
    printer.json(done)
    if done.counts.errors - done.counts.partly == done.counts.rows:
        note("no row was answered")
        sys.exit(1)


def _lines(done: Summary) -> list[str]:
    counts = done.counts
    before = f" ({done.done_before:,} were answered before)" if done.done_before else ""
    cut = f", {counts.cut:,} cut" if counts.cut else ""
    lines = [
        f"{done.output}: {counted(counts.rows, 'row')}, {counted(len(done.tasks), 'task')}",
        f"in {duration(done.seconds)}, {pace(done.texts_a_second, 'texts')}{before}",
        f"{counted(counts.passes, 'pass', several='passes')} of the encoder, {counts.tokens:,} tokens{cut}",
    ]
    for fault, by_task in (("the row does not fit the task", counts.unfit), ("the task failed", counts.failed)):
        if counts_by_task := {name: count for name, count in by_task.items() if count}:
            listed = ", ".join(f"{name} for {count:,}" for name, count in counts_by_task.items())
            lines.append(f"no answer, since {fault}: {listed}")
    return lines


def _notes(done: Summary) -> None:
    """Prints how many rows have no answer, or not every one, and how many numbers could not be written."""
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
    if counts.nulled:
        note(f"{counted(counts.nulled, 'number')} of the table not finite (NaN, Infinity): written as null")
