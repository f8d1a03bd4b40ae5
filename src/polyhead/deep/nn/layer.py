"""One encoder layer of any form that `LayerForm` describes, with slots for a delta."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from polyhead import plan
from polyhead.deep.nn.attention import AttentionKeys, attend, behind, by_head
from polyhead.deep.nn.dropout import dropped
from polyhead.deep.nn.positions import RowPlaces
from polyhead.encoder.shape import LayerActivation, LayerForm, position_maps
from polyhead.errors import PlanError
from polyhead.values import Value

Half = Literal["attention", "feed_forward"]
ACTIVATIONS: Mapping[LayerActivation, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "relu": functional.relu,
}


class Prefix(Value, eq=False):
    """Keys and values before the text's, and which of them a row has: (rows, positions)."""

    keys: AttentionKeys
    seen: Tensor

    def padded(self, size: int) -> Prefix:
        """The same with positions appended, up to `size`, that no row has."""
        more = size - self.seen.shape[1]
        key, value = (functional.pad(part, (0, 0, 0, more)) for part in (self.keys.key, self.keys.value))
        return Prefix(keys=AttentionKeys(key=key, value=value), seen=functional.pad(self.seen, (0, more)))

    def repeated(self, times: int) -> Prefix:
        """The same for rows that stand in the place of each row."""
        key, value, seen = (part.repeat_interleave(times, 0) for part in (self.keys.key, self.keys.value, self.seen))
        return Prefix(keys=AttentionKeys(key=key, value=value), seen=seen)


class LayerDelta(nn.Module):
    """Additions to a layer's own computation; every method adds nothing unless a kind overrides it.

    `polyhead.deep.nn.deltas` has the kinds. Rows keep the layer's order.
    """

    serial = False  # `after` reads every position, so that the first alone cannot be computed

    def dense(self, name: plan.Dense, inputs: Tensor) -> Tensor | None:
        """The term to add to the output of the layer's dense map `name`, from that map's inputs."""
        return None

    def prefix(self, rows: int) -> Prefix | None:
        """The keys and values that every position reads in addition to the text's."""
        return None

    def within(self, half: Half, out: Tensor) -> Tensor:
        """The half's output (rows, positions, width) before it is added to the half's input."""
        return out

    def term(self, hidden: Tensor, mask: Tensor) -> Tensor | None:
        """The term to add before the second norm, from the layer's input; both (rows, tokens, width)."""
        return None

    def after(self, out: Tensor, mask: Tensor) -> Tensor:
        """The layer's output (rows, positions, width)."""
        return out


