"""Columns of a store with a task's answers and calibrated answers: names and arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np

from polyhead.bundle.manifest import Live
from polyhead.bundle.read import Bundle
from polyhead.engine.familiar import KEY as FAMILIAR_KEY
from polyhead.errors import ConfigError
from polyhead.store.corpus.base import CorpusStore, ResultFacts
from polyhead.tasks.calibration import KEY, Calibration, decided, in_set, rule_of
from polyhead.tasks.generation import GenerationRules
from polyhead.tasks.kinds import base, kind_of
from polyhead.tasks.task import CellForm, RowKind, Task
from polyhead.values import Value


class AddedCell(Value, eq=False):
    """A column of a table in addition to a task's answers."""

    end: str  # suffix of its name, after the task's
    form: CellForm
    read: Callable[[Any], object]  # content of its cell, from an answer's `calibrated` or a row of a stored column
    fields: tuple[str, ...] = ()


def check_scored(tasks: Mapping[str, Task]) -> None:
    """Raises ConfigError if none of the tasks scores labels or options, for which scores are requested."""
    if all(kind_of(task).score_cell is None for task in tasks.values()):
        kinds, do = sorted({task.kind for task in tasks.values()}), "leave out --scores, or ask for other tasks"
        raise ConfigError("none of the tasks scores labels or options", got=kinds, do=do)


def calibrations_of(calibrations: Mapping[str, Calibration], tasks: Iterable[str]) -> dict[str, Calibration]:
    """The calibrations of these tasks, for requested columns; raises ConfigError if there are none."""
    names = list(tasks)
    known = {name: calibrations[name] for name in names if name in calibrations}
    if not known:
        raise ConfigError(
            "none of the tasks is calibrated, so no column can say what that makes of their answers",
            got=names,
            do="run `polyhead calibrate BUNDLE FILE` with labelled rows first, or leave out --calibrated",
        )
    return known


def calibrated_cells(task: Task, calibration: Calibration, *, scores: bool) -> tuple[AddedCell, ...]:
    """The columns of a task: label or labels, confidence, set and interval, as far as it has them."""
    kind, has_sets = kind_of(task), rule_of(calibration) is not None
    if kind.scores == "range":
        return (AddedCell(end=".interval", form="numbers", read=itemgetter("interval")),) if has_sets else ()
    cells = []
    if kind.scores == "sigmoid":
        cells.append(AddedCell(end=f".{KEY}", form="texts", read=itemgetter("labels")))
    else:
        form: CellForm = "number" if kind.per_option else "text"
        cells.append(AddedCell(end=f".{KEY}", form=form, read=itemgetter("index" if kind.per_option else "label")))
        cells.append(AddedCell(end=".probability", form="number", read=probability_of))
        cells.append(AddedCell(end=".unsure", form="flag", read=itemgetter("unsure")))
    if has_sets:
        cells.append(AddedCell(end=".set", form="places" if kind.per_option else "texts", read=itemgetter("set")))
    if scores and kind.score_cell is not None:
        end = f".{KEY}.scores"
        cells.append(AddedCell(end=end, form=kind.score_cell, read=itemgetter("scores"), fields=task.labels))
    return tuple(cells)


def probability_of(calibrated: Mapping[str, Any]) -> float:
    """The probability of its label or option; if it is unsure, the highest."""
    scores, chosen = calibrated["scores"], calibrated["label" if "label" in calibrated else "index"]
    each = scores.values() if isinstance(scores, dict) else scores
    return float(max(each) if chosen is None else scores[chosen])


