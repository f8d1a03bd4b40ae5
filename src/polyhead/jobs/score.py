"""Scoring a file: every row once and in order, across interruptions."""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from polyhead._version import __version__
from polyhead.arguments import check_arguments, check_fields
from polyhead.config import Value
from polyhead.engine.pinned import numerics_of
from polyhead.engine.session import Result, Session
from polyhead.errors import BadValue, ConfigError, DataError, EmptyData, UnknownTask
from polyhead.jobs.answers import Answers, why_none
from polyhead.jobs.columns import Ask, Roles, check_fit, roles_of
from polyhead.jobs.faults import all_columns, check_machine
from polyhead.jobs.pieces import Facts, Job, Pieces
from polyhead.jobs.read import open_source
from polyhead.jobs.source import Chunk, Show, Source
from polyhead.jobs.survey import Survey
from polyhead.jobs.write import CsvWriter, JsonWriter, Writer
from polyhead.progress import progress_line
from polyhead.tasks.rows import FORMATS
from polyhead.text.tokenize import lone_surrogates, repair

PIECE_ROWS = 2048  # of a piece, answered by one call, so that texts can be sorted by length; a kill loses one
IS_READ = "it is the file that is read"
OUTPUTS = (".jsonl", ".jsonl.gz", ".csv", ".csv.gz", ".parquet")


class ScoreRequest(Value):
    """What to answer for every row, and what to write."""

    tasks: tuple[str, ...] = ()  # none: all
    columns: dict[str, str] = {}  # by the role (`columns.NAMES`) that the column has
    # Columns of the input to write too, a name each, or several between commas; None: all.
    kept: tuple[str, ...] | None = None
    prefix: str = ""  # of the names of added columns
    scores: bool = False  # one column more for a task that has a score for each label or option

    def __post_init__(self) -> None:
        check_fields(self)
        if lone_surrogates(self.prefix):
            raise ConfigError("the prefix of added columns is not UTF-8", got=self.prefix, do="give another --prefix")


class Summary(Value):
    """What a job did; `counts` cover the whole file, including pieces of earlier runs."""

    output: str
    tasks: tuple[str, ...]
    columns: tuple[str, ...]  # that were added
    counts: Facts
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
    """Writes the rows of `source` with their answers to `target`, a piece of `piece_rows` rows at a time.

    Where the same call was stopped before, at any moment, it goes on, and the bytes written are those of a call that
    was not. A row that cannot be read or answered has nulls and the reason. `fresh` drops what was begun. Where the
    target is a symbolic link, the file that it leads to is written.

    Raises DataError and MissingColumn for a file that cannot be read so, ConfigError for columns that clash, pieces
    of another job, or tasks that are replaced meanwhile, EmptyData for a file without rows.
    """
    given = {"session": session, "source": source, "target": target, "wish": wish, "piece_rows": piece_rows}
    check_arguments(score, given)
    if piece_rows < 1:
        raise ConfigError(
            "piece_rows is the number of rows of a piece",
            got=repr(piece_rows),
            allowed="1 or more",
            do=f"leave it out: it is {PIECE_ROWS}",
        )
    source, target = str(source), str(target)
    began, stamp = time.monotonic(), _stamp(source)
    work = _Work(session, open_source(source), Path(target), wish, stamp)
    with Pieces.held(work.target) as pieces:
        job = work.job(None if fresh else pieces.begun(), piece_rows, show)
        writer = work.writer(job)
        if fresh:  # only now that the command is known to make sense
            pieces.forget()
        pieces.go_on(job)
        before = pieces.facts.rows
        work.answer(pieces, job, writer, show)
        work.check_source()
        show(f"joining {len(pieces.done):,} pieces")
        work.check_rows(pieces, job)
        pieces.finish(writer.whole(pieces.contents()))
    seconds = time.monotonic() - began
    return Summary(
        output=repair(target),  # names of files may be any bytes, JSON may not
        tasks=tuple(work.answers.tasks),
        columns=tuple(column.name for column in work.answers.columns),
        counts=pieces.facts,
        done_before=before,
        seconds=seconds,
        texts_a_second=(pieces.facts.rows - before) / seconds,
    )


Stamp = tuple[int, int, int] | None  # what changes with a file's content


