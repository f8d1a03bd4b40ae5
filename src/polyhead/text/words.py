"""Words of a text, and the token and the window that stand for each."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from polyhead.text.tokenise import Encoded

NOWHERE = (-1, -1)  # the offsets of "no answer" among the places of a text
_WORD = re.compile(r"\w+|[^\w\s]")


def words_of(text: str) -> np.ndarray:
    """Character offsets int32 (words, 2): runs of letters, digits and `_`; other visible characters alone."""
    return np.array([found.span() for found in _WORD.finditer(text)], np.int32).reshape(-1, 2)


def places_of(text: str) -> np.ndarray:
    """Where an answer may begin or end, int32 (1 + words, 2): NOWHERE for "no answer", then `words_of(text)`."""
    return np.concatenate([np.array([NOWHERE], np.int32), words_of(text)])


def words_in(texts: Sequence[str]) -> np.ndarray:
    """The words of a text; of a pair the places of its second text, where answers to the first may begin or end."""
    return words_of(texts[0]) if len(texts) == 1 else places_of(texts[-1])


def joined(tokens: Sequence[str]) -> tuple[str, np.ndarray]:
    """Tokens as one text, single spaces between them, and where each lies in it, int32 (words, 2)."""
    sizes = np.array([len(token) for token in tokens], np.int64)
    stops = np.cumsum(sizes + 1) - 1
    return " ".join(tokens), np.stack([stops - sizes, stops], axis=1).astype(np.int32)


def first_subtokens(encoded: Encoded, words: np.ndarray) -> np.ndarray:
    """For each word of the only or second text, int32 (words,): its first token that overlaps it, -1 if none does.

    There is none when the word was cut away, is outside the window, or vanished in the tokenizer's
    normalisation. NOWHERE is read at the first token of all, whatever that is ([CLS], <s>).
    """
    found = _overlapping(encoded, words)
    return np.where((words == NOWHERE).all(axis=-1), 0, found).astype(np.int32) if len(words) else found


def _overlapping(encoded: Encoded, words: np.ndarray) -> np.ndarray:
    here = encoded.sequence == encoded.texts - 1
    real = np.flatnonzero(here & (encoded.offsets[:, 1] > encoded.offsets[:, 0]))
    if not len(real) or not len(words):
        return np.full(len(words), -1, np.int32)
    starts, stops = encoded.offsets[real, 0], encoded.offsets[real, 1]
    first = np.searchsorted(
        stops, words[:, 0], side="right"
    )  # the first token that ends after the word's start
    inside = np.minimum(first, len(real) - 1)
    overlaps = (first < len(real)) & (starts[inside] < words[:, 1])
    return np.where(overlaps, real[inside], -1).astype(np.int32)


class Search:
    """The words of one text, to be found in its windows: each window costs what it reads, not the whole text."""

    def __init__(self, words: np.ndarray) -> None:
        """`words` (words, 2) in any order, NOWHERE among them or not."""
        self.words = words
        self._nowhere = np.flatnonzero((words == NOWHERE).all(axis=-1))
        self._stops = np.maximum.accumulate(words[:, 1])  # no word up to this one ends later
        self._starts = np.minimum.accumulate(words[::-1, 0])[::-1]  # no word from this one on starts earlier

    def read_in(self, encoded: Encoded) -> tuple[np.ndarray, np.ndarray]:
        """Which words have a token here, (read,) in order, and the `first_subtokens` of each, (read,)."""
        offsets = encoded.offsets[encoded.sequence == encoded.texts - 1]
        near = np.zeros(0, np.int64)
        if len(offsets):
            first = np.searchsorted(self._stops, offsets[:, 0].min(), side="right")
            near = np.arange(first, np.searchsorted(self._starts, offsets[:, 1].max(), side="left"))
        which = np.union1d(self._nowhere, near)
        tokens = first_subtokens(encoded, self.words[which])
        return which[tokens >= 0], tokens[tokens >= 0]


def best_windows(windows: Sequence[Encoded], words: np.ndarray) -> np.ndarray:
    """For each word int32 (words, 2): the window that reads it farthest from a cut, and its token there.

    `windows` are all the windows of one row, in order. The ends of the text are no cuts. A word that
    continues from before a window is not read there if another window holds its beginning; -1, -1 where no
    window holds the word.
    """
    best = np.full((len(words), 2), -1, np.int32)
    distance, search = np.full(len(words), -1.0), Search(words)
    for index, window in enumerate(windows):
        which, tokens = search.read_in(window)
        text = np.flatnonzero(window.sequence == window.texts - 1)
        if not len(text):
            continue
        left = np.where(index == 0, np.inf, tokens - text[0])
        right = np.where(index == len(windows) - 1, np.inf, text[-1] - tokens)
        found = np.minimum(left, right)
        better = found > distance[which]
        best[which[better], 0], best[which[better], 1] = index, tokens[better]
        distance[which] = np.maximum(distance[which], found)
    return best
