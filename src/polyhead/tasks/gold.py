"""Gold spans of characters, as in a file: overlaps, cutting words at them, and the labels of words."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

import numpy as np

from polyhead.values import Value


class TaggedSpan(Value):
    """Characters [start, end) of a text with a label."""

    start: int
    end: int
    label: str


def overlapping_pair(spans: Sequence[TaggedSpan]) -> tuple[TaggedSpan, TaggedSpan] | None:
    """Two spans that share a character; None if all are disjoint."""
    in_order = sorted(spans, key=lambda span: (span.start, span.end))
    return next((pair for pair in zip(in_order, in_order[1:], strict=False) if pair[0].end > pair[1].start), None)


def longest_disjoint(spans: Sequence[TaggedSpan]) -> list[TaggedSpan]:
    """The longest spans that share no character, in the order of the text; of equally long ones the first."""
    kept: list[tuple[int, int]] = []
    chosen = []
    for span in sorted(spans, key=lambda span: (span.start - span.end, span.start)):
        place = bisect_left(kept, (span.start, span.end))
        is_free = place == 0 or kept[place - 1][1] <= span.start
        if is_free and (place == len(kept) or kept[place][0] >= span.end):
            insort(kept, (span.start, span.end))
            chosen.append(span)
    return sorted(chosen, key=lambda span: span.start)


def cut_words(words: np.ndarray, spans: Sequence[TaggedSpan]) -> np.ndarray:
    """The words (words, 2), each cut where a span begins or ends inside it."""
    if not len(words) or not spans:
        return words
    cuts = np.unique([(span.start, span.end) for span in spans]).astype(words.dtype)
    word = np.searchsorted(words[:, 0], cuts, side="right") - 1
    is_inside = (word >= 0) & (cuts > words[word, 0]) & (cuts < words[word, 1])
    cuts = cuts[is_inside]
    starts, ends = (np.sort(np.append(words[:, side], cuts)) for side in (0, 1))
    return np.stack([starts, ends], axis=1)


def widened(span: TaggedSpan, words: np.ndarray) -> TaggedSpan:
    """The span from the beginning of its first word to the end of its last; unchanged if it contains no word."""
    first, stop = _held(span, words)
    if first >= stop:
        return span
    return TaggedSpan(start=int(words[first, 0]), end=int(words[stop - 1, 1]), label=span.label)


def tags_of(spans: Sequence[TaggedSpan], words: np.ndarray) -> list[str]:
    """BIO labels of words (words, 2), in order, from disjoint spans; a span includes every word that it overlaps.

    Raises ValueError for a span that overlaps no word, or shares a word with another.
    """
    tags = ["O"] * len(words)
    for span in spans:
        first, stop = _held(span, words)
        if first >= stop:
            raise ValueError("a span holds no word")
        if any(tag != "O" for tag in tags[first:stop]):
            raise ValueError("two spans share a word")
        tags[first:stop] = [f"B-{span.label}", *[f"I-{span.label}"] * (stop - first - 1)]
    return tags


def _held(span: TaggedSpan, words: np.ndarray) -> tuple[int, int]:
    """The words [first, stop) that the span overlaps."""
    first = np.searchsorted(words[:, 1], span.start, side="right")
    return int(first), int(np.searchsorted(words[:, 0], span.end, side="left"))
