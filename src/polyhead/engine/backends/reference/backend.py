"""A backend that walks a plan once and keeps the result of each step.

The attention pooler runs unfolded here (keys and values over all positions), so that it checks the folded form that
training and the fast backends use. An isolated prompt stands before a text of its own, under a mask, so that it
checks backends which run the text once for all prompts.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np

from polyhead.codecs import NO_TOKEN
from polyhead.encoder.data import TrunkData
from polyhead.encoder.decoder import Decoder
from polyhead.engine.backends.base import (
    Count,
    FeatureBatch,
    LoadedTask,
    StageResults,
    TokenBatch,
    loaded_decoder,
    owned_arrays,
    whole,
)
from polyhead.engine.backends.prefix import check_feature_batch, depth_of, stored_paths
from polyhead.engine.backends.reference.decoder import ReferenceDecoder
from polyhead.engine.backends.reference.layer import (
    Array,
    Arrays,
    dense,
    gelu,
    layer_norm,
    masked_softmax,
    normalized,
    run_layers,
)
from polyhead.errors import BackendError, PlanError
from polyhead.plan import PLACE_OF, TRUNK, Activation, Embed, Layers, Path, Plan, Pool, cost
from polyhead.plan.coding import through, token_places, tokens_of


class _States(msgspec.Struct, frozen=True):
    """States that a path has computed: the one before the first layer and each layer's output, prompt rows first."""

    layers: tuple[Array, ...]  # each (rows, prompt rows + tokens, width)
    sees: Array  # (rows, positions, positions) bool: which positions a position reads
    prompts: Mapping[str, slice]  # where the rows of each prompt's owner stand

    @property
    def text(self) -> slice:
        return slice(max((rows.stop for rows in self.prompts.values()), default=0), None)


