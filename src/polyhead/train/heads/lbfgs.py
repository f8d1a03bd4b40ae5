"""L-BFGS for small convex problems: torch's own takes several times longer where a gradient takes microseconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

EVALUATIONS = 75  # of the function
HISTORY = 10  # pairs of a step and of what it changed in the gradient
FLAT, STILL = 3e-6, 1e-8  # the largest entry of a gradient, and the change of a value or a step, that end it
DECREASE, CURVATURE = 1e-4, 0.9  # of the line search
STEPS = 25  # that it tries
ROUNDING = 1e-7  # of a value, as float32 holds it
LEAST_CURVATURE = 1e-10  # of a pair that is kept

Function = Callable[[Tensor], tuple[float, Tensor]]
"""The value at a point, and the gradient there, of the point's shape."""


def minimise(function: Function, start: Tensor, *, iterations: int) -> Tensor:
    """The point (numbers,) where a smooth convex function is least (Liu and Nocedal 1989, algorithm 2.1).

    Steps fulfil the weak Wolfe conditions (Lewis and Overton 2013), found between two lengths by interpolation. `start`
    is left as it is. Ends after `iterations`, or where rounding hides any further descent.
    """
    point, pairs = start, deque[tuple[Tensor, Tensor, float]](maxlen=HISTORY)
    value, gradient = function(point)
    evaluations = 1
    for _ in range(iterations):
        if evaluations >= EVALUATIONS or float(gradient.abs().max()) <= FLAT:
            break
        direction = _direction(gradient, pairs)
        slope = float(torch.dot(gradient, direction))
        if slope >= 0:  # rounding
            break
        length = 1.0 if pairs else min(1.0, 1 / float(gradient.abs().sum()))
        below, above = (0.0, value, slope), float("inf")  # lengths around the one that is looked for
        best: tuple[float, Tensor, Tensor] | None = None  # value, gradient, step
        for _ in range(STEPS):
            step = direction * length
            tried, tried_gradient = function(point + step)
            evaluations += 1
            if tried <= value + DECREASE * length * slope + ROUNDING * abs(value):
                best = (tried, tried_gradient, step)
                own = float(torch.dot(tried_gradient, direction))
                if own >= CURVATURE * slope:
                    break
                rise = own - below[2]
                ahead = (length - below[0]) * own / -rise if rise > 0 else float("inf")
                farthest = min(10 * length, (length + above) / 2)
                below, length = (length, tried, own), min(max(length + ahead, 1.5 * length), farthest)
            else:
                above, width = length, length - below[0]
                bend = tried - below[1] - below[2] * width
                share = -below[2] * width / (2 * bend) if bend > 0 else 0.5  # of a parabola, at its least
                length = below[0] + width * min(max(share, 0.1), 0.9)
        if best is None:
            break
        tried, tried_gradient, step = best
        change = tried_gradient - gradient
        curvature = float(torch.dot(step, change))
        if curvature > LEAST_CURVATURE:
            pairs.append((step, change, curvature))
        fell, point, value, gradient = value - tried, point + step, tried, tried_gradient
        if fell < STILL or float(step.abs().max()) < STILL:
            break
    return point


def _direction(gradient: Tensor, pairs: deque[tuple[Tensor, Tensor, float]]) -> Tensor:
    """The negative gradient times the inverse of the curvature that the pairs show: the recursion of two loops."""
    direction, shares = -gradient, list[float]()
    for step, change, curvature in reversed(pairs):
        shares.append(float(torch.dot(step, direction)) / curvature)
        direction.add_(change, alpha=-shares[-1])
    if pairs:
        _, change, curvature = pairs[-1]
        direction.mul_(curvature / float(torch.dot(change, change)))
    for (step, change, curvature), share in zip(pairs, reversed(shares), strict=True):
        direction.add_(step, alpha=share - float(torch.dot(change, direction)) / curvature)
    return direction
