"""A job on disk: what it is, and the pieces of it that are done. A piece is there whole or not at all.

    .OUT.pieces/job.json         what the job reads, asks and writes; pieces belong to it alone
    .OUT.pieces/lock             held by the one process that works on it
    .OUT.pieces/00000000.json    what the piece counts; written before the piece
    .OUT.pieces/00000000.piece    the piece, in the format of OUT

The folder stands beside OUT and goes when OUT is whole.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from polyhead.config import Value, from_json, to_json
from polyhead.engine.numerics import Numerics
from polyhead.errors import ConfigError
from polyhead.files import TEMPORARY, held, replace_file, sync_folder, write_file
from polyhead.scoring.survey import Survey

JOB, LOCK = "job.json", "lock"


class Job(Value):
    """All on which the bytes of a piece depend, but for the machine."""

    version: str  # of polyhead
    source: str  # SHA-256 of the file that is read
    form: str  # the endings of the names of both files
    tasks: tuple[str, ...]  # each with its live version and the SHA-256 of its task.json
    trunk: str  # digest
    numerics: Numerics
    deterministic: bool
    columns: dict[str, tuple[str, ...]]  # that are read, by role
    kept: tuple[str, ...]
    prefix: str
    scores: bool
    piece_rows: int
    survey: Survey


WHY_OTHER = {
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
    "piece_rows": "pieces of another size",
    "survey": "what is read was found to hold other values",
}
"""Why pieces are of another job, by what differs."""


class Facts(Value):
    """Counts of a piece, or of several."""

    rows: int = 0
    errors: int = 0  # rows with a reason why they, or some task, have no answer
    unread: int = 0  # of these, rows that could not be read
    idle: int = 0  # of these, rows that fit no task, those whose text is empty among them
    partly: int = 0  # of these, rows that some task answered where another failed
    # By task: rows without its answer, which are those unread, those idle, and the two that follow.
    unanswered: dict[str, int] = {}
    failed: dict[str, int] = {}
    unfit: dict[str, int] = {}  # rows that it does not fit, and another task does
    passes: int = 0
    layers: int = 0
    tokens: int = 0
    cut: int = 0  # tokens that were not read
    repaired: int = 0
    seconds: float = 0.0

    def __add__(self, other: Facts) -> Facts:
        added: dict[str, Any] = {
            name: _added(getattr(self, name), getattr(other, name)) for name in self.__struct_fields__
        }
        return Facts(**added)


class Pieces:
    """The pieces of one job, under its lock."""

    def __init__(self, target: Path) -> None:
        self.target, self.folder = target, folder_of(target)
        self.done: list[Path] = []  # in order
        self.facts = Facts()  # of the pieces that are done

    @classmethod
    @contextmanager
    def held(cls, target: Path) -> Iterator[Self]:
        """The pieces of the job that writes `target`; raises ConfigError where another process works on it."""
        pieces = cls(target)
        busy = ConfigError(f"another process is writing {target}", do="wait for it, or write another file")
        with ExitStack() as lock:
            while not lock.enter_context(_lock(pieces.folder, busy)):
                pass
            try:
                yield pieces
            finally:
                if not pieces._has_any:
                    shutil.rmtree(pieces.folder, ignore_errors=True)

    def begun(self) -> Job | None:
        """The job to which the pieces belong; raises ConfigError where there are some and it cannot be read."""
        path = self.folder / JOB
        if not path.exists():
            return None
        try:
            return from_json(path.read_bytes(), Job, source=str(path))
        except ConfigError as error:
            if not self._has_any:
                return None
            what = f"{path} was written by another version, or is damaged"
            raise ConfigError(what, got=error.what, do="start anew with --fresh") from None

    def go_on(self, job: Job) -> None:
        """Finds the pieces that are done; raises ConfigError where they are another job's."""
        begun = self.begun()
        if begun is None or (begun != job and (not self._has_any or self._is_finished(begun, job))):
            self._begin(job)
            return
        for name in Job.__struct_fields__:
            now, before = getattr(job, name), getattr(begun, name)
            if now != before:
                raise ConfigError(
                    f"{self.folder} holds pieces of another job for {self.target.name}: {WHY_OTHER[name]}",
                    got=_shown(now),
                    allowed=_shown(before),
                    do="run the command that was begun, start anew with --fresh, or write another file",
                )
        while (piece := self._piece(len(self.done))).exists():
            self.facts += from_json(
                self._counts(len(self.done)).read_bytes(), Facts, source=str(self._counts(len(self.done)))
            )
            self.done.append(piece)

    def forget(self) -> None:
        """Drops the job that was begun."""
        (self.folder / JOB).unlink(missing_ok=True)

    def add(self, content: bytes, facts: Facts) -> None:
        """The next piece, on disk when this returns."""
        piece = self._piece(len(self.done))
        replace_file(self._counts(len(self.done)), to_json(facts))
        replace_file(piece, content)
        self.done.append(piece)
        self.facts += facts

    def finish(self, content: Iterable[bytes]) -> None:
        """Gives `target` its whole content at once; then there are no pieces any more."""
        whole = self.folder / f"{TEMPORARY}whole"
        try:
            write_file(whole, content)
        except OSError:
            whole.unlink(missing_ok=True)
            raise
        os.replace(whole, self.target)
        sync_folder(self.target.parent)
        self.forget()

    @property
    def _has_any(self) -> bool:
        """Whether a piece is finished: a job without one binds nobody."""
        return (self.folder / JOB).exists() and self._piece(0).exists()

    def _is_finished(self, begun: Job, job: Job) -> bool:
        """Whether the target has its content, and the process ended right before it dropped the pieces."""
        if begun.version != job.version:
            return False
        number, rows = 0, 0
        while self._piece(number).exists():
            rows += from_json(self._counts(number).read_bytes(), Facts, source=str(self._counts(number))).rows
            number += 1
        last = self._piece(number - 1).stat().st_mtime_ns
        is_written = self.target.exists() and self.target.stat().st_mtime_ns >= last
        return is_written and rows == begun.survey.rows

    def _begin(self, job: Job) -> None:
        for path in self.folder.iterdir():  # pieces of which nobody knows whose they are
            if path.name != LOCK and not path.is_dir():
                path.unlink()
        replace_file(self.folder / JOB, to_json(job))

    def _piece(self, number: int) -> Path:
        return self.folder / f"{number:08d}.piece"

    def _counts(self, number: int) -> Path:
        return self.folder / f"{number:08d}.json"


@contextmanager
def _lock(folder: Path, busy: Exception) -> Iterator[bool]:
    """Whether the folder's lock is held inside; it is not where who had it took the folder away just now."""
    try:
        folder.mkdir(exist_ok=True)
    except FileExistsError:
        raise ConfigError(
            "the pieces of a job lie in a folder, and something else has its name",
            got=str(folder),
            do="move it away, or write another file",
        ) from None
    with ExitStack() as lock:
        try:
            lock.enter_context(held(folder / LOCK, patience=0.0, busy=busy))
            there = True
        except FileNotFoundError:
            there = False
        yield there


def folder_of(target: Path) -> Path:
    """Where the pieces of a job lie."""
    return target.with_name(f".{target.name}.pieces")


def _added(one: Any, other: Any) -> Any:
    """The sum, name by name where there are names."""
    if isinstance(one, dict):
        return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}
    return one + other


def _shown(value: object) -> object:
    return value if not isinstance(value, (dict, Value)) else to_json(value, indent=0).decode().strip()
