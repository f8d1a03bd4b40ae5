"""Comparison of two encoders' answers, task by task, over the documents in both stores."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from polyhead.errors import StoreError
from polyhead.progress import Show, counted, progress_line
from polyhead.store.jobs.answers import document_score, given_of, is_answer, surety_of
from polyhead.store.jobs.documents import texts_by_id
from polyhead.store.jobs.stored_answers import AnswerSource, Numbering, StoredAnswers
from polyhead.tasks.agreement import AnswerChange, is_close, wilson
from polyhead.tasks.task import Task
from polyhead.values import Value, few_digits

_Arrays = dict[str, np.ndarray]
_Flip = tuple[float, bytes, _Arrays, _Arrays]
"""How sure both sides are, the id, and the answers of both."""


class LabelMove(Value):
    """The number of documents with one label before and another now.

    For a task with any number of labels each label counts separately: only `old` was removed, only `new` added.
    """

    old: str | None
    new: str | None
    documents: int


class TaskComparison(Value):
    """The two answers of one task."""

    old: AnswerSource
    new: AnswerSource
    answered: int  # documents that the old side answers
    lacking: int  # of these, documents without the new answer yet, re-extracted or not
    compared: int  # documents for which both are done, and at least one gives an answer
    equal: int  # of these; values that differ by less than a hundredth of the range count as equal
    low: float  # 95 % interval of Wilson (1927) for the share of equal answers
    high: float
    changes: tuple[LabelMove, ...]  # the most frequent first
    mean_difference: float | None  # for values: new - old
    mean_distance: float | None  # |new - old|

    @property
    def share(self) -> float | None:
        """The share of equal answers; None without compared documents."""
        return self.equal / self.compared if self.compared else None


class StoreComparison(Value):
    """The progress of a move to another store, and the changes of answers."""

    old: str
    new: str
    old_trunk: str
    new_trunk: str
    documents: int  # of the old store
    lacking: int  # of these, documents that the new store lacks
    added: int  # documents that only the new store has
    tasks: tuple[TaskComparison, ...]
    missing: tuple[str, ...]  # tasks that are answered in the old store, and that the new bundle lacks
    flips: tuple[AnswerChange, ...] = ()  # as many as were asked for of each task, those of which both are surest first

    @property
    def is_whole(self) -> bool:
        """Whether the new side has everything that the old one has."""
        return not self.lacking and not self.missing and not any(task.lacking for task in self.tasks)


def compare(
    old: StoredAnswers, new: StoredAnswers, tasks: Sequence[str] = (), *, flips: int = 0, show: Show = lambda text: None
) -> StoreComparison:
    """Compares the answers of tasks, by default of all with answers in the old store.

    `flips`: number of documents per task to list with both answers. Memory is that of a fragment's answers.

    Raises UnknownTask, and StoreError where a task is of another kind in the two bundles.
    """
    named = list(tasks) or [name for name in old.bundle.tasks if old.answered(name)]
    missing = [] if tasks else [name for name in named if name not in new.bundle.tasks]
    pairs = [_Pair(old, new, name, flips) for name in named if name not in missing]
    began, done, lacking = time.monotonic(), 0, 0
    for ids, places in old.fragments():
        new_places = new.store.find(ids)
        lacking += int((new_places[:, 0] < 0).sum())
        for pair in pairs:
            pair.add(ids, places, new_places)
        done += len(ids)
        seconds = time.monotonic() - began
        show(progress_line("compare", done=done, total=old.documents, unit="documents", seconds=seconds))
    return StoreComparison(
        old=old.location,
        new=new.location,
        old_trunk=old.trunk,
        new_trunk=new.trunk,
        documents=done,
        lacking=lacking,
        added=new.documents - (done - lacking),
        tasks=tuple(pair.result() for pair in pairs),
        missing=tuple(missing),
        flips=tuple(flip for pair in pairs for flip in pair.flips()),
    )


def check_agreement(comparison: StoreComparison, least: float) -> None:
    """Raises StoreError if no task was compared, or one may agree on a lower share of documents than `least`.

    The lower end of the share's 95 % interval counts, in the six digits that are shown of it, since equal answers of a
    few documents prove little; for 1, which no interval reaches, all answers must be equal.
    """
    if not comparison.tasks:
        raise StoreError(f"no task of the old bundle is answered in {comparison.old}", do="backfill its tasks first")
    lower = [
        task
        for task in comparison.tasks
        if task.share is None or (few_digits(task.low) < few_digits(least) if least < 1 else task.share < 1)
    ]
    if lower:
        raise StoreError(
            f"tasks agree less than asked, or on too few documents to tell: {', '.join(t.new.task for t in lower)}",
            got=["nothing to compare" if task.share is None else _agreed(task) for task in lower],
            allowed=f"an interval from {least:g} on" if least < 1 else "equal answers to all documents",
            do="look at the flips, and train these tasks again, compare more documents, or accept the change",
        )


def _agreed(task: TaskComparison) -> str:
    interval = f"95 % interval {task.low:.4f} to {task.high:.4f}"
    return f"{task.equal / task.compared:.4f} of {task.compared:,} documents, {interval}"


def check_whole_store(comparison: StoreComparison) -> None:
    """Raises StoreError that lists what the new side lacks of the old one."""
    if comparison.is_whole:
        return
    lacks = [f"{comparison.lacking:,} of {counted(comparison.documents, 'document')}"] if comparison.lacking else []
    lacks += [f"answers of '{t.new.task}' for {counted(t.lacking, 'document')}" for t in comparison.tasks if t.lacking]
    lacks += [f"task '{name}'" for name in comparison.missing]
    raise StoreError(
        f"{comparison.new} and its bundle do not have everything that {comparison.old} has",
        got=f"lacking are {', '.join(lacks)}",
        do="extract, train and backfill the rest, or switch with --incomplete",
    )


def comparison_with_texts(
    flips: Sequence[AnswerChange], source: Path | str, roles: Mapping[str, str], *, show: Show = lambda text: None
) -> list[AnswerChange]:
    """The same with the texts of the file from which the stores were made; see `texts_by_id`."""
    texts = texts_by_id({flip.id for flip in flips}, source, roles, show=show)
    return [msgspec.structs.replace(flip, texts=texts.get(flip.id)) for flip in flips]


class _Pair:
    """One task's two columns, and the counts so far."""

    def __init__(self, old: StoredAnswers, new: StoredAnswers, name: str, flips: int) -> None:
        self._old, self._new, self._name = old, new, name
        self._numbering = Numbering.of(old.task(name), new.task(name))
        self._answered = self._lacking = self._compared = self._equal = 0
        self._changes, self._of_labels = Counter[tuple[int, int]](), len(self._numbering.labels)
        self._sum = self._distances = 0.0
        self._values = 0
        self._most, self._flips = flips, list[_Flip]()  # the most confident first, ties in order of appearance

    def add(self, ids: np.ndarray, places: np.ndarray, new_places: np.ndarray) -> None:
        """Counts documents by their places in the old store and their `new_places` in the new one."""
        before, was_done = self._old.at(self._name, places)
        after, is_done = self._new.at(self._name, new_places)
        in_both = was_done & is_done
        self._answered += int(was_done.sum())
        self._lacking += int((was_done & ~is_done).sum())
        old = {name: array[in_both] for name, array in self._numbering.of_old(before).items()}
        new = {name: array[in_both] for name, array in self._numbering.of_new(after).items()}
        is_answered = is_answer(old) | is_answer(new)
        old, new = _at(old, is_answered), _at(new, is_answered)
        equal, surety = self._compared_rows(old, new)
        self._compared += len(equal)
        self._equal += int(equal.sum())
        self._keep(surety[~equal], ids[in_both][is_answered][~equal], _at(old, ~equal), _at(new, ~equal))

    def _keep(self, surety: np.ndarray, ids: np.ndarray, old: _Arrays, new: _Arrays) -> None:
        best = np.argsort(-surety, kind="stable")[: self._most].tolist()
        flips = [(float(surety[row]), ids[row].tobytes(), _at(old, row), _at(new, row)) for row in best]
        self._flips = sorted([*self._flips, *flips], key=lambda flip: -flip[0])[: self._most]

    def _compared_rows(self, old: dict[str, np.ndarray], new: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Which answers are equal, and the lower confidence of the two sides for each, or the difference of values."""
        if "value" in old:
            return self._compared_values(old["value"], new["value"], self._new.task(self._name))
        has_both = is_answer(old) & is_answer(new)
        surety = np.where(has_both, np.minimum(surety_of(old), surety_of(new)), 1.0)  # no answer at all comes first
        if "text" in old:
            return np.asarray(old["text"] == new["text"]), surety
        if "label" in old:
            equal = old["label"] == new["label"]
            pairs, counts = np.unique(
                np.stack([old["label"], new["label"]], axis=1)[~equal], axis=0, return_counts=True
            )
            for (before, after), count in zip(pairs.tolist(), counts.tolist(), strict=True):
                self._changes[before, after] += count
            return equal, surety
        equal = has_both & (old["labels"] == new["labels"]).all(axis=1)
        for number in range(self._of_labels):
            self._changes[number, -1] += int((old["labels"][:, number] & ~new["labels"][:, number]).sum())
            self._changes[-1, number] += int((new["labels"][:, number] & ~old["labels"][:, number]).sum())
        return equal, surety

    def _compared_values(self, old: np.ndarray, new: np.ndarray, task: Task) -> tuple[np.ndarray, np.ndarray]:
        difference = new.astype(np.float64) - old
        has_both = np.isfinite(difference)
        distance = np.where(has_both, np.abs(difference), np.inf)
        self._values += int(has_both.sum())
        self._sum += float(difference[has_both].sum())
        self._distances += float(distance[has_both].sum())
        return has_both & is_close(task, old.astype(np.float64), new.astype(np.float64)), distance

    def result(self) -> TaskComparison:
        """The counts."""
        labels = (*self._numbering.labels, None)  # -1 is none
        low, high = map(float, wilson(self._equal, self._compared)) if self._compared else (0.0, 1.0)
        return TaskComparison(
            old=self._old.source(self._name),
            new=self._new.source(self._name),
            answered=self._answered,
            lacking=self._lacking,
            compared=self._compared,
            equal=self._equal,
            low=low,
            high=high,
            changes=tuple(
                LabelMove(old=labels[before], new=labels[after], documents=count)
                for (before, after), count in self._changes.most_common()
                if count
            ),
            mean_difference=self._sum / self._values if self._values else None,
            mean_distance=self._distances / self._values if self._values else None,
        )

    def flips(self) -> Iterator[AnswerChange]:
        """The flips that were kept, the surest first."""
        labels = self._numbering.labels
        for _, identity, old, new in self._flips:
            yield AnswerChange(
                task=self._name,
                id=identity.hex(),
                before=given_of(old, labels),
                after=given_of(new, labels),
                before_score=document_score(old),
                after_score=document_score(new),
            )


def _at(arrays: Mapping[str, np.ndarray], rows: np.ndarray | int) -> dict[str, np.ndarray]:
    return {name: array[rows] for name, array in arrays.items()}
