"""Calibration of a task on labelled rows: fitted on one half, checked on the other."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from polyhead.errors import BadValue, ConfigError, EmptyData
from polyhead.evaluate.probabilities import (
    Goal,
    LabelledOutputs,
    Method,
    conformal_quantile,
    error_of,
    fit_scaling,
    just_below,
    label_scores_of,
    log_loss,
    of_answers,
    of_label,
    of_labels,
    of_truth,
    rows_for,
)
from polyhead.progress import counted
from polyhead.tasks.calibration import Calibration, SetRule, calibrated_kinds, calibrator_of, decided, in_set
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.values import Value

LEAST = 40  # rows, both halves together
COVERAGES = (0.8, 0.9, 0.95, 0.99)  # coverages of stored sets, if there are enough rows


class CalibrateRequest(Value):
    """The options of calibrating a task."""

    method: Annotated[
        Method,
        Meta(
            description="How scores are scaled. temperature: one number, so that no answer changes; vector: two "
            "numbers a label."
        ),
    ] = "temperature"
    goal: Annotated[
        str | None,
        Meta(
            description="Choose thresholds for f1, precision=0.9, recall=0.9 or accuracy=0.9 (of the answers that are "
            "sure).",
            extra={"metavar": "GOAL"},
        ),
    ] = None
    positive: Annotated[
        str | None,
        Meta(
            description="Label that f1, precision or recall is of, in a single_label task.", extra={"metavar": "LABEL"}
        ),
    ] = None
    unsure_below: (
        Annotated[float, Meta(description="Call an answer unsure below this probability.", ge=0, le=1)] | None
    ) = None
    coverage: Annotated[
        float, Meta(description="Chance that an answer's set of labels, or its interval, holds the truth.", gt=0, lt=1)
    ] = 0.9
    seed: Annotated[int, Meta(description="Seed by which the rows of FILE are halved.")] = 0


Halves = tuple[LabelledOutputs, LabelledOutputs]
"""Rows that fit, and rows that check."""


def fit_calibration(
    task: Task,
    outputs: list[np.ndarray],
    targets: list[np.ndarray],
    wish: CalibrateRequest = CalibrateRequest(),  # noqa: B008
    *,
    check: tuple[list[np.ndarray], list[np.ndarray]] | None = None,
    together: Sequence[Hashable] | None = None,
) -> Calibration:
    """The calibration of a task from its raw outputs for labelled rows; `measured` holds its quality.

    Rows with the same value in `together`, such as their group, are in one half.

    Scaling and thresholds are fitted on one half of the rows and measured on the other; the limits of sets come from
    the other half, so that fitting the scaling cannot invalidate their guarantee, and their coverage is measured on the
    first. `check` are outputs and targets of separate rows, instead of the other half. Raises ConfigError for a kind
    that cannot be calibrated, EmptyData for too few rows, BadValue for options that the task cannot fulfil.
    """
    check_kind(task)
    count = len(targets) + (0 if check is None else len(check[1]))
    if min(count, 2 * len(targets)) < LEAST or (check is not None and len(check[1]) < LEAST // 2):
        raise EmptyData(
            f"task '{task.name}': too few labelled rows to calibrate on",
            got=f"{len(targets)}" if check is None else f"{len(targets)} and {len(check[1])} to check on",
            allowed=f"{LEAST} or more, half of which check",
            do="label more rows",
        )
    if kind_of(task).scores == "range":
        return _of_numbers(task, outputs, targets, wish, check, together)
    halves = _halves(task, outputs, targets, check, together, wish.seed)
    calibration = fit_scaling(wish.method, halves[0])
    notes: list[str] = []
    raw, scaled = Calibration(), calibration
    losses = [log_loss(halves[1], each.probabilities(task, halves[1].logarithms)) for each in (raw, scaled)]
    if losses[1] > losses[0]:
        calibration = raw
        notes.append("the scores are kept as they are: scaling did not make them better on the rows that check")
    errors = [error_of(halves[1], c.probabilities(task, halves[1].logarithms)) for c in (raw, calibration)]
    calibration = _checked_thresholds(calibration, halves, wish, notes)
    calibration = _with_sets(calibration, halves, wish, notes)
    measured: dict[str, Any] = {
        "method": wish.method if calibration.scale else "none",
        "rows": {"fit": len(halves[0].targets), "check": len(halves[1].targets)},
        "log_loss": {"before": losses[0], "after": min(losses)},
        "calibration_error": {"before": errors[0], "after": errors[1]},
        **({"temperature": 1 / calibration.scale[0]} if len(calibration.scale) == 1 else {}),
        **({"goal": str(Goal.of(wish.goal))} if wish.goal else {}),
        "check": measures(calibration, halves[1]),
        "sets": _coverages(calibration, halves[0]),
    }
    missing = _missing(halves)
    if missing:
        notes.append(f"no row has the label {', '.join(missing)}: nothing is known of how sure it is")
    return msgspec.structs.replace(calibration, measured=measured | ({"notes": notes} if notes else {}))


def check_kind(task: Task) -> None:
    """Raises ConfigError for a task of a kind that cannot be calibrated."""
    if calibrator_of(task) is None:
        raise ConfigError(
            f"task '{task.name}' cannot be calibrated: its answers are of another form than one probability a label",
            got=task.kind,
            allowed=calibrated_kinds(),
            task=task.name,
        )


def measures(calibration: Calibration, rows: LabelledOutputs) -> dict[str, Any]:
    """Shares of right answers on these rows, overall and per label, with the thresholds of the calibration."""
    task = rows.task
    if rows.is_sigmoid:
        is_given, truth = calibration.given(task, rows.logarithms), rows.targets
        sums = (is_given & truth).sum(axis=0), is_given.sum(axis=0), truth.sum(axis=0)
        whole = _scores(*(int(each.sum()) for each in sums))
        return {**whole, "labels": _by_label(task, *sums)}
    chosen, is_sure = decided(task, calibration, calibration.probabilities(task, rows.logarithms))
    is_right = chosen == rows.targets
    facts: dict[str, Any] = {
        "accuracy": float(is_right.mean()),
        "sure": float(is_sure.mean()),
        "accuracy_of_sure": float(is_right[is_sure].mean()) if is_sure.any() else None,
    }
    if task.labels:
        counts = [
            np.bincount(of, minlength=len(task.labels))
            for of in (chosen[is_right & is_sure], chosen[is_sure], rows.targets)
        ]
        facts["labels"] = _by_label(task, *counts)
    return facts


def _by_label(task: Task, right: np.ndarray, answered: np.ndarray, true: np.ndarray) -> dict[str, dict[str, Any]]:
    triples = zip(right.tolist(), answered.tolist(), true.tolist(), strict=True)
    return {label: _scores(*triple) for label, triple in zip(task.labels, triples, strict=True)}


def _scores(right: int, answered: int, true: int) -> dict[str, Any]:
    return {
        "precision": right / answered if answered else None,
        "recall": right / true if true else None,
        "f1": 2 * right / (answered + true) if answered + true else None,
        "given": answered,
        "rows": true,
    }


def _halves(
    task: Task,
    outputs: list[np.ndarray],
    targets: list[np.ndarray],
    check: tuple[list[np.ndarray], list[np.ndarray]] | None,
    together: Sequence[Hashable] | None,
    seed: int,
) -> Halves:
    if check is not None:
        return label_scores_of(task, outputs, targets), label_scores_of(task, *check)
    rows = label_scores_of(task, outputs, targets)
    first = halved([kind_of(task).stratum(target) for target in targets], seed, together)
    return rows.take(first), rows.take(~first)


def halved(strata: Sequence[int], seed: int, together: Sequence[Hashable] | None = None) -> np.ndarray:
    """The rows of the first half, bool (rows,): every other row of each stratum, in random order.

    Rows that have the same of `together` go with the first of them.
    """
    places: dict[Hashable, int] = {}
    unit = np.array([places.setdefault(key, len(places)) for key in (together or range(len(strata)))], np.int64)
    whose = np.asarray(strata)[np.unique(unit, return_index=True)[1]]
    order = np.random.default_rng(seed).permutation(len(whose))
    order = order[np.argsort(whose[order], kind="stable")]
    is_first = np.zeros(len(whose), bool)
    is_first[order[::2]] = True
    return is_first[unit]


def _checked_thresholds(
    calibration: Calibration, halves: Halves, wish: CalibrateRequest, notes: list[str]
) -> Calibration:
    """The calibration with thresholds; those for F1 only where it does not fall on the rows that check."""
    chosen = _with_thresholds(calibration, halves[0], wish, notes)
    if wish.goal is None or Goal.of(wish.goal).measure != "f1":
        return chosen
    without_unsure = msgspec.structs.replace(chosen, unsure_below=0.0)
    before, after = (_f1(each, halves[1], chosen.positive) for each in (calibration, without_unsure))
    if after >= before:
        return chosen
    notes.append(f"thresholds stay as they are: those for f1 gave {after:.4f} in place of {before:.4f} checked")
    return msgspec.structs.replace(calibration, unsure_below=chosen.unsure_below)


def _with_thresholds(
    calibration: Calibration, rows: LabelledOutputs, wish: CalibrateRequest, notes: list[str]
) -> Calibration:
    task, probabilities = rows.task, calibration.probabilities(rows.task, rows.logarithms)
    changed: dict[str, Any] = {}
    if wish.unsure_below is not None:
        _check(not rows.is_sigmoid, task, "several labels may fit: no single one is unsure", "leave out --unsure-below")
        if not 0 <= wish.unsure_below <= 1:
            raise BadValue("unsure_below is a probability", got=wish.unsure_below, allowed="0 to 1")
        changed["unsure_below"] = wish.unsure_below
    goal = None if wish.goal is None else Goal.of(wish.goal)
    if wish.positive is not None:
        is_read = goal is not None and goal.measure != "accuracy" and bool(task.labels) and not rows.is_sigmoid
        _check(is_read, task, "one label has f1, precision or recall, in a single_label task", "leave out --positive")
    if goal is None:
        return msgspec.structs.replace(calibration, **changed)
    if rows.is_sigmoid:
        _check(goal.measure != "accuracy", task, "accuracy is no goal of labels one by one", "choose precision")
        changed["thresholds"] = of_labels(rows, probabilities, goal, default=calibration.label_thresholds(task))
    elif goal.measure == "accuracy":
        is_right = probabilities.argmax(axis=-1) == rows.targets
        needed = of_label(probabilities.max(axis=-1), is_right, goal)
        changed["unsure_below"] = max(wish.unsure_below or 0.0, _reached(needed, task, goal, rows))
    else:
        _check(bool(task.labels), task, f"'{goal.measure}' needs labels", "choose accuracy")
        positive = wish.positive or task.positive
        if positive is None:
            _check(goal.measure == "precision", task, f"whose {goal.measure} is meant is not known", "--positive LABEL")
            changed["thresholds"] = of_answers(rows, probabilities, goal)
        else:
            _check(positive in task.labels, task, f"it has no label '{positive}'", f"choose of {list(task.labels)}")
            place = task.labels.index(positive)
            needed = of_label(probabilities[:, place], rows.targets == place, goal)
            threshold = _reached(needed, task, goal, rows)
            changed["thresholds"] = tuple(threshold if other == place else 0.0 for other in range(len(task.labels)))
            changed["positive"] = positive
    never = [label for label, needed in zip(task.labels, changed.get("thresholds", ()), strict=False) if needed == 1.0]
    if never and len(never) == len(task.labels):
        raise _unreached(task, goal, rows)
    if never:
        notes.append(f"{goal} cannot be shown on so few rows, so never sure or given: {', '.join(never)}")
    return msgspec.structs.replace(calibration, **changed)


def _reached(threshold: float | None, task: Task, goal: Goal, rows: LabelledOutputs) -> float:
    """The threshold; raises EmptyData without one, since no answer would then be sure or given."""
    if threshold is None:
        raise _unreached(task, goal, rows)
    return threshold


def _unreached(task: Task, goal: Goal, rows: LabelledOutputs) -> EmptyData:
    return EmptyData(
        f"task '{task.name}': {goal} cannot be shown by any threshold on these rows, so nothing is kept",
        got=f"{counted(len(rows.targets), 'row')} to choose thresholds by",
        do="ask for less, label more rows, or leave out --goal",
    )


def _f1(calibration: Calibration, rows: LabelledOutputs, positive: str | None) -> float:
    """F1 on these rows: of the positive label, or over all labels."""
    scores = measures(calibration, rows)
    return float((scores if positive is None else scores["labels"][positive])["f1"] or 0.0)


def _check(is_met: bool, task: Task, reason: str, do: str) -> None:
    if not is_met:
        raise BadValue(f"task '{task.name}' has no use for this goal: {reason}", got=task.kind, do=do)


def _with_sets(calibration: Calibration, halves: Halves, wish: CalibrateRequest, notes: list[str]) -> Calibration:
    """The calibration with sets from the check rows: a row's set must contain everything that is true."""
    misses = -_least_of_truth(halves[1], calibration)  # 1 - p is rounded: p itself could then miss the limit
    return _kept(calibration, misses, wish, notes, limit=lambda quantile: just_below(-quantile))


