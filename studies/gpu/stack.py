"""Many models of one shape as one: every array has a leading dimension, the lanes, and every product is one of all.

A lane is a run of its own: its weights, rows, rate and seed. Gradients of a sum of losses over lanes are those of each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from studies.gpu.packed import TrunkShape

DROPOUT = 0.1
ALIGNED = 64  # numbers: every lane of a buffer begins at a multiple, also in bfloat16
LOWER = ("matrices", "vectors")  # buffers that answers read in the stack's own precision; heads are small
WORDS = "embeddings.word.weight"
_IN, _OUT, _FIRST_NORM = "attention.in", "attention.output", "attention.norm"
_PALS = "pals."
_INNER, _OUTER, _LAST_NORM = "feed_forward.inner", "feed_forward.outer", "feed_forward.norm"


@dataclass(frozen=True, kw_only=True)
class Form:
    """What each model of a stack is: layers of its own above state `tap`, a pooler, a tanh layer, outputs.

    With `embeds` it has the embeddings too and reads ids; without it reads states.
    """

    shape: TrunkShape
    tap: int
    layers: int
    outputs: int
    embeds: bool = False
    pool: str = "first"  # first, mean, attention
    tasks: int = 0  # with projected attention layers of each of so many tasks (Stickland and Murray 2019),
    inner: int = 96  # so wide

    def flops(self, tokens: float, rows: float, longest: float) -> float:
        """Floating-point operations of a forward pass over texts of so many tokens in all, each about `longest`."""
        width, inner = self.shape.width, self.shape.inner
        layer = 2 * (4 * width**2 + 2 * width * inner) + 4 * longest * width
        layer += 2 * (2 * width + 3 * self.inner) * self.inner + 4 * longest * self.inner if self.tasks else 0
        pooler = 4 * width * self.shape.heads * tokens + 6 * width**2 * rows if self.pool == "attention" else 0.0
        return tokens * layer * self.layers + pooler + 2 * rows * width * (width + self.outputs)


@dataclass(frozen=True, kw_only=True, eq=False)
class LaneTexts:
    """A batch: (lanes or 1, rows, tokens) each; `hidden` (lanes or 1, rows, tokens, width) instead of ids."""

    mask: Tensor
    ids: Tensor | None = None
    segments: Tensor | None = None
    hidden: Tensor | None = None
    tasks: Tensor | None = None  # (lanes,), of a stack with functions of tasks: which task's texts these are


class Stack:
    """The weights of all lanes, and their answers.

    Arrays lie in buffers (lanes, numbers) of float32: words, matrices, vectors, and the head's. `views` lead from names
    to the leaves that answers are computed from: of matrices and vectors in the stack's own precision.
    """

    def __init__(
        self, form: Form, starts: Sequence[Mapping[str, np.ndarray]], *, device: str, dtype: torch.dtype
    ) -> None:
        """`starts`: each lane's arrays, by names of `start_arrays`."""
        self.form, self.device, self.dtype = form, device, dtype
        self._shapes = {name: array.shape for name, array in starts[0].items()}
        self.kinds = _kinds(self._shapes)
        self.buffers: dict[str, Tensor] = {}
        for kind, names in self.kinds.items():
            arrays = [_laned([start[name] for start in starts], device) for name in names]
            spare = -sum(array.shape[1] for array in arrays) % ALIGNED
            self.buffers[kind] = torch.cat([*arrays, torch.zeros(len(starts), spare, device=device)], dim=1)
        self.refresh()

    @property
    def lanes(self) -> int:
        """How many models."""
        return len(next(iter(self.views.values())))

    def refresh(self) -> None:
        """Makes the leaves anew from the buffers, which an update has changed."""
        lower = {kind: flat.to(self.dtype) if kind in LOWER else flat for kind, flat in self.buffers.items()}
        self.views = {name: view.detach().requires_grad_() for name, view in self.viewed(lower).items()}

    def arrays(self, lane: int) -> dict[str, np.ndarray]:
        """One lane's arrays, as a start for others."""
        return {name: view[lane].cpu().numpy() for name, view in self.viewed(self.buffers).items()}

    def taken(self, lanes: Sequence[int], buffers: Mapping[str, Tensor] | None = None) -> Stack:
        """A stack of these lanes alone, of these weights if given; it shares nothing with this one."""
        made = object.__new__(Stack)
        made.form, made.device, made.dtype = self.form, self.device, self.dtype
        made._shapes, made.kinds = self._shapes, self.kinds
        made.buffers = {kind: flat[list(lanes)] for kind, flat in (buffers or self.buffers).items()}
        made.refresh()
        return made

    def part(self, lanes: Sequence[int]) -> Stack:
        """These lanes alone, by views of their leaves: gradients of its answers reach this stack's."""
        made = object.__new__(Stack)
        made.form, made.device, made.dtype = self.form, self.device, self.dtype
        made.views = {name: view[list(lanes)] for name, view in self.views.items()}
        return made

    def keep(self, lanes: Sequence[int]) -> None:
        """Drops the others."""
        self.buffers = {kind: flat[list(lanes)] for kind, flat in self.buffers.items()}
        self.refresh()

    def viewed(self, buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Names of arrays to their places in such buffers, (lanes, ...)."""
        views = {}
        for kind, flat in buffers.items():
            start = 0
            for name in self.kinds[kind]:
                size = math.prod(self._shapes[name])
                views[name] = flat[:, start : start + size].view(len(flat), *self._shapes[name])
                start += size
        return views

    def answers(
        self, texts: LaneTexts, *, training: bool = False, layers: int | None = None, noise: float = 0.0
    ) -> Tensor:
        """(lanes, rows, outputs) in float32; with `layers` the states (lanes, ..., width) behind so many of its own.

        `noise` is added to word vectors, uniform within it, and no gradient reaches them then (R3F).
        """
        hidden, drop = self._entered(texts, noise), DROPOUT if training else 0.0
        seen, lent = self._seen(texts.mask), self._lent(texts.tasks)
        if self.form.embeds:
            hidden = functional.dropout(hidden, drop, training)
        for index in range(self.form.layers if layers is None else layers):
            hidden = self._layer(hidden, seen, f"layers.{self.form.tap + index}.", drop, lent)
        if layers is not None:
            return hidden
        pooled = functional.dropout(self._pooled(hidden, texts.mask).float(), drop, training)
        inner = functional.dropout(torch.tanh(self._dense("head.hidden", pooled)), drop, training)
        return self._dense("head.output", inner)

    def _entered(self, texts: LaneTexts, noise: float) -> Tensor:
        """(lanes, rows, tokens, width): embedded ids, or the states that were given."""
        if texts.hidden is not None:
            lanes = self.lanes
            return texts.hidden.to(self.dtype).expand(lanes, *texts.hidden.shape[1:])
        assert texts.ids is not None and texts.segments is not None
        table = self.views[WORDS]
        lanes, words, width = table.shape
        ids = texts.ids.expand(lanes, *texts.ids.shape[1:])
        places = ids + torch.arange(lanes, device=self.device)[:, None, None] * words
        flat = table.reshape(lanes * words, width)  # of a buffer without spare numbers a view
        vectors = functional.embedding(places, flat)
        if noise:
            vectors = vectors.detach() + torch.empty_like(vectors).uniform_(-noise, noise)
        hidden = vectors.to(self.dtype)
        position, segment = self.views["embeddings.position.weight"], self.views["embeddings.segment.weight"]
        chosen = torch.where(texts.segments[..., None].bool(), segment[:, None, None, 1], segment[:, None, None, 0])
        return self._norm("embeddings.norm", hidden + position[:, None, : ids.shape[2]] + chosen)

    def _seen(self, mask: Tensor) -> Tensor:
        """What attention adds to its scores: 0 for tokens, else the lowest number; (lanes * rows, 1, 1, tokens)."""
        lanes, rows, tokens = self.lanes, *mask.shape[1:]
        lowest = torch.finfo(self.dtype).min
        bias = torch.zeros(mask.shape, dtype=self.dtype, device=mask.device).masked_fill(~mask, lowest)
        return bias.expand(lanes, rows, tokens).reshape(lanes * rows, 1, 1, tokens)

    def _lent(self, tasks: Tensor | None) -> Mapping[str, Tensor]:
        """Of each lane the arrays of its task's functions."""
        if not self.form.tasks:
            return {}
        assert tasks is not None
        lanes = torch.arange(self.lanes, device=tasks.device)
        return {name: view[lanes, tasks] for name, view in self.views.items() if name.startswith(_PALS)}

    def _function(self, hidden: Tensor, seen: Tensor, name: str, drop: float, lent: Mapping[str, Tensor]) -> Tensor:
        """`V_D MH(V_E h)` without an output map, encoder and decoder the same in all layers."""
        inner = _product(hidden, lent[f"{_PALS}encoder.weight"], lent[f"{_PALS}encoder.bias"])
        parts = _product(inner, lent[f"{_PALS}{name}in.weight"], lent[f"{_PALS}{name}in.bias"])
        mixed = self._mixed(parts, seen, drop)
        return _product(mixed, lent[f"{_PALS}decoder.weight"], lent[f"{_PALS}decoder.bias"])

    def _mixed(self, parts: Tensor, seen: Tensor, drop: float) -> Tensor:
        """Attention, from (lanes, rows, tokens, 3 width) of queries, keys and values."""
        lanes, rows, tokens, width = *parts.shape[:3], parts.shape[3] // 3
        heads = self.form.shape.heads
        query, key, value = parts.view(lanes * rows, tokens, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen, dropout_p=drop)
        return mixed.transpose(1, 2).reshape(lanes, rows, tokens, width)

    def _layer(self, hidden: Tensor, seen: Tensor, name: str, drop: float, lent: Mapping[str, Tensor]) -> Tensor:
        training, added = drop > 0, None
        if lent:
            added = self._function(hidden, seen, name, drop, lent)
        mixed = self._mixed(self._dense(name + _IN, hidden), seen, drop)
        out = functional.dropout(self._dense(name + _OUT, mixed), drop, training)
        hidden = self._norm(name + _FIRST_NORM, hidden + out)
        inner = functional.gelu(self._dense(name + _INNER, hidden))
        out = functional.dropout(self._dense(name + _OUTER, inner), drop, training)
        return self._norm(name + _LAST_NORM, hidden + out if added is None else hidden + out + added)

    def _pooled(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """(lanes, rows, width)"""
        if self.form.pool == "first":
            return hidden[:, :, 0]
        if self.form.pool == "mean":
            weights = mask.to(hidden.dtype)
            return torch.einsum(
                "lrtw,lrt->lrw", hidden, (weights / weights.sum(2, keepdim=True)).expand(hidden.shape[:3])
            )
        heads = self.form.shape.heads
        folded = [self.views[f"pool.{name}"] for name in ("query", "inner_query.weight", "key.weight", "value.weight")]
        query, inner, key, value = folded
        lanes, width = query.shape
        asked = torch.einsum("lkw,lw->lk", inner, query) + self.views["pool.inner_query.bias"]
        asked = asked.view(lanes, heads, -1) / math.sqrt(width // heads)
        wanted = torch.einsum("lhk,lhkw->lhw", asked, key.view(lanes, heads, -1, width))
        scores = torch.einsum("lrtw,lhw->lrht", hidden, wanted).masked_fill(~mask[:, :, None], -math.inf)
        read = torch.einsum("lrht,lrtw->lrhw", scores.softmax(-1), hidden)
        mixed = torch.einsum("lrhw,lhkw->lrhk", read, value.view(lanes, heads, -1, width)).flatten(2)
        return self._dense("pool.output", mixed + self.views["pool.value.bias"][:, None])

    def _dense(self, name: str, inputs: Tensor) -> Tensor:
        """(lanes, ..., inputs) to (lanes, ..., outputs): one batched product."""
        return _product(inputs, self.views[f"{name}.weight"], self.views[f"{name}.bias"])

    def _norm(self, name: str, hidden: Tensor) -> Tensor:
        weight, bias = (self.views[f"{name}.{part}"][:, None, None] for part in ("weight", "bias"))
        return torch.addcmul(
            bias, functional.layer_norm(hidden, hidden.shape[-1:], eps=self.form.shape.epsilon), weight
        )


def _product(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(lanes, ..., inputs) by (lanes, outputs, inputs) to (lanes, ..., outputs)."""
    flat = inputs.reshape(inputs.shape[0], -1, inputs.shape[-1])
    return torch.baddbmm(bias[:, None], flat, weight.transpose(1, 2)).view(*inputs.shape[:-1], weight.shape[1])


def _kinds(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, list[str]]:
    """Names of arrays by the buffer that they lie in, in its order."""
    kinds: dict[str, list[str]] = {}
    for name, shape in shapes.items():
        kinds.setdefault(_kind(name, len(shape)), []).append(name)
    return kinds


def _laned(arrays: Sequence[np.ndarray], device: str) -> Tensor:
    """An array of every lane as (lanes, numbers); one that all lanes share travels once."""
    if all(array is arrays[0] for array in arrays):
        return torch.from_numpy(np.ravel(arrays[0]).astype(np.float32)).to(device).expand(len(arrays), -1)
    return torch.from_numpy(np.stack([np.ravel(array) for array in arrays]).astype(np.float32)).to(device)


def _kind(name: str, axes: int) -> str:
    if name == WORDS:
        return "words"
    is_vector = axes == 1 or name.endswith(".bias")  # biases of several tasks are one array
    return ("head " if name.startswith("head.") else "") + ("vectors" if is_vector else "matrices")


def start_arrays(
    form: Form, trunk: Mapping[str, np.ndarray], *, seed: int, own: Mapping[str, np.ndarray] | None = None
) -> dict[str, np.ndarray]:
    """A lane's first arrays: the trunk's layers and pooler, or an `own` longer model's; else drawn by the seed.

    Maps are Xavier-uniform with biases of zero, a pooler's query is N(0, 0.02). The maps of query, key and value are
    one array.
    """
    width, random = form.shape.width, np.random.default_rng([seed, 17])
    names = [f"embeddings.{name}" for name in ("word.weight", "position.weight", "segment.weight", "norm.weight")]
    arrays = {name: trunk[name] for name in [*names, "embeddings.norm.bias"] if form.embeds}
    for index in range(form.tap, form.tap + form.layers):
        arrays |= layer_arrays(trunk, index)
    drawn = {"head.hidden": (width, width), "head.output": (form.outputs, width)}
    if form.pool == "attention":
        arrays["pool.query"] = random.normal(0, 0.02, width)
        drawn |= {f"pool.{name}": (width, width) for name in ("inner_query", "key", "value", "output")}
    if form.tasks:
        arrays |= _functions(form, random)
    for name, (outputs, inputs) in drawn.items():
        limit = math.sqrt(6 / (inputs + outputs))
        arrays[f"{name}.weight"] = random.uniform(-limit, limit, (outputs, inputs))
        if name != "pool.key":  # its bias cancels in the softmax
            arrays[f"{name}.bias"] = np.zeros(outputs)
    if form.pool == "first" and "pooler.weight" in trunk:
        arrays |= {f"head.hidden.{part}": trunk[f"pooler.{part}"] for part in ("weight", "bias")}
    return {name: (own or {}).get(name, array) for name, array in arrays.items()}


def _functions(form: Form, random: np.random.Generator) -> dict[str, np.ndarray]:
    """Projected attention of every task: N(0, 0.02), decoders and biases at 0, so that the trunk starts as it was."""
    tasks, inner, width = form.tasks, form.inner, form.shape.width
    shapes = {"encoder": (inner, width), "decoder": (width, inner)}
    shapes |= {f"layers.{index}.in": (3 * inner, inner) for index in range(form.tap, form.tap + form.layers)}
    arrays = {}
    for name, shape in shapes.items():
        drawn = random.normal(0, 0.02, (tasks, *shape)) if name != "decoder" else np.zeros((tasks, *shape))
        arrays[f"{_PALS}{name}.weight"] = drawn
        arrays[f"{_PALS}{name}.bias"] = np.zeros((tasks, shape[0]))
    return arrays


def joined(trunk: Mapping[str, np.ndarray], layers: int) -> dict[str, np.ndarray]:
    """A trunk's arrays with those of query, key and value as one, so that stacks share them."""
    arrays = dict(trunk)
    for index in range(layers):
        arrays |= layer_arrays(trunk, index)
    return arrays


def layer_arrays(trunk: Mapping[str, np.ndarray], index: int) -> dict[str, np.ndarray]:
    """A layer's arrays, query, key and value as one."""
    name = f"layers.{index}."
    arrays = {
        f"{name}{part}.{of}": trunk[f"{name}{part}.{of}"]
        for part in (_OUT, _FIRST_NORM, _INNER, _OUTER, _LAST_NORM)
        for of in ("weight", "bias")
    }
    for of in ("weight", "bias"):
        if f"{name}{_IN}.{of}" in trunk:
            arrays[f"{name}{_IN}.{of}"] = trunk[f"{name}{_IN}.{of}"]
            continue
        three = [trunk[f"{name}attention.{part}.{of}"] for part in ("query", "key", "value")]
        arrays[f"{name}{_IN}.{of}"] = np.concatenate(three)
    return arrays


def trunk_form(shape: TrunkShape) -> Form:
    """A whole trunk; its head answers nothing that is asked."""
    return Form(shape=shape, tap=0, layers=shape.layers, outputs=1, embeds=True)
