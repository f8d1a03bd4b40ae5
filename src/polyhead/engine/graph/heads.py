"""Poolers and heads of several tasks as one graph: a slot a task, all slots of a product at once.

What is read of the states is chosen first (positions, layers, codec), once for all tasks that read the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from polyhead.config import Value
from polyhead.engine.graph.fold import Slot
from polyhead.engine.graph.ops import Ops, Tensor
from polyhead.plan import Activation, Codec, Head, Pool
from polyhead.store.codec import LARGEST_HALF

FEATURES = "features"  # the output of slots whose heads compare two texts


class Form(Value):
    """What tasks must have alike to stand in the slots of one graph."""

    pool: Pool  # whoever owns its arrays
    width: int  # of the states
    layers: int  # how many states are read side by side: 1, or all that a learned mix reads
    mixed: bool  # the states come averaged already
    hidden: int  # outputs of the first map; 0: it is the whole head
    activation: Activation
    output: str | None  # the name of all slots' outputs; None: each its own


def room_for(labels: int) -> int:
    """Outputs of a slot: 32, 64, 128, ...; heads of like width share a product."""
    return max(32, 1 << (labels - 1).bit_length())


def output_of(head: Head) -> str:
    """The name under which a head's outputs stand beside those of like width."""
    return FEATURES if head.separate else str(room_for(head.width))


def answers(ops: Ops, form: Form, slots: Sequence[Slot | None], outputs: Sequence[str]) -> dict[str, Tensor]:
    """Under each slot's name the outputs (slots of it, texts, labels), or (..., texts, words, labels).

    None is a spare slot, as wide as the first that is none. `outputs` names each slot's.

    Inputs: `state.0`, ... (rows, tokens, width); `places` (texts, positions), which of all rows' tokens are read, laid
    end to end; of attention `keep` (texts, positions), added to scores; of a mean `share` (texts, 1, positions).
    Prompt rows are each slot's own: of these `places` and `share` have (slots * texts) rows.
    """
    read = [_coded(ops, one, form.pool.codec) for one in _read(ops, form)]
    if form.pool.layers == "mean" and len(read) > 1:
        read = [_mean(ops, read)]
    x = read[0] if len(read) == 1 else ops.concat(read, 2)  # (texts, positions, layers * width)
    filled = [slot or _spare(slots) for slot in slots]
    if form.pool.positions == "attention":
        first = _own_products(ops, _attended(ops, x, filled, form), filled)
    elif form.pool.positions == "prompt":
        own = ops.matmul(ops.input("share", "float", (-1, 1, -1)), x)
        own = ops.reshape(own, (len(slots), -1, form.layers * form.width))
        first = _own_products(ops, own, filled)
    else:
        flat = ops.reshape(x, (-1, form.layers * form.width))
        both = ops.matmul(flat, ops.constant(np.concatenate(_each(filled, "first"), axis=1)))
        both = ops.reshape(both, (-1, len(slots), filled[0].first.shape[1]))
        first = ops.transpose(both, (1, 0, 2))
    first = ops.add(first, ops.constant(np.stack(_each(filled, "first_bias"))[:, None]))
    found = {}
    for name in dict.fromkeys(outputs):
        mine = [slot for slot, one in enumerate(outputs) if one == name]
        all_alike = len(mine) == len(slots)
        some = first if all_alike else ops.gather(first, ops.constant(np.array(mine, np.int64)))
        out = _outputs(ops, some, [filled[slot] for slot in mine], form)
        if form.pool.positions == "tokens":
            out = ops.reshape(out, (len(mine), -1, ops.size(x, 1), filled[mine[0]].width))
        found[name] = out
    return found


def _own_products(ops: Ops, x: Tensor, slots: Sequence[Slot]) -> Tensor:
    """Each slot's first map of its own (texts, inputs): (slots, texts, hidden)."""
    return ops.matmul(x, ops.constant(np.stack(_each(slots, "first"))))


def _outputs(ops: Ops, first: Tensor, slots: Sequence[Slot], form: Form) -> Tensor:
    if slots[0].second is None:  # features, or heads of one map
        return first
    hidden = {"tanh": ops.tanh, "relu": ops.relu, "gelu": ops.gelu}[form.activation](first)
    out = ops.matmul(hidden, ops.constant(np.stack(_each(slots, "second"))))
    return ops.add(out, ops.constant(np.stack(_each(slots, "second_bias"))[:, None]))


