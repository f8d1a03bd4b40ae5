"""L-BFGS for small convex problems, where a gradient takes microseconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

import numpy as np

EVALUATIONS = 180  # evaluations of the function
HISTORY = 20  # pairs of a step and its change of the gradient
NEAR = 1e-7  # what a Newton step would still gain where the search ends, as a share of the value
DECREASE, CURVATURE = 1e-4, 0.9  # of the line search
STEPS = 25  # steps that it tries
ROUNDING = 1e-7  # relative precision of a value, as in float32
STUCK = 3  # steps that do not lower the value: rounding hides what is left
LEAST_CURVATURE = 1e-10  # of a kept pair

Evaluated = tuple[float, np.ndarray]
"""The value of a function at a point, and its gradient there, of the point's shape."""


def minimise(
    function: Callable[[np.ndarray], Evaluated],
    start: np.ndarray,
    *,
    curvature: np.ndarray,
    iterations: int,
    near: float = NEAR,
    history: int = HISTORY,
) -> np.ndarray:
    """The minimum (numbers,) of a smooth convex function (Liu and Nocedal 1989, algorithm 2.1).

    `curvature` (numbers,), all above 0, estimates the second derivative along each number: the search is in numbers
    scaled to a curvature of 1. Ends when a Newton step, with the curvature known so far, would gain `near` of the value
    (Boyd and Vandenberghe 2004, 9.5.1), when rounding hides any further descent, or after `iterations`. `start` is not
    changed; `history` pairs of its size are kept.
    """
    (minimum,) = minimise_several(
        lambda points: [function(point) for point in points.values()],
        [start],
        curvatures=[curvature],
        iterations=iterations,
        near=near,
        history=history,
    )
    return minimum


def minimise_several(
    functions: Callable[[dict[int, np.ndarray]], Sequence[Evaluated]],
    starts: Sequence[np.ndarray],
    *,
    curvatures: Sequence[np.ndarray],
    iterations: int,
    near: float = NEAR,
    history: int = HISTORY,
) -> list[np.ndarray]:
    """The minima of several functions, each by a search of its own, evaluated together.

    `functions` gets the points of the functions that are still searched, by their numbers, in order.
    """
    scales = [1 / np.sqrt(curvature) for curvature in curvatures]
    searches = [_search(start / scale, iterations, near, history) for start, scale in zip(starts, scales, strict=True)]
    points, minima = {number: next(search) for number, search in enumerate(searches)}, dict[int, np.ndarray]()
    while points:
        answers = functions({number: point * scales[number] for number, point in points.items()})
        for number, (value, gradient) in zip(list(points), answers, strict=True):
            try:
                points[number] = searches[number].send((value, gradient * scales[number]))
            except StopIteration as end:
                minima[number] = end.value * scales[number]
                del points[number]
    return [minima[number] for number in range(len(starts))]


Search = Generator[np.ndarray, Evaluated, np.ndarray]
"""Points to evaluate, one after another, and the minimum."""


def _search(start: np.ndarray, iterations: int, near: float, history: int) -> Search:
    """The minimum of a function whose curvature is about 1 along every number."""
    point, pairs = start, deque[tuple[np.ndarray, np.ndarray, float]](maxlen=history)
    value, gradient = yield point
    evaluations, stuck = 1, 0
    for _ in range(iterations):
        direction = _direction(gradient, pairs)
        slope = float(np.dot(gradient, direction))
        if evaluations >= EVALUATIONS or -slope / 2 <= near * abs(value):  # also where rounding turns it uphill
            break
        reached, tries = yield from _along(point, value, direction, slope)
        evaluations += tries
        if reached is None:
            break
        change = reached.gradient - gradient
        curvature = float(np.dot(reached.step, change))
        if curvature > LEAST_CURVATURE:
            pairs.append((reached.step, change, curvature))
        stuck += reached.value >= value
        if stuck == STUCK:
            break
        point, value, gradient = point + reached.step, reached.value, reached.gradient
    return point


class _Reached(NamedTuple):
    """The end of a step."""

    value: float
    gradient: np.ndarray
    step: np.ndarray


def _along(
    point: np.ndarray, value: float, direction: np.ndarray, slope: float
) -> Generator[np.ndarray, Evaluated, tuple[_Reached | None, int]]:
    """A step along the direction that lowers the value, and the number of evaluations; None without one.

    It fulfils the weak Wolfe conditions (Lewis and Overton 2013) if STEPS suffice. Lengths are interpolated between the
    longest that is too short and the shortest that is too long.
    """
    length, short, short_value, short_slope, long = 1.0, 0.0, value, slope, float("inf")
    reached: _Reached | None = None
    for number in range(1, STEPS + 1):
        step = direction * length
        tried, gradient = yield point + step
        if tried <= value + DECREASE * length * slope + ROUNDING * abs(value):
            reached, tried_slope = _Reached(tried, gradient, step), float(np.dot(gradient, direction))
            if tried_slope >= CURVATURE * slope:
                return reached, number
            rise = tried_slope - short_slope
            ahead = -(length - short) * tried_slope / rise if rise > 0 else float("inf")  # to a slope of 0
            farthest = min(10 * length, (length + long) / 2)
            short, short_value, short_slope = length, tried, tried_slope
            length = min(max(length + ahead, 1.5 * length), farthest)
        else:  # also if it is not a number
            long, width = length, length - short
            bend = tried - short_value - short_slope * width
            share = -short_slope * width / (2 * bend) if bend > 0 else 0.5  # the minimum of a parabola
            length = short + width * min(max(share, 0.1), 0.9)
    return reached, STEPS


def _direction(gradient: np.ndarray, pairs: deque[tuple[np.ndarray, np.ndarray, float]]) -> np.ndarray:
    """The negative gradient times the inverse curvature estimated from the pairs: the two-loop recursion."""
    direction, shares = -gradient, list[float]()
    for step, change, curvature in reversed(pairs):
        shares.append(float(np.dot(step, direction)) / curvature)
        direction -= change * shares[-1]
    if pairs:
        _, change, curvature = pairs[-1]
        direction *= curvature / float(np.dot(change, change))
    for (step, change, curvature), share in zip(pairs, reversed(shares), strict=True):
        direction += step * (share - float(np.dot(change, direction)) / curvature)
    return direction