def _kept(
    calibration: Calibration, misses: np.ndarray, wish: CalibrateRequest, notes: list[str], *, limit: Any
) -> Calibration:
    if not 0 < wish.coverage < 1:
        raise BadValue("coverage is a share", got=wish.coverage, allowed="between 0 and 1, both excluded")
    rules = []
    for coverage in sorted({*COVERAGES, wish.coverage}):
        quantile = conformal_quantile(misses, coverage)
        if quantile is not None:
            rules.append(SetRule(coverage=coverage, limit=max(0.0, limit(quantile))))
        elif coverage == wish.coverage:
            raise EmptyData(
                f"sets that hold the truth with a chance of {coverage:g} need more rows",
                got=f"{len(misses)} that check",
                allowed=f"{rows_for(coverage)} or more",
                do="label more rows, or ask for less coverage",
            )
    return msgspec.structs.replace(calibration, sets=tuple(rules), coverage=wish.coverage)


def _least_of_truth(rows: LabelledOutputs, calibration: Calibration) -> np.ndarray:
    probabilities = calibration.probabilities(rows.task, rows.logarithms)
    if rows.is_sigmoid:
        return np.asarray(np.where(rows.targets, probabilities, 1.0).min(axis=-1))
    return of_truth(rows, probabilities)


def _coverages(calibration: Calibration, rows: LabelledOutputs) -> dict[str, dict[str, float]]:
    """The results of each stored coverage on these rows: share of sets with the truth, and labels per set."""
    true = rows.targets if rows.is_sigmoid else np.arange(rows.logarithms.shape[1]) == rows.targets[:, None]
    inside = {rule.coverage: in_set(rows.task, calibration, rule, rows.logarithms) for rule in calibration.sets}
    return {
        f"{coverage:g}": {"coverage": float((held | ~true).all(axis=1).mean()), "size": float(held.sum(axis=-1).mean())}
        for coverage, held in inside.items()
    }


