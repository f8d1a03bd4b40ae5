"""Words of a text, and the token and window that represent each word."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain, pairwise

import msgspec
import numpy as np

from polyhead.text.characters import word_pattern
from polyhead.text.encodings import Encodings, ranges, starts_of
from polyhead.text.tokenize import AT_ONCE, Encoded, encoded_at
from polyhead.values import Value

GOES_ON = -2  # replaces a token: the word continues the token of the word before
NOWHERE = (-1, -1)  # the offsets of "no answer" among the candidate spans of a text
LONGEST_WORD = 4 * AT_ONCE  # characters: the search for the end of a word cannot be interrupted


def words_of(text: str) -> np.ndarray:
    """Character offsets int32 (words, 2): runs of letters, digits and `_`; any other visible character is a word.

    A word includes its marks. Digits before letters are a word, and so is each letter of a script without spaces (see
    `text.characters`). A word of more than LONGEST_WORD characters is several.
    """
    return np.array(_flat_spans(text), np.int32).reshape(-1, 2)


def boundary_places(text: str) -> np.ndarray:
    """Spans where an answer may begin or end, int32 (1 + words, 2): NOWHERE ("no answer"), then `words_of(text)`."""
    return np.concatenate([np.array([NOWHERE], np.int32), words_of(text)])


def words_in(texts: Sequence[str]) -> np.ndarray:
    """The words of a single text, or the `boundary_places` of a pair's second text."""
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
    """Beginning and end of each word, concatenated; computed chunk by chunk.

    Other threads run between two chunks. The last word of a chunk may continue in the next, so it is searched for
    again.
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
    """For each word of the only or second text, int32 (words,): the first token that overlaps it, -1 if none does.

    A word has no token if it was cut off, is outside the window, or vanished in the tokenizer's normalization. NOWHERE
    is read at the very first token ([CLS], <s>). If several words of a single text share one token, the first word has
    it and the others have GOES_ON.
    """
    tokens = _overlapping(encoded, words)
    if encoded.texts == 1:
        tokens[1:][_same_token(tokens, words)] = GOES_ON
    return np.where((words == NOWHERE).all(axis=-1), 0, tokens).astype(np.int32) if len(words) else tokens


def _same_token(tokens: np.ndarray, words: np.ndarray) -> np.ndarray:
    """For each word but the first, whether it begins where the word before ends and shares its token."""
    return np.asarray((tokens[1:] == tokens[:-1]) & (tokens[1:] >= 0) & (words[1:, 0] == words[:-1, 1]))


def _overlapping(encoded: Encoded, words: np.ndarray) -> np.ndarray:
    is_in_text = encoded.sequence == encoded.texts - 1
    real = np.flatnonzero(is_in_text & (encoded.offsets[:, 1] > encoded.offsets[:, 0]))
    if not len(real) or not len(words):
        return np.full(len(words), -1, np.int32)
    starts, stops = encoded.offsets[real, 0], encoded.offsets[real, 1]
    first = np.searchsorted(stops, words[:, 0], side="right")  # the first token that ends after the word's start
    inside = np.minimum(first, len(real) - 1)
    overlaps = (first < len(real)) & (starts[inside] < words[:, 1])
    return np.where(overlaps, real[inside], -1).astype(np.int32)


class WordFinder:
    """Finds the words of one text in its windows; the time per window grows with the window, not with the text."""

    def __init__(self, words: np.ndarray) -> None:
        """`words` (words, 2) may be in any order, and may contain NOWHERE."""
        self.words = words
        self._nowhere = np.flatnonzero((words == NOWHERE).all(axis=-1))
        self._stops = np.maximum.accumulate(words[:, 1])  # no word up to the current one ends later
        self._starts = np.minimum.accumulate(words[::-1, 0])[::-1]  # no word from the current one on starts earlier

    def read_in(self, encoded: Encoded) -> tuple[np.ndarray, np.ndarray]:
        """Indices of the words that have a token in the window, (read,), and their `first_subtokens`, (read,)."""
        indices, tokens = self._near(encoded)
        return indices[tokens >= 0], tokens[tokens >= 0]

    def going_on_in(self, encoded: Encoded) -> np.ndarray:
        """Indices of the words in the window that share the token of the word before."""
        indices, tokens = self._near(encoded)
        return np.asarray(indices[tokens == GOES_ON])

    def _near(self, encoded: Encoded) -> tuple[np.ndarray, np.ndarray]:
        offsets = encoded.offsets[encoded.sequence == encoded.texts - 1]
        near = np.zeros(0, np.int64)
        if len(offsets):
            first = np.searchsorted(self._stops, offsets[:, 0].min(), side="right")
            near = np.arange(first, np.searchsorted(self._starts, offsets[:, 1].max(), side="left"))
        indices = np.union1d(self._nowhere, near)
        return indices, first_subtokens(encoded, self.words[indices])


class WindowWords(Value, eq=False):
    """The words of texts, and for each entry of encodings, the words in it and their tokens."""

    words: np.ndarray  # int32 (words, 2): text after text
    text_starts: np.ndarray  # int64 (texts + 1,): where each text's words begin
    places: np.ndarray  # int64 (read,): entry after entry, each word's index in its text
    tokens: np.ndarray  # int64 (read,): the first sub-token of each word, counted within its entry
    starts: np.ndarray  # int64 (entries + 1,): where each entry's words begin
    # bool (words,): True for words that share the token of the word before, which are not read again
    goes_on: np.ndarray
    ends: np.ndarray | None = None  # int64 (read,): the last sub-token of each, where it is read beside the first

    def of(self, text: int) -> np.ndarray:
        """The words of one text, (words, 2)."""
        return self.words[self.text_starts[text] : self.text_starts[text + 1]]

    def going_on(self, texts: np.ndarray) -> np.ndarray:
        """Whether each word of these texts, text after text, shares the token of the word before, bool (words,)."""
        return np.asarray(self.goes_on[ranges(self.text_starts[texts], np.diff(self.text_starts)[texts])])


def read_words(encodings: Encodings, words: Sequence[np.ndarray], *, ends: bool = False) -> WindowWords:
    """The words that each entry reads, with `ends` their last tokens too; the encodings must have offsets."""
    if len(encodings.row) == 1 and not ends:
        return _read_alone(encoded_at(encodings, 0), words[0])
    sizes = np.fromiter(map(len, words), np.int64, len(words))
    text_starts = starts_of(sizes)
    flat = np.concatenate([np.zeros((0, 2), np.int32), *words])
    windows = np.bincount(encodings.row, minlength=len(words))
    whole = np.flatnonzero(windows[encodings.row] == 1)
    part, going_on = _first_subtokens(encodings, whole, flat, text_starts)
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
    owner, places, tokens = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    order = np.argsort(owner, kind="stable")
    counts = np.bincount(owner, minlength=len(encodings.row))
    reads = WindowWords(
        words=flat,
        text_starts=text_starts,
        places=places[order],
        tokens=tokens[order],
        starts=starts_of(counts),
        goes_on=goes_on,
    )
    return msgspec.structs.replace(reads, ends=_last_subtokens(encodings, reads)) if ends else reads


def _read_alone(encoded: Encoded, words: np.ndarray) -> WindowWords:
    """The words of one text that one window holds."""
    tokens = first_subtokens(encoded, words)
    places = np.flatnonzero(tokens >= 0)
    return WindowWords(
        words=words,
        text_starts=np.array([0, len(words)], np.int64),
        places=places,
        tokens=tokens[places].astype(np.int64),
        starts=np.array([0, len(places)], np.int64),
        goes_on=tokens == GOES_ON,
    )


def _last_subtokens(encodings: Encodings, reads: WindowWords) -> np.ndarray:
    """For each word read, int64 (read,): the last token of its entry that overlaps it; NOWHERE is at the first token.

    As in `_first_subtokens`, each entry has its own range of character numbers.
    """
    assert encodings.offsets is not None and encodings.sequence is not None
    real = (encodings.sequence == encodings.texts - 1) & (encodings.offsets[:, 1] > encodings.offsets[:, 0])
    at = np.flatnonzero(real)
    entry = np.repeat(np.arange(len(encodings.row)), np.diff(reads.starts))
    spans = reads.words[reads.text_starts[encodings.row[entry]] + reads.places].astype(np.int64)
    token_entry = np.repeat(np.arange(len(encodings.row)), encodings.lengths)[at]
    starts = encodings.offsets[at, 0].astype(np.int64)
    stretch = 2 + max(int(starts.max(initial=0)), int(spans.max(initial=0)))
    before = np.searchsorted(starts + token_entry * stretch, spans[:, 1] + entry * stretch, side="left")
    last = at[before - 1] - encodings.starts[entry] if len(at) else reads.tokens
    return np.where((spans == NOWHERE).all(axis=1), reads.tokens, last)


def _first_subtokens(
    encodings: Encodings, entries: np.ndarray, words: np.ndarray, text_starts: np.ndarray
) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    """The `first_subtokens` of many entries: for every word read, its entry, its index in the text and its token.

    The last array holds the words, as indices of `words`, that share the token of the word before. Each entry has its
    own range of character numbers, so that one search serves all.
    """
    assert encodings.offsets is not None and encodings.sequence is not None
    token_sizes = encodings.lengths[entries]
    at = encodings.tokens_of(entries)
    token_entry = np.repeat(np.arange(len(entries)), token_sizes)  # the entry of each token
    offsets = encodings.offsets[at].astype(np.int64)
    real = (encodings.sequence[at] == encodings.texts - 1) & (offsets[:, 1] > offsets[:, 0])
    at, token_entry, offsets = at[real], token_entry[real], offsets[real]
    rows = encodings.row[entries]
    sizes = text_starts[rows + 1] - text_starts[rows]
    word_entry = np.repeat(np.arange(len(entries)), sizes)  # the entry of each word
    indices = ranges(text_starts[rows], sizes)
    spans = words[indices].astype(np.int64)
    ends = np.concatenate([offsets, spans, np.zeros((1, 2), np.int64)])
    stretch = int(ends.max() - ends.min()) + 2
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
    return (entries[word_entry[read]], places[read], token[read]), indices[goes_on]


def best_windows(windows: Sequence[Encoded], words: np.ndarray) -> np.ndarray:
    """For each word, int32 (words, 2): the window that reads it farthest from a cut, and its token there.

    `windows` are all windows of one row, in order. The ends of the text are not cuts. A word that continues from before
    a window is not read there if another window holds its beginning; -1, -1 if no window holds the word.
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
