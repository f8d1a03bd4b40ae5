"""Two versions of a task on the same rows: the changes, and whether they are significant."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from polyhead.bundle.read import Bundle
from polyhead.bundle.versions import version_on_disk
from polyhead.errors import BundleError, CorruptFile, DataError
from polyhead.evaluate.details import shortened, texts_shown
from polyhead.evaluate.scores import Interval, SplitOutputs, decoded_answers, differences, mcnemar
from polyhead.tasks.agreement import AnswerChange, same_answer
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Answer, Kind, Mistake, Task
from polyhead.text.question import TaskInput
from polyhead.values import Value

MOST = 1000  # changed rows kept, newly wrong ones first


JudgedRow = tuple[Any, Mistake | None]
"""What is answered, without scores, and what is wrong with it."""


class Comparison(Value):
    """A task against another version of it, on the same rows."""

    task: str
    against: str  # the other version
    rows: int
    metric: str
    before: float  # score of the other version
    after: float
    difference: float
    interval: Interval | None  # interval of the difference, with the same resampled rows for both
    changed: int  # number of rows with another answer
    got_right: int  # number that only this version has right; for numbers, that came closer to the truth
    got_wrong: int  # number that only the other one had right; for numbers, that moved away
    probability: float | None  # probability of such a split or a wider one by chance (McNemar, exact); None for numbers
    changes: tuple[AnswerChange, ...]

    @property
    def unscored(self) -> str | None:
        """The reason why the scores compare nothing; None if both are numbers."""
        if math.isfinite(self.difference):
            return None
        return f"{self.metric} is no number on these rows, of one version or both: it tells nothing about them"


def version_view(bundle: Bundle, task: str, version: str) -> Bundle:
    """The bundle with another version of one task, and no other task; nothing on disk changes.

    Raises BundleError for a version that is not on disk, or that needs other owners' arrays which are not live.
    """
    view = bundle.view({task: version_on_disk(bundle.root, task, version, bundle.lines[task])})
    try:
        view.others(task)
    except CorruptFile as error:
        raise BundleError(
            f"version {version} of task '{task}' needs what the bundle shares in another version",
            got=error,
            do="copy the bundle, roll the copy back with `polyhead tasks rollback`, and name its folder",
        ) from None
    return view


def compare_versions(after: SplitOutputs, before: SplitOutputs, *, against: str) -> Comparison:
    """One task's answers compared with another version's for the same rows; raises DataError if the rows differ."""
    task, examples = after.task, after.examples
    if task.kind != before.task.kind or examples.rows != before.examples.rows:
        raise DataError(
            f"task '{task.name}' and {against} do not answer the same rows alike",
            got=f"kind '{before.task.kind}', {len(before.examples.rows):,} rows",
            allowed=f"kind '{task.kind}', {len(examples.rows):,} rows",
            do="compare versions of one question, on a file whose labels both know",
        )
    kind, each = kind_of(task), examples.each()
    judged = [kind.judged(a.task, a.outputs, a.examples.targets, a.examples.each()) for a in (before, after)]
    rows, is_same = (list[JudgedRow](), list[JudgedRow]()), list[bool]()
    decoded = (decoded_answers(a.task, a.outputs, each) for a in (before, after))
    targets = (a.examples.targets for a in (before, after))  # of two versions, as labels may stand in another order
    for old, new, *truths, example in zip(*decoded, *targets, each, strict=True):
        is_same.append(same_answer(task, old, new))
        for side_rows, answered, answer, truth in zip(rows, (before, after), (old, new), truths, strict=True):
            mistake = kind.mistake(answered.task, answer, truth, example)
            side_rows.append((_plain_answer(kind, answered.task, answer), mistake))
    offs = [None if judgement.differences is None else np.abs(judgement.differences) for judgement in judged]
    if offs[0] is not None and offs[1] is not None:
        worse = offs[1] - offs[0]  # increase of the distance from the truth
    else:
        was_wrong, is_wrong = (np.array([mistake is not None for _, mistake in side_rows], float) for side_rows in rows)
        worse = is_wrong - was_wrong
    changed = [place for place, same in enumerate(is_same) if not same]
    changed.sort(key=lambda place: (-worse[place], examples.rows[place]))
    metric = kind.default_metric(task)
    scores = [answered.examples.scores(answered.task, answered.outputs)[metric] for answered in (before, after)]
    got_right, got_wrong = (int(np.sum(sign * worse[changed] > 0)) for sign in (-1, 1))
    theirs, ours = (judgement.recount for judgement in judged)
    return Comparison(
        task=task.name,
        against=against,
        rows=len(each),
        metric=metric,
        before=scores[0],
        after=scores[1],
        difference=scores[1] - scores[0],
        interval=None if ours is None or theirs is None else differences(ours, theirs, len(each)).get(metric),
        changed=len(changed),
        got_right=got_right,
        got_wrong=got_wrong,
        probability=mcnemar(got_right, got_wrong) if kind.tells_mistakes and offs[0] is None else None,
        changes=tuple(
            _change(examples.rows[place], each[place].input, rows[0][place], rows[1][place]) for place in changed[:MOST]
        ),
    )


def _change(row: int, entry: TaskInput, old: JudgedRow, new: JudgedRow) -> AnswerChange:
    mistake = new[1] or old[1]
    return AnswerChange(
        row=row,
        texts=texts_shown(entry),
        truth=None if mistake is None else shortened(mistake.truth),
        before=shortened(old[0]),
        after=shortened(new[0]),
        was_right=old[1] is None,
        is_right=new[1] is None,
    )


def _plain_answer(kind: Kind, task: Task, answer: Answer) -> Any:
    """An answer as a cell holds it, without scores, which differ between any two versions; for rankings, the first."""
    if kind.cell == "places":
        return next(iter(kind.support(task, answer, answer)))
    return _words(kind.cell_of(answer))


def _words(cell: Any) -> Any:
    """The cell without scores; numbers to six digits."""
    if isinstance(cell, float):
        return float(f"{cell:.6g}")
    if isinstance(cell, list):
        return [_words(item) for item in cell]
    if isinstance(cell, dict):
        return {key: value for key, value in cell.items() if key not in ("score", "scores")}
    return cell