class ReferenceBackend:
    """Runs plans in numpy."""

    name, precision, tolerance, packs, breadth = "reference", "float32", 0.0, False, 1
    version, calibration = np.__version__, ""
    weight_bits: int | None = None
    forks = True

    def __init__(self, trunk: TrunkData, tasks: Mapping[str, LoadedTask]) -> None:
        self.trunk, self.tasks = trunk, dict(tasks)
        self._count = Count()

    @property
    def layers_run(self) -> int:
        return self._count.layers

    def now(self) -> ReferenceBackend:
        return copy.copy(self)

    def run(self, plan: Plan, batch: TokenBatch) -> dict[str, Array]:
        return whole(self.stages(plan, batch))

    def stages(self, plan: Plan, batch: TokenBatch) -> Iterator[StageResults]:
        """A stage for each pool, in the order of the layers that they need."""
        total = before = 0
        done: list[str] = []
        for tasks, features, failed in self._pooled_in_order(plan, batch):
            total = total or cost.layer_evaluations(plan)
            done += tasks
            run = cost.layer_evaluations(plan.only(done))
            self._count.add(run - before)
            before, outputs = run, dict[str, Array]()
            for task, value in features.items():
                try:
                    outputs[task] = self._headed(task, value)
                except Exception as error:  # of this task's own head
                    failed[task] = error
            yield StageResults(outputs=outputs, failed=failed, layers_left=total - run)

    def features(self, paths: Sequence[Path], batch: TokenBatch) -> list[Array]:
        """The stored value of each path before its codec, (positions of all texts, layers, width)."""
        values = []
        for path in stored_paths(paths):
            states = self._embed(path.embed, "", batch)
            for node in path.layers:
                states = self._layers(node, "", states)
            value = _uncoded(states, path.pool, batch)
            is_there = batch.mask if path.pool.positions == "all" else np.ones(value.shape[:2], bool)
            values.append(np.ascontiguousarray(value[is_there], np.float32))
        self._count.add(max((depth_of(path) for path in paths), default=0))
        return values

    def heads(self, tasks: Sequence[str], features: FeatureBatch) -> dict[str, Array]:
        """Outputs of tasks from their stored value."""
        outputs = {}
        for task in tasks:
            if task not in self.tasks:
                raise BackendError(f"task '{task}' is not loaded", allowed=list(self.tasks))
            path = self.tasks[task].path
            check_feature_batch(task, path, features, self.trunk.architecture.width)
            value = self._pooled(task, path.pool, features.values, slice(0), slice(None), features.mask)
            outputs[task] = self._headed(task, value)
        return outputs

    def decoder(self, task: str) -> ReferenceDecoder:
        decoder, loaded = loaded_decoder(self.tasks, task)
        return ReferenceDecoder(decoder, loaded.arrays, self.trunk.arrays)

    def replace(self, tasks: Mapping[str, LoadedTask]) -> None:
        owned_arrays(tasks)  # raises where they do not fit each other
        self.tasks = dict(tasks)

    def _pooled_in_order(
        self, plan: Plan, batch: TokenBatch
    ) -> Iterator[tuple[tuple[str, ...], dict[str, Array], dict[str, Exception]]]:
        """Pool by pool its tasks, their features and what failed; a layer is run when the first pool needs it."""
        states: dict[int, _States] = {}
        pools = [index for index, step in enumerate(plan.steps) if isinstance(step.node, Pool)]
        for index in sorted(pools, key=lambda pool: _layers_above(plan, pool)):
            step, pooled, failed = plan.steps[index], dict[str, Array](), dict[str, Exception]()
            assert isinstance(step.node, Pool)
            mask = batch.words >= 0 if step.node.positions == "tokens" else batch.mask
            try:
                before = self._states(plan, step.parent, batch, states)
                value = _stored(before, step.node, batch)
            except Exception as error:  # of these paths alone, unless the same befalls the others
                yield step.tasks, {}, dict.fromkeys(step.tasks, error)
                continue
            for task in step.tasks:
                try:
                    prompt_rows = _own_rows(step.node, before) if step.node.positions == "prompt" else slice(0)
                    pooled[task] = self._pooled(task, step.node, value, prompt_rows, before.text, mask)
                except Exception as error:  # of this task's own pooler
                    failed[task] = error
            yield step.tasks, pooled, failed

    def _states(self, plan: Plan, index: int, batch: TokenBatch, states: dict[int, _States]) -> _States:
        if index not in states:
            step = plan.steps[index]
            match step.node:
                case Embed() as node:
                    states[index] = self._embed(node, step.tasks[0], batch)
                case Layers() as node:
                    before = self._states(plan, step.parent, batch, states)
                    states[index] = self._layers(node, step.tasks[0], before)
        return states[index]

    def compared(self, task: str, first: Array, second: Array) -> Array:
        """The head on z = [u, v, |u - v|, u * v]."""
        u, v = normalized(first), normalized(second)
        return self._mapped(task, np.concatenate([u, v, np.abs(u - v), u * v], axis=-1))

    def _headed(self, task: str, features: Array) -> Array:
        """The outputs; features of texts that are compared, and states from which a text is written, as they are."""
        head = self.tasks[task].path.head
        is_read = head.separate or isinstance(head.decoder, Decoder)
        return features if is_read else self._mapped(task, features)

    def _mapped(self, task: str, features: Array) -> Array:
        """`U f(W z + b) + u`, f the head's activation, behind which a layer norm may stand."""
        head = self.tasks[task].path.head
        if head.hidden:
            hidden = dense(features, self._owned(task, head.hidden_part or head.part), "head.hidden")
            features = _activated(hidden, head.activation)
        if head.norm is not None:
            features = layer_norm(features, self._owned(task, head.part), "head.norm", head.norm)
        return dense(features, self._owned(task, head.part), "head.output")

    def _owned(self, task: str, owner: str) -> Arrays:
        if owner == TRUNK:
            return self.trunk.arrays
        loaded = self.tasks[task]
        known = {**loaded.others, loaded.path.head.part: loaded.arrays}
        if owner not in known:
            raise BackendError(
                f"task '{task}' reads layers or other arrays of an owner that is not loaded",
                got=owner,
                allowed=list(known),
            )
        return known[owner]

    def _embed(self, node: Embed, task: str, batch: TokenBatch) -> _States:
        """`LN([P; word(ids) + position] + segment)`: prompt rows have segment 0 and no position of their own."""
        arrays, shape = self.trunk.arrays, self.trunk.architecture
        prompts = [self._owned(task, prompt.part)["prompt.weight"] for prompt in node.prompts]
        count, (rows, tokens) = sum(map(len, prompts)), batch.ids.shape
        first = shape.first_position + (count if node.shift else 0)
        longest = int(batch.mask.sum(axis=1).max(initial=0))
        if first + longest > shape.positions:
            raise BackendError(
                "the trunk has no positions for this text behind its prompts",
                got=f"{longest} tokens behind {count} prompt rows",
                allowed=f"{shape.max_tokens} together",
                do="give shorter texts, or leave `shift` out",
            )
        text = arrays["embeddings.word.weight"][batch.ids]
        if shape.position_table:
            numbers = np.minimum(np.arange(first, first + tokens), shape.positions - 1)  # padding may lie beyond
            text = text + arrays["embeddings.position.weight"][numbers]
        before = [np.broadcast_to(prompt, (rows, *prompt.shape)) for prompt in prompts]
        out = np.concatenate([*before, text], axis=1)
        if shape.segments:
            segments = np.pad(np.minimum(batch.segments, shape.segments - 1), ((0, 0), (count, 0)))
            out = out + arrays["embeddings.segment.weight"][segments]
        if shape.embedding_norm:
            out = layer_norm(out, arrays, "embeddings.norm", shape.norm_epsilon)
        if shape.embedding_width not in (None, shape.width):
            out = dense(out, arrays, "embeddings.project")
        ends = np.cumsum([0, *map(len, prompts)])
        places = {p.part: slice(a, b) for p, a, b in zip(node.prompts, ends, ends[1:], strict=False)}
        return _States(layers=(out,), sees=_sees(batch.mask, places, isolated=node.isolated), prompts=places)

    def _layers(self, node: Layers, task: str, states: _States) -> _States:
        new = run_layers(
            node,
            states.layers[-1],
            states.sees,
            shape=self.trunk.architecture,
            owned=lambda owner: self._owned(task, owner),
            before=states.text.start,
        )
        return msgspec.structs.replace(states, layers=(*states.layers, *new))

    def _pooled(self, task: str, node: Pool, value: Array, prompt_rows: slice, text: slice, mask: Array) -> Array:
        """The stored value mixed over layers, then over positions: those of the `text`, or its `prompt_rows`."""
        owned = {} if node.part is None else self._owned(task, node.part)
        if node.layers == "learned":
            mixed = owned["mix.scale"] * np.einsum("l,rtlw->rtw", masked_softmax(owned["mix.weights"]), value)
        elif node.layers == "beside":
            mixed = normalized(value).reshape(*value.shape[:2], value.shape[2] * value.shape[3])
        else:
            mixed = np.mean(value, axis=2)
        if node.positions == "prompt":
            return np.asarray(mixed[:, prompt_rows].mean(axis=1))
        if node.positions == "attention":
            return _attention_pool(mixed[:, text], mask, owned, node.heads)
        if node.positions == "tokens":
            return _with_neighbours(np.asarray(mixed), mask, self.tasks[task].path.head.window)
        if node.positions == "all":
            return np.asarray(mixed[:, text])
        return np.asarray(mixed[:, 0])


