"""Temperature and vector scaling (Guo et al. 2017): how scores become probabilities that mean what they say."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from polyhead.evaluate.measures import LabelledOutputs, log_loss
from polyhead.tasks.calibration import Calibration

Method = Literal["temperature", "vector", "none"]
COLDEST, HOTTEST = 0.02, 50.0  # temperatures that are tried
STEPS = 60  # of a search by golden sections: the temperature is then known to 1e-10 of the logarithm's range
LEAST = 10  # rows that have a label, for which vector scaling fits the label's own numbers
PENALTY = 1.0  # rows that hold a label's numbers to those of all labels
ROUNDS = 200


def fit_scaling(method: Method, rows: LabelledOutputs) -> Calibration:
    """The scaling of lowest log loss on these rows."""
    if method == "none":
        return Calibration()
    temperature = best_temperature(rows)
    common = Calibration(scale=(1 / temperature,))
    return common if method == "temperature" else _vector(rows, common)


def best_temperature(rows: LabelledOutputs) -> float:
    """By which logarithms are divided: golden-section search, as the loss has one minimum in 1 / temperature."""

    def loss(logarithm: float) -> float:
        calibration = Calibration(scale=(float(np.exp(-logarithm)),))
        return log_loss(rows, calibration.probabilities(rows.task, rows.logarithms))

    low, high, ratio = np.log(COLDEST), np.log(HOTTEST), (np.sqrt(5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    losses = loss(left), loss(right)
    for _ in range(STEPS):
        if losses[0] <= losses[1]:
            high, right = right, left
            left = high - ratio * (high - low)
            losses = loss(left), losses[0]
        else:
            low, left = left, right
            right = low + ratio * (high - low)
            losses = losses[1], loss(right)
    return float(np.exp((low + high) / 2))


def _vector(rows: LabelledOutputs, common: Calibration) -> Calibration:
    """A scale and a shift a label, held to the common temperature; labels with few rows keep it.

    Damped steps along the gradient divided by the diagonal of the Hessian, each only where the loss falls.
    """
    count, labels = rows.logarithms.shape
    truth = rows.targets.astype(np.float64) if rows.is_sigmoid else np.eye(labels)[rows.targets]
    enough = (truth.sum(axis=0) >= LEAST) & ((1 - truth).sum(axis=0) >= LEAST)
    values = np.maximum(rows.logarithms, -50.0)
    start, pull = common.scale[0], PENALTY / count
    scale, shift, step = np.full(labels, start), np.zeros(labels), 1.0

    def made(scale: np.ndarray, shift: np.ndarray) -> tuple[float, np.ndarray]:
        calibration = Calibration(scale=tuple(scale.tolist()), shift=tuple(shift.tolist()))
        probabilities = calibration.probabilities(rows.task, values)
        sums = -np.log(np.maximum(np.where(truth > 0, probabilities, 1 - probabilities), 1e-300))
        data = sums.sum() if rows.is_sigmoid else sums[truth > 0].sum()
        held = ((scale - start) ** 2).sum() + (shift**2).sum()
        return float(data / count + pull * held / 2), probabilities

    loss, probabilities = made(scale, shift)
    for _ in range(ROUNDS):
        rest, spread = probabilities - truth, probabilities * (1 - probabilities)
        by_shift = (rest.mean(axis=0) + pull * shift) / (spread.mean(axis=0) + pull)
        by_scale = ((rest * values).mean(axis=0) + pull * (scale - start)) / ((spread * values**2).mean(axis=0) + pull)
        new_scale = np.maximum(scale - step * np.where(enough, by_scale, 0.0), 1 / HOTTEST)
        new_shift = shift - step * np.where(enough, by_shift, 0.0)
        new_loss, new = made(new_scale, new_shift)
        if new_loss > loss:
            step /= 2
            if step < 1e-6:
                break
            continue
        is_done = loss - new_loss < 1e-9
        scale, shift, loss, probabilities, step = new_scale, new_shift, new_loss, new, min(1.0, step * 1.5)
        if is_done:
            break
    return msgspec.structs.replace(common, scale=tuple(scale.tolist()), shift=tuple(shift.tolist()))
