"""L-BFGS: the minimum that scipy finds, on problems whose curvature differs by far, and what ends it."""

import numpy as np
import pytest
from scipy.optimize import minimize

from polyhead.train.heads.lbfgs import minimise


def logistic(rows=80, width=12, penalty=1e-3, seed=1):
    """The penalised loss of a logistic regression whose inputs differ in scale by a factor of a hundred."""
    drawn = np.random.default_rng(seed)
    values = drawn.normal(size=(rows, width)) * np.geomspace(0.1, 10, width)
    signs = np.sign(values @ drawn.normal(size=width) + drawn.normal(size=rows))

    def function(point):
        margins = signs * (values @ point)
        value = np.logaddexp(0, -margins).mean() + penalty / 2 * point @ point
        shares = -signs / (1 + np.exp(margins))
        return value, values.T @ shares / rows + penalty * point

    return function, np.zeros(width)


@pytest.mark.parametrize("penalty", [1.0, 1e-2, 1e-3])
def test_the_minimum_is_that_of_scipy(penalty):
    function, start = logistic(penalty=penalty)

    curvature = np.geomspace(0.1, 10, len(start)) ** 2 / 4 + penalty
    solved = minimise(function, start, curvature=curvature, iterations=200)
    expected = minimize(function, start, jac=True, method="L-BFGS-B", options={"ftol": 1e-14, "gtol": 1e-9})
    assert function(solved)[0] == pytest.approx(expected.fun, rel=1e-5)
    np.testing.assert_allclose(solved, expected.x, rtol=0.05, atol=1e-3)


def test_a_quadratic_is_solved_in_few_steps_and_the_start_is_left_alone():
    curvature = np.array([1.0, 10.0, 100.0])
    goal, start, evaluations = np.array([1.0, -2.0, 3.0]), np.zeros(3), []

    def function(point):
        evaluations.append(1)
        apart = point - goal
        return float((curvature * apart * apart).sum()) / 2, curvature * apart

    np.testing.assert_allclose(minimise(function, start, curvature=np.ones_like(start), iterations=50), goal, atol=1e-4)
    assert len(evaluations) < 30 and not start.any()


def test_it_ends_where_the_value_cannot_be_lowered_or_is_no_number():
    """A gradient that is wrong, and values that are not finite beyond the start, must not run for ever."""
    start, evaluations = np.ones(2), []

    def level(point):
        evaluations.append(1)
        return 1.0, np.ones(2)

    assert np.isfinite(minimise(level, start, curvature=np.ones(2), iterations=50)).all() and len(evaluations) <= 100

    def cliff(point):
        return (1.0 if np.array_equal(point, start) else float("nan")), np.ones(2)

    assert np.array_equal(minimise(cliff, start, curvature=np.ones(2), iterations=50), start)
    assert np.array_equal(minimise(lambda point: (0.0, np.zeros(2)), start, curvature=np.ones(2), iterations=50), start)