def _layers_above(plan: Plan, index: int) -> int:
    nodes = []
    while index >= 0:
        nodes.append(plan.steps[index].node)
        index = plan.steps[index].parent
    return sum(node.stop - node.start for node in nodes if isinstance(node, Layers))


def _sees(mask: Array, prompts: Mapping[str, slice], *, isolated: bool) -> Array:
    """Which positions each position reads, (rows, positions, positions): all but padding.

    Under isolation the text reads the text, and a prompt reads the text and itself.
    """
    count = max((rows.stop for rows in prompts.values()), default=0)
    owner = np.zeros(count + mask.shape[1], int)  # 0: the text
    for number, rows in enumerate(prompts.values(), 1):
        owner[rows] = number
    is_seen = np.pad(mask, ((0, 0), (count, 0)), constant_values=True)
    apart = (owner[None] != 0) & (owner[None] != owner[:, None])  # (positions, positions)
    return np.asarray(is_seen[:, None] & ~(apart & isolated))


def _own_rows(node: Pool, states: _States) -> slice:
    if node.part not in states.prompts:
        raise PlanError(
            "a pool of prompt rows needs a prompt of its own part before the text",
            got=node.part,
            allowed=list(states.prompts),
        )
    return states.prompts[str(node.part)]


def _stored(states: _States, node: Pool, batch: TokenBatch) -> Array:
    """The stored form of a pool, through its codec: (rows, positions, layers, width)."""
    pool = node.stored()
    value = np.ascontiguousarray(_uncoded(states, pool, batch), np.float32)
    tokens = tokens_of(pool, ids=batch.ids, mask=batch.mask, words=batch.words)
    before = value.shape[1] - tokens.shape[1]  # rows of prompts, which are no tokens
    return through(value, pool.codec, np.pad(tokens, ((0, 0), (before, 0)), constant_values=NO_TOKEN)[:, :, None])


