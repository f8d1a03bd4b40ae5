"""Many encodings, concatenated in flat arrays, and the special tokens around their texts.

Batching needs no Python loop over texts.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import tokenizers

from polyhead.errors import WeightsMismatch
from polyhead.values import Value


class Encodings(Value, eq=False):
    """Inputs, or windows of them, as token ids: entry i has the tokens from `starts[i]` to `starts[i + 1]`.

    The windows of an input follow each other. `cut`, `beyond` and `repaired` describe the whole input: its first window
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
        """Number of tokens of each entry, int64 (entries,)."""
        return np.asarray(self.starts[1:] - self.starts[:-1])

    def tokens_of(self, entries: np.ndarray) -> np.ndarray:
        """Indices of these entries' tokens in the flat arrays, entry after entry."""
        return ranges(self.starts[entries], self.lengths[entries])


def starts_of(sizes: np.ndarray) -> np.ndarray:
    """Start of each item in a concatenation of items of these sizes, and the end of the last; int64 (items + 1,)."""
    starts = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=starts[1:])
    return starts


def ranges(starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """`start, ..., start + size - 1` of every pair, concatenated; int64."""
    if len(sizes) == 1:
        return np.arange(starts[0], starts[0] + sizes[0])
    bounds = starts_of(sizes)
    return np.asarray(np.arange(bounds[-1]) + np.repeat(starts - bounds[:-1], sizes))


def end_to_end(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The arrays concatenated; int64 (0,) for no arrays."""
    return np.concatenate(arrays) if arrays else np.zeros(0, np.int64)


def concatenate_encodings(parts: Sequence[Encodings]) -> Encodings:
    """Encodings of inputs of the same form, concatenated; their `rows` must already be numbered across all of them."""
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


class Template(Value):
    """Special tokens before, between and after the texts, with segment ids of these tokens and of the texts."""

    ids: tuple[list[int], ...]
    segments: tuple[list[int], ...]
    text_segments: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of special tokens."""
        return sum(map(len, self.ids))

    def repeated(self, special: Sequence[Sequence[int]], texts: Sequence[int], sizes: np.ndarray) -> np.ndarray:
        """One value per token, concatenated: a special token has its own, the tokens of a text share one.

        `sizes` (entries, texts) are token counts.
        """
        values = list(special[0])
        places = []  # indices of the texts among the values
        for text, after in zip(texts, special[1:], strict=True):
            places.append(len(values))
            values += [text, *after]
        if len(set(values)) == 1:  # segments of single texts
            return np.full(int(sizes.sum()) + len(sizes) * self.size, values[0])
        counts = np.ones((len(sizes), len(values)), np.int64)
        counts[:, places] = sizes
        return np.repeat(np.tile(values, len(sizes)), counts.ravel())


def whole_encoding(answer: tokenizers.Encoding, template: Template, *, offsets: bool) -> Encodings:
    """One text with all of its tokens, as the library read it without special tokens."""
    (before, after), ids, nothing = template.ids, answer.ids, np.zeros(1, np.int64)
    start, stop, size = len(before), len(before) + len(ids), len(ids) + template.size
    segments = np.full(size, template.text_segments[0], np.int32)
    segments[:start], segments[stop:] = template.segments
    encodings = Encodings(
        row=nothing,
        window=nothing,
        starts=np.array([0, size], np.int64),
        ids=np.array([*before, *ids, *after], np.int32),
        segments=segments,
        cut=nothing,
        beyond=nothing,
        repaired=nothing,
        texts=1,
    )
    if not offsets:
        return encodings
    sequence, pairs = np.full(size, -1, np.int8), np.zeros((size, 2), np.int32)
    sequence[start:stop] = 0
    pairs[start:stop] = np.array(answer.offsets, np.int32).reshape(-1, 2)
    return msgspec.structs.replace(encodings, offsets=pairs, sequence=sequence)


def find_template(tokenizer: tokenizers.Tokenizer, texts: int) -> Template:
    """The template for `texts` texts, found by encoding a probe; raises WeightsMismatch if there is none."""
    probe = _probe(tokenizer)
    plain = tokenizer.encode(probe, add_special_tokens=False).ids
    whole = tokenizer.encode(probe, probe if texts == 2 else None)
    # The library copies each of these whenever it is read.
    ids, segments, sequences = whole.ids, whole.type_ids, whole.sequence_ids
    runs: list[tuple[list[int], list[int]]] = [([], [])]
    text_segments, index = [], 0
    while index < len(ids):
        if sequences[index] is None:
            runs[-1][0].append(ids[index])
            runs[-1][1].append(segments[index])
            index += 1
            continue
        text_segments.append(segments[index])
        if (sequences[index], ids[index : index + len(plain)]) != (len(runs) - 1, plain):
            raise WeightsMismatch("the tokenizer places texts in an order of its own", got=whole.tokens)
        runs.append(([], []))
        index += len(plain)
    if len(text_segments) != texts:
        raise WeightsMismatch("the tokenizer repeats or drops a text", got=whole.tokens, do="use another trunk")
    return Template(
        ids=tuple(run[0] for run in runs), segments=tuple(run[1] for run in runs), text_segments=tuple(text_segments)
    )


def _probe(tokenizer: tokenizers.Tokenizer) -> str:
    """A short text that has at least one token."""
    candidates = ["a", "the", "0", ".", *sorted(tokenizer.get_vocab(with_added_tokens=False))[:1000]]
    for text in candidates:
        if len(tokenizer.encode(text, add_special_tokens=False)):
            return text
    raise WeightsMismatch("the tokenizer finds no token in any text", do="use the tokenizer that belongs to the trunk")
