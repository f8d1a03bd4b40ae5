"""Agreement of two answers to the same input: their labels or values, not their confidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from polyhead.tasks.task import Answer, Task
from polyhead.values import Value

SCORES = ("scores", "score", "ranked", "calibrated")  # of an answer: how sure it is


class Agreement(Value):
    """Agreement of one task: `share` is 1 if all answers are the same.

    It is the share of equal answers; of tagging the F1 of spans against the first answers, or the share of equal words;
    of regression 1 less the mean absolute difference, `difference`, as a part of the task's range.
    """

    rows: int
    share: float
    difference: float | None = None


def agreement_of(task: Task, pairs: Sequence[tuple[Answer, Answer]]) -> Agreement | None:
    """Agreement of a task's first and second answers to the same inputs; None where there are none."""
    if not pairs:
        return None
    if task.range is not None:
        low, high = task.range
        difference = sum(abs(old["value"] - new["value"]) for old, new in pairs) / len(pairs)
        return Agreement(rows=len(pairs), share=1 - difference / (high - low), difference=difference)
    shared, of = (sum(column) for column in zip(*(_shared(old, new) for old, new in pairs), strict=True))
    return Agreement(rows=len(pairs), share=shared / of if of else 1.0)


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
    return int(without_scores(first_answer) == without_scores(second_answer)), 1