def _uncoded(states: _States, pool: Pool, batch: TokenBatch) -> Array:
    """The stored form of a pool before its codec: (rows, positions, layers, width).

    Positions `all` keeps prompt rows before the text; the others read the text alone.
    """
    layers = states.layers
    if pool.layers == "mean" and pool.of >= len(layers):
        raise PlanError("a pool reads more layers than its path runs", got=pool.of, allowed=len(layers) - 1)
    mixed = layers[{"last": len(layers) - 1, "mean": len(layers) - pool.of, "all": 1}[pool.layers] :]
    widths = [states.shape[-1] for states in mixed]
    if len(set(widths)) > 1:
        raise PlanError("a pool cannot mix layers of several widths", got=widths)
    value, text = np.stack(mixed, axis=2), np.stack([state[:, states.text] for state in mixed], axis=2)
    if pool.positions in PLACE_OF:
        value = np.take_along_axis(text, token_places(pool, batch.mask)[:, None, None, None], axis=1)
    elif pool.positions == "mean":
        weights = batch.mask / batch.mask.sum(axis=1, keepdims=True)
        value = np.einsum("rt,rtlw->rlw", weights.astype(np.float32), text)[:, None]
    elif pool.positions == "tokens":
        words = np.take_along_axis(text, np.maximum(batch.words, 0)[:, :, None, None], axis=1)
        value = words * (batch.words >= 0)[..., None, None]
    if pool.layers == "mean" and not pool.codec.before_mean:
        value = value.mean(axis=2, keepdims=True)
    return value


def _attention_pool(features: Array, mask: Array, arrays: Arrays, heads: int) -> Array:
    """One learned query over keys and values of all positions (Du et al. 2020), unfolded."""
    rows, tokens, width = features.shape
    query = dense(arrays["pool.query"], arrays, "pool.inner_query").reshape(heads, -1)
    keys = dense(features, arrays, "pool.key").reshape(rows, tokens, heads, width // heads)
    values = dense(features, arrays, "pool.value").reshape(rows, tokens, heads, width // heads)
    scores = np.einsum("hk,rthk->rht", query, keys) / math.sqrt(width // heads)
    weights = masked_softmax(np.where(mask[:, None, :], scores, -np.inf))
    mixed = np.einsum("rht,rthk->rhk", weights, values).reshape(rows, width)
    return dense(mixed, arrays, "pool.output")


def _with_neighbours(words: Array, mask: Array, window: int) -> Array:
    """Words joined with their neighbours, (rows, words, (2 window + 1) width): zeros past ends and for unread words."""
    if not window:
        return words
    rows, count, width = words.shape
    out = np.zeros((rows, count, 2 * window + 1, width), np.float32)
    for place in range(count):
        for offset in range(2 * window + 1):
            near = place + offset - window
            if 0 <= near < count:
                out[:, place, offset] = words[:, near] * mask[:, near, None]
    return out.reshape(rows, count, (2 * window + 1) * width)


def _activated(values: Array, activation: Activation) -> Array:
    if activation == "relu":
        return np.asarray(np.maximum(values, 0.0))
    return gelu(values) if activation == "gelu" else np.asarray(np.tanh(values))
