"""The number of multiplications and additions of a plan on one text, and of the layers that it runs.

Rule (it gives the FLOPs that Du et al. 2020 print): a multiply and an add are 2; a dense map d -> m on t positions is
`2 t d m`; the two products of attention are `4 t^2 d`. A layer with d_ff = 4 d is then `24 d^2 t + 4 t^2 d`. Look-ups,
norms, biases, softmax, GELU, scaling and plain sums are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from polyhead.encoder.decoder import Decoder
from polyhead.encoder.shape import Architecture, LayerForm
from polyhead.errors import PlanError
from polyhead.plan import ADDED, PLACE_OF, TRUNK, Delta, Embed, Head, Layers, Node, Plan, Pool
from polyhead.plan.cost.arrays import Offset, delta_hidden, head_inputs, layer_form, places
from polyhead.values import Value

WRITTEN = 64  # tokens that a generating head is taken to write
HASHED = 12  # features of hashed words, at most, that one token stands for: as many as in English


class Work(Value):
    """One piece of work, done once for all its tasks, with the arrays of one owner."""

    owner: str
    tasks: tuple[str, ...]
    flops: int
    layers: int = 0  # run on the text's rows
    is_plain: bool = False  # layers of the trunk without prompts, deltas or anything private before them


class _Rate(Value):
    """FLOPs per row, and per pair of rows of which one sees the other: tokens those in their window alone.

    What runs computes more pairs: all of a short row, of a long one those of its blocks (`encoder.near`), 256 to 288
    keys a token for a window of 64, of which 129 are counted.
    """

    row: int
    pair: int = 0
    window: int | None = None

    def on(self, extent: _Extent) -> int:
        beyond = 0 if self.window is None else max(0, extent.text - self.window - 1) * (extent.text - self.window)
        return self.row * extent.rows + self.pair * (extent.pairs - beyond)


class _Extent(Value):
    rows: int
    pairs: int
    text: int = 0  # rows that are tokens which see one another


def flops(plan: Plan, shape: Architecture, tokens: int, *, folded: bool = False) -> int:
    """FLOPs of the plan on one text of `tokens` tokens, special ones included.

    `folded` counts attention poolers as served. A head that reads words is counted at every token, an upper bound; a
    pair read as two texts is counted as one text and one answer; a generating head is counted for WRITTEN tokens.
    """
    return sum(work.flops for work in work_of(plan, shape, tokens, folded=folded))


def layer_evaluations(plan: Plan) -> int:
    """Layers run on one text: each range once for all tasks that share it (Wei et al. 2021, "overhead").

    A trunk to depth D with branches of l_i layers gives `D + sum l_i`. Isolated prompts share the text's layers.
    """
    seen = {key: s.node for s, key in zip(plan.steps, _text_keys(plan), strict=True)}
    return sum(node.stop - node.start for node in seen.values() if isinstance(node, Layers))


def work_of(plan: Plan, shape: Architecture, tokens: int, *, folded: bool = False) -> list[Work]:
    """Every piece of work of the plan, shared ones once; raises PlanError if a path does not fit the shape."""
    if tokens < 1:
        raise PlanError("a text has at least one token", got=tokens, allowed="1 or more")
    keys, plain = _text_keys(plan), _plain(plan)
    tasks: dict[int, dict[str, None]] = {}
    for step, key in zip(plan.steps, keys, strict=True):
        tasks.setdefault(key, {}).update(dict.fromkeys(step.tasks))
    pieces: list[Work] = []
    done: set[int] = set()
    for index, (step, at) in enumerate(zip(plan.steps, places(plan, shape), strict=True)):
        if isinstance(step.node, (Pool, Head)):
            pieces += [
                Work(owner=owner, tasks=step.tasks, flops=count)
                for owner, count in _end_flops(step.node, at, tokens, folded=folded)
            ]
            continue
        text, prompts = _extents(at, tokens)
        for owner, rate, layers in _rates(step.node, at.width, shape):
            if keys[index] not in done:
                sharing = tuple(tasks[keys[index]])
                pieces.append(
                    Work(owner=owner, tasks=sharing, flops=rate.on(text), layers=layers, is_plain=plain[index])
                )
            if prompts.rows:
                pieces.append(Work(owner=owner, tasks=step.tasks, flops=rate.on(prompts)))
        done.add(keys[index])
    return pieces


def _text_keys(plan: Plan) -> list[int]:
    """For each step, a key of the text rows' value that it computes: isolated prompts do not change those rows."""
    known: dict[tuple[int, Node], int] = {}
    keys: list[int] = []
    for step in plan.steps:
        node = step.node
        if isinstance(node, Embed) and node.isolated:
            node = msgspec.structs.replace(node, prompts=(), isolated=False)
        parent = keys[step.parent] if step.parent >= 0 else -1
        keys.append(known.setdefault((parent, node), len(known)))
    return keys


def _plain(plan: Plan) -> list[bool]:
    plain: list[bool] = []
    for step in plan.steps:
        node, before = step.node, step.parent < 0 or plain[step.parent]
        if isinstance(node, Embed):
            plain.append(node.isolated or not node.prompts)
        else:
            is_trunk = isinstance(node, Layers) and node.weights == TRUNK and node.delta is None
            plain.append(before and is_trunk)
    return plain