def calibrated_arrays(task: Task, calibration: Calibration, outputs: np.ndarray) -> dict[str, np.ndarray]:
    """The calibrated answers for finite outputs (rows, labels), in a store's form.

    `label` int32 (rows,), -1 if it is `unsure`, with its `probability`; or `labels` bool (rows, labels); and the `set`
    bool (rows, labels). For numbers the `interval` float32 (rows, 2), NaN if the calibration has none.
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
        logarithms = outputs.astype(np.float64)
        arrays = {"labels": calibration.given(task, logarithms)}
    else:
        with np.errstate(divide="ignore"):
            logarithms = np.log(base.softmax(outputs.astype(np.float64)))
        probabilities = calibration.probabilities(task, logarithms)
        chosen, is_sure = decided(task, calibration, probabilities)
        chosen_probability = probabilities[np.arange(len(chosen)), chosen]
        arrays = {
            "label": np.where(is_sure, chosen, -1).astype(np.int32),
            "probability": np.where(is_sure, chosen_probability, probabilities.max(axis=1)).astype(np.float32),
            "unsure": ~is_sure,
        }
    return arrays if rule is None else {**arrays, "set": in_set(task, calibration, rule, logarithms)}


ALL = "_scores"  # suffix of the name of a column with all labels' scores
CALIBRATED = "_calibrated"  # suffix of a column of calibrated answers
FAMILIAR = "_familiar"  # suffix of a column that says how familiar documents are
NOTHING = {"int32": -1, "bool": False}  # fill values of arrays of calibrated answers without an answer; else NaN
Given = str | list[str] | float | None
TOKEN_BYTES = 4  # of a written text: about as long as a token is in English
RECORD = 12  # characters of the task version's digest in the column's name


class ResultColumn(Value):
    """A column of results: one version of one task."""

    name: str
    task: str
    version: str
    record: str  # SHA-256 of its task.json, which includes the digests of its arrays and of the trunk
    all_scores: bool  # the scores of all labels, instead of the answer
    calibration: Calibration | None = None  # set if the column holds calibrated answers
    familiar: bool = False  # which share of the task's known rows lies as far out, instead of the answer

    @property
    def is_answer(self) -> bool:
        """Whether this column holds plain answers."""
        return not self.all_scores and self.calibration is None and not self.familiar


def answer_columns(
    task: str, live: Live, *, all_scores: bool, calibration: Calibration | None = None, familiar: bool = False
) -> tuple[ResultColumn, ...]:
    """A task's columns: its answers; on request all labels' scores, calibrated answers, how familiar documents are.

    The name contains the version and the beginning of its digest, so that answers of another version, even with the
    same number in another bundle, are in other columns.
    """
    name = f"{task.replace('.', '-')}_{live.version}_{live.record[:RECORD]}"
    answers = ResultColumn(name=name, task=task, version=live.version, record=live.record, all_scores=False)
    columns = [answers]
    if all_scores:
        columns.append(msgspec.structs.replace(answers, name=name + ALL, all_scores=True))
    if calibration is not None:
        bare = msgspec.structs.replace(calibration, measured={})  # answers do not need its measurements
        columns.append(msgspec.structs.replace(answers, name=name + CALIBRATED, calibration=bare))
    if familiar:
        columns.append(msgspec.structs.replace(answers, name=name + FAMILIAR, familiar=True))
    return tuple(columns)


def column_arrays(column: ResultColumn, task: Task, outputs: np.ndarray) -> dict[str, np.ndarray]:
    """The column's arrays for outputs (rows, labels) of its task, or shares (rows, 1); a NaN row has no answer.

    `label` int32 (rows,), -1 for none, and its `score`; or `labels` bool (rows, labels) and the highest `score`; or
    `value`; or `text` str (rows,), "" for none. For all scores, `scores` float16 (rows, labels). Other numbers are
    float32. For calibrated answers see `calibrated_arrays`; for shares `familiar` (rows,).
    """
    if column.familiar:
        return {"familiar": outputs[:, 0].astype(np.float32)}
    kind = kind_of(task)
    if kind.generates:
        return {"text": outputs}
    is_none = ~np.isfinite(outputs).all(axis=1)
    assert isinstance(kind, RowKind)
    if column.calibration is not None:
        arrays = calibrated_arrays(task, column.calibration, np.nan_to_num(outputs))
        return {name: _without(array, is_none, NOTHING.get(str(array.dtype), np.nan)) for name, array in arrays.items()}
    decoded = kind.decode_rows(task, np.nan_to_num(outputs))
    if decoded.scores is None:
        assert decoded.value is not None
        return {"value": _without(decoded.value.astype(np.float32), is_none, np.nan)}
    if column.all_scores:
        return {"scores": _without(decoded.scores.astype(np.float16), is_none, np.nan)}
    if decoded.labels is not None:
        highest = decoded.scores.max(axis=1).astype(np.float32)
        return {"labels": _without(decoded.labels, is_none, False), "score": _without(highest, is_none, np.nan)}
    assert decoded.label is not None
    score = np.take_along_axis(decoded.scores, decoded.label[:, None], axis=1)[:, 0].astype(np.float32)
    return {"label": _without(decoded.label.astype(np.int32), is_none, -1), "score": _without(score, is_none, np.nan)}


def column_facts(column: ResultColumn, task: Task, bundle: Bundle) -> ResultFacts:
    """The content of a column, for a reader who has only the store."""
    row_arrays = column_arrays(column, task, _outputs(column, task, 0.0))
    return ResultFacts(
        task=column.task,
        kind=task.kind,
        labels=task.labels,
        version=column.version,
        record=column.record,
        trunk=bundle.digest,
        arrays={name: "str" if array.dtype.kind in "UO" else str(array.dtype) for name, array in row_arrays.items()},
    )


def row_bytes(column: ResultColumn, task: Task) -> int:
    """Bytes of one document in the column."""
    if isinstance(task.generation, GenerationRules) and column.is_answer:
        return TOKEN_BYTES * task.generation.tokens
    arrays = column_arrays(column, task, _outputs(column, task, 0.0))
    return sum(array.nbytes for array in arrays.values())


def concatenate_columns(parts: Sequence[Mapping[str, Mapping[str, np.ndarray]]]) -> dict[str, dict[str, np.ndarray]]:
    """The arrays of columns for adjacent rows, concatenated."""
    return {
        column: {name: np.concatenate([part[column][name] for part in parts]) for name in arrays}
        for column, arrays in parts[0].items()
    }


def nothing(column: ResultColumn, task: Task, rows: int) -> dict[str, np.ndarray]:
    """The column's arrays for so many documents without an answer."""
    row_arrays = column_arrays(column, task, _outputs(column, task, np.nan))
    return {name: np.repeat(array, rows, axis=0) for name, array in row_arrays.items()}


