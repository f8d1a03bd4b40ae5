"""Work on disk in pieces, each complete or absent: an interrupted job resumes after the last of them.

    .OUT.pieces/made-by-polyhead.txt    marks the folder as ours; without it nothing in it is touched
    .OUT.pieces/job.json                what the job reads, asks and writes; the pieces belong to this job
    .OUT.pieces/lock                    held by the process that works on the job
    .OUT.pieces/00000000.json           counts of the piece, and the SHA-256 of both; written before the piece
    .OUT.pieces/00000000.piece          the piece, in the format of OUT

The folder is next to OUT and is removed when OUT is complete. The job defines the content of a piece.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Self

from polyhead.data.tables.base import Survey
from polyhead.engine.probes import Numerics
from polyhead.errors import ConfigError, DataError
from polyhead.files import held, open_plain, replace_file, replacing
from polyhead.folders import WorkFolder, claim, dissolve, sweep
from polyhead.values import Value, from_json, to_json

log = logging.getLogger(__name__)
JOB, LOCK = "job.json", "lock"
_OURS = re.compile(r"job\.json|lock|[0-9]{8,}\.(json|piece)")


SUMS_OF_RECEIPTS = ("passes", "layers", "tokens", "cut", "repaired")  # counts that are sums over rows


class ScoreCounts(Value):
    """Counts of the rows of a file, and the cost of answering them."""

    rows: int = 0
    errors: int = 0  # rows with a reason why they, or some task, have no answer
    unread: int = 0  # of these, unreadable rows
    idle: int = 0  # of these, rows that fit no task, including rows with an empty text
    partly: int = 0  # of these, rows that some task answered while another failed
    # By task: rows without its answer: the unread, the idle, and the two following counts.
    unanswered: dict[str, int] = {}
    failed: dict[str, int] = {}
    unfit: dict[str, int] = {}  # rows that it does not fit, but another task does
    passes: int = 0
    layers: int = 0
    tokens: int = 0
    cut: int = 0  # tokens that were not read
    repaired: int = 0
    nulled: int = 0  # numbers of kept columns that are not finite, which are null in the format of OUT
    seconds: float = 0.0

    def __add__(self, other: ScoreCounts) -> ScoreCounts:
        names = self.__struct_fields__
        return ScoreCounts(**{name: _added(getattr(self, name), getattr(other, name)) for name in names})


class ScoreJob(Value):
    """A file to score, and how: everything that determines the bytes of a piece, except the machine."""

    why_other: ClassVar[Mapping[str, str]] = {  # fields that differ between jobs
        "version": "they were written by another version of polyhead",
        "source": "what is read has changed since, or is another file",
        "form": "what is read or written has another format",
        "tasks": "other tasks, or other versions of them",
        "trunk": "a bundle over another trunk",
        "numerics": "other arithmetic: --backend, --precision, versions of packages or this machine",
        "deterministic": "--deterministic differs",
        "columns": "other columns are read",
        "kept": "--keep or --only-answers differs",
        "prefix": "--prefix differs",
        "scores": "--scores differs",
        "calibrated": "--calibrated differs",
        "familiar": "--familiar differs",
        "none_below": "--none-below differs",
        "piece_rows": "pieces of another size",
        "survey": "what is read was found to hold other values",
    }

    version: str  # of polyhead
    source: str  # SHA-256 of the file that is read
    form: str  # the endings of both file names
    tasks: tuple[str, ...]  # each with its live version and the SHA-256 of its task.json
    trunk: str  # digest
    numerics: Numerics
    deterministic: bool
    columns: dict[str, tuple[str, ...]]  # columns to read, by role
    kept: tuple[str, ...]
    prefix: str
    scores: bool
    calibrated: bool
    familiar: bool
    none_below: float | dict[str, float] | None
    piece_rows: int
    survey: Survey

    @property
    def total(self) -> int:
        """The rows of the file."""
        return self.survey.rows


WORKING = WorkFolder(
    purpose="pieces of a file that `polyhead predict` writes", is_ours=lambda name: bool(_OURS.fullmatch(name))
)


class PieceRecord(Value):
    """The record stored with a piece: its counts, and a digest that shows whether either was changed."""

    counts: ScoreCounts
    sha256: str  # over the counts and the piece

    @classmethod
    def of(cls, counts: ScoreCounts, content: bytes) -> Self:
        """The record of this content."""
        return cls(counts=counts, sha256=hashlib.sha256(to_json(counts) + content).hexdigest())


class Pieces:
    """The pieces of one job, under its lock."""

    def __init__(self, target: Path) -> None:
        self.target, self.folder = target, target.with_name(f".{target.name}.pieces")
        self.done: list[PieceRecord] = []  # in order
        self.counts = ScoreCounts()  # of the finished pieces
        self._total = 0

    @classmethod
    @contextmanager
    def held(cls, target: Path) -> Iterator[Self]:
        """The pieces of the job that writes `target`.

        Raises ConfigError if another process works on it, or if the folder is not Polyhead's; it is then unchanged.
        """
        pieces = cls(target)
        busy = ConfigError(f"another process is writing {target}", do="wait for it, or write another file")
        with ExitStack() as lock:
            while not lock.enter_context(_lock(pieces.folder, busy)):
                pass
            try:
                sweep(pieces.folder, WORKING)
                yield pieces
            finally:
                if not pieces._has_any:
                    dissolve(pieces.folder, WORKING)

    def begun(self) -> ScoreJob | None:
        """The job of the pieces; raises ConfigError if there are pieces and it cannot be read."""
        path = self.folder / JOB
        if not os.path.lexists(path):
            return None
        try:
            return from_json(self._read(JOB), ScoreJob, source=str(path))
        except (ConfigError, OSError) as error:
            if not self._has_any:
                return None
            problem = f"{path} was written by another version, or is damaged"
            got = error.what if isinstance(error, ConfigError) else error.strerror
            raise ConfigError(problem, got=got, do="start anew with --fresh") from None

    def go_on(self, job: ScoreJob) -> None:
        """Finds the finished pieces; raises ConfigError if they belong to another job.

        A changed piece is made again, with those after it.
        """
        begun, self._total = self.begun(), job.total
        if begun is None or (begun != job and (not self._has_any or self._is_finished(begun, job))):
            self._begin(job)
            return
        for name in job.__struct_fields__:
            now, before = getattr(job, name), getattr(begun, name)
            if now != before:
                raise ConfigError(
                    f"{self.folder} holds pieces of another job for {self.target.name}: {job.why_other[name]}",
                    got=_shown(now),
                    allowed=_shown(before),
                    do="run the command that was begun, start anew with --fresh, or write another file",
                )
        while (piece := self._piece(len(self.done))) is not None:
            self.counts += piece.counts
            self.done.append(piece)
        damaged = self.folder / _piece_name(len(self.done))
        if os.path.lexists(damaged):
            log.warning("%s is not as it was written: its rows are answered again, and those after it", damaged)

    def forget(self) -> None:
        """Discards the unfinished job."""
        with suppress(IsADirectoryError):
            (self.folder / JOB).unlink(missing_ok=True)

    def add(self, content: bytes, counts: ScoreCounts) -> None:
        """Adds the next piece, which is on disk on return."""
        number, piece = len(self.done), PieceRecord.of(counts, content)
        self._write(_counts_name(number), to_json(piece))
        self._write(_piece_name(number), content)
        self.done.append(piece)
        self.counts += counts

    def contents(self) -> Iterator[bytes]:
        """The finished pieces in order; raises DataError for one that was changed."""
        for number, written in enumerate(self.done):
            name = _piece_name(number)
            try:
                content = self._read(name)
            except OSError as error:
                raise _changed(self.folder / name, error.strerror) from None
            piece = PieceRecord.of(written.counts, content)
            if piece != written:
                raise _changed(self.folder / name, f"SHA-256 {piece.sha256}, with its counts")
            yield content

    def finish(self, content: Iterable[bytes]) -> None:
        """Writes `target` in one step, then discards the pieces; raises DataError if they do not cover all rows."""
        if self.counts.rows != self._total:
            raise DataError(
                f"the pieces of {self.target} are not of all rows",
                got=f"{self.counts.rows:,} rows",
                allowed=f"{self._total:,}, as counted at the start",
                do="start anew with --fresh",
            )
        with replacing(self.target, within=self.folder) as file:
            for block in content:
                file.write(block)
        self.forget()

    @property
    def _has_any(self) -> bool:
        """Whether a piece is finished; a job without one may be replaced."""
        return all(os.path.lexists(self.folder / name) for name in (JOB, _piece_name(0)))

    def _is_finished(self, begun: ScoreJob, job: ScoreJob) -> bool:
        """Whether the target is complete, and the process ended right before it discarded the pieces."""
        if begun.version != job.version:
            return False
        number, rows = 0, 0
        while (piece := self._piece(number)) is not None:
            rows += piece.counts.rows
            number += 1
        if not number or rows != begun.total or not self.target.exists():
            return False
        last = (self.folder / _piece_name(number - 1)).stat().st_mtime_ns
        return self.target.stat().st_mtime_ns >= last

    def _begin(self, job: ScoreJob) -> None:
        for name in os.listdir(self.folder):  # pieces without a job
            if name != LOCK and _OURS.fullmatch(name):
                with suppress(IsADirectoryError):
                    (self.folder / name).unlink()
        self._write(JOB, to_json(job))

    def _piece(self, number: int) -> PieceRecord | None:
        """The record of an existing, unchanged piece; else None."""
        source = str(self.folder / _counts_name(number))
        try:
            written = from_json(self._read(_counts_name(number)), PieceRecord, source=source)
            piece = PieceRecord.of(written.counts, self._read(_piece_name(number)))
        except (OSError, ConfigError):
            return None
        return piece if piece.sha256 == written.sha256 else None

    def _read(self, name: str) -> bytes:
        with open_plain(self.folder / name, root=self.target.parent) as file:
            return file.read()

    def _write(self, name: str, content: bytes) -> None:
        path = self.folder / name
        try:
            replace_file(path, content)
        except IsADirectoryError:
            do = "remove it, or write another file"
            raise ConfigError(f"{path} cannot be written", got="a folder of that name", do=do) from None


@contextmanager
def _lock(folder: Path, busy: Exception) -> Iterator[bool]:
    """A context that holds the folder's lock, if True; False if its former holder has just removed the folder."""
    claim(folder, WORKING)
    with ExitStack() as lock:
        try:
            lock.enter_context(held(folder / LOCK, patience=0.0, busy=busy))
            is_held = True
        except FileNotFoundError:
            is_held = False
        yield is_held


def _piece_name(number: int) -> str:
    return f"{number:08d}.piece"


def _counts_name(number: int) -> str:
    return f"{number:08d}.json"


def _changed(path: Path, got: object) -> DataError:
    return DataError(
        f"{path} was changed since it was written",
        got=got,
        allowed="what was written, with its counts",
        do="run the same command again: it answers these rows anew",
    )


def _added(first: Any, second: Any) -> Any:
    """The sum, name by name where there are names."""
    if isinstance(first, dict):
        return {name: first.get(name, 0) + second.get(name, 0) for name in {**first, **second}}
    return first + second


def _shown(value: object) -> object:
    return value if not isinstance(value, (dict, Value)) else to_json(value, indent=0).decode().strip()
