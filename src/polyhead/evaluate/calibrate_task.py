"""Calibration of a bundle's task on the rows of a file, stored with the task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from polyhead.bundle.row_profile import stored_centres
from polyhead.certify.annotations import TITLES, Annotations
from polyhead.data.columns import Source
from polyhead.data.read import Examples, read
from polyhead.data.split import split_keys
from polyhead.engine.session import Session
from polyhead.errors import BadValue, MissingColumn
from polyhead.evaluate.calibrate import CalibrateRequest, check_kind, fit_calibration
from polyhead.evaluate.drift import profile_of
from polyhead.evaluate.profile import asked, profile_rows
from polyhead.progress import counted
from polyhead.tasks.calibration import Calibration
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task

FAR = 2  # standard errors
SEED = 0  # of the rows kept


def calibrated_task(
    session: Session,
    name: str,
    source: Source,
    wish: CalibrateRequest,
    *,
    check: Source | None = None,
    show: Callable[[str], None] = lambda line: None,
) -> Annotations:
    """The calibration of a task on all labelled rows of a file, and their profile; rows of `check`, if given, check it.

    Nothing is written. Rows of one group, over one context or with equal texts are in one half. Raises the errors of
    `fit_calibration` and of reading the files, and BadValue for the rows that the task learned from.
    """
    task = session.tasks[name]
    check_kind(task)
    files = [read(each, task) for each in (source, check) if each is not None]
    for examples in files:
        _check_unlearned(session, task, examples)
    if source.group and files[0].groups is None:
        raise MissingColumn(f"the rows have no column '{source.group}' that says which stay together", task=name)
    views = [asked(session, name, examples.inputs, examples.words, show=show) for examples in files]
    pairs = [(each.outputs, examples.targets) for each, examples in zip(views, files, strict=True)]
    other, together = pairs[1] if check is not None else None, split_keys(files[0], task)
    calibration = fit_calibration(task, *pairs[0], wish, check=other, together=together)
    doubts = [_doubt(session, task, examples, outputs) for examples, (outputs, _) in zip(files, pairs, strict=True)]
    if notes := [*calibration.measured.get("notes", ()), *filter(None, doubts)]:
        calibration = msgspec.structs.replace(calibration, measured={**calibration.measured, "notes": notes})
    facts = {"data": {"rows": len(files[0].targets), "sha256": files[0].digest}, "seed": wish.seed}
    calibration = msgspec.structs.replace(calibration, measured={**facts, **calibration.measured})
    seen = profile_rows(task, files[-1].inputs, views[-1]).with_centres(stored_centres(session.bundle, name))
    profile = profile_of(task, seen, seed=SEED)
    card = {TITLES[0]: "\n".join(f"- {line}" for line in measure_lines(task, calibration)), **profile.card}
    return Annotations(calibration=calibration, seen=profile.seen, card=card)


def _check_unlearned(session: Session, task: Task, examples: Examples) -> None:
    """Raises BadValue for rows that are the task's training file: their scores say nothing of other texts."""
    known = session.records[task.name].trained_with.get("data")
    learned = known.get("train") if isinstance(known, dict) else None
    if isinstance(learned, dict) and learned.get("sha256") == examples.digest:
        raise BadValue(
            f"task '{task.name}' learned from these rows, so it answers them too well to be calibrated on them",
            got=f"its {counted(len(examples.targets), 'training row')}",
            do="give labelled rows that it did not learn from",
        )


def _doubt(session: Session, task: Task, examples: Examples, outputs: list[np.ndarray]) -> str | None:
    """A warning where answers to these rows are right far more often than those to rows that training held out."""
    metric, name = kind_of(task).default_metric(task), task.name
    held = session.bundle.scores(name).get("splits", {}).get("validation", {}) if name in session.bundle.lines else {}
    then = held.get(metric)
    if then is None or not 0 < then < 1:
        return None
    now = examples.scores(task, outputs)[metric]
    if now - then <= FAR * (then * (1 - then) * (1 / len(outputs) + 1 / _held_rows(session, task))) ** 0.5:
        return None
    return (
        f"warning: {metric} is {now:.4f} on these rows and was {then:.4f} on rows that training held out: they look "
        "like rows that the task learned from, on which it is surer than on others; calibrate on others"
    )


def _held_rows(session: Session, task: Task) -> int:
    """The number of rows that training held out, about."""
    data = session.records[task.name].trained_with.get("data", {})
    splits = ("train", "validation") if session.bundle.scores(task.name).get("folds") else ("validation",)
    return sum(data.get(split, {}).get("rows", 0) for split in splits) or 1


def measure_lines(task: Task, calibration: Calibration) -> list[str]:
    """The measurements as lines of text."""
    measured = calibration.measured
    rows = measured["rows"]
    lines = [f"fitted on {counted(rows['fit'], 'row')}, checked on {rows['check']:,} others"]
    if "calibration_error" in measured:
        error, loss = measured["calibration_error"], measured["log_loss"]
        lines.append(
            f"expected calibration error {error['before']:.4f} -> {error['after']:.4f}, "
            f"log loss {loss['before']:.4f} -> {loss['after']:.4f}, by {_method(measured)}"
        )
    lines += _thresholds(task, calibration)
    for asked_for, sets in measured["sets"].items():
        noun = "intervals" if task.range else "sets"
        size = f"{sets['size']:.3f} of the range wide" if task.range else f"{sets['size']:.2f} labels on average"
        shown = " (shown)" if float(asked_for) == calibration.coverage else ""
        lines.append(f"{noun} for coverage {asked_for}{shown}: {sets['coverage']:.3f} hold the truth, {size}")
    return lines + [str(each) for each in measured.get("notes", ())]


def _method(measured: dict[str, Any]) -> str:
    if "temperature" in measured:
        return f"temperature {measured['temperature']:.3f}"
    return "a scale and a shift a label" if measured["method"] == "vector" else "nothing: scores stay as they are"


def _thresholds(task: Task, calibration: Calibration) -> list[str]:
    check = calibration.measured.get("check", {})
    if not (calibration.thresholds or calibration.unsure_below):
        return []
    goal, lines = calibration.measured.get("goal"), []
    if calibration.positive is not None:
        scores = check["labels"][calibration.positive]
        reached = f"precision {_share(scores['precision'])}, recall {_share(scores['recall'])} where checked"
        lines.append(f"{goal} of '{calibration.positive}': {reached}")
    elif "sure" in check:
        of_sure = check["accuracy_of_sure"]
        right = "" if of_sure is None else f", of which {of_sure:.1%} are right (of all rows: {check['accuracy']:.1%})"
        lines.append(f"{goal or 'unsure answers'}: sure of {check['sure']:.1%} of the rows that check{right}")
    else:
        lines.append(f"{goal}: precision {_share(check['precision'])}, recall {_share(check['recall'])} where checked")
    return lines


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
