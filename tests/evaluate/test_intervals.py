"""Intervals hold what they promise, and tests of change are those of scipy."""

import numpy as np
import pytest

from polyhead.evaluate.scores import differences, intervals, mcnemar
from polyhead.tasks.judging import from_sums


def mean_of(values):
    """The mean of numbers, as a kind would give it."""
    sums = np.stack([values, np.ones(len(values))], axis=1)
    return from_sums(sums, lambda sums: {"mean": sums[..., 0] / sums[..., 1]})


@pytest.mark.parametrize("pair", [(0, 0), (0, 1), (3, 3), (2, 11), (40, 25), (1200, 1000), (0, 3000)], ids=str)
def test_mcnemar_is_the_exact_binomial_test_of_scipy(pair):
    stats = pytest.importorskip("scipy.stats")
    one, other = pair
    wanted = stats.binomtest(one, one + other).pvalue if one + other else 1.0
    assert mcnemar(one, other) == pytest.approx(wanted, rel=1e-9, abs=1e-300) == mcnemar(other, one)


def test_an_interval_covers_the_truth_about_as_often_as_it_says():
    """Of 200 samples of 80 rows whose true mean is 0.7; 95 % are promised, percentiles give a little less."""
    rng, covered = np.random.default_rng(0), 0
    for seed in range(200):
        interval = intervals(mean_of(rng.random(80) < 0.7), 80, seed=seed, resamples=300)["mean"]
        covered += interval.low <= 0.7 <= interval.high
    assert 0.88 <= covered / 200 <= 0.99


def test_an_interval_is_that_of_the_normal_distribution_where_rows_are_many():
    values = np.random.default_rng(1).random(5000)
    found = intervals(mean_of(values), len(values))["mean"]
    half = 1.96 * values.std() / np.sqrt(len(values))
    assert (found.low, found.high) == pytest.approx((values.mean() - half, values.mean() + half), abs=half / 8)


def test_rows_are_drawn_from_the_seed():
    recount = mean_of(np.random.default_rng(2).random(30))
    first, again, other = (intervals(recount, 30, seed=seed) for seed in (3, 3, 4))
    assert first == again != other


def test_pieces_of_resamples_are_drawn_as_one(monkeypatch):
    recount = mean_of(np.random.default_rng(2).random(30))
    whole = intervals(recount, 30)
    monkeypatch.setattr("polyhead.evaluate.scores.PIECE", 64)
    assert intervals(recount, 30) == whole


def test_a_difference_of_the_same_answers_is_nothing_and_pairs_are_kept():
    values = np.random.default_rng(5).random(50)
    same = differences(mean_of(values), mean_of(values), 50)["mean"]
    assert same.low == same.high == 0
    shifted = differences(mean_of(values + 0.25), mean_of(values), 50)["mean"]  # each row by as much: no spread
    assert (shifted.low, shifted.high) == pytest.approx((0.25, 0.25))
