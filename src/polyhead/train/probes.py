"""Pinned probes of a task: inputs from its validation data on which later changes are proven harmless."""

from __future__ import annotations

import numpy as np

from polyhead.train.prepare import Prepared

PROBES = 64


def probes_of(prepared: Prepared) -> list[dict[str, object]]:
    """At most PROBES inputs (every label, the longest text, non-ASCII text), in the order of the file."""
    examples = prepared.validation.examples
    chosen: dict[int, None] = {}
    longest = max(range(len(examples.inputs)), key=lambda i: sum(len(t) for t in examples.inputs[i]))
    chosen[longest] = None
    seen: set[object] = set()
    for i, target in enumerate(examples.targets):
        new = {(str(target.dtype), v) for v in np.unique(target).tolist()} - seen
        if new and np.issubdtype(target.dtype, np.integer):
            chosen[i] = None
            seen |= new
    for i, text in enumerate(examples.inputs):
        if not all(t.isascii() for t in text):
            chosen[i] = None
            break
    for i in np.linspace(0, len(examples.inputs) - 1, PROBES).round().astype(int).tolist():
        chosen[i] = None
    picked = sorted(list(chosen)[:PROBES])
    return [_probe(prepared, i) for i in picked]


def _probe(prepared: Prepared, index: int) -> dict[str, object]:
    examples = prepared.validation.examples
    probe: dict[str, object] = {"text": list(examples.inputs[index])}
    if examples.words is not None:
        probe["words"] = examples.words[index].tolist()
    return probe
