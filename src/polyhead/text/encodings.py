"""Many encodings end to end in flat arrays, so that batching needs no Python loop over texts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyhead.config import Value


class Encodings(Value, eq=False):
    """Inputs, or windows of them, as token ids: entry i has the tokens from `starts[i]` to `starts[i + 1]`.

    An input's windows follow each other. `cut`, `beyond` and `repaired` are facts of the whole input; its first window
    holds them, later ones hold 0, so that sums count once. `offsets` are characters of the text that `sequence` names,
    and (0, 0) for special tokens; both are None unless requested.
    """

    row: np.ndarray  # int64 (entries,): index into the inputs
    window: np.ndarray  # int64 (entries,)
    starts: np.ndarray  # int64 (entries + 1,)
    ids: np.ndarray  # int32 (tokens,)
    segments: np.ndarray  # int32 (tokens,)
    cut: np.ndarray  # int64 (entries,): tokens that no window holds
    beyond: np.ndarray  # int64 (entries,): tokens that the first window does not hold
    repaired: np.ndarray  # int64 (entries,): lone surrogates replaced by U+FFFD
    texts: int  # texts of each input
    offsets: np.ndarray | None = None  # int32 (tokens, 2)
    sequence: np.ndarray | None = None  # int8 (tokens,): 0 first text, 1 second text, -1 special token

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each entry, int64 (entries,)."""
        return np.asarray(self.starts[1:] - self.starts[:-1])

    def tokens_of(self, entries: np.ndarray) -> np.ndarray:
        """Indices of these entries' tokens in the flat arrays, entry after entry."""
        return ranges(self.starts[entries], self.lengths[entries])


def starts_of(sizes: np.ndarray) -> np.ndarray:
    """Start of each item when items of these sizes lie end to end, and the end of the last; int64 (items + 1,)."""
    starts = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=starts[1:])
    return starts


def ranges(starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """`start, ..., start + size - 1` of every pair, end to end; int64."""
    here = starts_of(sizes)
    return np.asarray(np.arange(here[-1]) + np.repeat(starts - here[:-1], sizes))


def joined(parts: Sequence[Encodings]) -> Encodings:
    """Encodings of like inputs end to end; their rows must count through all of them already."""
    if len(parts) == 1:
        return parts[0]
    shift = starts_of(np.array([len(part.ids) for part in parts], np.int64))
    starts = [part.starts[:-1] + more for part, more in zip(parts, shift.tolist(), strict=False)]
    flat = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("row", "window", "ids", "segments", "cut", "beyond", "repaired", "offsets", "sequence")
        if all(getattr(part, name) is not None for part in parts)
    }
    return Encodings(starts=np.concatenate([*starts, shift[-1:]]), texts=parts[0].texts, **flat)
