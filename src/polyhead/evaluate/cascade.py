"""Scores and costs of a cascade of two bundles on labelled rows, by threshold, and the cheapest good one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from polyhead.data.read import Examples
from polyhead.engine.session import Session
from polyhead.engine.several import check_alike, confidence
from polyhead.errors import BadValue, EmptyData
from polyhead.evaluate.scores import PIECE, Interval, differences
from polyhead.plan import merge
from polyhead.plan.cost import flops
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Arrays, Task
from polyhead.values import Value

STEPS = 20  # shares of the rows at which a threshold is tried
DIGITS = 6  # of thresholds, which are rounded down
NEVER = 1.01  # a threshold that no probability reaches
POINTS_LOST = 0.5


class CascadePoint(Value):
    """A cascade on some rows."""

    threshold: float  # probability from which the first bundle's answer stands
    share: float  # of the rows, that the first bundle answered
    score: float
    work: float  # FLOPs a text, of both trunks
    layers: float  # layer evaluations a text; those of a narrow trunk are less work


class CascadeChoice(Value):
    """The cascades of a task by threshold, from the second bundle alone to the first alone, and the one to take."""

    task: str
    rows: int
    metric: str
    points: tuple[CascadePoint, ...]
    points_lost: float  # hundredths of the metric that may be lost against the second bundle alone
    chosen: CascadePoint  # the cheapest that loses no more on these rows
    difference: Interval | None  # of its score from the second bundle's, as if no other had been tried

    @property
    def work(self) -> float:
        """The work of the chosen cascade, relative to the second bundle alone."""
        return self.chosen.work / self.points[0].work

    @property
    def is_worth_it(self) -> bool:
        """Whether the first bundle takes any text off the second."""
        return self.chosen.share > 0

    @property
    def may_lose_more(self) -> bool:
        """Whether other rows like these may well lose more than `points_lost`."""
        return self.difference is not None and self.difference.low < -self.points_lost / 100


class _Answered(Value, eq=False):
    """One bundle's answers to all rows."""

    outputs: list[np.ndarray]
    confidence: np.ndarray  # float64 (rows,)
    layers: np.ndarray  # int64 (rows,)
    work: np.ndarray  # float64 (rows,): FLOPs


def cascade_of(
    cheap: Session,
    deep: Session,
    task: str,
    examples: Examples,
    *,
    points_lost: float = POINTS_LOST,
    thresholds: Sequence[float] | None = None,
    show: Callable[[str], None] = lambda line: None,
) -> CascadeChoice:
    """The scores and costs of a cascade on labelled rows, which neither bundle should have been trained on.

    `thresholds` are those to try, from high to low; None: at which equal further shares of the rows are sure.

    Each row is answered once by each bundle; work and layers are counted as a cascade would run them, the work of a
    pass at the mean number of tokens of a bundle's passes. Raises ConfigError for tasks that cannot be a cascade.
    """
    for session in (cheap, deep):
        session.task_names([task])
    deep_task = deep.tasks[task]
    check_alike(task, {"the first bundle": cheap.tasks[task], "the second": deep_task})
    if not examples.inputs:
        raise EmptyData(f"there is no row of task '{task}' to choose a threshold by", do="give labelled rows")
    first, second = (_answered(session, task, examples, show) for session in (cheap, deep))
    metric, points = kind_of(deep_task).default_metric(deep_task), list[CascadePoint]()
    for threshold in thresholds_of(first.confidence) if thresholds is None else thresholds:
        is_sure = first.confidence >= threshold
        outputs = _of_both(is_sure, first, second)
        points.append(
            CascadePoint(
                threshold=threshold,
                share=float(is_sure.mean()),
                score=examples.scores(deep_task, outputs)[metric],
                work=float(np.mean(first.work + np.where(is_sure, 0, second.work))),
                layers=float(np.mean(first.layers + np.where(is_sure, 0, second.layers))),
            )
        )
    deep_point = CascadePoint(
        threshold=NEVER,
        share=0.0,
        score=examples.scores(deep_task, second.outputs)[metric],
        work=float(second.work.mean()),
        layers=float(second.layers.mean()),
    )
    fits = [point for point in points if point.score >= deep_point.score - points_lost / 100]
    chosen = min((deep_point, *fits), key=lambda point: (point.work, -point.score))
    outputs = _of_both(first.confidence >= chosen.threshold, first, second)
    return CascadeChoice(
        task=task,
        rows=len(examples.inputs),
        metric=metric,
        points=(deep_point, *points),
        points_lost=points_lost,
        chosen=chosen,
        difference=_difference(deep_task, examples, outputs, second.outputs).get(metric) if chosen.share else None,
    )


def _of_both(is_sure: np.ndarray, first: _Answered, second: _Answered) -> list[np.ndarray]:
    """The outputs of the first bundle where it is sure, of the second elsewhere."""
    rows = zip(is_sure.tolist(), first.outputs, second.outputs, strict=True)
    return [cheap_output if sure else deep_output for sure, cheap_output, deep_output in rows]


def _difference(task: Task, examples: Examples, outputs: Arrays, others: Arrays) -> dict[str, Interval]:
    """The interval of each metric of the outputs minus that of the others, over the same resampled rows."""
    kind, each = kind_of(task), examples.each()
    ours, theirs = (kind.judged(task, side, examples.targets, each).recount for side in (outputs, others))
    return {} if ours is None or theirs is None else differences(ours, theirs, len(each))


def thresholds_of(confidence: np.ndarray) -> list[float]:
    """Thresholds from high to low at which equal further shares of the rows are sure; the last is 0, of all."""
    falling = np.sort(confidence)[::-1]
    places = [round(len(falling) * step / STEPS) - 1 for step in range(1, STEPS)]
    rounded = [float(np.floor(falling[place] * 10**DIGITS) / 10**DIGITS) for place in places if place >= 0]
    return [*dict.fromkeys(rounded), 0.0] if 0.0 not in rounded else list(dict.fromkeys(rounded))


def _answered(session: Session, task: str, examples: Examples, show: Callable[[str], None]) -> _Answered:
    outputs, sure, costs = list[np.ndarray](), list[float](), list[np.ndarray]()
    for start in range(0, len(examples.inputs), PIECE):
        show(f"{task}: {start:,} of {len(examples.inputs):,} texts")
        inputs: Sequence[object] = examples.inputs[start : start + PIECE]
        table = session.columns(inputs, tasks=[task])  # type: ignore[arg-type]
        column = table[task]
        if len(column.rows) < len(inputs):
            reasons = {**column.skipped, **column.failed}
            row = min(reasons)
            raise BadValue(f"task '{task}' has no answer to row {examples.rows[start + row]}", got=reasons[row])
        outputs += list(column.outputs)
        sure += [confidence(answer) for answer in column.answers]
        costs.append(np.stack([table.receipts.layers, table.receipts.passes, table.receipts.tokens]))
    layers, passes, tokens = np.concatenate(costs, axis=1)  # (rows,) each
    plan, mean = merge({task: session.loaded.records[task].path}), round(tokens.sum() / max(1, passes.sum()))
    work = passes * float(flops(plan, session.shape, max(1, mean), folded=True))
    return _Answered(outputs=outputs, confidence=np.array(sure), layers=layers, work=work)
