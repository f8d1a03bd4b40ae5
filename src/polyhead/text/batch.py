"""Encoded inputs to padded batches: sorted by length, cut by a budget of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from polyhead.config import Value
from polyhead.errors import ConfigError
from polyhead.text.encodings import Encodings
from polyhead.text.tokenize import Encoded


class Batch(Value, eq=False):
    """Rows of similar length. Rows past `len(members)` are spare rows that fill a fixed shape."""

    ids: np.ndarray  # int64 (rows, tokens)
    mask: np.ndarray  # bool (rows, tokens); a spare row has one true position, so that no softmax is empty
    segments: np.ndarray  # int64 (rows, tokens)
    members: np.ndarray  # int64: for each row, its index in what was batched


class Cut(Value, eq=False):
    """The inputs of one batch, and its shape."""

    members: np.ndarray  # int64
    rows: int
    tokens: int


def cuts(
    lengths: np.ndarray,
    *,
    token_budget: int,
    multiple_of: int = 1,
    fixed_rows: int | None = None,
    max_tokens: int | None = None,
) -> Iterator[Cut]:
    """Every input once, longest first, so that the batch that needs most memory is the first.

    Rows times padded tokens stay within `token_budget`, except for a single row that is longer by itself. Lengths are
    rounded up to `multiple_of`, but not beyond `max_tokens`. With `fixed_rows` every batch has exactly that many rows,
    whatever the budget.
    """
    if token_budget < 1 or multiple_of < 1 or (fixed_rows is not None and fixed_rows < 1):
        raise ConfigError(
            "batches cannot be made with these numbers",
            got=f"token_budget {token_budget}, multiple_of {multiple_of}, fixed_rows {fixed_rows}",
            allowed="positive numbers",
        )
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        longest = max(1, int(lengths[order[start]]))
        tokens = -(-longest // multiple_of) * multiple_of  # rounded up
        if max_tokens is not None:
            tokens = max(longest, min(tokens, max_tokens))
        rows = fixed_rows or max(1, token_budget // tokens)
        members = order[start : start + rows]
        yield Cut(members=members, rows=fixed_rows or len(members), tokens=tokens)
        start += rows


def batches(
    encoded: Sequence[Encoded],
    *,
    token_budget: int,
    pad_id: int,
    multiple_of: int = 1,
    fixed_rows: int | None = None,
    max_tokens: int | None = None,
) -> Iterator[Batch]:
    """Padded batches by `cuts`. Put answers back in order with `answers[batch.members] = ...`."""
    lengths = np.array([len(entry.ids) for entry in encoded], np.int64)
    for cut in cuts(
        lengths, token_budget=token_budget, multiple_of=multiple_of, fixed_rows=fixed_rows, max_tokens=max_tokens
    ):
        members = [encoded[member] for member in cut.members]
        ids, segments = (np.concatenate([getattr(entry, name) for entry in members]) for name in ("ids", "segments"))
        yield _padded(ids, segments, lengths[cut.members], cut, pad_id)


def padded(encodings: Encodings, cut: Cut, *, pad_id: int) -> Batch:
    """The members of a cut as a batch."""
    here = encodings.tokens_of(cut.members)
    lengths = encodings.lengths[cut.members]
    return _padded(encodings.ids[here], encodings.segments[here], lengths, cut, pad_id)


def _padded(ids: np.ndarray, segments: np.ndarray, lengths: np.ndarray, cut: Cut, pad_id: int) -> Batch:
    """From the members' tokens end to end."""
    shape = (cut.rows, cut.tokens)
    mask = np.zeros(shape, bool)
    mask[: len(lengths)] = np.arange(cut.tokens) < lengths[:, None]
    wide, kinds = np.full(shape, pad_id, np.int64), np.zeros(shape, np.int64)
    wide[mask], kinds[mask] = ids, segments
    mask[len(lengths) :, 0] = True
    return Batch(ids=wide, mask=mask, segments=kinds, members=cut.members)
