"""Columns that say what calibration makes of a task's answers: in written tables, and in a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import numpy as np

from polyhead.errors import ConfigError
from polyhead.tasks.calibration import KEY, Calibration, decided, in_set, rule_of
from polyhead.tasks.kinds import base, kind_of
from polyhead.tasks.task import Answer, CellForm, RowKind, Task
from polyhead.values import Value


class CalibratedCell(Value, eq=False):
    """A column beside a task's answers."""

    end: str  # of its name, after the task's
    form: CellForm
    read: Callable[[Mapping[str, Any]], object]  # what stands in its cell, of what an answer has under `calibrated`
    fields: tuple[str, ...] = ()


def calibrations_of(calibrations: Mapping[str, Calibration], tasks: Iterable[str]) -> dict[str, Calibration]:
    """The calibrations of these tasks, for columns that were asked for; raises ConfigError where there is none."""
    names = list(tasks)
    known = {name: calibrations[name] for name in names if name in calibrations}
    if not known:
        raise ConfigError(
            "none of the tasks is calibrated, so no column can say what that makes of their answers",
            got=names,
            do="run `polyhead calibrate BUNDLE FILE` with labelled rows first, or leave out --calibrated",
        )
    return known


def calibrated_cells(task: Task, calibration: Calibration, *, scores: bool) -> tuple[CalibratedCell, ...]:
    """The columns of a task: its label or labels, how sure it is, the set, the interval; of these what it has."""
    kind, has_sets = kind_of(task), rule_of(calibration) is not None
    if kind.scores == "range":
        return (CalibratedCell(end=".interval", form="numbers", read=_of("interval")),) if has_sets else ()
    cells = []
    if kind.scores == "sigmoid":
        cells.append(CalibratedCell(end=f".{KEY}", form="texts", read=_of("labels")))
    else:
        form: CellForm = "number" if kind.per_option else "text"
        cells.append(CalibratedCell(end=f".{KEY}", form=form, read=_of("index" if kind.per_option else "label")))
        cells.append(CalibratedCell(end=".probability", form="number", read=probability_of))
        cells.append(CalibratedCell(end=".unsure", form="flag", read=_of("unsure")))
    if has_sets:
        cells.append(CalibratedCell(end=".set", form="places" if kind.per_option else "texts", read=_of("set")))
    if scores and kind.score_cell is not None:
        end = f".{KEY}.scores"
        cells.append(CalibratedCell(end=end, form=kind.score_cell, read=_of("scores"), fields=task.labels))
    return tuple(cells)


def probability_of(calibrated: Mapping[str, Any]) -> float:
    """The probability of its label or option; where it is unsure the highest."""
    scores, chosen = calibrated["scores"], calibrated["label" if "label" in calibrated else "index"]
    each = scores.values() if isinstance(scores, dict) else scores
    return float(max(each) if chosen is None else scores[chosen])


def calibrated_of(answer: Answer) -> Mapping[str, Any]:
    """The calibrated answer that stands in a task's answer."""
    made: Mapping[str, Any] = answer[KEY]
    return made


def calibrated_arrays(task: Task, calibration: Calibration, outputs: np.ndarray) -> dict[str, np.ndarray]:
    """The calibrated answers for finite outputs (rows, labels), as a store keeps them.

    `label` int32 (rows,), -1 where it is `unsure`, with its `probability`; or `labels` bool (rows, labels); and the
    `set` bool (rows, labels). Of numbers the `interval` float32 (rows, 2), NaN where the calibration has none.
    """
    kind, rule = kind_of(task), rule_of(calibration)
    assert isinstance(kind, RowKind)
    if kind.scores == "range":
        assert task.range is not None
        (low, high), values = task.range, kind.decode_rows(task, outputs).value
        reach = np.nan if rule is None else rule.limit * (high - low)
        assert values is not None
        ends = np.stack([np.maximum(low, values - reach), np.minimum(high, values + reach)], axis=1)
        return {"interval": ends.astype(np.float32)}
    if kind.scores == "sigmoid":
        probabilities = calibration.probabilities(task, outputs.astype(np.float64))
        arrays = {"labels": probabilities >= np.asarray(calibration.thresholds or [task.threshold])}
    else:
        with np.errstate(divide="ignore"):
            logarithms = np.log(base.softmax(outputs.astype(np.float64)))
        probabilities = calibration.probabilities(task, logarithms)
        chosen, is_sure = decided(task, calibration, probabilities)
        own = probabilities[np.arange(len(chosen)), chosen]
        arrays = {
            "label": np.where(is_sure, chosen, -1).astype(np.int32),
            "probability": np.where(is_sure, own, probabilities.max(axis=1)).astype(np.float32),
            "unsure": ~is_sure,
        }
    return arrays if rule is None else {**arrays, "set": in_set(task, calibration, rule, probabilities)}


def bare(calibration: Calibration) -> Calibration:
    """The calibration without its measurements, which answers do not need."""
    return msgspec.structs.replace(calibration, measured={})


def _of(key: str) -> Callable[[Mapping[str, Any]], object]:
    def read(calibrated: Mapping[str, Any]) -> object:
        return calibrated[key]

    return read
