"""Removal of leaks: no text on which one task is evaluated remains in another task's training texts.

Of two rows with the same text the training row is dropped: evaluation splits stay whole, so that scores remain
comparable with other work. Nothing is dropped within one task; its files are used as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b

import msgspec

from polyhead.errors import EmptyData
from polyhead.progress import counted
from polyhead.text.normalize import normalized_text
from polyhead.text.question import TaskInput, texts_of
from polyhead.train.data.prepared import Prepared
from polyhead.values import Value

LEAST = 25  # minimum letters and digits of a compared text; shorter ones are equal by chance
PARALLEL = 0.9  # share of one task's training inputs in another from which on both read the same rows
NAMED = 4  # splits whose texts are removed from training; the others are counted


class Leak(Value):
    """Rows of a task's evaluation split with a text on which another task trained before rows were dropped."""

    evaluated: str
    split: str
    trained: str
    rows: int
    share: float  # share of the split's rows


class Reason(Value):
    """Counts of a task's dropped rows with a text of another task's evaluation split."""

    evaluated: str
    split: str
    rows: int


class Dropped(Value):
    """Training rows that a task lost, their total, and the splits responsible, the most rows first."""

    task: str
    rows: int
    of: int
    reasons: tuple[Reason, ...]


class LeakReport(Value):
    """Leaks, the largest shares first, and the rows dropped because of them."""

    leaks: tuple[Leak, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    parallel: tuple[tuple[str, str], ...] = ()  # pairs of tasks that read the same rows

    def lines(self) -> list[str]:
        """Lines to print, one fact each."""
        if not self.leaks:
            return ["no text that a task is evaluated on is among the training texts of another task"]
        leaked = [
            f"{leak.evaluated} {leak.split}: {counted(leak.rows, 'row')} ({leak.share:.1%}) "
            f"with a text that {leak.trained} trains on"
            for leak in self.leaks
        ]
        lost = [
            f"{loss.task}: {loss.rows:,} of {loss.of:,} training rows dropped, with texts of {_named(loss.reasons)}"
            for loss in self.dropped
        ]
        return leaked + lost


def without_leaks(
    prepared: Sequence[Prepared], *, others: Sequence[Prepared] = ()
) -> tuple[list[Prepared], LeakReport]:
    """The tasks without training rows that contain a text of another task's evaluation rows, and a report.

    `others` are tasks trained elsewhere: no text of their evaluation splits remains here either. Compared texts are
    sentences, members of a pair, questions, contexts, documents and options of at least `LEAST` letters and digits, and
    whole pairs and questions of this total length; two are equal if they differ only in case, spaces and punctuation.
    Only training rows are dropped, never evaluation rows.

    Tasks about the same rows (recognized by their training inputs) share most of their texts. Among these, texts on
    which the evaluated task trains itself are not leaks, and whole inputs are compared in addition to single texts.
    Raises EmptyData, naming both tasks, if a task has no training row left.
    """
    known = _Known([*prepared, *others], learning=len(prepared))
    kept, dropped = [], []
    for index, p in enumerate(prepared):
        sources = [known.in_evaluation(index, row) for row in known.rows[index][0]]
        clean = [row for row, source in enumerate(sources) if not source]
        if len(clean) < len(sources):
            rows = len(sources) - len(clean)
            reasons = known.reasons(index, sources)
            dropped.append(Dropped(task=p.task.name, rows=rows, of=len(sources), reasons=reasons))
        if not clean:
            raise _nothing_left(p, known.names_of(sources))
        kept.append(p if len(clean) == len(sources) else _training_on(p, clean))
    return kept, LeakReport(leaks=known.leaks(), dropped=tuple(dropped), parallel=known.pairs())


class _Row(msgspec.Struct, frozen=True, gc=False):
    """The digests of one row: of its whole input, and of its compared texts."""

    whole: bytes
    texts: tuple[bytes, ...]


class _Known:
    """Tasks that train on a text and tasks that are evaluated on it, as bits of an int: task i is bit i."""

    def __init__(self, tasks: Sequence[Prepared], *, learning: int) -> None:
        self.tasks = tasks
        self.learning = (1 << learning) - 1  # the tasks trained here
        self.rows = [[[_row(value) for value in split.examples.inputs] for split in p.splits] for p in tasks]
        self.trained = _holders((text for row in splits[0] for text in row.texts) for splits in self.rows)
        self.evaluated = _holders(
            (text for rows in splits[1:] for row in rows for text in row.texts) for splits in self.rows
        )
        self.parallel = _parallel(self.rows)

    def in_evaluation(self, task: int, row: _Row) -> int:
        """The tasks whose evaluation a training row of `task` would leak."""
        sources = 0
        for text in row.texts:
            sources |= self._spoiled(task, text)
        return sources

    def _spoiled(self, task: int, text: bytes) -> int:
        by = self.evaluated.get(text, 0) & ~(1 << task)
        return by & ~(self.parallel[task] & self.trained[text])

    def reasons(self, task: int, sources: Sequence[int]) -> tuple[Reason, ...]:
        """The splits for which training rows of `task` are dropped; `sources` are results of `in_evaluation`."""
        lost = [row for row, source in zip(self.rows[task][0], sources, strict=True) if source]
        reasons = []
        for index, other in enumerate(self.tasks):
            spoils = [{t for t in row.texts if self._spoiled(task, t) >> index & 1} for row in lost]
            for split, rows in zip(other.splits[1:], self.rows[index][1:], strict=True) if any(spoils) else ():
                evaluated = {text for row in rows for text in row.texts}
                if count := sum(not texts.isdisjoint(evaluated) for texts in spoils):
                    reasons.append(Reason(evaluated=other.task.name, split=split.name, rows=count))
        return tuple(sorted(reasons, key=lambda reason: -reason.rows))

    def in_training(self, task: int, row: _Row) -> int:
        """The tasks that train here on a text of an evaluation row of `task`."""
        sources = 0
        for text in row.texts:
            by = self.trained.get(text, 0)
            is_trained = by >> task & 1
            sources |= by & self.learning & ~(1 << task) & ~(self.parallel[task] if is_trained else 0)
        return sources

    def leaks(self) -> tuple[Leak, ...]:
        leaks = []
        for index, p in enumerate(self.tasks):
            for split, rows in zip(p.splits[1:], self.rows[index][1:], strict=True):
                for source, count in self._counted(self.in_training(index, row) for row in rows).items():
                    leaks.append(
                        Leak(
                            evaluated=p.task.name,
                            split=split.name,
                            trained=self.tasks[source].task.name,
                            rows=count,
                            share=count / len(rows),
                        )
                    )
        return tuple(sorted(leaks, key=lambda leak: -leak.share))

    def names_of(self, sources: Iterable[int]) -> list[str]:
        return [self.tasks[index].task.name for index in self._counted(sources)]

    def pairs(self) -> tuple[tuple[str, str], ...]:
        names = [p.task.name for p in self.tasks]
        return tuple(
            (names[i], names[j])
            for i in range(len(names))
            for j in range(i + 1, len(names))
            if self.parallel[i] >> j & 1
        )

    def _counted(self, sources: Iterable[int]) -> dict[int, int]:
        """Rows by task, in task order."""
        counts = Counter(sources)
        rows = {
            task: sum(count for source, count in counts.items() if source >> task & 1)
            for task in range(len(self.tasks))
        }
        return {task: count for task, count in rows.items() if count}


def _holders(of_tasks: Iterable[Iterable[bytes]]) -> dict[bytes, int]:
    """The tasks with each digest."""
    holders: dict[bytes, int] = {}
    for index, digests in enumerate(of_tasks):
        for digest in digests:
            holders[digest] = holders.get(digest, 0) | 1 << index
    return holders


def _parallel(of_tasks: Sequence[Sequence[Sequence[_Row]]]) -> list[int]:
    """For each task, those that read the same rows, in whichever splits."""
    holders = _holders((row.whole for rows in splits for row in rows) for splits in of_tasks)
    parallel = [0] * len(of_tasks)
    for index, splits in enumerate(of_tasks):
        train = {row.whole for row in splits[0]}
        sharing = Counter(holders[whole] for whole in train)
        for other in range(len(of_tasks)):
            shared = sum(count for by, count in sharing.items() if by >> other & 1)
            if other != index and shared >= PARALLEL * len(train):
                parallel[index] |= 1 << other
                parallel[other] |= 1 << index
    return parallel


def _row(value: TaskInput) -> _Row:
    letters = [normalized_text(text) for text in texts_of(value)]
    whole = _digest("\0".join(letters))
    texts = tuple(_digest(text) for text in letters if len(text) >= LEAST)
    long_enough = len(letters) > 1 and sum(map(len, letters)) >= LEAST
    return _Row(whole, (*texts, whole) if long_enough else texts)


def _digest(letters: str) -> bytes:
    return blake2b(letters.encode(), digest_size=16).digest()


def _training_on(prepared: Prepared, rows: list[int]) -> Prepared:
    train = msgspec.structs.replace(prepared.train, examples=prepared.train.examples.take(rows))
    return msgspec.structs.replace(prepared, train=train)


def _named(reasons: Sequence[Reason]) -> str:
    """`a validation (12), b test (3) and 2 more`."""
    named = [f"{reason.evaluated} {reason.split} ({reason.rows:,})" for reason in reasons[:NAMED]]
    more = f" and {len(reasons) - NAMED} more" if len(reasons) > NAMED else ""
    return ", ".join(named) + more


def _nothing_left(prepared: Prepared, evaluated: Sequence[str]) -> EmptyData:
    return EmptyData(
        f"task '{prepared.task.name}': every training row has a text on which "
        f"{' or '.join(repr(name) for name in evaluated)} is evaluated",
        got=f"{len(prepared.train.examples.targets)} training rows",
        do="train these tasks apart, or leave one of them out",
    )
