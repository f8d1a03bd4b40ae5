"""A sample of documents encoded again: the agreement of a store's answers with those of a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from polyhead.data.rows import Rows, open_rows
from polyhead.engine.session import Session
from polyhead.errors import DataError
from polyhead.progress import Show
from polyhead.store.corpus.base import CorpusStore
from polyhead.store.corpus.ids import document_id
from polyhead.store.jobs.answers import ResultColumn, answers_at
from polyhead.store.jobs.columns import roles_of
from polyhead.store.jobs.documents import drawn_rows, text_in
from polyhead.tasks.agreement import is_close, wilson
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.text.tokenize import Input
from polyhead.values import Value

SAMPLE = 200  # documents of a sample


class SampleAgreement(Value):
    """The agreement of stored answers with those for re-encoded documents of a sample: a share with an interval."""

    task: str
    documents: int
    equal: int
    low: float  # 95 % interval of Wilson (1927)
    high: float

    def line(self) -> str:
        """The result as a line of text."""
        if not self.documents:
            return f"{self.task}: it reads no document of the sample, so nothing was compared"
        interval = f"{100 * self.low:.1f} to {100 * self.high:.1f} %"
        return f"{self.task}: {self.equal} of {self.documents} encoded anew have the same answer ({interval})"


def resampled(
    store: CorpusStore,
    session: Session,
    columns: Sequence[ResultColumn],
    source: Path | str | Rows,
    *,
    roles: Mapping[str, str],
    rows: int = SAMPLE,
    rng: np.random.Generator,
    show: Show = lambda text: None,
) -> list[SampleAgreement]:
    """The agreement of each task's column with the session's answers to the texts of `rows` rows that the store holds.

    Of a pair that it does not hold as one document these are the two texts. Each task is compared on the documents that
    it reads. `roles` names columns of the file if they are not found by name. Raises DataError if the store holds no
    text.
    """
    drawn = drawn_texts(source, roles, rows, rng, show)
    store.refresh()
    is_whole = store.find([document_id(text) for text in drawn])[:, 0] >= 0
    documents = [
        text
        for row, whole in zip(drawn, is_whole.tolist(), strict=True)
        for text in ([row] if whole else [(each,) for each in row])
    ]
    inputs: list[Input] = list(dict.fromkeys(documents))
    places = store.find([document_id(text) for text in inputs])
    inputs = [text for text, (fragment, _) in zip(inputs, places.tolist(), strict=True) if fragment >= 0]
    places = places[places[:, 0] >= 0]
    if not inputs:
        raise DataError(
            f"the store holds none of {rows} texts of {source}", do="name the file whose texts were extracted"
        )
    answers = [column for column in columns if column.is_answer]
    fresh = session.columns(inputs, tasks=[column.task for column in answers])
    agreements = []
    for column in answers:
        task, fresh_answers = session.tasks[column.task], fresh[column.task]
        kept, is_compared = answers_at(store, column, task, places)
        is_compared[list(fresh_answers.skipped)] = False  # such as pairs, where it reads single texts
        now = {"label": fresh_answers.label, "labels": fresh_answers.labels, "value": fresh_answers.value}
        if kind_of(task).generates:
            texts = dict(zip(fresh_answers.rows.tolist(), map(str, fresh_answers.outputs), strict=True))
            now["text"] = np.array([texts.get(row, "") for row in range(len(inputs))], np.str_)
        equal = _equal(task, {name: array[is_compared] for name, array in kept.items()}, now, is_compared)
        low, high = map(float, wilson(int(equal.sum()), max(1, len(equal))))
        agreements.append(
            SampleAgreement(task=column.task, documents=len(equal), equal=int(equal.sum()), low=low, high=high)
        )
    return agreements


def drawn_texts(
    source: Path | str | Rows, roles: Mapping[str, str], rows: int, rng: np.random.Generator, show: Show
) -> list[Input]:
    """Texts or pairs of so many rows of a file, sampled by `rng`; rows without one are skipped."""
    file = open_rows(source)
    survey = file.survey(show)
    known = roles_of(str(source), survey, dict(roles))
    drawn = map(text_in, drawn_rows(file, known, survey.rows, rows, rng))
    return [text for text in drawn if text is not None]


def _equal(
    task: Task, kept: Mapping[str, np.ndarray], now: Mapping[str, np.ndarray | None], is_compared: np.ndarray
) -> np.ndarray:
    """Which answers are equal, bool."""
    for name, array in kept.items():
        fresh = now.get(name)
        if fresh is None or not len(array):
            continue
        fresh = fresh[is_compared]
        if task.range is not None:
            return np.asarray(is_close(task, array, fresh))
        return np.asarray((array == fresh).reshape(len(array), -1).all(axis=1))
    return np.zeros(0, bool)
