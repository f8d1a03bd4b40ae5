"""Scoring a file: every row is answered once and in order, across interruptions."""

from __future__ import annotations

import hashlib
import itertools
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from polyhead._version import __version__
from polyhead.arguments import check_arguments, check_fields
from polyhead.data.rows import Rows, open_file
from polyhead.data.tables import TABLES, Chunk, Writer, file_endings
from polyhead.engine.familiar import check_none_below, reported_keys
from polyhead.engine.probes import numerics_of
from polyhead.engine.session import Result, Session
from polyhead.errors import BadValue, ConfigError, DataError, EmptyData, UnknownTask
from polyhead.progress import Show, counted, progress_line, stopped_with
from polyhead.store.jobs.answers import calibrations_of, check_scored
from polyhead.store.jobs.columns import Answers, Roles, RowInput, check_readable, kept_columns, roles_of, why_none
from polyhead.store.jobs.faults import all_columns, check_machine
from polyhead.store.jobs.pieces import SUMS_OF_RECEIPTS, Pieces, ScoreCounts, ScoreJob
from polyhead.text.tokenize import lone_surrogates, repair
from polyhead.values import Value

FIRST_PIECES = (32, 128, 512)  # rows of a job's first pieces, if a piece may have as many: they are there soon
PIECE_ROWS = 2048  # rows answered by one call, so that texts can be sorted by length; a kill loses one piece


class ScoreRequest(Value):
    """The tasks to answer for every row, and the columns to write."""

    tasks: tuple[str, ...] = ()  # none: all
    columns: dict[str, str] = {}  # column to read by its role, one of `columns.NAMES`
    # Columns of the input to write too: names, each possibly several with commas; None: all.
    kept: tuple[str, ...] | None = None
    prefix: str = ""  # prefix of added columns
    scores: bool = False  # also a column of scores for each task that scores labels or options
    calibrated: bool = False  # also columns of calibrated answers of tasks with a calibration
    familiar: bool = False  # also a column for each task that can say how familiar a text is
    none_below: float | dict[str, float] | None = None  # as `Session.predict` takes it

    def __post_init__(self) -> None:
        check_fields(self)
        if lone_surrogates(self.prefix):
            raise ConfigError("the prefix of added columns is not UTF-8", got=self.prefix, do="give another --prefix")


class Summary(Value):
    """The result of a job; `counts` cover the whole file, including pieces of earlier runs."""

    output: str
    tasks: tuple[str, ...]
    columns: tuple[str, ...]  # names of the added columns
    counts: ScoreCounts
    done_before: int  # rows that earlier runs answered
    seconds: float  # of this run
    texts_a_second: float  # of this run, reading and writing included


def score(
    session: Session,
    source: Path | str,
    target: Path | str,
    wish: ScoreRequest,
    *,
    fresh: bool = False,
    piece_rows: int = PIECE_ROWS,
    show: Show = lambda text: None,
) -> Summary:
    """Writes the rows of `source` with their answers to `target`, in pieces of `piece_rows` rows, the first of fewer.

    If the same call was interrupted before, at any moment, it resumes, and writes the same bytes as an uninterrupted
    call. A row that cannot be read or answered gets nulls and the reason. `fresh` discards an unfinished job. If the
    target is a symbolic link, the linked file is written.

    Raises DataError and MissingColumn for an unreadable file, ConfigError for columns of one name, pieces of another
    job, or tasks that are replaced meanwhile, EmptyData for a file without rows.
    """
    arguments = {"session": session, "source": source, "target": target, "wish": wish, "piece_rows": piece_rows}
    check_arguments(score, arguments)
    if piece_rows < 1:
        raise ConfigError(
            "piece_rows is the number of rows of a piece",
            got=repr(piece_rows),
            allowed="1 or more",
            do=f"leave it out: it is {PIECE_ROWS}",
        )
    source, target = str(source), str(target)
    began, stamp = time.monotonic(), _stamp(source)
    work = _Work(session, open_file(source), Path(target), wish, stamp)
    with Pieces.held(work.target) as pieces:
        job = work.job(None if fresh else pieces.begun(), piece_rows, show)
        writer = work.writer(job)
        if fresh:  # only after the command is known to be valid
            pieces.forget()
        pieces.go_on(job)
        before = pieces.counts.rows
        with stopped_with(lambda: pieces.counts.rows, "rows"):
            work.answer(pieces, job, writer, show)
        work.check_source()
        show(f"joining {counted(len(pieces.done), 'piece')}")
        pieces.finish(writer.whole(pieces.contents()))
    seconds = time.monotonic() - began
    return Summary(
        output=repair(target),  # file names may be any bytes, JSON may not
        tasks=tuple(work.answers.tasks),
        columns=tuple(column.name for column in work.answers.columns),
        counts=pieces.counts,
        done_before=before,
        seconds=seconds,
        texts_a_second=(pieces.counts.rows - before) / seconds,
    )


