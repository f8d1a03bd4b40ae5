"""Poolers and heads of several tasks as one graph: a slot a task, some slots' products side by side (decision 23).

What is read of the states is chosen first (positions, layers, codec), once for all tasks that read the same. A task's
pooler and head are folded into as few products as possible: exact, since the pooler's query does not depend on the
text. With K = X Wk^T + bk, u_h = Wk_h^T q_h / sqrt(d / H): scores are X u_h (bk cancels in the softmax), pooled_h is
sum a_t X_t, o_h = Wv_h pooled_h + bv_h; the output projection and the values' bias go into the next dense map. A
learned mix over layers, w_l X_l, is folded into u and Wv as well: both then read all layers side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np

from polyhead.codecs import NO_TOKEN, TokenCodec
from polyhead.engine.backends.base import LoadedTask
from polyhead.engine.compile.maps import Arrays, dense_ops, norm_ops
from polyhead.engine.compile.ops import InputKind, Ops, Size, Tensor, side_by_side, slots_product
from polyhead.plan import Activation, Head, Path, Pool
from polyhead.values import Value

# Heads of attention of slots side by side, at most: what lies between products takes memory for each.
SIDE = 128
FEATURES = "features"  # the output of slots whose heads compare two texts
STATES = "states"  # the output of all slots whose heads generate


class SlotForm(Value):
    """What tasks must have alike to stand in the slots of one graph."""

    pool: Pool  # whoever owns its arrays
    width: int  # of the states
    layers: int  # how many states are read side by side: 1, or all that `beside` or a learned mix reads
    mixed: bool  # the states come averaged already
    hidden: int  # outputs of the first map; 0: it is the whole head
    activation: Activation
    norm: float | None  # epsilon of a layer norm behind the activation; its gain and bias are in the second map
    output: str | None  # the name of all slots' outputs; None: each its own
    window: int  # neighbours of a word on each side


def room_for(labels: int) -> int:
    """Outputs of a slot: 32, 64, 128, ...; heads of like width share a product."""
    return max(32, 1 << (labels - 1).bit_length())


def output_of(head: Head) -> str:
    """The name under which a head's outputs stand beside those of like width."""
    if head.decoder is not msgspec.UNSET:
        return STATES
    return FEATURES if head.separate else str(room_for(head.width))


def answers(
    ops: Ops, form: SlotForm, slots: Sequence[Slot | None], outputs: Sequence[str], *, apart: bool = False
) -> dict[str, Tensor]:
    """Under each slot's name the outputs (slots of it, texts, labels), or (..., texts, words, labels).

    None is a spare slot, as wide as the first that is none. `outputs` names each slot's. With `apart` no slot has a
    part in another's bits, whatever has a scale for 8 bits.

    Inputs: `state.0`, ... (rows, tokens, width); `places` (texts, positions), which of all rows' tokens are read, laid
    end to end; of attention `keep` (texts, positions), added to scores; of a mean `share` (texts, 1, positions);
    of a codec that reads tokens their `token_inputs` (texts, positions, any), see `token_inputs_of`. With a window
    `places` and `token_inputs` are of each word's neighbours (`layout.neighbour_inputs`), `near` says which are there.
    Prompt rows are each slot's own: of these `places` and `share` have (slots * texts) rows.
    """
    x = values_read(ops, form)
    filled = without_spare(slots)
    positions = [ops.size(x, 1)] if form.pool.positions == "tokens" else []
    beside = _beside(form, len(filled))
    by_name: dict[str, list[Tensor]] = {}
    for start in range(0, len(filled), beside):
        side, names = filled[start : start + beside], outputs[start : start + beside]
        read_by_slots = _head_inputs(ops, x, form, side, apart=apart)
        for name, alike, out in _dense(ops, read_by_slots, side, names, form, apart=apart):
            by_name.setdefault(name, []).append(ops.reshape(out, (len(alike), -1, *positions, alike[0].width)))
    return {name: side[0] if len(side) == 1 else ops.concat(side, 0) for name, side in by_name.items()}


