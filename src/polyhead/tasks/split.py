"""A part of the examples held out, the same for the same seed, with no input on both sides."""

from __future__ import annotations

import numpy as np

from polyhead.errors import EmptyData
from polyhead.tasks.read import Examples
from polyhead.tasks.task import Task
from polyhead.text.question import Given, texts_of


def split(examples: Examples, fraction: float, seed: int, task: Task) -> tuple[Examples, Examples]:
    """(kept, held out), each in the order of the file; about `fraction` of the rows are held out.

    Rows whose texts are equal, but for case, spaces and the order of a pair or of options, stay together. For
    `single_label` each label gives its share, except that a label with one such group is kept. Raises
    EmptyData when a side is empty.
    """
    rng = np.random.default_rng(seed)
    groups: dict[tuple[str, ...], list[int]] = {}
    for index, given in enumerate(examples.inputs):
        groups.setdefault(_key(given), []).append(index)
    strata: dict[int, list[list[int]]] = {}
    for group in groups.values():
        label = int(examples.targets[group[0]]) if task.kind == "single_label" else 0
        strata.setdefault(label, []).append(group)
    held: list[int] = []
    shortfall = 0.0  # rows that rounding has owed so far, so that small strata together get their share
    for label in sorted(strata):
        taken, shortfall = _taken(strata[label], fraction, shortfall, rng)
        held += taken
    chosen = sorted(held)
    kept = sorted(set(range(len(examples.inputs))) - set(held))
    if not kept or not chosen:
        raise EmptyData(
            f"task '{task.name}': too few different inputs to hold some out",
            got=f"{len(examples.inputs)} rows, {len(groups)} different inputs, fraction {fraction}",
            do="give more rows or a validation file",
        )
    return examples.take(kept), examples.take(chosen)


def _taken(
    groups: list[list[int]], fraction: float, shortfall: float, rng: np.random.Generator
) -> tuple[list[int], float]:
    wanted = fraction * sum(map(len, groups)) + shortfall
    taken: list[int] = []
    for index in rng.permutation(len(groups))[: len(groups) - 1]:  # one group is always kept
        size = len(groups[index])
        if len(taken) + size / 2 <= wanted:  # nearer to the target with the group than without it
            taken += groups[index]
    return taken, wanted - len(taken)


def _key(given: Given) -> tuple[str, ...]:
    return tuple(sorted(" ".join(text.casefold().split()) for text in texts_of(given)))
