"""Agreement of answers: whether two answers to the same input are equal, and how often those of two sides are.

It is in this low room since certificates, the engine, stores and the server compare answers too; `evaluate/compare.py`
builds on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from polyhead.tasks.kinds.regression import CLOSE
from polyhead.tasks.task import Answer, Task
from polyhead.values import Value

NORMAL = 1.959963984540054  # the 97.5 % quantile of the normal distribution
SCORES = ("scores", "score", "ranked", "calibrated", "familiar")  # of an answer: its confidence


class Agreement(Value):
    """Agreement of one task: `share` is 1 if all answers are the same.

    It is the share of equal answers; for tagging, the F1 of spans against the first answers, or the share of equal
    words; for regression, 1 minus the mean absolute difference, `difference`, as a fraction of the task's range.
    """

    rows: int
    share: float
    difference: float | None = None


class AnswerChange(Value, omit_defaults=True):
    """An input to which two sides give other answers: two versions of a task, a live task and a candidate, two stores.

    Answers are without their scores, or as a cell of a table has them; None where a side gives none.
    """

    before: Any
    after: Any
    task: str = ""  # where changes of several tasks stand together
    row: int | None = None  # of a file
    id: str = ""  # of a document in a store, or SHA-256 of the texts, a zero byte between two; in hexadecimal
    texts: tuple[str, ...] | None = None  # cut where they are long; None where they are not known or not shown
    before_score: float | None = None
    after_score: float | None = None
    difference: float | None = None  # the largest of scores or numbers
    truth: Any = None  # None too where both are right: a number that is near enough, or one of several right answers
    was_right: bool | None = None  # None where no truth is known
    is_right: bool | None = None


def agreement_of(task: Task, pairs: Sequence[tuple[Answer, Answer]]) -> Agreement | None:
    """Agreement of a task's first and second answers to the same inputs; None without answers."""
    if not pairs:
        return None
    if task.range is not None:
        low, high = task.range
        difference = sum(abs(old["value"] - new["value"]) for old, new in pairs) / len(pairs)
        return Agreement(rows=len(pairs), share=1 - difference / (high - low), difference=difference)
    shared, of = (sum(column) for column in zip(*(_shared(old, new) for old, new in pairs), strict=True))
    return Agreement(rows=len(pairs), share=shared / of if of else 1.0)


def same_answer(task: Task, old: Answer, new: Answer) -> bool:
    """Whether two answers are equal, ignoring scores; numbers are if they differ by at most CLOSE of the range."""
    if task.range is not None and "value" in old and "value" in new:
        return bool(is_close(task, old["value"], new["value"]))
    return says_the_same(old, new)


def says_the_same(old: Answer | None, new: Answer | None) -> bool:
    """Whether two answers are equal, ignoring scores and the order of several labels; None is no answer."""
    return bool(_plain(old) == _plain(new))


def is_close(task: Task, old: Any, new: Any) -> Any:
    """Whether numbers, or arrays of numbers, count as the same answer of a task with a range."""
    assert task.range is not None
    return abs(new - old) <= CLOSE * (task.range[1] - task.range[0])


def wilson(equal: Any, of: Any, *, z: float = NORMAL) -> tuple[Any, Any]:
    """The ends of a share's confidence interval, by default 95 % (Wilson 1927); numbers or arrays, `of` at least 1."""
    share, square = equal / of, z * z
    centre, count = share + square / (2 * of), 1 + square / of
    spread = z * np.sqrt(share * (1 - share) / of + square / (4 * of**2))
    return np.maximum((centre - spread) / count, 0.0), np.minimum((centre + spread) / count, 1.0)


def without_scores(answer: Any) -> Any:
    """The answer without its confidence."""
    if isinstance(answer, dict):
        return {key: without_scores(value) for key, value in answer.items() if key not in SCORES}
    return [without_scores(value) for value in answer] if isinstance(answer, list) else answer


def _shared(first_answer: Answer, second_answer: Answer) -> tuple[int, int]:
    for field in ("spans", "words"):
        if field in first_answer:
            first, second = (
                Counter((s["start"], s["end"], s["label"]) for s in a[field]) for a in (first_answer, second_answer)
            )
            return 2 * (first & second).total(), first.total() + second.total()
    return int(says_the_same(first_answer, second_answer)), 1


def _plain(answer: Answer | None) -> Answer | None:
    """The answer without scores, several labels by name: they stand in the order of their version's labels."""
    plain: Answer | None = without_scores(answer)
    return {**plain, "labels": sorted(plain["labels"])} if plain and "labels" in plain else plain
