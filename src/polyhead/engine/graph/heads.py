"""Poolers and heads of several tasks as one graph: a slot a task, few slots' products side by side (decision 22).

What is read of the states is chosen first (positions, layers, codec), once for all tasks that read the same. What a
slot makes of it stays in the processor's cache until its answer is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from polyhead.config import Value
from polyhead.engine.graph.fold import Slot
from polyhead.engine.graph.ops import Ops, Tensor
from polyhead.plan import Activation, Codec, Head, Pool
from polyhead.store.codec import LARGEST_HALF

SIDE = 64  # heads of attention whose scores and sums are one product, of as many slots as have so many
FEATURES = "features"  # the output of slots whose heads compare two texts


class SlotForm(Value):
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


def answers(
    ops: Ops, form: SlotForm, slots: Sequence[Slot | None], outputs: Sequence[str]
) -> dict[str, Tensor]:
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
    spare = next(slot for slot in slots if slot is not None).emptied()
    several = [slot or spare for slot in slots]
    found: dict[str, list[Tensor]] = {}
    for slot, given, name in zip(several, _given(ops, x, form, several), outputs, strict=True):
        out = _dense(ops, given, slot, form)
        positions = [ops.size(x, 1)] if form.pool.positions == "tokens" else []
        found.setdefault(name, []).append(ops.reshape(out, (1, -1, *positions, slot.width)))
    return {name: some[0] if len(some) == 1 else ops.concat(some, 0) for name, some in found.items()}


def _given(ops: Ops, x: Tensor, form: SlotForm, slots: Sequence[Slot]) -> Iterator[Tensor]:
    """What the first map of each slot reads, (texts, inputs) or (texts * positions, inputs)."""
    inputs = form.layers * form.width
    if form.pool.positions == "attention":
        keep = ops.input("keep", "float", (-1, -1))
        keep = ops.reshape(keep, (ops.size(keep, 0), 1, -1))
        beside = max(1, SIDE // form.pool.heads)
        for start in range(0, len(slots), beside):
            yield from _attended(ops, x, keep, slots[start : start + beside], form)
    elif form.pool.positions == "prompt":
        own = ops.matmul(ops.input("share", "float", (-1, 1, -1)), x)
        rows = ops.reshape(own, (len(slots), -1, inputs))
        for number in range(len(slots)):
            yield ops.reshape(ops.slice(rows, 0, number, number + 1), (-1, inputs))
    else:
        yield from [ops.reshape(x, (-1, inputs))] * len(slots)


def _dense(ops: Ops, x: Tensor, slot: Slot, form: SlotForm) -> Tensor:
    """The slot's maps of its own, (rows, outputs)."""
    first = ops.add(ops.matmul(x, ops.constant(slot.first)), ops.constant(slot.first_bias[None]))
    if slot.second is None or slot.second_bias is None:  # features, or heads of one map
        return first
    hidden = {"tanh": ops.tanh, "relu": ops.relu, "gelu": ops.gelu}[form.activation](first)
    return ops.add(ops.matmul(hidden, ops.constant(slot.second)), ops.constant(slot.second_bias[None]))


def padded(slot: Slot, form: SlotForm) -> Slot:
    """The slot with room for more outputs; features stay as they are."""
    if form.output == FEATURES:
        return slot
    last = ("first", "first_bias") if slot.second is None else ("second", "second_bias")
    more = [(0, 0), (0, room_for(slot.width) - slot.width)]
    return msgspec.structs.replace(
        slot, **{name: np.pad(getattr(slot, name), more[-getattr(slot, name).ndim :]) for name in last}
    )


def _read(ops: Ops, form: SlotForm) -> list[Tensor]:
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


def _attended(ops: Ops, x: Tensor, keep: Tensor, slots: Sequence[Slot], form: SlotForm) -> Iterator[Tensor]:
    """Attention pooling of each slot, (texts, width): scores and weighted sums of all their heads are one product.

    More heads side by side would leave the processor's near cache before the next product reads them.
    """
    queries = [slot.scores for slot in slots if slot.scores is not None]
    scores = ops.matmul(x, ops.constant(np.concatenate(queries, axis=1)))  # (texts, positions, heads of all)
    weights = ops.softmax(ops.add(ops.transpose(scores, (0, 2, 1)), keep))
    pooled = ops.transpose(ops.matmul(weights, x), (1, 0, 2))  # (heads of all, texts, inputs)
    heads = form.pool.heads
    for number, slot in enumerate(slots):
        assert slot.values is not None
        mine = pooled if len(slots) == 1 else ops.slice(pooled, 0, number * heads, (number + 1) * heads)
        out = ops.matmul(mine, ops.constant(slot.values))
        yield ops.reshape(ops.transpose(out, (1, 0, 2)), (-1, form.width))
