"""Words of a text, and the token and window that represent each."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain, pairwise

import numpy as np

from polyhead.text.characters import word_pattern
from polyhead.text.encodings import Encodings, ranges, starts_of
from polyhead.text.tokenize import AT_ONCE, Encoded, encoded_at
from polyhead.values import Value

GOES_ON = -2  # in place of a token: that of the word before, of which this word is the next part
NOWHERE = (-1, -1)  # the offsets of "no answer" among the places of a text
LONGEST_WORD = 4 * AT_ONCE  # characters: nothing interrupts the search for the end of one


def words_of(text: str) -> np.ndarray:
    """Character offsets int32 (words, 2): runs of letters, digits and `_`, other visible characters alone.

    Each with its marks; digits before letters, and letters of scripts without spaces, are words of their own (see
    `text.characters`). A word of more than LONGEST_WORD characters is several.
    """
    return np.array(_flat_spans(text), np.int32).reshape(-1, 2)


def boundary_places(text: str) -> np.ndarray:
    """Places where an answer may begin or end, int32 (1 + words, 2): NOWHERE ("no answer"), then `words_of(text)`."""
    return np.concatenate([np.array([NOWHERE], np.int32), words_of(text)])


def words_in(texts: Sequence[str]) -> np.ndarray:
    """The words of a single text, or the places of a pair's second text."""
    return words_of(texts[0]) if len(texts) == 1 else boundary_places(texts[-1])