class _Work:
    """What is asked of which file, and where the answers go."""

    def __init__(self, session: Session, file: Source, target: Path, wish: ScoreRequest, stamp: Stamp) -> None:
        self.session, self.file, self.wish, self._stamp = session, file, wish, stamp
        # A link stays one; the format is that of the name that was given.
        self.target, self.ending = Path(os.path.realpath(target)), _ending(target.name, OUTPUTS)
        _check_target(file, self.target, self.ending)
        self.records, self.models = session.records, session.summaries.models.lines
        tasks = {name: session.tasks[name] for name in session.asked(wish.tasks or None)}
        self.answers = Answers(tasks=tasks, prefix=wish.prefix, scores=wish.scores)

    def job(self, begun: Job | None, piece_rows: int, show: Show) -> Job:
        """All on which the bytes written depend; the survey is that of `begun` where it read the same bytes."""
        digest = self._digest(show)
        form = f"{_ending(self.file.path, FORMATS)} to {self.ending}"
        read = (__version__, digest, form)
        is_known = begun is not None and (begun.version, begun.source, begun.form) == read
        survey = begun.survey if begun is not None and is_known else self.file.survey(show)
        if not survey.rows:
            raise EmptyData(f"{self.file.path} holds no row", do="give a file with rows")
        roles = roles_of(self.file.path, survey, self.wish.columns)
        check_fit(self.file.path, roles, self.answers.tasks, self.wish.columns)
        session = self.session
        return Job(
            version=__version__,
            source=digest,
            form=form,
            tasks=self._versions(),
            trunk=session.bundle.digest,
            numerics=numerics_of(session),
            deterministic=session.deterministic,
            columns=roles.columns,
            kept=self._kept(survey),
            prefix=self.wish.prefix,
            scores=self.wish.scores,
            piece_rows=piece_rows,
            survey=survey,
        )

    def writer(self, job: Job) -> Writer:
        """For the format that the target's name says."""
        ending, columns = self.ending, self.answers.columns
        if ending == ".parquet":
            from polyhead.jobs.table import ParquetWriter

            return ParquetWriter(job.kept, columns, self.file.schema(job.survey, job.kept))
        writers: Mapping[str, type[JsonWriter] | type[CsvWriter]] = {".jsonl": JsonWriter, ".csv": CsvWriter}
        return writers[ending.removesuffix(".gz")](job.kept, columns, packed=ending.endswith(".gz"))

    def answer(self, pieces: Pieces, job: Job, writer: Writer, show: Show) -> None:
        """Answers the pieces that are not finished."""
        began, before, roles = time.monotonic(), pieces.facts.rows, Roles(columns=job.columns)
        name, wanted = Path(self.file.path).name, tuple(dict.fromkeys((*roles.wanted, *job.kept)))
        show(f"{name}: {before:,} of {job.survey.rows:,} texts")
        for chunk in self.file.chunks(wanted, start=before, size=job.piece_rows):
            piece_began = time.monotonic()
            results = self._results(chunk, roles)
            content = writer.piece(chunk, [self.answers.cells(result) for result in results])
            self.check_source()  # pieces are of the bytes that the job names
            pieces.add(content, self._facts(results, time.monotonic() - piece_began))
            done, seconds = pieces.facts.rows, time.monotonic() - began
            total = job.survey.rows
            show(progress_line(name, done=done, total=total, unit="texts", seconds=seconds, before=before))

    def check_source(self) -> None:
        """Raises DataError where the file that is read was changed since it was opened."""
        if _stamp(self.file.path) != self._stamp:
            raise DataError(
                f"{self.file.path} was changed while it was read",
                do="leave it as it is: with the content that it had the same command goes on, else start with --fresh",
            )

    def check_rows(self, pieces: Pieces, job: Job) -> None:
        """Raises DataError where the pieces are not of all rows, so that no row is told that is not written."""
        if pieces.facts.rows != job.survey.rows:
            raise DataError(
                f"the pieces of {self.target} are not of all rows",
                got=f"{pieces.facts.rows:,} rows",
                allowed=f"{job.survey.rows:,}, as counted at the start",
                do="start anew with --fresh",
            )

    def _results(self, chunk: Chunk, roles: Roles) -> list[Result | BadValue]:
        """For each row its result, or why the row could not be read."""
        asks = chunk.asks(roles)
        read = [ask for ask in asks if isinstance(ask, Ask)]
        inputs, words = [ask.input for ask in read], [ask.words for ask in read]
        results: list[Result] = []
        if read:
            try:
                answered = all_columns(self.session, inputs, words, tasks=self.answers.tasks)
            except UnknownTask:  # one that was removed meanwhile
                self._check_unchanged()
                raise
            self._check_unchanged()
            check_machine(self.session, answered)
            results = answered.results()
        remaining = iter(results)
        return [next(remaining) if isinstance(ask, Ask) else ask for ask in asks]

    def _facts(self, results: Sequence[Result | BadValue], seconds: float) -> Facts:
        answered = [result for result in results if isinstance(result, Result)]
        answers = Counter(name for result in answered for name in result.answers)
        failed = Counter(name for result in answered for name in result.failed)
        fitting = [result for result in answered if result.answers or result.failed]
        unfit = Counter(name for result in fitting for name in result.skipped)
        receipts = [result.receipt for result in answered]
        return Facts(
            rows=len(results),
            errors=sum(why_none(result) is not None for result in results),
            unread=len(results) - len(answered),
            idle=len(answered) - len(fitting),
            partly=sum(bool(result.answers and result.failed) for result in answered),
            unanswered={name: len(results) - answers[name] for name in self.answers.tasks},
            failed={name: failed[name] for name in self.answers.tasks},
            unfit={name: unfit[name] for name in self.answers.tasks},
            passes=sum(result.passes for result in receipts),
            layers=sum(result.layers for result in receipts),
            tokens=sum(result.tokens for result in receipts),
            cut=sum(result.cut for result in receipts),
            repaired=sum(result.repaired for result in receipts),
            seconds=seconds,
        )

    def _versions(self) -> tuple[str, ...]:
        """Each task with its version in the bundle; raises ConfigError for one that only the session has."""
        bundle = self.session.bundle
        apart = [n for n in self.answers.tasks if self.records.get(n) != bundle.tasks.get(n)]
        if apart:
            raise ConfigError(
                "a job goes on by the versions of its tasks, and these were attached to the session alone",
                got=apart,
                allowed=[name for name in self.session.tasks if name not in apart],
                do="add them to the bundle and refresh the session, or ask for other tasks",
            )
        lines = {**bundle.lines, **self.models}
        return tuple(f"{name} {lines[name].version} {lines[name].record}" for name in self.answers.tasks)

    def _check_unchanged(self) -> None:
        """Raises ConfigError where an asked task is no longer what it was at the start."""
        records, models = self.session.records, self.session.summaries.models.lines
        changed = [
            name
            for name in self.answers.tasks
            if records.get(name) is not self.records.get(name) or models.get(name) != self.models.get(name)
        ]
        if changed:
            raise ConfigError(
                f"tasks were replaced or removed while {self.file.path} was scored; what was answered is kept",
                got=changed,
                allowed="the same versions for all rows of a file",
                do="score with the versions of before to go on, or start anew with --fresh",
            )

    def _digest(self, show: Show) -> str:
        show(f"looking at {Path(self.file.path).name}")
        with open(self.file.path, "rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()

    def _kept(self, survey: Survey) -> tuple[str, ...]:
        """The columns of the input to write; raises ConfigError where two columns would have one name."""
        added, columns = [column.name for column in self.answers.columns], list(survey.columns)
        wish = self.wish.kept
        wanted = columns if wish is None else [name for argument in wish for name in _names(argument, columns)]
        unknown = [name for name in wanted if name not in columns]
        if unknown:
            what = f"{Path(self.file.path).name} has no column {', '.join(map(repr, unknown))} to keep"
            do = "name its columns; one with a comma in its name has a --keep of its own"
            raise ConfigError(what, allowed=columns, do=do)
        kept = tuple(dict.fromkeys(wanted))
        if twice := _twice(added):
            raise ConfigError(
                "columns that are added would have the same names, which --prefix does not change",
                got=twice,
                do=f"name other tasks with --tasks{', or leave out --scores' if self.wish.scores else ''}",
            )
        if twice := _twice((*kept, *added)):
            raise ConfigError(
                "columns of the file and columns that are added have the same names",
                got=twice,
                do="give the added ones other names with --prefix, or choose the columns to --keep",
            )
        return kept


def _twice(names: Sequence[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _names(argument: str, columns: Collection[str]) -> tuple[str, ...]:
    """The column of this name; where there is none, the names between commas."""
    several = tuple(name.strip() for name in argument.split(",") if name.strip())
    return (argument,) if argument in columns or not several else several


def _check_target(file: Source, target: Path, ending: str) -> None:
    """Raises ConfigError where the target cannot be written, before any work."""
    if not ending:
        raise ConfigError(f"the format of {target} is not known by its name", allowed=OUTPUTS, do="name a file so")
    if not target.parent.is_dir():
        reason = f"there is no folder {target.parent}"
    elif target.is_symlink():
        reason = "it is a link that leads to itself"
    elif target.exists() and not target.is_file():
        reason = "it is no plain file"
    elif target.exists() and target.samefile(file.path):
        reason = IS_READ
    elif not os.access(target.parent, os.W_OK):
        reason = "permission denied"
    else:
        return
    is_read = reason == IS_READ
    do = "name another file" if is_read else "name a file in a folder that you can write to"
    raise ConfigError(f"cannot write {target}", got=reason, do=do)


def _ending(name: str, endings: Sequence[str]) -> str:
    """One of these; "" where the name ends otherwise."""
    return next((ending for ending in endings if name.lower().endswith(ending)), "")


def _stamp(path: str) -> Stamp:
    """What changes with a file's content; None where there is none."""
    if not os.path.exists(path):
        return None
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns
