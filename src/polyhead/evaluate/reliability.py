"""Scores against confidence: whether answers are right as often as they are sure."""

from __future__ import annotations

import numpy as np

from polyhead.tasks.judging import Decisions
from polyhead.tasks.metrics import BINS, bins_of, calibration_error
from polyhead.values import Value

STEPS = 20  # shares of the surest decisions


class Bin(Value):
    """Decisions of a confidence in (low, high]."""

    low: float
    high: float
    decisions: int
    confidence: float | None  # its mean; None where there are none
    accuracy: float | None


class Surest(Value):
    """The surest decisions."""

    share: float
    least: float  # the least of their confidences
    accuracy: float


class Reliability(Value):
    """How confidence and accuracy go together."""

    of: str  # what is decided, in the plural
    decisions: int
    confidence: float  # mean
    accuracy: float
    calibration_error: float  # expected: mean over decisions of |accuracy - confidence| of their bin (Guo et al. 2017)
    bins: tuple[Bin, ...]
    surest: tuple[Surest, ...]


def reliability_of(decisions: Decisions) -> Reliability | None:
    """None where nothing was decided."""
    confidence, is_right = decisions.confidence, decisions.is_right
    count = len(confidence)
    if not count:
        return None
    place = bins_of(confidence)
    counts = np.bincount(place, minlength=BINS)
    sums = [np.bincount(place, weights=values, minlength=BINS) for values in (confidence, is_right)]
    return Reliability(
        of=decisions.of,
        decisions=count,
        confidence=float(confidence.mean()),
        accuracy=float(is_right.mean()),
        calibration_error=calibration_error(confidence, is_right),
        bins=tuple(
            Bin(
                low=number / BINS,
                high=(number + 1) / BINS,
                decisions=int(counts[number]),
                confidence=float(sums[0][number] / counts[number]) if counts[number] else None,
                accuracy=float(sums[1][number] / counts[number]) if counts[number] else None,
            )
            for number in range(BINS)
        ),
        surest=_surest(confidence, is_right),
    )


def _surest(confidence: np.ndarray, is_right: np.ndarray) -> tuple[Surest, ...]:
    """The surest twentieth, two twentieths and so on; decisions as sure as the last of them count too."""
    order = np.argsort(-confidence, kind="stable")
    ordered, right = confidence[order], np.cumsum(is_right[order])
    several = []
    for step in range(1, STEPS + 1):
        least = ordered[max(1, round(len(ordered) * step / STEPS)) - 1]
        size = int(np.searchsorted(-ordered, -least, side="right"))
        several.append(Surest(share=size / len(ordered), least=float(least), accuracy=float(right[size - 1] / size)))
    return tuple(dict.fromkeys(several))
