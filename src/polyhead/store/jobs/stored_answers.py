"""Answers of one bundle in one store, and a common numbering of the labels of two versions of a task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from polyhead.bundle.read import Bundle
from polyhead.errors import StoreError, UnknownTask
from polyhead.store.corpus import open_corpus
from polyhead.store.jobs.answers import ResultColumn, answer_columns, answers_at
from polyhead.store.jobs.backfill import check_store_trunk
from polyhead.tasks.task import Task
from polyhead.values import Value


class AnswerSource(Value):
    """The origin of a task's answers."""

    store: str
    trunk: str  # digest
    task: str
    version: str
    column: str


class StoredAnswers:
    """A store and the bundle that answers from it. Raises StoreError if their trunks differ."""

    def __init__(self, location: Path | str, bundle: Path | str) -> None:
        self.location, self.store, self.bundle = str(location), open_corpus(location), Bundle.open(bundle)
        check_store_trunk(self.location, self.store, self.bundle)

    @property
    def trunk(self) -> str:
        """The digest of the trunk."""
        return self.bundle.digest

    @property
    def documents(self) -> int:
        """Documents of the store."""
        return sum(fragment.rows for fragment in self.store.fragments)

    def task(self, name: str) -> Task:
        """The task's live version; raises UnknownTask."""
        if name not in self.bundle.tasks:
            raise UnknownTask(
                f"the bundle {self.bundle.root} has no task '{name}'", got=name, allowed=sorted(self.bundle.tasks)
            )
        return self.bundle.tasks[name].task

    def column(self, name: str) -> ResultColumn:
        """The column of the task's live version."""
        self.task(name)
        return answer_columns(name, self.bundle.lines[name], all_scores=False)[0]

    def source(self, name: str) -> AnswerSource:
        """The origin of the task's answers."""
        column = self.column(name)
        return AnswerSource(
            store=self.location, trunk=self.trunk, task=name, version=column.version, column=column.name
        )

    def answered(self, name: str) -> int:
        """The number of documents with the column of the task's live version."""
        column = self.column(name).name
        return sum(fragment.rows for fragment in self.store.fragments if column in fragment.results)

    def at(
        self, name: str, places: np.ndarray, column: ResultColumn | None = None
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The arrays of a task's column, by default its answers, at places (rows, 2); where done, bool (rows,)."""
        return answers_at(self.store, column or self.column(name), self.task(name), places)

    def fragments(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Ids (rows, 16) and places (rows, 2) of each fragment's documents."""
        for number, fragment in enumerate(self.store.fragments):
            places = np.stack([np.full(fragment.rows, number, np.int64), np.arange(fragment.rows)], axis=1)
            yield self.store.ids(fragment.name), places


class Numbering(Value):
    """A common numbering of the labels of two versions of a task: the new one's, then those of the old one alone."""

    labels: tuple[str, ...]
    old: tuple[int, ...]  # the number of each of the old one's labels

    @classmethod
    def of(cls, old: Task, new: Task) -> Numbering:
        """Raises StoreError if the two are of different kinds."""
        if old.kind != new.kind:
            raise StoreError(
                f"task '{new.name}' is of another kind in the two bundles",
                got=f"{old.kind} and {new.kind}",
                do="compare tasks of one kind",
            )
        labels = (*new.labels, *(label for label in old.labels if label not in new.labels))
        return cls(labels=labels, old=tuple(map(labels.index, old.labels)))

    def of_old(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The old version's answers in this numbering."""
        numbered = dict(arrays)
        if "label" in numbered:
            numbers = np.array((*self.old, -1), np.int32)  # -1, no answer, is the last one
            numbered["label"] = numbers[numbered["label"]]
        if "labels" in numbered:
            numbered["labels"] = self._spread(numbered["labels"], self.old)
        return numbered

    def of_new(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The new version's answers in this numbering."""
        numbered = dict(arrays)
        if "labels" in numbered:
            numbered["labels"] = self._spread(numbered["labels"], range(numbered["labels"].shape[1]))
        return numbered

    def _spread(self, flags: np.ndarray, numbers: Sequence[int]) -> np.ndarray:
        wide = np.zeros((len(flags), len(self.labels)), bool)
        wide[:, list(numbers)] = flags
        return wide