def _outputs(column: ResultColumn, task: Task, value: float) -> np.ndarray:
    """Outputs of a task for one document that are all this number; of one that writes, an empty text."""
    if kind_of(task).generates and column.is_answer:
        return np.full(1, "", object)
    return np.full((1, kind_of(task).width(task)), value, np.float32)


def is_answer(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Which rows of a column of answers have an answer, bool (rows,)."""
    if "label" in arrays:
        return np.asarray(arrays["label"] >= 0)
    if "text" in arrays:
        return np.asarray(arrays["text"] != "")
    return np.asarray(np.isfinite(arrays["value"] if "value" in arrays else arrays["score"]))


def answers_at(
    store: CorpusStore, column: ResultColumn, task: Task, places: np.ndarray
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The column's arrays at these places (see `CorpusStore.find`), and whether it is done there, bool (rows,).

    A document without a place, or in a fragment without the column, has no answer.
    """
    answers, is_done = nothing(column, task, len(places)), np.zeros(len(places), bool)
    fragments = store.fragments
    for number in np.unique(places[places[:, 0] >= 0, 0]).tolist():
        arrays = store.results(fragments[number].name, column.name)
        if arrays is not None:
            rows = np.flatnonzero(places[:, 0] == number)
            is_done[rows] = True
            for name, array in answers.items():
                array[rows] = arrays[name][places[rows, 1]]
    return answers, is_done


def surety_of(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """The confidence of scored answers: the score; without a given label, 1 minus the highest score; of a text 1."""
    if "text" in arrays:
        return np.ones(len(arrays["text"]))
    score = arrays["score"]
    return np.where(arrays["labels"].any(axis=1), score, 1 - score) if "labels" in arrays else score


def given_of(arrays: Mapping[str, np.ndarray], labels: Sequence[str]) -> Given:
    """One document's answer, from arrays of one row each: a label, labels, a number or a text; None without one."""
    if "text" in arrays:
        return str(arrays["text"]) or None
    if "value" in arrays:
        return float(arrays["value"]) if np.isfinite(arrays["value"]) else None
    if "label" in arrays:
        return labels[int(arrays["label"])] if arrays["label"] >= 0 else None
    if not np.isfinite(arrays["score"]):
        return None
    return [label for label, is_given in zip(labels, arrays["labels"].tolist(), strict=True) if is_given]


def stored_cells(column: ResultColumn, task: Task) -> tuple[AddedCell, ...]:
    """The columns of a table for a stored column in addition to the answers; each reads a row of its arrays."""

    def stored_cell(end: str, form: CellForm, array: str, fields: tuple[str, ...] = ()) -> AddedCell:
        return AddedCell(end=end, form=form, fields=fields, read=lambda row: _cell_value(form, task.labels, row[array]))

    if column.familiar:
        return (stored_cell(f".{FAMILIAR_KEY}", "number", "familiar"),)
    if column.all_scores:
        return (stored_cell(".scores", "shares", "scores", task.labels),)
    assert column.calibration is not None
    arrays = {f".{KEY}": "labels" if kind_of(task).scores == "sigmoid" else "label"}
    cells = calibrated_cells(task, column.calibration, scores=False)
    return tuple(stored_cell(each.end, each.form, arrays.get(each.end, each.end[1:])) for each in cells)


def _cell_value(form: CellForm, labels: Sequence[str], value: np.ndarray) -> object:
    """One row of an array as a cell of this form; None for a label below 0 and numbers that are NaN."""
    if form == "text":
        return labels[int(value)] if value >= 0 else None
    if form == "texts":
        return list(compress(labels, value.tolist()))
    if not np.isfinite(value).all():
        return None
    return dict(zip(labels, value.tolist(), strict=True)) if form == "shares" else value.tolist()


def document_score(arrays: Mapping[str, np.ndarray]) -> float | None:
    """The score of one document's answer; None without one."""
    return float(arrays["score"]) if "score" in arrays and np.isfinite(arrays["score"]) else None


def _without(values: np.ndarray, is_none: np.ndarray, nothing: float) -> np.ndarray:
    if is_none.any():
        values = values.copy()
        values[is_none] = nothing
    return values
