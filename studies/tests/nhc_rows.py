"""Rows of a made-up study of NHC: all seven tasks, points that follow from a rule."""

from studies.huang2022.methods import ABLATION, GRID, MAIN
from studies.huang2022.nhc import TASKS

POINTS = {method.name: 80.0 + place for place, method in enumerate(MAIN)}
POINTS |= {method.name: 70.0 + number for number, method in ABLATION.items() if method.name not in POINTS}
GRID_POINTS = {method.name: 60.0 + 2 * rows - shared for (rows, shared), method in GRID.items()}
SPREAD = {1: -3.0, 2: 0.0, 3: 1.0}
DROP = 10.0  # from the builder's split to the test; recall is half way


def row(method, seed, task, points):
    return {
        "stage": "task",
        "method": method,
        "seed": seed,
        "task": task,
        "settings": "s",
        "validation": points / 100,
        "test": (points - DROP) / 100,
        "recall": (points - DROP / 2) / 100,
        "best_epoch": 2,
        "passes": 7 if method in ("single", "p-tuning", "p-tuning-v2", "ca-mtl") else 1,
        "layers": 42 if method in ("single", "p-tuning", "p-tuning-v2", "ca-mtl") else 6,
        "over_plain": 1.95,
        "parameters": 1000,
        "learned": "one trunk",
    }


def rows(seeds=(1, 2, 3)):
    """Each task is a point above the one before it, each seed its spread; figure 2 has the first seed alone."""
    found = []
    for seed in seeds:
        for method, points in POINTS.items():
            found.append({"stage": "run", "method": method, "seed": seed, "own": {}})
            found += [row(method, seed, t, points + SPREAD[seed] + n) for n, t in enumerate(TASKS)]
    for method, points in GRID_POINTS.items():
        if method not in POINTS:
            found += [row(method, seeds[0], t, points) for t in TASKS]
    return found