class Layer(nn.Module):
    """A layer of this form: see `LayerForm` for its formula, to which a delta's term TS(h) is added in the second half.

    Stickland and Murray 2019 write the sum with the layer's input instead of `a`; their code, and a pretrained layer,
    have `a`. With norms behind the halves `h' = LN2(a + FF(a) + TS(h))`; with norms before them the delta reads what
    the first half reads, `h' = a + FF(LN2 a) + TS(LN1 h)`. Matrices start at zero, to be filled by `load_state_dict` or
    `fill_normal`.
    """

    def __init__(self, form: LayerForm, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.form = form
        self.attention = SelfAttention(form, dropout=dropout) if form.attention else None
        self.feed_forward = FeedForward(form, dropout=dropout) if form.feed_forward else None
        self.norm = _norm(form) if form.closing_norm else None

    def forward(
        self,
        hidden: Tensor,
        mask: Tensor,
        delta: LayerDelta | None = None,
        *,
        first: int = 0,
        keys: AttentionKeys | None = None,
        places: RowPlaces | None = None,
    ) -> Tensor:
        """(rows, tokens, width) to the same shape; see `visible` for the two shapes of `mask`.

        `first`, unless 0, computes only that many leading positions, (rows, first, width): they need only the others'
        keys and values, a sixth of the layer's products. With a serial delta it saves nothing. `keys` are those of
        `hidden`, if computed before. `places` of the positions; by default there is no prompt, nor a table.
        """
        if first and delta is not None and delta.serial:
            whole: Tensor = self(hidden, mask, delta, keys=keys, places=places)
            return whole[:, :first]
        out = hidden[:, :first] if first else hidden
        if self.attention is not None:
            out = self.attention(hidden, mask, delta, first=first, keys=keys, places=places)
        added = delta.term(self._entered(hidden), mask) if delta is not None else None
        if added is not None and (self.feed_forward is None or not self.form.residual):
            raise PlanError("a layer without a second norm has no place for a delta's term")
        if self.feed_forward is not None:
            out = self.feed_forward(out, delta, None if added is None else added[:, : out.shape[1]])
        return self._closed(out if delta is None else delta.after(out, mask))

    def keys(self, hidden: Tensor, places: RowPlaces | None = None) -> AttentionKeys:
        """Keys and values of the layer's input."""
        half = self._half()
        return half.keys(half.entered(hidden), None, places or RowPlaces(hidden.shape[1]))

    def beside(self, hidden: Tensor, text: AttentionKeys, seen: Tensor) -> Tensor:
        """Prompt rows that see the text without being seen: (rows, prompt rows, width) to the same shape.

        `text` are the keys of the layer's input; `seen` (rows, 1, prompt rows, tokens + prompt rows) says what each
        prompt row sees of [text, prompt rows].
        """
        half = self._half()
        prompt_keys = half.keys(half.entered(hidden), None, None)
        out = half.attended(hidden, behind(text, prompt_keys), seen, None, None)
        return self._closed(out if self.feed_forward is None else self.feed_forward(out))

    def _entered(self, hidden: Tensor) -> Tensor:
        """The input of a delta that is parallel to the halves."""
        return hidden if self.attention is None else self.attention.entered(hidden)

    def _closed(self, out: Tensor) -> Tensor:
        return out if self.norm is None else self.norm(out)

    def _half(self) -> SelfAttention:
        if self.attention is None:
            raise PlanError("a layer without an attention half has no keys")
        return self.attention


class SelfAttention(nn.Module):
    """`h + W_o softmax(Q K^T / sqrt(head width) + relative terms) V` over the tokens that each one may see.

    With a norm behind it, or its input through a norm, as the form says.
    """

    def __init__(self, form: LayerForm, *, dropout: float) -> None:
        super().__init__()
        if form.head_width is None and form.width % form.heads:
            raise PlanError("a layer's width must be a multiple of its heads", got=f"{form.width} and {form.heads}")
        self.form, self.heads, self.dropout = form, form.heads, dropout
        self.query, self.key, self.value = (
            Dense(*form.ends(f"attention.{name}"), bias=form.attention_bias) for name in ("query", "key", "value")
        )
        self.output = Dense(*form.ends("attention.output"), bias=form.output_bias)
        for name in position_maps(form):
            position_map = Dense(form.width, form.query_width, bias=form.attention_bias)
            self.add_module(name.removeprefix("attention."), position_map)
        self.norm = _norm(form) if form.residual and form.attention_norm else None
        terms = 1 if form.relative is None else form.relative.terms
        self._scale = (form.query_width // form.heads * terms) ** -0.5

    def forward(
        self,
        hidden: Tensor,
        mask: Tensor,
        delta: LayerDelta | None = None,
        *,
        first: int = 0,
        keys: AttentionKeys | None = None,
        places: RowPlaces | None = None,
    ) -> Tensor:
        """(rows, tokens, width) to the same shape, or to (rows, first, width) for the first positions alone."""
        places = places or RowPlaces(hidden.shape[1])
        seen = places.visible(mask)
        asking, seen = (hidden[:, :first], seen[:, :, :first]) if first else (hidden, seen)
        keys = keys or self.keys(self.entered(hidden), delta, places)
        return self.attended(asking, keys, seen, delta, places)

    def entered(self, hidden: Tensor) -> Tensor:
        """The input of the maps to queries, keys and values."""
        return self.norm(hidden) if self.form.norm_first and self.norm is not None else hidden

    def keys(self, entered: Tensor, delta: LayerDelta | None, places: RowPlaces | None) -> AttentionKeys:
        """Keys and values of (rows, positions, width); without `places` the positions have none."""
        heads = self.form.key_heads or self.heads
        key = by_head(_mapped(self.key, "attention.key", entered, delta), heads)
        value = by_head(_mapped(self.value, "attention.value", entered, delta), heads)
        return AttentionKeys(key=key if places is None else places.turned(key, self.form.rotary), value=value)

    def attended(
        self, asking: Tensor, keys: AttentionKeys, seen: Tensor, delta: LayerDelta | None, places: RowPlaces | None
    ) -> Tensor:
        """The half's output if `asking` (rows, positions, width) see the keys; see `attend` for `seen`."""
        query = by_head(_mapped(self.query, "attention.query", self.entered(asking), delta), self.heads)
        query = query if places is None else places.turned(query, self.form.rotary)
        window = None if places is None else self.form.window
        prefix = delta.prefix(len(asking)) if delta is not None else None
        if places is None or window is None:
            mixed = self._mixed(query, keys, seen, prefix, self._bias(query, keys.key, delta, places))
        else:
            mixed = self._near(query, keys, seen, prefix, places, window)
        out = _mapped(self.output, "attention.output", mixed, delta)
        out = dropped(out, self.dropout, self.training)
        out = out if delta is None else delta.within("attention", out)
        if not self.form.residual:
            return out
        added = asking + out
        return added if self.form.norm_first or self.norm is None else self.norm(added)

    def _near(
        self, query: Tensor, keys: AttentionKeys, seen: Tensor, prefix: Prefix | None, places: RowPlaces, window: int
    ) -> Tensor:
        """The values that queries (rows, heads, positions, head width) of the row's first positions read near them."""
        queries = query.shape[2]
        blocks = places.blocks(window) if queries == places.size else None
        if blocks is None:
            near = seen & places.seen(window, query.device)[:queries]
            return self._mixed(query, keys, near | ~near.any(dim=-1, keepdim=True), prefix)
        more = None if prefix is None else prefix.repeated(blocks.count)
        mixed = self._mixed(blocks.queries(query), blocks.keys(keys), blocks.seen(seen), more)
        mixed = blocks.joined(mixed, len(query))
        if not places.before:
            return mixed
        first = self._mixed(query[:, :, : places.before], keys, seen[:, :, : places.before], prefix)
        return torch.cat([first, mixed], dim=1)

    def _mixed(
        self, query: Tensor, keys: AttentionKeys, seen: Tensor, prefix: Prefix | None, bias: Tensor | None = None
    ) -> Tensor:
        """Attention's values of all heads, (rows, queries, width); see `attend`."""
        if prefix is not None:
            keys = behind(prefix.keys, keys)
            before = prefix.seen[:, None, None].expand(-1, -1, seen.shape[2], -1)
            seen = torch.cat([before, seen.expand(len(before), -1, -1, -1)], dim=-1)
            bias = None if bias is None else functional.pad(bias, (before.shape[-1], 0))
        return attend(
            query,
            self._by_query(keys),
            seen,
            dropout=self.dropout if self.training else 0.0,
            learns=self.training,
            scale=self._scale,
            bias=bias,
        )

    def _by_query(self, keys: AttentionKeys) -> AttentionKeys:
        """Keys and values of each query's head, where several read one."""
        each = self.heads // (self.form.key_heads or self.heads)
        if each == 1:
            return keys
        return AttentionKeys(key=keys.key.repeat_interleave(each, 1), value=keys.value.repeat_interleave(each, 1))

    def _bias(self, query: Tensor, key: Tensor, delta: LayerDelta | None, places: RowPlaces | None) -> Tensor | None:
        """The terms of scores by distance, (rows or 1, heads, queries, keys)."""
        relative, asking = self.form.relative, query.shape[2]
        if relative is None or places is None:
            return None
        if relative.kind == "bias":
            return places.bias(relative)[:, :, :asking].to(query.dtype)
        buckets, has_place = places.buckets(relative, query.device)
        buckets, has_place, total = buckets[:asking], has_place[:asking].to(query.dtype), query.new_zeros(())
        shape = (*query.shape[:2], *buckets.shape)
        if relative.content_to_position:
            products = query @ self._of_table("key", len(query), delta, places).transpose(-1, -2)
            total = total + products.gather(-1, buckets.expand(shape))
        if relative.position_to_content:
            products = key @ self._of_table("query", len(query), delta, places).transpose(-1, -2)
            turned = buckets.transpose(0, 1).expand(*shape[:2], buckets.shape[1], asking)
            total = total + products.gather(-1, turned).transpose(-1, -2)
        scaled: Tensor = total * (has_place * self._scale)
        return scaled

    def _of_table(
        self, name: Literal["key", "query"], rows: int, delta: LayerDelta | None, places: RowPlaces
    ) -> Tensor:
        """The table's vectors as keys or queries, (rows or 1, heads, buckets, head width)."""
        vectors = places.vectors().to(self.key.weight.dtype)[None]
        if self.form.relative is not None and not self.form.relative.shared:
            return by_head(self.get_submodule(f"position_{name}")(vectors), self.heads)
        target: plan.Dense = "attention.key" if name == "key" else "attention.query"
        dense = self.key if name == "key" else self.query
        added = None if delta is None else delta.dense(target, vectors.expand(rows, -1, -1))
        return by_head(dense(vectors) if added is None else dense(vectors) + added, self.heads)


class FeedForward(nn.Module):
    """`a + W2 f(W1 a) + added`, or with a gate `W2 (f(W1 a) * W3 a)`, and a norm behind it or on its input.

    Each further hidden layer is another map and f before W2.
    """

    def __init__(self, form: LayerForm, *, dropout: float) -> None:
        super().__init__()
        self.form, self.dropout, inner = form, dropout, form.feed_forward
        self.inner = Dense(form.width, inner, bias=form.inner_bias)
        self.gate = Dense(form.width, inner, bias=form.inner_bias) if form.gated else None
        self.outer = Dense(inner, form.width, bias=form.outer_bias)
        self.between = nn.ModuleList(Dense(inner, inner) for _ in range(form.hidden_layers - 1))
        self.norm = _norm(form) if form.residual else None
        self._activation = ACTIVATIONS[form.activation]

    def forward(self, attended: Tensor, delta: LayerDelta | None = None, added: Tensor | None = None) -> Tensor:
        """(rows, positions, width) to the same shape; `added` is a delta's term."""
        entered = self.norm(attended) if self.form.norm_first and self.norm is not None else attended
        inner = self._activation(_mapped(self.inner, "feed_forward.inner", entered, delta))
        if self.gate is not None:
            inner = inner * _mapped(self.gate, "feed_forward.gate", entered, delta)
        for dense in self.between:
            inner = self._activation(dense(inner))
        out = _mapped(self.outer, "feed_forward.outer", inner, delta)
        out = dropped(out, self.dropout, self.training)
        out = out if delta is None else delta.within("feed_forward", out)
        if self.norm is None:
            return out
        out = attended + out
        out = out if added is None else out + added
        return out if self.form.norm_first else self.norm(out)


def _norm(form: LayerForm) -> nn.Module:
    """A norm over the width, at 1 and 0."""
    if form.norm == "rms":
        return nn.RMSNorm(form.width, eps=form.norm_epsilon)
    return nn.LayerNorm(form.width, eps=form.norm_epsilon, bias=form.norm_bias)


def _mapped(part: Dense, name: plan.Dense, inputs: Tensor, delta: LayerDelta | None) -> Tensor:
    out: Tensor = part(inputs)
    added = delta.dense(name, inputs) if delta is not None else None
    return out if added is None else out + added


class Dense(nn.Linear):
    """A dense map that starts at zero, so that making one changes no random state."""

    def reset_parameters(self) -> None:
        """All zeros."""
        for value in self.parameters():
            nn.init.zeros_(value)


def fill_normal(module: nn.Module, generator: torch.Generator, *, norm_init: Literal["one", "legacy"] = "one") -> None:
    """Draws every matrix from N(0, 0.02) in the parameters' order, as in BERT; biases 0, norms 1.

    `legacy` draws the gains and biases of norms from N(0, 0.02) too, as the code of Stickland and Murray 2019 does by
    mistake.
    """
    for name, value in module.named_parameters():
        if value.dim() > 1 or (norm_init == "legacy" and ".norm." in f".{name}"):
            nn.init.normal_(value, std=0.02, generator=generator)
        else:
            nn.init.constant_(value, 1.0 if name.endswith("norm.weight") else 0.0)
