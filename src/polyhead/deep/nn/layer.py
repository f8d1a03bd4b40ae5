"""One post-norm encoder layer, as BERT, RoBERTa, XLM-R, ELECTRA and DistilBERT compute it, with slots for a delta."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from polyhead import plan
from polyhead.deep.nn.dropout import fast_dropout
from polyhead.errors import PlanError
from polyhead.values import Value

Half = Literal["attention", "feed_forward"]


class AttentionKeys(Value, eq=False):
    """Keys and values by head: (rows, heads, positions, width / heads) each."""

    key: Tensor
    value: Tensor


class Prefix(Value, eq=False):
    """Keys and values before the text's, and which of them a row has: (rows, positions)."""

    keys: AttentionKeys
    seen: Tensor

    def padded(self, size: int) -> Prefix:
        """The same with positions appended, up to `size`, that no row has."""
        more = size - self.seen.shape[1]
        key, value = (functional.pad(part, (0, 0, 0, more)) for part in (self.keys.key, self.keys.value))
        return Prefix(keys=AttentionKeys(key=key, value=value), seen=functional.pad(self.seen, (0, more)))


class LayerDelta(nn.Module):
    """Additions to a layer's own computation; every method adds nothing unless a kind overrides it.

    `polyhead.deep.nn.deltas` has the kinds. Rows keep the layer's order.
    """

    serial = False  # `after` reads every position, so that the first alone cannot be computed

    def dense(self, name: plan.Dense, inputs: Tensor) -> Tensor | None:
        """The term to add to the output of the layer's dense map `name`, from that map's inputs."""
        return None

    def prefix(self, rows: int) -> Prefix | None:
        """What every position sees in addition to the text."""
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
    """`a = LN1(h + MH(h)); h' = LN2(a + W2 gelu(W1 a + b1) + b2 + TS(h))`, TS a delta's term; the exact (erf) GELU.

    Vaswani et al. 2017 with the post-norm order of Devlin et al. 2019. Stickland and Murray 2019 write the sum with the
    layer's input instead of `a`; their code, and a pretrained layer, have `a`. `feed_forward` 0 omits the second half
    and `attention` False the first (their narrow layers); without `residual` the halves' outputs are used directly,
    with nothing added and no norm; `hidden_layers` are those of the second half. Matrices start at zero, to be filled
    by `load_state_dict` or `fill_normal`.
    """

    def __init__(
        self,
        *,
        width: int,
        heads: int,
        feed_forward: int,
        norm_epsilon: float = 1e-12,
        dropout: float = 0.0,
        attention: bool = True,
        residual: bool = True,
        hidden_layers: int = 1,
    ) -> None:
        super().__init__()
        epsilon = norm_epsilon if residual else None
        self.attention = (
            SelfAttention(width=width, heads=heads, norm_epsilon=epsilon, dropout=dropout) if attention else None
        )
        self.feed_forward = (
            FeedForward(
                width=width, inner=feed_forward, norm_epsilon=epsilon, dropout=dropout, hidden_layers=hidden_layers
            )
            if feed_forward
            else None
        )

    def forward(
        self,
        hidden: Tensor,
        mask: Tensor,
        delta: LayerDelta | None = None,
        *,
        first: int = 0,
        keys: AttentionKeys | None = None,
    ) -> Tensor:
        """(rows, tokens, width) to the same shape; see `visible` for the two shapes of `mask`.

        `first`, unless 0, computes only that many leading positions, (rows, first, width): they need only the others'
        keys and values, a sixth of the layer's products. With a serial delta it saves nothing. `keys` are those of
        `hidden`, if computed before.
        """
        if first and delta is not None and delta.serial:
            whole: Tensor = self(hidden, mask, delta, keys=keys)
            return whole[:, :first]
        out = hidden[:, :first] if first else hidden
        if self.attention is not None:
            out = self.attention(hidden, mask, delta, first=first, keys=keys)
        added = delta.term(hidden, mask) if delta is not None else None
        if added is not None and (self.feed_forward is None or self.feed_forward.norm is None):
            raise PlanError("a layer without a second norm has no place for a delta's term")
        if self.feed_forward is not None:
            out = self.feed_forward(out, delta, None if added is None else added[:, : out.shape[1]])
        return out if delta is None else delta.after(out, mask)

    def keys(self, hidden: Tensor) -> AttentionKeys:
        """Keys and values of the layer's input."""
        return self._half().keys(hidden, None)

    def beside(self, hidden: Tensor, text: AttentionKeys, seen: Tensor) -> Tensor:
        """Prompt rows that see the text without being seen: (rows, prompt rows, width) to the same shape.

        `text` are the keys of the layer's input; `seen` (rows, 1, prompt rows, tokens + prompt rows) says what each
        prompt row sees of [text, prompt rows].
        """
        half = self._half()
        out = half.attended(hidden, behind(text, half.keys(hidden, None)), seen, None)
        return out if self.feed_forward is None else self.feed_forward(out)

    def _half(self) -> SelfAttention:
        if self.attention is None:
            raise PlanError("a layer without an attention half has no keys")
        return self.attention


