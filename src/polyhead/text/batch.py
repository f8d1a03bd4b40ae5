"""Encoded inputs to padded batches: sorted by length, cut by a budget of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from polyhead.config import Value
from polyhead.errors import ConfigError
from polyhead.text.tokenise import Encoded


class Batch(Value, eq=False):
    """Rows of like length. Rows past `len(members)` are spare ones that fill a fixed shape."""

    ids: np.ndarray  # int64 (rows, tokens)
    mask: np.ndarray  # bool (rows, tokens); a spare row has one true position, so that no softmax is empty
    segments: np.ndarray  # int64 (rows, tokens)
    members: np.ndarray  # int64: for each row, its index in what was batched


def batches(
    encoded: Sequence[Encoded],
    *,
    token_budget: int,
    pad_id: int,
    multiple_of: int = 1,
    fixed_rows: int | None = None,
    max_tokens: int | None = None,
) -> Iterator[Batch]:
    """Every input once, longest first, so that the batch that needs most memory is the first.

    Rows times padded tokens stay within `token_budget`, except for a single row that is longer by itself.
    Lengths are rounded up to `multiple_of`, but not beyond `max_tokens`. With `fixed_rows` every batch has
    exactly that many rows, whatever the budget. Put answers back in order with `answers[batch.members] =
    ...`.
    """
    if token_budget < 1 or multiple_of < 1 or (fixed_rows is not None and fixed_rows < 1):
        raise ConfigError(
            "batches cannot be made with these numbers",
            got=f"token_budget {token_budget}, multiple_of {multiple_of}, fixed_rows {fixed_rows}",
            allowed="positive numbers",
        )
    lengths = np.array([len(one.ids) for one in encoded], np.int64)
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        longest = max(1, int(lengths[order[start]]))
        tokens = -(-longest // multiple_of) * multiple_of  # rounded up
        if max_tokens is not None:
            tokens = max(longest, min(tokens, max_tokens))
        rows = fixed_rows or max(1, token_budget // tokens)
        members = order[start : start + rows]
        yield _padded(encoded, members, fixed_rows or len(members), tokens, pad_id)
        start += rows


def _padded(encoded: Sequence[Encoded], members: np.ndarray, rows: int, tokens: int, pad_id: int) -> Batch:
    ids = np.full((rows, tokens), pad_id, np.int64)
    segments = np.zeros((rows, tokens), np.int64)
    mask = np.zeros((rows, tokens), bool)
    for row, member in enumerate(members):
        size = len(encoded[member].ids)
        ids[row, :size] = encoded[member].ids
        segments[row, :size] = encoded[member].segments
        mask[row, :size] = True
    mask[len(members) :, 0] = True
    return Batch(ids=ids, mask=mask, segments=segments, members=members)
