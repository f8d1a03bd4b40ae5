"""Pinned probes of a task: inputs from its validation data on which later changes are proven harmless."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np

from polyhead.bundle.probe import Probe
from polyhead.text.question import Given, texts_of
from polyhead.train.data.prepared import Prepared

PROBES = 64  # at least so many, where the validation split has them


def probes_of(prepared: Prepared) -> list[dict[str, object]]:
    """PROBES inputs of the validation split in the order of the file, or all of a smaller one.

    Among them are every label that occurs, the longest text and a text that is not ASCII; where these are more than
    PROBES, all of them and no others.
    """
    examples = prepared.validation.examples
    needed = _with_every_label(examples.targets) | {_longest(examples.inputs), *_unlike_ascii(examples.inputs)}
    others = [index for index in range(len(examples.inputs)) if index not in needed]
    spread = _spread(others, PROBES - len(needed))
    return [_probe(prepared, index) for index in sorted([*needed, *spread])]


def _with_every_label(targets: Sequence[np.ndarray]) -> set[int]:
    """The rows that show a label first."""
    chosen, seen = set(), set[int]()
    for index, target in enumerate(targets):
        new = _labels_in(target) - seen
        if new:
            chosen.add(index)
            seen |= new
    return chosen


def _labels_in(target: np.ndarray) -> set[int]:
    """Indices of the labels that a target gives: one, one a word, or where it is 1; none for a number.

    Of the answers in a text it is whether there is one.
    """
    if target.ndim == 2:
        return {int(target[0, 1] > 0)}
    if np.issubdtype(target.dtype, np.integer):
        return set(np.unique(target).tolist())
    return set(np.flatnonzero(target).tolist()) if target.ndim else set()


def _longest(inputs: Sequence[Given]) -> int:
    return max(range(len(inputs)), key=lambda index: sum(len(text) for text in texts_of(inputs[index])))


def _unlike_ascii(inputs: Sequence[Given]) -> list[int]:
    """The first row that is farthest from ASCII, if any is: combining or astral characters, then any other."""
    strange = [max(_strangeness(text) for text in texts_of(value)) for value in inputs]
    most = max(strange)
    return [strange.index(most)] if most else []


def _strangeness(text: str) -> int:
    if text.isascii():
        return 0
    return 2 if any(ord(c) > 0xFFFF or unicodedata.combining(c) for c in text) else 1


def _spread(rows: Sequence[int], count: int) -> list[int]:
    """At most `count` of the rows, evenly spaced."""
    count = max(0, min(count, len(rows)))
    return [rows[(2 * place + 1) * len(rows) // (2 * count)] for place in range(count)]


def _probe(prepared: Prepared, index: int) -> dict[str, object]:
    examples = prepared.validation.examples
    words = None if examples.words is None else examples.words[index]
    return Probe.of(examples.inputs[index], words).line()
