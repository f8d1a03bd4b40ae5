"""Soft labels from a store: the scores of all labels that a backfill of another task or version left there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyhead.data.shares import STORED, Stored
from polyhead.errors import ConfigError, StoreError
from polyhead.store.corpus.base import CorpusStore, ResultFacts
from polyhead.store.corpus.ids import document_id
from polyhead.store.corpus.open import open_corpus
from polyhead.tasks.task import Example, Task
from polyhead.text.question import texts_of

SCORES = "scores"  # the array of a column that holds all labels' scores
SHOWN = 5


class StoredScores:
    """The columns of scores of one store."""

    def __init__(self, location: str) -> None:
        self._location, self._corpus = location, open_corpus(location)

    def of(self, task: Task, soft: str) -> Stored:
        """The scores that a task learns from; `soft` is "store:" and a column, or a task that has one such column.

        Raises StoreError where there is no such column, ConfigError where it answers other labels.
        """
        column, facts = self._column(soft.removeprefix(STORED))
        if facts.kind != task.kind or set(facts.labels) != set(task.labels):
            raise ConfigError(
                f"task '{task.name}' cannot learn from column '{column}', which answers something else",
                got=f"kind '{facts.kind}', labels {list(facts.labels)}",
                allowed=f"kind '{task.kind}', labels {list(task.labels)}",
            )
        if task.pair == "separate":
            raise ConfigError(
                f"task '{task.name}' reads the two texts of a pair separately, and a store answers single documents",
                do="set pair = 'joined', or give soft labels in the task's files",
            )
        order = [facts.labels.index(label) for label in task.labels]

        def scores(examples: Sequence[Example]) -> list[np.ndarray | None]:
            found = _found(self._corpus, self._location, task, column, examples)
            return [None if np.isnan(row).any() else row for row in found[:, order]]

        return scores

    def _column(self, name: str) -> tuple[str, ResultFacts]:
        """The column of this name, or the only one of the task of this name."""
        several = {column: facts for column, facts in self._corpus.described().items() if SCORES in facts.arrays}
        chosen = [column for column, facts in several.items() if name in (column, facts.task)]
        if len(chosen) == 1:
            return chosen[0], several[chosen[0]]
        raise StoreError(
            f"{self._location} has {'several columns' if chosen else 'no column'} of scores named '{name}'",
            got=chosen or f"{STORED}{name}",
            allowed=sorted(several) or "columns that `polyhead backfill --scores` made",
            do="name one column" if chosen else "backfill that task with --scores first",
        )


def _found(corpus: CorpusStore, location: str, task: Task, column: str, examples: Sequence[Example]) -> np.ndarray:
    """The scores of these examples, float32 (rows, labels)."""
    places = corpus.find([document_id(texts_of(example.input)) for example in examples])
    found = np.full((len(examples), len(task.labels)), np.nan, np.float32)
    lacking = places[:, 0] < 0
    for number in np.unique(places[~lacking, 0]).tolist():
        results, here = corpus.results(corpus.fragments[number].name, column), places[:, 0] == number
        if results is None:
            lacking |= here
        else:
            found[here] = results[SCORES][places[here, 1]]
    if lacking.any():
        rows = [examples[index].row for index in np.flatnonzero(lacking).tolist()]
        source = next(examples[index].source for index in np.flatnonzero(lacking).tolist())
        raise StoreError(
            f"task '{task.name}': column '{column}' of {location} has no scores for {len(rows):,} rows of {source}",
            got=f"rows {', '.join(map(str, rows[:SHOWN]))}{' and more' if len(rows) > SHOWN else ''}",
            do="extract these texts into the store, and run that backfill again",
            rows=rows,
        )
    return found