def words_in_each(inputs: Sequence[Sequence[str]]) -> list[np.ndarray]:
    """`words_in` of many inputs."""
    flat, stops = array("i"), [0]
    for texts in inputs:
        flat.extend(NOWHERE if len(texts) > 1 else ())
        flat.extend(_flat_spans(texts[-1]))
        stops.append(len(flat) // 2)
    offsets = np.array(flat, np.int32).reshape(-1, 2)
    return [offsets[start:stop] for start, stop in pairwise(stops)]


def _flat_spans(text: str) -> array[int]:
    """Beginning and end of each word, one after the other; a part of the text at a time.

    Other threads run between two parts. The last word of a part may go on behind it, so it is looked for again.
    """
    flat, pattern, start, size = array("i"), word_pattern(text), 0, AT_ONCE
    while start < len(text):
        stop = min(start + size, len(text))
        spans = [match.span() for match in pattern.finditer(text, start, stop)]
        if stop < len(text) and len(spans) > 1:
            stop, size = spans.pop()[0], AT_ONCE
        elif stop < len(text) and spans and size < LONGEST_WORD:
            stop, size = spans.pop()[0], 2 * size
        else:
            size = AT_ONCE
        flat.fromlist(list(chain.from_iterable(spans)))
        start = stop
    return flat


def join_tokens(tokens: Sequence[str]) -> tuple[str, np.ndarray]:
    """The tokens joined by spaces, and each token's character range, int32 (words, 2)."""
    sizes = np.array([len(token) for token in tokens], np.int64)
    stops = np.cumsum(sizes + 1) - 1
    return " ".join(tokens), np.stack([stops - sizes, stops], axis=1).astype(np.int32)


def first_subtokens(encoded: Encoded, words: np.ndarray) -> np.ndarray:
    """For each word of the only or second text, int32 (words,): its first token that overlaps it, -1 if none does.

    There is none when the word was cut away, is outside the window, or vanished in the tokenizer's
    normalisation. NOWHERE is read at the first token of all, whatever that is ([CLS], <s>). Of words of a single text
    that stand together in one token the first has it, the others have GOES_ON.
    """
    tokens = _overlapping(encoded, words)
    if encoded.texts == 1:
        tokens[1:][_same_token(tokens, words)] = GOES_ON
    return np.where((words == NOWHERE).all(axis=-1), 0, tokens).astype(np.int32) if len(words) else tokens


def _same_token(tokens: np.ndarray, words: np.ndarray) -> np.ndarray:
    """For each word but the first: whether it begins where the word before ends, and has its token."""
    return np.asarray((tokens[1:] == tokens[:-1]) & (tokens[1:] >= 0) & (words[1:, 0] == words[:-1, 1]))


def _overlapping(encoded: Encoded, words: np.ndarray) -> np.ndarray:
    here = encoded.sequence == encoded.texts - 1
    real = np.flatnonzero(here & (encoded.offsets[:, 1] > encoded.offsets[:, 0]))
    if not len(real) or not len(words):
        return np.full(len(words), -1, np.int32)
    starts, stops = encoded.offsets[real, 0], encoded.offsets[real, 1]
    first = np.searchsorted(stops, words[:, 0], side="right")  # the first token that ends after the word's start
    inside = np.minimum(first, len(real) - 1)
    overlaps = (first < len(real)) & (starts[inside] < words[:, 1])
    return np.where(overlaps, real[inside], -1).astype(np.int32)


class WordFinder:
    """Finds the words of one text in its windows; a window costs its own length, not the text's."""

    def __init__(self, words: np.ndarray) -> None:
        """`words` (words, 2) in any order, NOWHERE among them or not."""
        self.words = words
        self._nowhere = np.flatnonzero((words == NOWHERE).all(axis=-1))
        self._stops = np.maximum.accumulate(words[:, 1])  # no word up to this one ends later
        self._starts = np.minimum.accumulate(words[::-1, 0])[::-1]  # no word from this one on starts earlier

    def read_in(self, encoded: Encoded) -> tuple[np.ndarray, np.ndarray]:
        """Indices of the words that have a token in the window, (read,), and their `first_subtokens`, (read,)."""
        which, tokens = self._near(encoded)
        return which[tokens >= 0], tokens[tokens >= 0]

    def going_on_in(self, encoded: Encoded) -> np.ndarray:
        """Indices of the words that share the token of the word before in the window."""
        which, tokens = self._near(encoded)
        return np.asarray(which[tokens == GOES_ON])

    def _near(self, encoded: Encoded) -> tuple[np.ndarray, np.ndarray]:
        offsets = encoded.offsets[encoded.sequence == encoded.texts - 1]
        near = np.zeros(0, np.int64)
        if len(offsets):
            first = np.searchsorted(self._stops, offsets[:, 0].min(), side="right")
            near = np.arange(first, np.searchsorted(self._starts, offsets[:, 1].max(), side="left"))
        which = np.union1d(self._nowhere, near)
        return which, first_subtokens(encoded, self.words[which])


class WindowWords(Value, eq=False):
    """The words of texts, and for each entry of encodings the words that it reads and their tokens."""

    words: np.ndarray  # int32 (words, 2): of one text after the other
    text_starts: np.ndarray  # int64 (texts + 1,): where each text's words begin
    places: np.ndarray  # int64 (read,): which of its text's words, in order, of one entry after the other
    tokens: np.ndarray  # int64 (read,): the first sub-token of each, counted in its entry
    starts: np.ndarray  # int64 (entries + 1,): where what each entry reads begins
    goes_on: np.ndarray  # bool (words,): which share the token of the word before, and are not read again

    def of(self, text: int) -> np.ndarray:
        """The words of one text, (words, 2)."""
        return self.words[self.text_starts[text] : self.text_starts[text + 1]]

    def going_on(self, texts: np.ndarray) -> np.ndarray:
        """Which words of these texts, one text after the other, share the token of the word before, bool (words,)."""
        return np.asarray(self.goes_on[ranges(self.text_starts[texts], np.diff(self.text_starts)[texts])])


def read_words(encodings: Encodings, words: Sequence[np.ndarray]) -> WindowWords:
    """The words that each entry reads; the encodings must have offsets."""
    sizes = np.fromiter(map(len, words), np.int64, len(words))
    text_starts = starts_of(sizes)
    flat = np.concatenate([np.zeros((0, 2), np.int32), *words])
    windows = np.bincount(encodings.row, minlength=len(words))
    alone = np.flatnonzero(windows[encodings.row] == 1)
    part, going_on = _first_subtokens(encodings, alone, flat, text_starts)
    parts, goes_on = [part], np.zeros(len(flat), bool)
    goes_on[going_on] = True
    for row in np.flatnonzero(windows > 1).tolist():
        search = WordFinder(words[row])
        first = int(np.searchsorted(encodings.row, row))
        for entry in range(first, first + int(windows[row])):
            encoded = encoded_at(encodings, entry)
            indices, subtokens = search.read_in(encoded)
            parts.append((np.full(len(indices), entry), indices, subtokens))
            goes_on[text_starts[row] + search.going_on_in(encoded)] = True
    owner, places, tokens = (np.concatenate(several) for several in zip(*parts, strict=True))
    order = np.argsort(owner, kind="stable")
    counts = np.bincount(owner, minlength=len(encodings.row))
    return WindowWords(
        words=flat,
        text_starts=text_starts,
        places=places[order],
        tokens=tokens[order],
        starts=starts_of(counts),
        goes_on=goes_on,
    )


def _first_subtokens(
    encodings: Encodings, entries: np.ndarray, words: np.ndarray, text_starts: np.ndarray
) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    """`first_subtokens` of many entries: for every word that is read its entry, its index in the text and its token.

    With them, as indices of `words`, those that share the token of the word before. Each entry gets a range of
    character numbers of its own, so that one search serves all.
    """
    assert encodings.offsets is not None and encodings.sequence is not None
    token_sizes = encodings.lengths[entries]
    at = encodings.tokens_of(entries)
    token_entry = np.repeat(np.arange(len(entries)), token_sizes)  # each token's entry
    offsets = encodings.offsets[at].astype(np.int64)
    real = (encodings.sequence[at] == encodings.texts - 1) & (offsets[:, 1] > offsets[:, 0])
    at, token_entry, offsets = at[real], token_entry[real], offsets[real]
    rows = encodings.row[entries]
    sizes = text_starts[rows + 1] - text_starts[rows]
    word_entry = np.repeat(np.arange(len(entries)), sizes)  # each word's entry
    which = ranges(text_starts[rows], sizes)
    spans = words[which].astype(np.int64)
    both = np.concatenate([offsets, spans, np.zeros((1, 2), np.int64)])
    stretch = int(both.max() - both.min()) + 2
    first = np.searchsorted(offsets[:, 1] + token_entry * stretch, spans[:, 0] + word_entry * stretch, side="right")
    last = np.searchsorted(token_entry, word_entry, side="right")
    inside = np.minimum(first, max(0, len(token_entry) - 1))
    overlaps = first < last
    if len(token_entry):
        overlaps &= offsets[inside, 0] < spans[:, 1]
    nowhere = (spans == NOWHERE).all(axis=1)
    token = np.where(nowhere, 0, at[inside] - encodings.starts[entries][word_entry] if len(token_entry) else 0)
    goes_on = np.zeros(len(spans), bool)
    if encodings.texts == 1:
        same = _same_token(np.where(overlaps, token, -1), spans)
        goes_on[1:] = same & (word_entry[1:] == word_entry[:-1])
    read = np.flatnonzero((overlaps & ~goes_on) | nowhere)
    places = np.arange(len(word_entry)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return (entries[word_entry[read]], places[read], token[read]), which[goes_on]


def best_windows(windows: Sequence[Encoded], words: np.ndarray) -> np.ndarray:
    """For each word int32 (words, 2): the window that reads it farthest from a cut, and its token there.

    `windows` are all the windows of one row, in order. The ends of the text are no cuts. A word that
    continues from before a window is not read there if another window holds its beginning; -1, -1 where no
    window holds the word.
    """
    best = np.full((len(words), 2), -1, np.int32)
    distance, search = np.full(len(words), -1.0), WordFinder(words)
    for index, window in enumerate(windows):
        indices, tokens = search.read_in(window)
        text = np.flatnonzero(window.sequence == window.texts - 1)
        if not len(text):
            continue
        left = np.where(index == 0, np.inf, tokens - text[0])
        right = np.where(index == len(windows) - 1, np.inf, text[-1] - tokens)
        margin = np.minimum(left, right)
        better = margin > distance[indices]
        best[indices[better], 0], best[indices[better], 1] = index, tokens[better]
        distance[indices] = np.maximum(distance[indices], margin)
    return best