def _each(slots: Sequence[Slot], name: str) -> list[np.ndarray]:
    """One array of every slot."""
    return [getattr(slot, name) for slot in slots]


def padded(slot: Slot, form: Form) -> Slot:
    """The slot with room for more outputs; features stay as they are."""
    if form.output == FEATURES:
        return slot
    last = ("first", "first_bias") if slot.second is None else ("second", "second_bias")
    more = [(0, 0), (0, room_for(slot.width) - slot.width)]
    return msgspec.structs.replace(
        slot, **{name: np.pad(getattr(slot, name), more[-getattr(slot, name).ndim :]) for name in last}
    )


def _spare(slots: Sequence[Slot | None]) -> Slot:
    """A slot of zeros."""
    like = next(slot for slot in slots if slot is not None)
    zeros = {
        name: np.zeros_like(array)
        for name, array in msgspec.structs.asdict(like).items()
        if array is not None
    }
    return msgspec.structs.replace(like, **zeros)


def _read(ops: Ops, form: Form) -> list[Tensor]:
    """What is read of each state, (texts, positions, width): before codecs."""
    count = form.layers if form.pool.layers == "learned" else 1 if form.mixed else form.pool.of
    states = [ops.input(f"state.{i}", "float", (-1, -1, form.width)) for i in range(count)]
    if form.pool.layers == "mean" and len(states) > 1 and not form.pool.codec.before_mean:
        states = [_mean(ops, states)]
    places = ops.input("places", "int", (-1, -1))
    read = [ops.gather(ops.reshape(state, (-1, form.width)), places) for state in states]
    if form.pool.positions == "mean":
        share = ops.input("share", "float", (-1, 1, -1))
        read = [ops.matmul(share, one) for one in read]
    return read


def _mean(ops: Ops, parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = ops.add(total, part)
    return ops.multiply(total, ops.constant(np.array(1.0 / len(parts), np.float32)))


def _coded(ops: Ops, x: Tensor, codec: Codec) -> Tensor:
    """What a reader of the store sees of these values (see `store.codec`)."""
    if codec.name == "float16":
        return ops.halved(_clipped(ops, x, np.array(-LARGEST_HALF), np.array(LARGEST_HALF)))
    if codec.name == "sign":
        return ops.signed(x)
    if codec.name == "uint8":
        # Clipped to [-zero, 255 - zero] and not moved by zero, of which a lower precision would leave less.
        scale, zero = (np.array(one, np.float32) for one in (codec.scale, codec.zero))
        levels = _clipped(ops, ops.round(ops.divide(x, ops.constant(scale))), -zero, 255 - zero)
        return ops.multiply(levels, ops.constant(scale))
    return x


def _clipped(ops: Ops, x: Tensor, low: np.ndarray, high: np.ndarray) -> Tensor:
    return ops.minimum(ops.maximum(x, ops.constant(low)), ops.constant(high))


def _attended(ops: Ops, x: Tensor, slots: Sequence[Slot], form: Form) -> Tensor:
    """Attention pooling of all slots, (slots, texts, width): the scores of all tasks are one product."""
    count, heads = len(slots), form.pool.heads
    inputs, inner = form.layers * form.width, form.width // heads
    scores = ops.matmul(x, ops.constant(np.concatenate(_each(slots, "scores"), axis=1)))
    keep = ops.input("keep", "float", (-1, -1))
    keep = ops.reshape(keep, (ops.size(keep, 0), 1, -1))
    weights = ops.softmax(
        ops.add(ops.transpose(scores, (0, 2, 1)), keep)
    )  # (texts, slots * heads, positions)
    pooled = ops.transpose(ops.matmul(weights, x), (1, 0, 2))  # (slots * heads, texts, inputs)
    values = np.concatenate(_each(slots, "values"))
    out = ops.matmul(ops.reshape(pooled, (count * heads, -1, inputs)), ops.constant(values))
    out = ops.transpose(ops.reshape(out, (count, heads, -1, inner)), (0, 2, 1, 3))
    return ops.reshape(out, (count, -1, form.width))
