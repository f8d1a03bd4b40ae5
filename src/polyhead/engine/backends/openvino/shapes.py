"""A graph for each of a few shapes in one compiled model, and one for any shape; all share their weights.

OpenVINO prepares every node of a graph again when the shapes of its inputs change, which costs a short text as much as
half of its layers (docs/project/log.md). A graph whose shapes are known when it is compiled is never prepared again.
Two models hold their multiplied weights twice; the branches of one model's `If` hold them once.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

import numpy as np
import openvino as ov
import openvino.opset13 as op

Shapes = tuple[tuple[int, ...], ...]  # of all inputs of a graph, in their order
SLOW = ("bfloat16",)  # number forms in which a change takes long; in float32 little was gained (docs/project/log.md)
CHANGES = 256  # of shapes, before some get graphs of their own: to compile these takes as long as so many, and more
MOST = 8  # shapes with a graph of their own: each takes some megabytes and a tenth of a second
SMALL = 2**17  # numbers that all inputs hold: of larger ones a change is a small part
WHICH = "which"


class ShapesSeen:
    """Counts which shapes follow another one, and says once which deserve a graph; calls of several threads."""

    def __init__(self) -> None:
        self._lock, self._last, self._changes = threading.Lock(), dict[int, Shapes](), 0
        self._counted: Counter[Shapes] | None = Counter()

    def chosen(self, shapes: Shapes) -> list[Shapes]:
        """Takes note of a call; at the last change that is waited for the most frequent shapes, else none."""
        thread = threading.get_ident()
        if self._counted is None or self._last.get(thread) == shapes:
            return []
        with self._lock:
            is_first, self._last[thread] = thread not in self._last, shapes
            if self._counted is None or is_first or sum(map(_size, shapes)) > SMALL:
                return []
            self._changes += 1
            self._counted[shapes] += 1
            if self._changes < CHANGES:
                return []
            chosen = [known for known, _ in self._counted.most_common(MOST)]
            self._counted = None
            return chosen


def branched(model: ov.Model, shapes: Sequence[Shapes]) -> ov.Model:
    """The model with one more input, `WHICH` (1,): the number of the shapes that come, or as many as there are."""
    leaves = []
    for known in shapes:
        leaf = model.clone()  # whose constants are the same memory
        leaf.reshape({port.any_name: list(size) for port, size in zip(leaf.inputs, known, strict=True)})
        leaves.append(leaf)
    return _tree(model, [*leaves, model.clone()], 0)


def _tree(model: ov.Model, leaves: Sequence[ov.Model], first: int) -> ov.Model:
    """A tree over these leaves, numbered from `first`."""
    if len(leaves) == 1:
        return leaves[0]
    half = len(leaves) // 2
    then, other = _tree(model, leaves[:half], first), _tree(model, leaves[half:], first + half)
    inputs = [
        op.parameter(port.get_partial_shape(), port.get_element_type().to_dtype(), name=port.any_name)
        for port in model.inputs
    ]
    for node, port in zip(inputs, model.inputs, strict=True):
        node.output(0).set_names({port.any_name})
    which = op.parameter([1], np.int64, name=WHICH)
    choice = op.if_op(op.less(which, op.constant(np.array([first + half], np.int64))).output(0))
    choice.set_then_body(then)
    choice.set_else_body(other)
    count = len(inputs)
    ours, theirs = then.get_parameters(), other.get_parameters()
    for node, then_input, else_input in zip(inputs, ours[:count], theirs[:count], strict=True):
        choice.set_input(node.output(0), then_input, else_input)
    if len(ours) > count or len(theirs) > count:
        then_input, else_input = (side[count] if len(side) > count else None for side in (ours, theirs))
        choice.set_input(which.output(0), then_input, else_input)
    outputs = [choice.set_output(*pair) for pair in zip(then.get_results(), other.get_results(), strict=True)]
    return ov.Model([op.result(output) for output in outputs], [*inputs, which], model.get_friendly_name())


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for part in shape:
        size *= part
    return size