def _extents(at: Offset, tokens: int) -> tuple[_Extent, _Extent]:
    """Shared rows and visible pairs, and those of isolated prompts, which see the text and themselves."""
    if not at.isolated:
        rows = tokens + at.prompt_rows
        return _Extent(rows=rows, pairs=rows**2, text=tokens), _Extent(rows=0, pairs=0)
    apart = _Extent(rows=at.prompt_rows, pairs=sum(rows * (tokens + rows) for rows in at.prompts))
    return _Extent(rows=tokens, pairs=tokens**2, text=tokens), apart


def _rates(node: Embed | Layers, width: int, shape: Architecture) -> Iterator[tuple[str, _Rate, int]]:
    """(owner, rate, layers run) of a node that turns rows into rows."""
    if isinstance(node, Embed):
        narrow = shape.embedding_width or shape.width
        yield TRUNK, _Rate(row=2 * narrow * shape.width if narrow != shape.width else 0), 0
        return
    forms = [layer_form(node, index, shape) for index in range(node.start, node.stop)]
    ends = 2 * (node.enter * width * forms[0].width + node.leave * forms[0].width * shape.width)
    rates = [_layer_rate(form) for form in forms]
    for rate in dict.fromkeys(rates):
        count = rates.count(rate)
        yield node.weights, _Rate(row=rate.row * count + ends, pair=rate.pair * count, window=rate.window), count
        ends = 0
    if node.delta is not None:
        for owner, rate in _delta_rates(node.delta, forms[0]):
            yield owner, _Rate(row=rate.row * len(forms), pair=rate.pair * len(forms)), 0


def _layer_rate(form: LayerForm) -> _Rate:
    """FLOPs of one layer's own maps, products of attention, and products with vectors of relative positions."""
    row = sum(math.prod(form.ends(name)) for name in form.maps) + (form.hidden_layers - 1) * form.feed_forward**2
    if form.relative is not None and form.attention:
        row += (form.relative.terms - 1) * form.relative.buckets * form.query_width
    return _Rate(row=2 * row, pair=4 * form.attention * form.query_width, window=form.window)


def _delta_rates(delta: Delta, form: LayerForm) -> Iterator[tuple[str, _Rate]]:
    """FLOPs of one layer's delta, by owner (projected attention of 204, 128 tokens, width 768 is 0.1255 GFLOP)."""
    size, ends = delta.size, 4 * form.width * delta.size
    if delta.kind in ADDED:
        yield delta.ends or delta.part, _Rate(row=ends)
    match delta.kind:
        case "projected_attention":
            yield delta.part, _Rate(row=6 * size**2, pair=4 * size)
        case "feed_forward":
            yield delta.part, _Rate(row=4 * size * delta_hidden(delta))
        case "bottleneck":
            yield delta.part, _Rate(row=2 * ends)
        case "prefix":
            yield delta.part, _Rate(row=4 * size * form.query_width)
        case "lora":
            wide = sum(sum(form.ends(target)) for target in delta.targets)
            yield delta.part, _Rate(row=2 * size * wide)
        case "low_rank" | "scale":
            pass


def _end_flops(node: Pool | Head, at: Offset, tokens: int, *, folded: bool) -> Iterator[tuple[str, int]]:
    """FLOPs by owner: of a pooler over the text's tokens, or of a head on its input."""
    if isinstance(node, Pool):
        if node.part is not None:
            yield node.part, _pool_flops(node, at, tokens, folded=folded)
        return
    if node.decoder is not msgspec.UNSET:
        yield node.part, decoder_flops(node.decoder, at.width, node.width, tokens, WRITTEN)
        return
    vectors, inputs = tokens if at.words else 1, head_inputs(node, at.width)
    if node.hidden:
        yield node.hidden_part or node.part, 2 * vectors * inputs * node.hidden
    words = HASHED * tokens if node.words else 0
    yield node.part, 2 * (vectors * (node.hidden or inputs) + words) * node.width


def _pool_flops(pool: Pool, at: Offset, tokens: int, *, folded: bool) -> int:
    """Attention `4 L d^2 + 4 d^2 + 4 L d`, folded `4 H L d + 4 d^2`; a learned mix of n layers `2 n L d`."""
    width = at.width
    mixed = 1 if pool.positions in PLACE_OF else tokens
    total = 2 * at.depth * mixed * width if pool.layers == "learned" else 0
    if pool.positions == "attention":
        total += 4 * width**2
        total += 4 * pool.heads * tokens * width if folded else 4 * tokens * (width**2 + width)
    return total


def decoder_flops(decoder: Decoder, width: int, vocabulary: int, tokens: int, steps: int, *, beams: int = 1) -> int:
    """FLOPs of writing `steps` tokens, one after another, from `tokens` pooled states.

    Keys and values are cached: each is computed once, those of the states for every layer and all beams, and step t
    attends to t tokens of the text. For n states, width d and feed-forward width f a layer is `4 n d^2` once and `2 (6
    d^2 + 2 d f) + 4 d (n + t)` per step and beam; the vocabulary of V `2 d V` per step and beam.
    """
    maps = 6 * width**2 + 2 * width * decoder.feed_forward
    attended = steps * tokens + steps * (steps + 1) // 2
    layer = 4 * tokens * width**2 + beams * (2 * steps * maps + 4 * attended * width)
    return decoder.layers * layer + 2 * beams * steps * width * vocabulary