def states(ops: Ops, form: SlotForm) -> dict[str, Tensor]:
    """The states of each text's tokens, (1, texts, positions, width): all slots, which have no arrays here, read them.

    Inputs: `state.0` and `places` as of `answers`.
    """
    (state,) = _read(ops, form)
    x = _coded(ops, state, form)
    return {STATES: ops.reshape(x, (1, -1, ops.size(x, 1), form.width))}


def _beside(form: SlotForm, slots: int) -> int:
    """How many of so many slots stand side by side, each with inputs of its own; where all read the same, one."""
    if form.pool.positions == "attention":
        parts = min(slots, -(-slots * form.pool.heads // SIDE))
        return -(-slots // parts)
    return slots if form.pool.positions == "prompt" else 1


def values_read(ops: Ops, form: SlotForm) -> Tensor:
    """What all slots read of the states, (texts, positions, layers * width); with a window that of neighbours too."""
    read = [_coded(ops, state, form) for state in _read(ops, form)]
    if form.pool.layers == "mean" and len(read) > 1:
        read = [_mean(ops, read)]
    if form.pool.layers == "beside":
        read = [_normalized(ops, x, form.width) for x in read]
    x = read[0] if len(read) == 1 else ops.concat(read, 2)
    return _beside_neighbours(ops, x, form) if form.window else x


def without_spare(slots: Sequence[Slot | None]) -> list[Slot]:
    """The slots, spare ones as zeros."""
    spare = next(slot for slot in slots if slot is not None).emptied()
    return [slot or spare for slot in slots]


def _head_inputs(ops: Ops, x: Tensor, form: SlotForm, slots: Sequence[Slot], *, apart: bool) -> Tensor:
    """The inputs of the first maps of slots side by side, (slots, texts or texts * positions, inputs)."""
    if form.pool.positions == "attention":
        return _attended(ops, x, slots, form, apart=apart)
    if form.pool.positions == "prompt":
        x = ops.matmul(ops.input("share", "float", (-1, 1, -1)), x)
    return ops.reshape(x, (len(slots), -1, (2 * form.window + 1) * form.layers * form.width))


def _beside_neighbours(ops: Ops, x: Tensor, form: SlotForm) -> Tensor:
    """From (texts, neighbours * words, inputs) to (texts, words, neighbours * inputs), zeros where there is none."""
    count, inputs = 2 * form.window + 1, form.layers * form.width
    near = ops.input("near", "float", (-1, count, -1))
    words = ops.size(near, 2)
    x = ops.multiply(x, ops.reshape(near, (ops.size(near, 0), -1, 1)))
    x = ops.transpose(ops.reshape(x, (-1, count, words, inputs)), (0, 2, 1, 3))
    return ops.reshape(x, (-1, words, count * inputs))


def _positions(ops: Ops, name: str, kind: InputKind, form: SlotForm, *more: int) -> Tensor:
    """An input (texts, positions, ...); with a window it is given as (texts, neighbours, words, ...)."""
    if not form.window:
        return ops.input(name, kind, (-1, -1, *more))
    neighbours = ops.input(name, kind, (-1, 2 * form.window + 1, -1, *more))
    return ops.reshape(neighbours, (ops.size(neighbours, 0), -1, *more))


def _dense(
    ops: Ops, x: Tensor, slots: Sequence[Slot], names: Sequence[str], form: SlotForm, *, apart: bool
) -> Iterator[tuple[str, list[Slot], Tensor]]:
    """Each name, its slots and their outputs (slots, rows, outputs), from the slots' inputs (slots, rows, inputs)."""
    maps = [(slot.first, slot.first_bias) for slot in slots]
    if any(slot.second is not None for slot in slots):  # else features, or heads of slot map
        x = slots_product(ops, x, [matrix for matrix, _ in maps], apart=int(apart))
        x = ops.add(x, ops.constant(side_by_side([bias if len(maps) == 1 else bias[None] for _, bias in maps])))
        x = between_maps(ops, x, form)
        maps = [slot.last for slot in slots]
    for name in dict.fromkeys(names):
        numbers = [number for number, own_name in enumerate(names) if own_name == name]
        inputs = x
        if len(numbers) < len(slots):
            parts = [ops.slice(x, 0, number, number + 1) for number in numbers]
            inputs = parts[0] if len(parts) == 1 else ops.concat(parts, 0)
        yield name, [slots[number] for number in numbers], _mapped(ops, inputs, [maps[number] for number in numbers])


def between_maps(ops: Ops, x: Tensor, form: SlotForm) -> Tensor:
    """What stands between two maps of a head."""
    x = {"tanh": ops.tanh, "relu": ops.relu, "gelu": ops.gelu}[form.activation](x)
    if form.norm is None:
        return x
    return ops.norm(x, np.ones(form.hidden, np.float32), np.zeros(form.hidden, np.float32), form.norm)


def _mapped(ops: Ops, x: Tensor, maps: Sequence[tuple[np.ndarray, np.ndarray]]) -> Tensor:
    """Each slot's map of what it reads: (slots, rows, inputs) to (slots, rows, outputs)."""
    if len(maps) == 1:
        matrix, bias = maps[0]
    else:
        matrix, bias = np.stack([matrix for matrix, _ in maps]), np.stack([bias[None] for _, bias in maps])
    return ops.add(ops.matmul(x, ops.constant(matrix)), ops.constant(bias))


def pad_slot(slot: Slot, form: SlotForm) -> Slot:
    """The slot with room for more outputs; features stay as they are."""
    if form.output == FEATURES:
        return slot
    last = ("first", "first_bias") if slot.second is None else ("second", "second_bias")
    more = [(0, 0), (0, room_for(slot.width) - slot.width)]
    return msgspec.structs.replace(
        slot, **{name: np.pad(getattr(slot, name), more[-getattr(slot, name).ndim :]) for name in last}
    )


def _read(ops: Ops, form: SlotForm) -> list[Tensor]:
    """The values that poolers read from each state, (texts, positions, width), before codecs."""
    count = 1 if form.mixed else max(form.layers, form.pool.of)
    states = [ops.input(f"state.{i}", "float", (-1, -1, form.width)) for i in range(count)]
    if form.pool.layers == "mean" and len(states) > 1 and not form.pool.codec.before_mean:
        states = [_mean(ops, states)]
    places = _positions(ops, "places", "int", form)
    read = [ops.gather(ops.reshape(state, (-1, form.width)), places) for state in states]
    if form.pool.positions == "mean":
        share = ops.input("share", "float", (-1, 1, -1))
        read = [ops.matmul(share, state) for state in read]
    return read


def _mean(ops: Ops, parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = ops.add(total, part)
    return ops.multiply(total, ops.constant(np.array(1.0 / len(parts), np.float32)))


def token_inputs_of(pool: Pool) -> Callable[[np.ndarray], np.ndarray] | None:
    """The inputs of the pool's codec for tokens, int64 (...) to float32 (..., any); None if it reads none."""
    codec = pool.codec
    if not isinstance(codec.format, TokenCodec) or pool.positions in ("mean", "prompt"):
        return None
    return partial(codec.format.token_inputs, constants=codec)


def _coded(ops: Ops, x: Tensor, form: SlotForm) -> Tensor:
    """The values as a reader of the store gets them (see `codecs`); NaN where they are not finite."""
    codec, of_tokens = form.pool.codec, token_inputs_of(form.pool)
    if codec.format.is_exact:
        return x
    if isinstance(codec.format, TokenCodec) and of_tokens is not None:
        inputs = _positions(ops, "token_inputs", "float", form, of_tokens(np.array([NO_TOKEN])).shape[-1])
        decoded = codec.format.graph_with_tokens(ops, x, inputs, codec)
    else:
        decoded = codec.format.graph(ops, x, codec)
    # 0 x is NaN where x is no finite number, which clipping and comparing would hide.
    return ops.add(decoded, ops.multiply(x, ops.constant(np.zeros(1, np.float32))))


def _attended(ops: Ops, x: Tensor, slots: Sequence[Slot], form: SlotForm, *, apart: bool) -> Tensor:
    """Attention pooling of each slot, (slots, texts, width): each step is one product for all their heads."""
    queries = np.concatenate([slot.scores for slot in slots if slot.scores is not None], axis=1)
    values = [matrix for slot in slots if slot.values is not None for matrix in slot.values]
    pooled = pooled_values(ops, x, ops.constant(queries))
    out = slots_product(ops, pooled, values, apart=form.pool.heads if apart else 0)
    return slots_apart(ops, out, form, len(slots))


def pooled_values(ops: Ops, x: Tensor, queries: Tensor) -> Tensor:
    """What each head of attention of all slots takes of x, (heads of all, texts, inputs)."""
    keep = ops.input("keep", "float", (-1, -1))
    keep = ops.reshape(keep, (ops.size(keep, 0), 1, -1))
    scores = ops.matmul(x, queries)  # (texts, positions, heads of all)
    weights = ops.softmax(ops.add(ops.transpose(scores, (0, 2, 1)), keep))
    return ops.transpose(ops.matmul(weights, x), (1, 0, 2))


def slots_apart(ops: Ops, out: Tensor, form: SlotForm, slots: Size) -> Tensor:
    """From the values of all heads, (heads of all, texts, width / heads), those of each slot, (slots, texts, width)."""
    out = ops.reshape(out, (slots, form.pool.heads, -1, form.width // form.pool.heads))
    return ops.reshape(ops.transpose(out, (0, 2, 1, 3)), (slots, -1, form.width))


def compared_outputs(ops: Ops, head: Head, arrays: Arrays, hidden: Arrays) -> Tensor:
    """The head on [u, v, |u - v|, u * v], (rows, labels); u and v are scaled to the length sqrt(width).

    Inputs: `first` and `second` (rows, width).
    """
    width = (hidden["head.hidden.weight"] if head.hidden else arrays["head.output.weight"]).shape[1] // 4
    u, v = (_normalized(ops, ops.input(name, "float", (-1, width)), width) for name in ("first", "second"))
    out = ops.concat([u, v, ops.absolute(ops.subtract(u, v)), ops.multiply(u, v)], 1)
    if head.hidden:
        out = dense_ops(ops, out, [hidden], "head.hidden")
        out = {"tanh": ops.tanh, "relu": ops.relu, "gelu": ops.gelu}[head.activation](out)
    if head.norm is not None:
        out = norm_ops(ops, out, [arrays], "head.norm", head.norm)
    return dense_ops(ops, out, [arrays], "head.output")


def _normalized(ops: Ops, x: Tensor, width: int) -> Tensor:
    """Vectors (..., width) at the length sqrt(width)."""
    length = ops.root(ops.total(ops.multiply(x, x), -1))
    length = ops.maximum(length, ops.constant(np.array(1e-12, np.float32)))
    return ops.multiply(ops.divide(x, length), ops.constant(np.array(width**0.5, np.float32)))


class Slot(Value, eq=False):
    """One task's arrays, folded; float32. L layers are read side by side, d wide each."""

    scores: np.ndarray | None  # (L d, H): of an attention pooler
    values: np.ndarray | None  # (H, L d, d / H)
    first: np.ndarray  # (inputs, hidden), or the whole head where it has no hidden layer
    first_bias: np.ndarray
    second: np.ndarray | None  # (hidden, labels)
    second_bias: np.ndarray | None

    @property
    def last(self) -> tuple[np.ndarray, np.ndarray]:
        """The matrix and the bias of its last map."""
        if self.second is None or self.second_bias is None:
            return self.first, self.first_bias
        return self.second, self.second_bias

    @property
    def width(self) -> int:
        """How many outputs it has."""
        return len(self.first_bias if self.second_bias is None else self.second_bias)

    def emptied(self) -> Slot:
        """A slot of zeros of the same shapes."""
        arrays = msgspec.structs.asdict(self)
        zeros: dict[str, Any] = {name: None if a is None else np.zeros_like(a) for name, a in arrays.items()}
        return Slot(**zeros)


def folded_task(task: LoadedTask, *, width: int) -> Slot:
    """The slot of a loaded task whose states are `width` wide."""
    path = task.path
    owned = {path.head.part: task.arrays, **task.others}
    owners = (path.head.part, path.head.hidden_part, path.pool.part)
    return folded(path, *(owned[owner or path.head.part] for owner in owners), width=width)


def folded(path: Path, arrays: Arrays, hidden: Arrays, pooler: Arrays, *, width: int) -> Slot:
    """The slot of a path whose states are `width` wide, from the arrays of its head, its hidden layer and its pooler.

    A task over pairs read separately has only its features folded: `first` gives these, (d, d).
    """
    pool, head = path.pool, path.head
    mix = _mix(pooler) if pool.layers == "learned" else np.ones(1)
    scores = values = second = second_bias = None
    matrix, bias = np.eye(width), np.zeros(width)
    if not head.separate:
        matrix, bias = _of(hidden, "head.hidden") if head.hidden else _of(arrays, "head.output")
    if pool.positions == "attention":
        scores, values = _attention(pooler, pool.heads, mix)
        output, added = _of(pooler, "pool.output")
        bias = bias + matrix @ (added + output @ pooler["pool.value.bias"])
        matrix = matrix @ output
    elif pool.layers == "learned":
        blocks = np.split(matrix, 2 * head.window + 1, axis=1)
        matrix = np.concatenate([block * weight for block in blocks for weight in mix], axis=1)
    if head.hidden and not head.separate:
        top, second_bias = _of(arrays, "head.output")
        if head.norm is not None:  # U (gain n + shift) + u
            gain, shift = (np.asarray(arrays[f"head.norm.{name}"], np.float64) for name in ("weight", "bias"))
            top, second_bias = top * gain, second_bias + top @ shift
        second = np.ascontiguousarray(top.T, np.float32)
        second_bias = second_bias.astype(np.float32)
    return Slot(
        scores=scores,
        values=values,
        first=np.ascontiguousarray(matrix.T, np.float32),
        first_bias=bias.astype(np.float32),
        second=second,
        second_bias=second_bias,
    )


def _attention(arrays: Arrays, heads: int, mix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    width = len(arrays["pool.query"])
    inner = width // heads
    matrix, bias = _of(arrays, "pool.inner_query")
    query = (matrix @ arrays["pool.query"] + bias).reshape(heads, inner) / np.sqrt(inner)
    keys = np.asarray(arrays["pool.key.weight"], np.float64).reshape(heads, inner, width)
    values = np.asarray(arrays["pool.value.weight"], np.float64).reshape(heads, inner, width)
    scores = np.einsum("hk,hkd->dh", query, keys)
    values = values.transpose(0, 2, 1)
    scores = np.concatenate([scores * weight for weight in mix], axis=0)
    values = np.concatenate([values * weight for weight in mix], axis=1)
    return np.ascontiguousarray(scores, np.float32), np.ascontiguousarray(values, np.float32)


def _mix(arrays: Arrays) -> np.ndarray:
    weights = np.exp(np.asarray(arrays["mix.weights"], np.float64) - np.max(arrays["mix.weights"]))
    return np.asarray(weights / weights.sum() * float(arrays["mix.scale"]))


def _of(arrays: Arrays, name: str) -> tuple[np.ndarray, np.ndarray]:
    matrix = np.asarray(arrays[f"{name}.weight"], np.float64)
    bias = np.asarray(arrays.get(f"{name}.bias", np.zeros(len(matrix))), np.float64)
    return matrix, bias
