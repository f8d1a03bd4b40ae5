"""Attention by head over the keys that each position may see."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from polyhead.deep.nn.dropout import dropped
from polyhead.values import Value

LONG, PIECE = 1024, 256  # positions of a row from which on queries are computed in pieces, and of a piece


class AttentionKeys(Value, eq=False):
    """Keys and values by head: (rows, heads, positions, width / heads) each."""

    key: Tensor
    value: Tensor


def behind(before: AttentionKeys, keys: AttentionKeys) -> AttentionKeys:
    """Both concatenated, `before` first, in the precision of `keys`."""
    return AttentionKeys(
        key=torch.cat([before.key.to(keys.key.dtype), keys.key], dim=2),
        value=torch.cat([before.value.to(keys.value.dtype), keys.value], dim=2),
    )


def by_head(values: Tensor, heads: int) -> Tensor:
    """(rows, positions, width) to (rows, heads, positions, width / heads)."""
    return values.view(*values.shape[:-1], heads, values.shape[-1] // heads).transpose(1, 2)


def attend(
    query: Tensor,
    keys: AttentionKeys,
    seen: Tensor,
    *,
    dropout: float,
    learns: bool,
    scale: float | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Attention's mixed values with heads concatenated, (rows, positions, width), from queries by head.

    `seen` (rows, 1, 1 or positions, keys), True where a key may be seen; `dropout` acts on the probabilities; `scale`
    is by default 1 / sqrt(head width); `bias`, which broadcasts to (rows, heads, positions, keys), is added.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    is_long = query.shape[2] * keys.key.shape[2] > LONG * LONG
    # torch's fused attention drops nothing on a processor without all scores, and its way back is slow on short rows.
    if learns and query.device.type == "cpu" and (dropout or bias is not None or not is_long):
        mixed = _in_pieces(query, keys, seen, dropout=dropout, scale=scale, bias=bias)
    else:
        read = seen if bias is None else bias.masked_fill(~seen, float("-inf"))
        mixed = functional.scaled_dot_product_attention(
            query, keys.key, keys.value, attn_mask=read, dropout_p=dropout, scale=scale
        )
    return mixed.transpose(1, 2).flatten(2)


def _in_pieces(
    query: Tensor, keys: AttentionKeys, seen: Tensor, *, dropout: float, scale: float, bias: Tensor | None
) -> Tensor:
    """`attention_products`; long rows take some queries at a time, whose scores the backward pass computes again.

    Memory then grows with the length of a row, not with its square. Short rows keep their bits.
    """
    queries, key, value = query.shape[2], keys.key, keys.value
    if queries * key.shape[2] <= LONG * LONG:
        return attention_products(query, key, value, seen, dropout=dropout, scale=scale, bias=bias)
    mixed = []
    for start in range(0, queries, PIECE):
        piece = slice(start, start + PIECE)
        mixed.append(
            checkpoint(
                attention_products,
                query[:, :, piece],
                key,
                value,
                seen if seen.shape[2] == 1 else seen[:, :, piece],
                dropout=dropout,
                scale=scale,
                bias=None if bias is None else bias[:, :, piece],
                use_reentrant=False,
            )
        )
    return torch.cat(mixed, dim=2)


def attention_products(
    query: Tensor, key: Tensor, value: Tensor, seen: Tensor, *, dropout: float, scale: float, bias: Tensor | None = None
) -> Tensor:
    """`softmax(scale Q K^T + bias) V`, (rows, heads, positions, d); the softmax in float32.

    For training on a processor, where torch's fused attention has a slow backward pass: forward and backward of 16
    texts of 32 tokens take a sixth of its time in bf16, with 12 heads of 32.
    """
    scores = (query * scale) @ key.transpose(-1, -2)
    unseen = torch.zeros_like(seen, dtype=torch.float32).masked_fill(~seen, float("-inf"))
    weights = (scores.float() + (unseen if bias is None else bias + unseen)).softmax(dim=-1)
    return dropped(weights, dropout).to(value.dtype) @ value


def visible(mask: Tensor) -> Tensor:
    """The mask in the form of attention: (rows, 1, 1 or tokens, tokens), True if a token may be seen.

    `mask` is (rows, tokens), the real tokens, or (rows, tokens, tokens), who sees whom (packed rows, isolated prompts).
    A token that may see nothing would divide zero by zero; it sees everything instead: such a token is padding, which
    no other token sees.
    """
    mask = mask | ~mask.any(dim=-1, keepdim=True)
    return mask[:, None, None, :] if mask.dim() == 2 else mask[:, None]
