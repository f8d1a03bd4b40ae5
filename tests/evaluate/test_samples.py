"""Two samples compared: the statistic by its definition, its test under both hypotheses, and corrections."""

import numpy as np
import pytest

from polyhead.engine.familiar import farness, pairwise
from polyhead.evaluate.drift import holm, sample_distance


def test_the_distance_is_that_of_the_definition():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(7, 3)), rng.normal(size=(5, 3)) + 1

    def mean(one, other):
        return np.mean([np.linalg.norm(a - b) for a in one for b in other if a is not b])

    sides = list(first), list(second)
    between = mean(*sides)
    expected = (2 * between - mean(sides[0], sides[0]) - mean(sides[1], sides[1])) / (2 * between)
    assert sample_distance(first, second, level=0.1, rng=rng).distance == pytest.approx(expected, rel=1e-4)


def test_samples_of_one_distribution_are_seldom_called_different():
    """Of 200 pairs at level 0.05, 10 are expected; 22 or more have a chance of 0.0004."""
    rng = np.random.default_rng(1)
    low = 0
    for _ in range(200):
        both = rng.normal(size=(50, 4))
        low += sample_distance(both[:20], both[20:], level=0.05, rng=rng).p <= 0.05
    assert 1 <= low < 22


def test_samples_that_differ_are_found_at_any_level():
    rng = np.random.default_rng(2)
    first, second = rng.normal(size=(200, 4)), rng.normal(size=(200, 4)) + 0.5
    for level in (0.05, 0.001):
        assert sample_distance(first, second, level=level, rng=rng).p < level


def test_equal_rows_have_no_distance():
    same = np.ones((40, 2))
    assert sample_distance(same, same[:30], level=0.01, rng=np.random.default_rng(0)).p == 1.0
    assert sample_distance(same, same[:30], level=0.01, rng=np.random.default_rng(0)).distance == 0.0


def test_rows_are_far_from_what_they_are_unlike():
    known = np.eye(8, dtype=np.float32)
    rows = np.concatenate([known[:1], -5 * known[:1]])
    near, far = farness(rows, known)
    assert far > 5 > near
    assert farness(known, known, among=True) == pytest.approx(np.sqrt(2), rel=1e-5)
    assert pairwise(known[:1], rows)[0] == pytest.approx([0, 6])


def test_holm_rejects_in_steps():
    """Holm (1979): 0.01 and 0.02 at 0.05 over four; 0.06 is above 0.05, the last step."""
    assert holm({"a": 0.012, "b": 0.016, "c": 0.06, "d": 0.01}, 0.05) == {"a", "b", "d"}
    assert holm({"a": 0.03, "b": 0.04}, 0.05) == set()
    assert holm({}, 0.05) == set()
