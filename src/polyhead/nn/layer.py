"""One post-norm encoder layer, as BERT, RoBERTa, XLM-R, ELECTRA and DistilBERT compute it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from polyhead.errors import PlanError
from polyhead.nn.deltas import LayerDelta


class Layer(nn.Module):
    """`a = LN1(h + MH(h)); h' = LN2(a + W2 gelu(W1 a + b1) + b2 + delta(h))`, with the exact (erf) GELU.

    Vaswani et al. 2017 with the post-norm order of Devlin et al. 2019. `feed_forward` 0 leaves out the second
    half (the narrow layers of Stickland and Murray 2019): then `h' = a`. Matrices start at zero, to be filled
    by `load_state_dict` or `fill_normal`.
    """

    def __init__(
        self, *, width: int, heads: int, feed_forward: int, norm_epsilon: float = 1e-12, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.attention = SelfAttention(width=width, heads=heads, norm_epsilon=norm_epsilon, dropout=dropout)
        self.feed_forward = (
            FeedForward(width=width, inner=feed_forward, norm_epsilon=norm_epsilon, dropout=dropout)
            if feed_forward
            else None
        )

    def forward(
        self, hidden: Tensor, mask: Tensor, delta: LayerDelta | None = None, *, first: bool = False
    ) -> Tensor:
        """(rows, tokens, width) to the same shape; see `visible` for the two shapes of `mask`.

        `first` computes the first position alone, (rows, 1, width): it needs the others' keys and values only,
        a sixth of the layer's products.
        """
        attended: Tensor = self.attention(hidden, mask, first=first)
        if first and delta is not None:
            raise PlanError("a delta reads every position", do="compute the whole layer")
        added = delta(hidden, mask) if delta is not None else None
        if self.feed_forward is None:
            if added is not None:
                raise PlanError(
                    "a layer without a feed-forward half has no second norm, so no place for a delta"
                )
            return attended
        out: Tensor = self.feed_forward(attended, added)
        return out


class SelfAttention(nn.Module):
    """`LN(h + W_o softmax(Q K^T / sqrt(width / heads)) V)` over the tokens that each one may see."""

    def __init__(self, *, width: int, heads: int, norm_epsilon: float, dropout: float) -> None:
        super().__init__()
        if width % heads:
            raise PlanError("a layer's width must be a multiple of its heads", got=f"{width} and {heads}")
        self.heads, self.dropout = heads, dropout
        self.query, self.key = Dense(width, width), Dense(width, width)
        self.value, self.output = Dense(width, width), Dense(width, width)
        self.norm = nn.LayerNorm(width, eps=norm_epsilon)

    def forward(self, hidden: Tensor, mask: Tensor, *, first: bool = False) -> Tensor:
        """(rows, tokens, width) to the same shape, or to (rows, 1, width) for the first position alone."""
        rows, _, width = hidden.shape
        asking, seen = (hidden[:, :1], visible(mask)[:, :, :1]) if first else (hidden, visible(mask))
        query, key, value = (
            part(source).view(rows, source.shape[1], self.heads, width // self.heads).transpose(1, 2)
            for part, source in ((self.query, asking), (self.key, hidden), (self.value, hidden))
        )  # (rows, heads, positions, width / heads)
        if self.training and hidden.device.type == "cpu":
            mixed = attention_products(query, key, value, seen, dropout=self.dropout)
        else:
            dropout = self.dropout if self.training else 0.0
            mixed = functional.scaled_dot_product_attention(
                query, key, value, attn_mask=seen, dropout_p=dropout
            )
        flat = mixed.transpose(1, 2).reshape(asking.shape)
        out: Tensor = self.norm(asking + functional.dropout(self.output(flat), self.dropout, self.training))
        return out


class FeedForward(nn.Module):
    """`LN(a + W2 gelu(W1 a + b1) + b2 + added)`."""

    def __init__(self, *, width: int, inner: int, norm_epsilon: float, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.inner, self.outer = Dense(width, inner), Dense(inner, width)
        self.norm = nn.LayerNorm(width, eps=norm_epsilon)

    def forward(self, attended: Tensor, added: Tensor | None = None) -> Tensor:
        """(rows, tokens, width) to the same shape; `added` is a delta's term."""
        out = attended + functional.dropout(
            self.outer(functional.gelu(self.inner(attended))), self.dropout, self.training
        )
        normed: Tensor = self.norm(out if added is None else out + added)
        return normed


def attention_products(query: Tensor, key: Tensor, value: Tensor, seen: Tensor, *, dropout: float) -> Tensor:
    """`softmax(Q K^T / sqrt(d)) V`, (rows, heads, positions, d); the softmax in float32.

    For training on a processor, where torch's fused attention has a slow backward pass: forward and backward of 16
    texts of 32 tokens take a sixth of its time in bf16, 12 heads of 32.
    """
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    weights = scores.float().masked_fill(~seen, float("-inf")).softmax(dim=-1)
    return functional.dropout(weights, dropout).to(value.dtype) @ value


def visible(mask: Tensor) -> Tensor:
    """The mask as attention reads it: (rows, 1, 1 or tokens, tokens), True where a token may be seen.

    `mask` is (rows, tokens), the real tokens, or (rows, tokens, tokens), who sees whom (packed rows, isolated
    prompts). A token that may see nothing would divide zero by zero; it sees everything instead: such a token
    is padding, which no other token sees.
    """
    mask = mask | ~mask.any(dim=-1, keepdim=True)
    return mask[:, None, None, :] if mask.dim() == 2 else mask[:, None]


class Dense(nn.Linear):
    """A dense map that starts at zero, so that making one touches no random state."""

    def reset_parameters(self) -> None:
        """All zeros."""
        for value in self.parameters():
            nn.init.zeros_(value)


def fill_normal(module: nn.Module, generator: torch.Generator) -> None:
    """Draws every matrix from N(0, 0.02) in the parameters' order, as BERT does; biases 0, norms 1."""
    for name, value in module.named_parameters():
        if value.dim() > 1:
            nn.init.normal_(value, std=0.02, generator=generator)
        else:
            nn.init.constant_(value, 1.0 if name.endswith("norm.weight") else 0.0)
