"""Bytes that a store keeps for one text."""

from __future__ import annotations

from polyhead.errors import PlanError
from polyhead.plan import Codec, Pool
from polyhead.trunk.shape import Architecture


def row_bytes(codec: Codec, width: int) -> int:
    """Bytes of one encoded vector."""
    return codec.format.row_bytes(width)


def stored_bytes(
    pool: Pool, shape: Architecture, tokens: int, *, layers: int | None = None, width: int | None = None
) -> int:
    """Bytes kept for one text of `tokens` tokens so that `pool` can be computed from them (Du et al. 2020, Table 2).

    A pool that learns over positions needs all tokens, one that learns over layers all `layers` (default: the
    trunk's, without the embedding's output). A codec before the mean keeps each of the averaged layers.
    """
    if tokens < 1:
        raise PlanError("a text has at least one token", got=tokens, allowed="1 or more")
    kept = pool.stored()
    depth = 1
    if kept.layers == "all":
        depth = shape.layers if layers is None else layers
    elif kept.layers == "mean" and kept.codec.before_mean:
        depth = kept.of
    rows = tokens if kept.positions in ("all", "tokens") else 1
    return rows * depth * row_bytes(kept.codec, width or shape.width)