class SelfAttention(nn.Module):
    """`LN(h + W_o softmax(Q K^T / sqrt(width / heads)) V)` over the tokens that each one may see."""

    def __init__(self, *, width: int, heads: int, norm_epsilon: float | None, dropout: float) -> None:
        super().__init__()
        if width % heads:
            raise PlanError("a layer's width must be a multiple of its heads", got=f"{width} and {heads}")
        self.heads, self.dropout = heads, dropout
        self.query, self.key = Dense(width, width), Dense(width, width)
        self.value, self.output = Dense(width, width), Dense(width, width)
        self.norm = None if norm_epsilon is None else nn.LayerNorm(width, eps=norm_epsilon)

    def forward(
        self,
        hidden: Tensor,
        mask: Tensor,
        delta: LayerDelta | None = None,
        *,
        first: int = 0,
        keys: AttentionKeys | None = None,
    ) -> Tensor:
        """(rows, tokens, width) to the same shape, or to (rows, first, width) for the first positions alone."""
        asking, seen = (hidden[:, :first], visible(mask)[:, :, :first]) if first else (hidden, visible(mask))
        keys = keys or self.keys(hidden, delta)
        prefix = delta.prefix(len(hidden)) if delta is not None else None
        if prefix is not None:
            keys = behind(prefix.keys, keys)
            before = prefix.seen[:, None, None].expand(-1, -1, seen.shape[2], -1)
            seen = torch.cat([before, seen], dim=-1)
        return self.attended(asking, keys, seen, delta)

    def keys(self, hidden: Tensor, delta: LayerDelta | None) -> AttentionKeys:
        """Keys and values of (rows, positions, width)."""
        key = _mapped(self.key, "attention.key", hidden, delta)
        value = _mapped(self.value, "attention.value", hidden, delta)
        return AttentionKeys(key=by_head(key, self.heads), value=by_head(value, self.heads))

    def attended(self, asking: Tensor, keys: AttentionKeys, seen: Tensor, delta: LayerDelta | None) -> Tensor:
        """The half's output if `asking` (rows, positions, width) see the keys; see `attend` for `seen`."""
        query = by_head(_mapped(self.query, "attention.query", asking, delta), self.heads)
        mixed = attend(query, keys, seen, dropout=self.dropout if self.training else 0.0, learns=self.training)
        out = _mapped(self.output, "attention.output", mixed, delta)
        out = fast_dropout(out, self.dropout, self.training)
        out = out if delta is None else delta.within("attention", out)
        return out if self.norm is None else self.norm(asking + out)


class FeedForward(nn.Module):
    """`LN(a + W2 gelu(W1 a + b1) + b2 + added)`; each further hidden layer is another map and GELU before W2."""

    def __init__(
        self, *, width: int, inner: int, norm_epsilon: float | None, dropout: float, hidden_layers: int = 1
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.inner, self.outer = Dense(width, inner), Dense(inner, width)
        self.between = nn.ModuleList(Dense(inner, inner) for _ in range(hidden_layers - 1))
        self.norm = None if norm_epsilon is None else nn.LayerNorm(width, eps=norm_epsilon)

    def forward(self, attended: Tensor, delta: LayerDelta | None = None, added: Tensor | None = None) -> Tensor:
        """(rows, positions, width) to the same shape; `added` is a delta's term."""
        inner = functional.gelu(_mapped(self.inner, "feed_forward.inner", attended, delta))
        for dense in self.between:
            inner = functional.gelu(dense(inner))
        out = _mapped(self.outer, "feed_forward.outer", inner, delta)
        out = fast_dropout(out, self.dropout, self.training)
        out = out if delta is None else delta.within("feed_forward", out)
        if self.norm is None:
            return out
        out = attended + out
        normed: Tensor = self.norm(out if added is None else out + added)
        return normed


def _mapped(part: Dense, name: plan.Dense, inputs: Tensor, delta: LayerDelta | None) -> Tensor:
    out: Tensor = part(inputs)
    added = delta.dense(name, inputs) if delta is not None else None
    return out if added is None else out + added


def behind(before: AttentionKeys, keys: AttentionKeys) -> AttentionKeys:
    """Both concatenated, `before` first, in the precision of `keys`."""
    return AttentionKeys(
        key=torch.cat([before.key.to(keys.key.dtype), keys.key], dim=2),
        value=torch.cat([before.value.to(keys.value.dtype), keys.value], dim=2),
    )


def by_head(values: Tensor, heads: int) -> Tensor:
    """(rows, positions, width) to (rows, heads, positions, width / heads)."""
    return values.view(*values.shape[:-1], heads, values.shape[-1] // heads).transpose(1, 2)


def attend(query: Tensor, keys: AttentionKeys, seen: Tensor, *, dropout: float, learns: bool) -> Tensor:
    """Attention's mixed values with heads concatenated, (rows, positions, width), from queries by head.

    `seen` (rows, 1, 1 or positions, keys), True where a key may be seen; `dropout` acts on the probabilities.
    """
    if learns and query.device.type == "cpu":
        mixed = attention_products(query, keys.key, keys.value, seen, dropout=dropout)
    else:
        mixed = functional.scaled_dot_product_attention(query, keys.key, keys.value, attn_mask=seen, dropout_p=dropout)
    return mixed.transpose(1, 2).flatten(2)


def attention_products(query: Tensor, key: Tensor, value: Tensor, seen: Tensor, *, dropout: float) -> Tensor:
    """`softmax(Q K^T / sqrt(d)) V`, (rows, heads, positions, d); the softmax in float32.

    For training on a processor, where torch's fused attention has a slow backward pass: forward and backward of 16
    texts of 32 tokens take a sixth of its time in bf16, with 12 heads of 32.
    """
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    unseen = torch.zeros_like(seen, dtype=torch.float32).masked_fill(~seen, float("-inf"))
    weights = (scores.float() + unseen).softmax(dim=-1)
    return fast_dropout(weights, dropout).to(value.dtype) @ value


def visible(mask: Tensor) -> Tensor:
    """The mask in the form of attention: (rows, 1, 1 or tokens, tokens), True if a token may be seen.

    `mask` is (rows, tokens), the real tokens, or (rows, tokens, tokens), who sees whom (packed rows, isolated prompts).
    A token that may see nothing would divide zero by zero; it sees everything instead: such a token is padding, which
    no other token sees.
    """
    mask = mask | ~mask.any(dim=-1, keepdim=True)
    return mask[:, None, None, :] if mask.dim() == 2 else mask[:, None]


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