def _of_numbers(
    task: Task,
    outputs: list[np.ndarray],
    targets: list[np.ndarray],
    wish: CalibrateRequest,
    check: tuple[list[np.ndarray], list[np.ndarray]] | None,
    together: Sequence[Hashable] | None,
) -> Calibration:
    """Only intervals: a number has no probability that a temperature could change."""
    is_plain = wish.goal is None and wish.unsure_below is None and wish.positive is None
    _check(is_plain, task, "a number has no probability", "leave out --goal, --unsure-below and --positive")
    far = [_off(*pair) for pair in ((outputs, targets), *([check] if check is not None else []))]
    if check is None:
        first = halved([0] * len(targets), wish.seed, together)
        far = [far[0][first], far[0][~first]]
    notes = ["a number has no probability, so there is no temperature: intervals are all that is calibrated"]
    calibration = _kept(Calibration(), far[1], wish, notes, limit=float)
    sets = {
        f"{rule.coverage:g}": {"coverage": float((far[0] <= rule.limit).mean()), "size": 2 * rule.limit}
        for rule in calibration.sets
    }
    rows = {"fit": len(far[0]), "check": len(far[1])}
    measured = {"method": "none", "rows": rows, "sets": sets, "notes": notes}
    return msgspec.structs.replace(calibration, measured=measured)


def _off(outputs: list[np.ndarray], targets: list[np.ndarray]) -> np.ndarray:
    """The error of each answer, clipped to the range, as a fraction of the range."""
    answers = np.clip(np.array([float(np.reshape(row, -1)[0]) for row in outputs]), 0, 1)
    return np.asarray(np.abs(answers - np.array(targets, np.float64).reshape(-1)))


def _missing(halves: Halves) -> list[str]:
    """The labels without rows."""
    labels, targets = halves[0].task.labels, np.concatenate([halves[0].targets, halves[1].targets])
    is_present = np.any(targets, axis=0) if halves[0].is_sigmoid else np.isin(np.arange(len(labels)), targets)
    return [label for place, label in enumerate(labels) if not is_present[place]]
