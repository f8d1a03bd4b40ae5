"""Scores against confidence."""

import numpy as np
import pytest

from polyhead.evaluate.details import BINS, reliability_of
from polyhead.tasks.judging import Decisions


def reliability(confidence, is_right):
    return reliability_of(
        Decisions(of="rows", confidence=np.array(confidence, float), is_right=np.array(is_right, bool))
    )


def test_a_case_worked_by_hand():
    """Four at 0.9, three of them right; two at 0.5, none right: |0.75 - 0.9| 4/6 + |0 - 0.5| 2/6."""
    found = reliability([0.9, 0.9, 0.9, 0.9, 0.5, 0.5], [1, 1, 1, 0, 0, 0])
    assert found.calibration_error == pytest.approx(0.15 * 4 / 6 + 0.5 * 2 / 6)
    assert (found.confidence, found.accuracy, found.decisions) == (pytest.approx(4.6 / 6), 0.5, 6)
    filled = [(each.decisions, each.accuracy) for each in found.bins if each.decisions]
    assert filled == [(2, 0.0), (4, 0.75)]
    assert [(each.share, each.least, each.accuracy) for each in found.surest] == [
        (pytest.approx(4 / 6), 0.9, 0.75),
        (1.0, 0.5, 0.5),
    ]


def test_bins_are_those_of_scikit_learn():
    calibration = pytest.importorskip("sklearn.calibration")
    rng = np.random.default_rng(0)
    confidence, is_right = rng.random(500), rng.random(500) < 0.6
    found = [each for each in reliability(confidence, is_right).bins if each.decisions]
    shares, means = calibration.calibration_curve(is_right, confidence, n_bins=BINS)
    assert [each.accuracy for each in found] == pytest.approx(shares.tolist())
    assert [each.confidence for each in found] == pytest.approx(means.tolist())


def test_decisions_that_are_right_as_often_as_they_are_sure_have_a_small_error():
    rng = np.random.default_rng(1)
    confidence = rng.random(40_000)
    found = reliability(confidence, rng.random(40_000) < confidence)
    assert found.calibration_error < 0.02
    accuracies = [each.accuracy for each in found.surest]
    assert len(accuracies) == 20 and accuracies[0] > 0.95 and accuracies[-1] == pytest.approx(0.5, abs=0.02)


def test_certain_decisions_and_none_at_all_have_a_place():
    found = reliability([0.0, 1.0], [0, 1])
    assert found.bins[0].decisions == found.bins[-1].decisions == 1 and found.calibration_error == 0
    assert reliability([], []) is None
