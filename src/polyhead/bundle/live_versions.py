"""Reads the live versions of a bundle's tasks: records, scores, probes (pinned inputs) and cards."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from pathlib import Path as FilePath
from typing import Any, TypeVar

import msgspec
import numpy as np

from polyhead.bundle.files import check_hash, hash_inside, read_inside
from polyhead.bundle.format import CARD, LARGEST_CARD, LARGEST_TEXT, MOST_PROBES, PROBES, SCORES, SEEN, TASKS
from polyhead.bundle.manifest import Live, TaskRecord
from polyhead.bundle.owners import owner_named
from polyhead.bundle.versions import on_disk
from polyhead.errors import ConfigError, CorruptFile
from polyhead.nesting import check_depth
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.text.question import Question, TaskInput
from polyhead.values import digested


class Probe(msgspec.Struct, frozen=True):
    """One line of a task's probes file; other keys of the line are ignored."""

    text: tuple[str, ...]  # one text or a pair; with options a question, and its context where it has one
    words: tuple[tuple[int, int], ...] | None = None  # of a task that answers words: where they are
    options: tuple[str, ...] | None = None  # of a question

    @classmethod
    def of(cls, example: TaskInput, words: np.ndarray | None = None) -> Probe:
        """The probe of an input, with its words as (words, 2) characters."""
        places = None if words is None else tuple((int(start), int(end)) for start, end in words)
        if not isinstance(example, Question):
            return cls(text=example, words=places)
        context = (example.context,) if example.context.strip() else ()
        return cls(text=(example.text, *context), words=places, options=example.options)

    @property
    def input(self) -> TaskInput:
        """The input as a session takes it."""
        if self.options is not None:
            return Question(text=self.text[0], options=self.options, context="".join(self.text[1:]))
        return (self.text[0], self.text[1]) if len(self.text) == 2 else (self.text[0],)

    def line(self) -> dict[str, Any]:
        """The line, without empty fields."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return {name: value for name, value in plain.items() if value is not None}

    def fits(self, task: Task) -> bool:
        """True if the task can answer this input."""
        chooses, options = kind_of(task).per_option, self.options
        if chooses != (options is not None) or (options is not None and len(options) < 2):
            return False
        if len(self.text) not in ((1, 2) if chooses else (1,) if task.pair == "none" else (2,)):
            return False
        return all(text.strip() for text in (*self.text, *(options or ())))


class HeldOutCalibration(msgspec.Struct, frozen=True):
    """The calibration errors of a task's probabilities on rows that it was not trained on."""

    error: float  # expected calibration error
    rows: int


class ScoreNotes(msgspec.Struct, frozen=True):
    """The keys of scores.json that programs read; any other key is a note for people."""

    splits: dict[str, dict[str, float]] = {}
    baselines: dict[str, dict[str, dict[str, float]]] = {}
    scale: float = 1.0  # of the outputs, in the task's weights
    calibration: HeldOutCalibration | None = None  # None: of a kind without one probability a label, or not measured


Decoded = TypeVar("Decoded")


class LiveVersions(ABC):
    """Reads the live versions of tasks of a bundle, by name; `root` is the bundle's folder."""

    root: FilePath

    @abstractmethod
    def record(self, name: str) -> TaskRecord:
        """The live task.json of a task."""

    def learned_digest(self, name: str) -> str:
        """SHA-256 of the live version's task, path, arrays and needs. A calibration or a profile does not change it."""
        record = self.record(name)
        content = digested([record.task, record.path, record.arrays, record.needs])
        return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()

    def answers_digest(self, name: str) -> str:
        """SHA-256 of `learned_digest` and the profile that `none_of_these` reads; without `none_below` the former."""
        record, learned = self.record(name), self.learned_digest(name)
        profile = record.files.get(SEEN, "") if record.task.none_below else ""
        return hashlib.sha256(f"{learned} {profile}".encode()).hexdigest() if profile else learned

    def has_answers(self, name: str, digest: str) -> bool:
        """Whether this is the live version's `answers_digest`, or, of older notes, the SHA-256 of its task.json."""
        return self._live(name).record == digest or self.answers_digest(name) == digest

    def version(self, name: str) -> str:
        """The live version of a task, such as v0001."""
        return self._live(name).version

    def versions(self, name: str) -> list[str]:
        """All versions of a task on disk, oldest first."""
        self._live(name)
        return on_disk(self.root, owner_named(name))

    def scores(self, name: str) -> dict[str, Any]:
        """The scores written with the task: `splits` (split -> metric -> value) and other notes."""
        raw, path = self.read_file(name, SCORES), self._path(name, SCORES)
        _json(raw, path, ScoreNotes)
        return _json(raw, path, dict[str, Any])

    def score_notes(self, name: str) -> ScoreNotes:
        """The machine-readable part of the notes that were written with a task's scores."""
        return _json(self.read_file(name, SCORES), self._path(name, SCORES), ScoreNotes)

    def split_scores(self, name: str) -> dict[str, dict[str, float]]:
        """Split -> metric -> value; empty for a task that was added without scores."""
        return self.score_notes(name).splits

    def baselines(self, name: str, split: str) -> dict[str, dict[str, float]]:
        """`constant` and `linear`, where training measured them on its rows of the split -> metric -> value."""
        measured = self.score_notes(name).baselines
        return {baseline: splits[split] for baseline, splits in measured.items() if split in splits}

    def headline(self, name: str) -> tuple[str, float | None]:
        """The task's metric and its value on the test split, else on the last split that has it."""
        task, splits = self.record(name).task, self.split_scores(name)
        metric = kind_of(task).default_metric(task)
        values = {split: scores[metric] for split, scores in splits.items() if metric in scores}
        return metric, values.get("test", next(reversed(values.values()), None))

    def probes(self, name: str) -> list[dict[str, Any]]:
        """The pinned probes of a task: inputs from its validation data, chosen when it was added."""
        path, raw = self._path(name, PROBES), self.read_file(name, PROBES)
        if (count := raw.count(b"\n")) > MOST_PROBES:
            raise CorruptFile(f"{path} holds too many probes", got=f"{count:,}", allowed=f"{MOST_PROBES:,}", path=path)
        return [_json(line, path, dict[str, Any]) for line in raw.split(b"\n") if line]

    def card(self, name: str) -> str:
        """The task's card, in Markdown; people may edit it, so it is not hashed."""
        return read_inside(self.root, *self._place(name), CARD, limit=LARGEST_CARD).decode("utf-8", "replace")

    @abstractmethod
    def _live(self, name: str) -> Live:
        """The line of a task; raises UnknownTask for a name without one."""

    def _place(self, name: str) -> tuple[str, str, str]:
        return TASKS, name, self._live(name).version

    def _path(self, name: str, file: str) -> FilePath:
        return self.root.joinpath(*self._place(name), file)

    def read_file(self, name: str, file: str) -> bytes:
        """A small file of a task's live version, hashed."""
        self._hashed(name, file)
        return read_inside(self.root, *self._place(name), file, limit=LARGEST_TEXT)

    def _hashed(self, name: str, file: str) -> None:
        digest = hash_inside(self.root, *self._place(name), file)
        check_hash(self._path(name, file), digest, self.record(name).files.get(file, ""))


def _json(raw: bytes, path: FilePath, kind: type[Decoded]) -> Decoded:
    try:
        check_depth(raw, source=str(path))
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ConfigError) as error:
        raise CorruptFile(f"{path} cannot be read as JSON", got=error, do="restore the file", path=path) from None