Stamp = tuple[int, int, int] | None  # inode, size and time of change; None if there is no file


class _Work:
    """One call: the session, the file to read, the request, and the target."""

    def __init__(self, session: Session, file: Rows, target: Path, wish: ScoreRequest, stamp: Stamp) -> None:
        self.session, self.file, self.wish, self._stamp = session, file, wish, stamp
        # A link stays one; the given name determines the format.
        self.target, self.ending = Path(os.path.realpath(target)), _ending(target.name, file_endings(written=True))
        _check_target(file, self.target, self.ending)
        self.records = session.records
        tasks = {name: session.tasks[name] for name in session.task_names(wish.tasks or None)}
        calibrations = calibrations_of(session.loaded.calibrations, tasks) if wish.calibrated else {}
        if wish.scores:
            check_scored(tasks)
        check_none_below(wish.none_below, session.loaded.tasks, tuple(tasks))
        self.answers = Answers(
            tasks=tasks,
            prefix=wish.prefix,
            scores=wish.scores,
            calibrations=calibrations,
            told=reported_keys(session.loaded.known, tasks, familiar=wish.familiar, asked=wish.none_below),
        )

    def job(self, begun: ScoreJob | None, piece_rows: int, show: Show) -> ScoreJob:
        """The description of the job; the survey is that of `begun` if it read the same bytes."""
        show(f"looking at {Path(self.file.path).name}")
        with open(self.file.path, "rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        form = f"{_ending(self.file.path, file_endings())} to {self.ending}"
        is_known = begun is not None and (begun.version, begun.source, begun.form) == (__version__, digest, form)
        survey = begun.survey if begun is not None and is_known else self.file.survey(show)
        if not survey.rows:
            raise EmptyData(f"{self.file.path} holds no row", do="give a file with rows")
        roles = roles_of(self.file.path, survey, self.wish.columns)
        check_readable(self.file.path, roles, self.answers.tasks, self.wish.columns)
        session = self.session
        return ScoreJob(
            version=__version__,
            source=digest,
            form=form,
            tasks=self._versions(),
            trunk=session.bundle.digest,
            numerics=numerics_of(session),
            deterministic=session.deterministic,
            columns=roles.columns,
            kept=kept_columns(self.file.path, survey, self.wish.kept, self.answers),
            prefix=self.wish.prefix,
            scores=self.wish.scores,
            calibrated=self.wish.calibrated,
            familiar=self.wish.familiar,
            none_below=self.wish.none_below,
            piece_rows=piece_rows,
            survey=survey,
        )

    def writer(self, job: ScoreJob) -> Writer:
        """The writer for the format of the target's name."""
        chosen = next(table for table in TABLES.values() if self.ending.removesuffix(".gz") in table.written)
        types = {name: job.survey.columns[name] for name in job.kept}
        packed, schema = self.ending.endswith(".gz"), self.file.schema(job.kept)
        return chosen.writer(job.kept, self.answers.columns, packed=packed, types=types, schema=schema)

    def answer(self, pieces: Pieces, job: ScoreJob, writer: Writer, show: Show) -> None:
        """Answers the unfinished pieces."""
        began, before, roles = time.monotonic(), pieces.counts.rows, Roles(columns=job.columns)
        name, wanted = Path(self.file.path).name, tuple(dict.fromkeys((*roles.wanted, *job.kept)))
        show(f"{name}: {before:,} of {job.survey.rows:,} texts")
        for chunk in self._chunks(wanted, before, job.piece_rows):
            piece_began = time.monotonic()
            results = self._results(chunk, roles)
            content = writer.piece(chunk, [self.answers.cells(result) for result in results])
            self.check_source()  # pieces must come from the bytes that the job names
            counts = self._counts(results, time.monotonic() - piece_began)
            pieces.add(content, msgspec.structs.replace(counts, nulled=writer.nulled(chunk)))
            done, seconds = pieces.counts.rows, time.monotonic() - began
            total = job.survey.rows
            show(progress_line(name, done=done, total=total, unit="texts", seconds=seconds, before=before))

    def _chunks(self, wanted: Sequence[str], start: int, size: int) -> Iterator[Chunk]:
        """The rows of each piece from row `start` on, where a piece begins; pieces end at the same rows each time."""
        for stop in itertools.accumulate(min(rows, size) for rows in FIRST_PIECES):
            if start < stop:
                yield from itertools.islice(self.file.chunks(wanted, start=start, size=stop - start), 1)
                start = stop
        yield from self.file.chunks(wanted, start=start, size=size)

    def check_source(self) -> None:
        """Raises DataError if the file was changed since it was opened."""
        if _stamp(self.file.path) != self._stamp:
            raise DataError(
                f"{self.file.path} was changed while it was read",
                do="leave it as it is: with the content that it had the same command goes on, else start with --fresh",
            )

    def _results(self, chunk: Chunk, roles: Roles) -> list[Result | BadValue]:
        """The result of each row, or the error of an unreadable row."""
        rows = roles.inputs(chunk)
        read = [row for row in rows if isinstance(row, RowInput)]
        inputs, words = [row.input for row in read], [row.words for row in read]
        results: list[Result] = []
        if read:
            try:
                familiar = bool(self.answers.told)
                answered = all_columns(self.session, inputs, words, tasks=self.answers.tasks, familiar=familiar)
            except UnknownTask:  # one that was removed meanwhile
                self._check_unchanged()
                raise
            self._check_unchanged()
            check_machine(self.session, answered)
            wish = self.wish
            results = answered.results(wish.calibrated, familiar=wish.familiar, none_below=wish.none_below)
        remaining = iter(results)
        return [next(remaining) if isinstance(row, RowInput) else row for row in rows]

    def _counts(self, results: Sequence[Result | BadValue], seconds: float) -> ScoreCounts:
        names = self.answers.tasks
        answered = [result for result in results if isinstance(result, Result)]
        answers = Counter(name for result in answered for name in result.answers)
        failed = Counter(name for result in answered for name in result.failed)
        fitting = [result for result in answered if result.answers or result.failed]
        unfit = Counter(name for result in fitting for name in result.skipped)
        receipts = [result.receipt for result in answered]
        return ScoreCounts(
            rows=len(results),
            errors=sum(why_none(result) is not None for result in results),
            unread=len(results) - len(answered),
            idle=len(answered) - len(fitting),
            partly=sum(bool(result.answers and result.failed) for result in answered),
            unanswered={name: len(results) - answers[name] for name in names},
            failed={name: failed[name] for name in names},
            unfit={name: unfit[name] for name in names},
            seconds=seconds,
            **{name: sum(getattr(receipt, name) for receipt in receipts) for name in SUMS_OF_RECEIPTS},
        )

    def _versions(self) -> tuple[str, ...]:
        """Each task with its version in the bundle; raises ConfigError for a task that only the session has."""
        bundle = self.session.bundle
        apart = [n for n in self.answers.tasks if self.records.get(n) != bundle.tasks.get(n)]
        if apart:
            raise ConfigError(
                "a job goes on by the versions of its tasks, and these were attached to the session alone",
                got=apart,
                allowed=[name for name in self.session.tasks if name not in apart],
                do="add them to the bundle and refresh the session, or ask for other tasks",
            )
        lines = {name: bundle.lines[name] for name in self.answers.tasks}
        return tuple(f"{name} {line.version} {line.record}" for name, line in lines.items())

    def _check_unchanged(self) -> None:
        """Raises ConfigError if a task has changed since the start."""
        records = self.session.records
        changed = [name for name in self.answers.tasks if records.get(name) is not self.records.get(name)]
        if changed:
            raise ConfigError(
                f"tasks were replaced or removed while {self.file.path} was scored; what was answered is kept",
                got=changed,
                allowed="the same versions for all rows of a file",
                do="score with the versions of before to go on, or start anew with --fresh",
            )


def _check_target(file: Rows, target: Path, ending: str) -> None:
    """Raises ConfigError, before any work, if the target cannot be written."""
    if not ending:
        raise ConfigError(
            f"the format of {target} is not known by its name", allowed=file_endings(written=True), do="name a file so"
        )
    do = "name a file in a folder that you can write to"
    if not target.parent.is_dir():
        reason = f"there is no folder {target.parent}"
    elif target.is_symlink():
        reason = "it is a link that leads to itself"
    elif target.exists() and not target.is_file():
        reason = "it is no plain file"
    elif target.exists() and target.samefile(file.path):
        reason, do = "it is the file that is read", "name another file"
    elif not os.access(target.parent, os.W_OK):
        reason = "permission denied"
    else:
        return
    raise ConfigError(f"cannot write {target}", got=reason, do=do)


def _ending(name: str, endings: Sequence[str]) -> str:
    """The one of these endings that the name has; "" for none."""
    return next((ending for ending in endings if name.lower().endswith(ending)), "")


def _stamp(path: str) -> Stamp:
    if not os.path.exists(path):
        return None
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns
