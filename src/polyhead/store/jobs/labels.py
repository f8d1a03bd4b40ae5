"""Stored answers as labelled rows, for training tasks whose original labels are gone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from polyhead.arguments import check_fields
from polyhead.data.rows import Rows
from polyhead.errors import ConfigError, DataError
from polyhead.progress import Show
from polyhead.store.corpus.ids import as_ids, document_id, prefixes_of
from polyhead.store.jobs.answers import ResultColumn, document_score, given_of, is_answer, stored_cells, surety_of
from polyhead.store.jobs.documents import documents_of
from polyhead.store.jobs.stored_answers import StoredAnswers
from polyhead.values import Value

AT_ONCE = 2**16  # documents looked up at once
TEXTS = ("text", "text_b")  # columns of a document's text or pair
ID, SCORE = "id", ".score"  # the column of the id, and the suffix for each task's score


class LabelRequest(Value):
    """The answers to use as labels."""

    tasks: tuple[str, ...]
    columns: dict[str, str] = {}  # column of the file to read by its role, such as text
    at_least: float | None = None  # minimum score of an answer
    beside: tuple[ResultColumn, ...] = ()  # columns that are written beside the answers
    rows: int | None = None  # about so many documents, sampled by id, always the same ones; None: all

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.tasks:
            raise ConfigError("labels are of at least one task", do="name a task")
        taken = [name for name in self.tasks if name in (ID, *TEXTS)]
        if taken:
            raise ConfigError("a column of this name holds something else", got=taken, do="name other tasks")
        if self.at_least is not None and not 0 <= self.at_least <= 1:
            raise ConfigError("a score is between 0 and 1", got=self.at_least)
        if self.rows is not None and self.rows < 1:
            raise ConfigError("at least one row is asked for", got=self.rows)


def label_rows(
    answers: StoredAnswers, source: Path | str | Rows, wish: LabelRequest, *, show: Show = lambda text: None
) -> Iterator[dict[str, object]]:
    """Rows with id, text, and each task's answer and score; for texts of the file in the store, each once.

    `source` is the file that the store was made from. A task without an answer to a text, or with one below the minimum
    score, has null there; a text without any answer is skipped. A later window of a text has its own id, and no row.

    Raises UnknownTask; ConfigError for a minimum score if a task's answers are values; DataError for the file, and at
    the end if there was no row.
    """
    tasks = {name: answers.task(name) for name in wish.tasks}
    values = [name for name, task in tasks.items() if task.range is not None]
    if wish.at_least is not None and values:
        raise ConfigError("values have no score", got=values, do="leave out the lowest score, or these tasks")
    share = 1.0 if wish.rows is None else min(1.0, wish.rows / max(1, answers.documents))
    is_written = [np.zeros(fragment.rows, bool) for fragment in answers.store.fragments]
    documents, done, is_empty = documents_of(source, wish.columns, show), 0, True
    while chunk := list(itertools.islice(documents, AT_ONCE)):
        ids = as_ids([document_id(document) for document in chunk])
        places = answers.store.find(ids)
        chosen = np.flatnonzero((places[:, 0] >= 0) & (prefixes_of(ids) / 2.0**64 < share))
        chosen = chosen[_fresh(places[chosen], is_written)]
        for row, row_answers in zip(chosen.tolist(), given_rows(answers, wish, places[chosen]), strict=True):
            if any(row_answers[name] is not None for name in tasks):
                is_empty = False
                yield {ID: ids[row].tobytes().hex(), **dict(zip(TEXTS, chunk[row], strict=False)), **row_answers}
        done += len(chunk)
        show(f"{done:,} texts read")
    if is_empty and answers.documents:
        lower = "" if wish.at_least is None else ", or ask for a lower score"
        raise DataError(
            f"{answers.location} has no answer of {', '.join(tasks)} to a text of {source}",
            do=f"name the file that was extracted, backfill the tasks{lower}",
        )


def _fresh(places: np.ndarray, is_written: Sequence[np.ndarray]) -> np.ndarray:
    """Which documents occur for the first time, bool; they are marked as written."""
    is_first = np.zeros(len(places), bool)
    for number, (fragment, row) in enumerate(places.tolist()):
        is_first[number] = not is_written[fragment][row]
        is_written[fragment][row] = True
    return is_first


def given_rows(answers: StoredAnswers, wish: LabelRequest, places: np.ndarray) -> Iterator[dict[str, object]]:
    """The columns of each document's answers."""
    columns: dict[str, list[object]] = {}
    for name in wish.tasks:
        arrays, is_done = answers.at(name, places)
        is_kept = is_done & is_answer(arrays)
        if wish.at_least is not None:
            is_kept &= surety_of(arrays) >= wish.at_least
        task = answers.task(name)
        columns[name] = _cells(partial(given_of, labels=task.labels), arrays, is_kept)
        if "score" in arrays:
            columns[name + SCORE] = _cells(document_score, arrays, is_kept)
        for column in wish.beside:
            if column.task == name:
                beside, is_there = answers.at(name, places, column)
                for cell in stored_cells(column, task):
                    columns[name + cell.end] = _cells(cell.read, beside, is_kept & is_there)
    for cells in zip(*columns.values(), strict=True):
        yield dict(zip(columns, cells, strict=True))


def _cells(
    read: Callable[[Mapping[str, np.ndarray]], object], arrays: Mapping[str, np.ndarray], is_kept: np.ndarray
) -> list[object]:
    """One cell per row, as `read` makes it from the row's arrays; None for rows that are not kept."""
    return [
        read({key: array[row] for key, array in arrays.items()}) if is_row_kept else None
        for row, is_row_kept in enumerate(is_kept.tolist())
    ]
