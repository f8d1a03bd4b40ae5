"""Poolers and heads of a few tasks of a group, whichever are asked: no weights but theirs are read.

They are gathered from those of all, so that one graph serves any choice. Which calls a plan makes says `groups`.
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

# Numbers of weights that are read in the time in which a call of a graph begins, and how many times as long a number
# takes that is gathered first (docs/project/log.md).
BEGIN, GATHERED = 260_000, 2
WORTH = 1.25  # a graph beside those of all tasks is taken where these cost so many times as much: it is compiled first


def numbers_of(form: SlotForm, output: str) -> int:
    """Numbers that the folded weights of a slot hold, by its form and the name of its output."""
    read = form.layers * form.width
    pooler = read * (form.width + form.pool.heads) if form.pool.positions == "attention" else 0
    inputs = (2 * form.window + 1) * (form.width if pooler else read)
    labels = int(output) if output.isdecimal() else form.width
    return pooler + (inputs * form.hidden + form.hidden * labels if form.hidden else inputs * labels)


def few_answers(ops: Ops, form: SlotForm, slots: Sequence[Slot | None], outputs: Sequence[str]) -> dict[str, Tensor]:
    """What `heads.answers` gives of all slots, of those alone that are asked: their weights are gathered.

    Inputs beside those of `answers`: `seats` (asked,), places of slots; with attention `heads` (asked * heads,), the
    places of their heads. Of each name of an output `of.<name>`, places among the asked, and as many places
    `at.<name>` among the slots of that name: its output has a row for each.
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
        own = [slot.last for slot, own_name in zip(filled, outputs, strict=True) if own_name == name]
        matrix, bias = _stacked(ops, [m for m, _ in own]), _stacked(ops, [b[None] for _, b in own])
        at = ops.input(f"at.{name}", "int", (-1,))
        read = ops.gather(x, ops.input(f"of.{name}", "int", (-1,))) if each else x
        out = ops.add(ops.matmul(read, ops.gather(matrix, at)), ops.gather(bias, at))
        answers[name] = ops.reshape(out, (ops.size(at, 0), -1, *positions, len(own[0][1])))
    return answers


def places_of_few(form: SlotForm, outputs: Sequence[str], asked: Sequence[int]) -> dict[str, np.ndarray]:
    """The inputs of `few_answers` that say which slots are asked; of a name of which none is, its first is computed."""
    seats, heads = np.array(asked, np.int64), form.pool.heads
    is_each = form.hidden > 0 or form.pool.positions == "attention"
    places: dict[str, np.ndarray] = {"seats": seats} if is_each else {}
    if form.pool.positions == "attention":
        places["heads"] = (seats[:, None] * heads + np.arange(heads)).ravel()
    for name in dict.fromkeys(outputs):
        own = [place for place, own_name in enumerate(outputs) if own_name == name]
        found = [(number, own.index(place)) for number, place in enumerate(asked) if place in own] or [(0, 0)]
        of, at = np.array(found, np.int64).T
        places |= {f"of.{name}": of.copy(), f"at.{name}": at.copy()} if is_each else {f"at.{name}": at.copy()}
    return places


def _stacked(ops: Ops, arrays: Sequence[np.ndarray]) -> Tensor:
    return ops.constant(np.stack(arrays))
