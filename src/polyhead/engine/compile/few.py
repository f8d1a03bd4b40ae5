"""A graph that computes the poolers and heads of any few tasks of a group, and reads their weights alone.

It gathers them from the weights of all tasks of the group, so that one graph serves any choice. `groups` decides where
it is called.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyhead.engine.compile.heads import (
    Slot,
    SlotForm,
    between_maps,
    pooled_values,
    slots_apart,
    values_read,
    without_spare,
)
from polyhead.engine.compile.ops import Ops, Tensor

# In weights that are read in the same time (docs/project/log.md): the start of a call, and a weight that is gathered.
BEGIN, GATHERED = 260_000, 2
WORTH = 1.25  # times the price of a few that all must cost: the graph of a few has to be compiled first


def numbers_of(form: SlotForm, output: str) -> int:
    """The number of folded weights of a slot of this form, whose output has this name."""
    read = form.layers * form.width
    pooler = read * (form.width + form.pool.heads) if form.pool.positions == "attention" else 0
    inputs = (2 * form.window + 1) * (form.width if pooler else read)
    labels = int(output) if output.isdecimal() else form.width
    return pooler + (inputs * form.hidden + form.hidden * labels if form.hidden else inputs * labels)


def few_answers(ops: Ops, form: SlotForm, slots: Sequence[Slot | None], outputs: Sequence[str]) -> dict[str, Tensor]:
    """The result of `heads.answers` for the asked slots alone.

    It has the inputs of `answers` and these: `seats` (asked,), the numbers of the asked slots; with attention `heads`
    (asked * heads,), the numbers of their heads; for each name of an output `at.<name>`, the numbers of its asked slots
    among all slots of that name, and `of.<name>`, the numbers of the same slots among the asked ones.
    """
    x, filled = values_read(ops, form), without_spare(slots)
    positions = [ops.size(x, 1)] if form.pool.positions == "tokens" else []
    is_deep, is_attention = filled[0].second is not None, form.pool.positions == "attention"
    each = is_deep or is_attention  # else all slots read the same
    seats = ops.input("seats", "int", (-1,)) if each else None
    if is_attention:
        queries = ops.gather(_stacked(ops, [slot.scores for slot in filled if slot.scores is not None]), seats)
        queries = ops.reshape(ops.transpose(queries, (1, 0, 2)), (form.layers * form.width, -1))
        values = _stacked(ops, [matrix for slot in filled if slot.values is not None for matrix in slot.values])
        out = ops.matmul(pooled_values(ops, x, queries), ops.gather(values, ops.input("heads", "int", (-1,))))
        x = slots_apart(ops, out, form, ops.size(seats, 0))
    else:
        x = ops.reshape(x, (1, -1, (2 * form.window + 1) * form.layers * form.width))
    if is_deep:
        matrix = _stacked(ops, [slot.first for slot in filled])
        bias = _stacked(ops, [slot.first_bias[None] for slot in filled])
        x = between_maps(ops, ops.add(ops.matmul(x, ops.gather(matrix, seats)), ops.gather(bias, seats)), form)
    answers: dict[str, Tensor] = {}
    for name in dict.fromkeys(outputs):
        maps = [slot.last for slot, output in zip(filled, outputs, strict=True) if output == name]
        matrix, bias = _stacked(ops, [m for m, _ in maps]), _stacked(ops, [b[None] for _, b in maps])
        at = ops.input(f"at.{name}", "int", (-1,))
        read = ops.gather(x, ops.input(f"of.{name}", "int", (-1,))) if each else x
        out = ops.add(ops.matmul(read, ops.gather(matrix, at)), ops.gather(bias, at))
        answers[name] = ops.reshape(out, (ops.size(at, 0), -1, *positions, len(maps[0][1])))
    return answers


def places_of_few(form: SlotForm, outputs: Sequence[str], asked: Sequence[int]) -> dict[str, np.ndarray]:
    """The inputs of `few_answers` for these numbers of slots; a name without an asked slot computes its first slot."""
    seats, heads = np.array(asked, np.int64), form.pool.heads
    is_each = form.hidden > 0 or form.pool.positions == "attention"
    places: dict[str, np.ndarray] = {"seats": seats} if is_each else {}
    if form.pool.positions == "attention":
        places["heads"] = (seats[:, None] * heads + np.arange(heads)).ravel()
    for name in dict.fromkeys(outputs):
        slots = [slot for slot, output in enumerate(outputs) if output == name]
        pairs = [(number, slots.index(slot)) for number, slot in enumerate(asked) if slot in slots] or [(0, 0)]
        of, at = np.array(pairs, np.int64).T
        places |= {f"of.{name}": of.copy(), f"at.{name}": at.copy()} if is_each else {f"at.{name}": at.copy()}
    return places


def _stacked(ops: Ops, arrays: Sequence[np.ndarray]) -> Tensor:
    return ops.constant(np.stack(arrays))
