"""Words of a text as sparse vectors: hashed words, pairs of words and letters, without a vocabulary.

Of a pair of texts: those that one of them alone has, and how much the two have in common.

Every feature is a hash of its own 32 bits, the same in every process and on every machine; its lowest bits are the
column and its highest bit is the sign, so that what shares a column cancels out on average (Weinberger et al. 2009).
"""

from __future__ import annotations

import math
import unicodedata
from array import array
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from itertools import chain, pairwise
from typing import NamedTuple
from zlib import crc32

import numpy as np

from polyhead.text.characters import word_pattern
from polyhead.text.question import TaskInput, read_alone
from polyhead.text.tokenize import repair

GRAMS = (3, 4, 5)  # characters of a word with a space before and after it
AFFIXES = (1, 2, 3, 4)  # first and last characters of a word
FORMS = 2 + 2 * len(AFFIXES)  # features of a word itself
CONTEXT = 3 * FORMS  # features of a word with its two neighbours
TEXTS_AT_ONCE = 64  # texts that are hashed together: fewer calls of numpy, and little memory
WIDE = 32  # outputs beyond which the sum of one row at a time is faster than of several
BLOCK = 2**16  # products of weights at once
LONGEST = 64  # characters of a word whose hashes are remembered
_WORD, _PAIR, _GRAM, _FACT = range(4)  # where the checksum begins: a word and an equal n-gram are two features
OVERLAP = 8.0  # what a share counts: as much as a word that few texts have does by its inverse document frequency
NEGATING = frozenset(("no", "not", "never", "none", "nobody", "nothing", "neither", "nor", "without", "cannot", "t"))


class HashedText(NamedTuple):
    """A sparse vector: the columns that are not 0, ascending and each once."""

    columns: np.ndarray  # int32 (features,)
    values: np.ndarray  # float32 (features,)


NO_WORDS = HashedText(np.zeros(0, np.int32), np.zeros(0, np.float32))


class HashedRows(NamedTuple):
    """Sparse vectors of several texts or words, one after the other, in any number of columns (a power of two).

    The column of a feature is the lowest bits of its hash; features of a row that share one are added.
    """

    rows: np.ndarray  # int64 (features,), ascending
    hashes: np.ndarray  # uint32 (features,)
    values: np.ndarray  # float32 (features,), with their signs
    total: int  # rows, those without features too

    @classmethod
    def of(cls, texts: Sequence[HashedText]) -> HashedRows:
        """Vectors in one number of columns, in which alone their sums are right."""
        columns, values = (np.concatenate(parts) for parts in zip(NO_WORDS, *texts, strict=True))
        rows = np.repeat(np.arange(len(texts)), [len(text.columns) for text in texts])
        return cls(rows, columns.astype(np.uint32), values, len(texts))

    def sums(self, weights: np.ndarray) -> np.ndarray:
        """The sum of each row's values times their columns' rows of `weights`, float32 (columns, outputs).

        Float32 (rows, outputs). The bits of a row do not depend on the others.
        """
        width = weights.shape[1]
        sums, starts = np.zeros((self.total, width), np.float32), _starts(self.rows)
        ends, columns = [*starts.tolist(), len(self.rows)], self.hashes & np.uint32(len(weights) - 1)
        at_once = 1 if width > WIDE else max(1, BLOCK * len(starts) // max(1, width * len(columns)))
        for first in range(0, len(starts), at_once):
            row_starts = starts[first : first + at_once]
            part = slice(ends[first], ends[first + len(row_starts)])
            products, values = weights.take(columns[part], axis=0), self.values[part]
            if width > WIDE:
                np.einsum("f,fo->o", values, products, out=sums[self.rows[ends[first]]])
            else:
                products *= values[:, None]
                sums[self.rows[row_starts]] = np.add.reduceat(products, row_starts - ends[first])
        return sums


class HashedContexts(NamedTuple):
    """Words with their neighbours as sparse vectors, in any number of columns (a power of two).

    The features of a word differ by where it stands: before, at or after the word that is asked about.
    """

    hashes: np.ndarray  # uint32 (rows, FORMS): three rows for each different word, one a place
    near: np.ndarray  # int64 (words, 3): the rows that each word has, its neighbours' and its own

    def sums(self, weights: np.ndarray) -> np.ndarray:
        """As `HashedRows.sums`, float32 (words, outputs): a row that several words have is summed once."""
        width = weights.shape[1]
        columns, values = self.hashes & np.uint32(len(weights) - 1), _word_values(self.hashes)
        sums, at_once = np.zeros((len(columns), width), np.float32), max(1, BLOCK // (FORMS * max(1, width)))
        for start in range(0, len(columns), at_once):
            part = slice(start, start + at_once)
            products = weights.take(columns[part], axis=0)  # (rows, FORMS, outputs)
            products *= values[part, :, None]
            products.sum(axis=1, out=sums[part])
        before, at, after = sums[self.near.T]
        total: np.ndarray = before + at + after
        return total


class CountedFeatures(NamedTuple):
    """The features of texts' words and letters: all that is known of them without a number of columns.

    Each text has two groups: its words and pairs of neighbours, and its letters. A group's hashes ascend, each once.
    """

    groups: np.ndarray  # int64 (features,), ascending: twice the number of the text, for letters 1 more
    hashes: np.ndarray  # uint32 (features,)
    counts: np.ndarray  # int64 (features,): how often each occurs


def hashed_text(text: str, columns: int) -> HashedText:
    """The text in so many columns, a power of two: words with pairs of neighbours, and characters of each word.

    Each of the two groups has the length 1. A feature that occurs n times counts 1 + ln n. Case and the Unicode form of
    a character (NFKC) make no difference. A text without words has no features.
    """
    return _in_columns(hashed_texts([text]), columns)


def _nothing() -> None:
    pass


def hashed_texts(texts: Sequence[str], *, check: Callable[[], None] = _nothing) -> HashedRows:
    """The same for several texts at once, in any number of columns; none depends on the others.

    `check` is called again and again meanwhile: what it raises ends the work.
    """
    groups, hashes, counts = counted_features(texts, check=check)
    values = signed(hashes >> np.uint32(31), normed(groups, counts)).astype(np.float32)
    return HashedRows(groups >> 1, hashes, values, len(texts))


def counted_features(texts: Sequence[str], *, check: Callable[[], None] = _nothing) -> CountedFeatures:
    """The features of each text; none depends on the others. `check` as in `hashed_texts`."""
    starts = range(0, max(1, len(texts)), TEXTS_AT_ONCE)
    parts = list[CountedFeatures]()
    for start in starts:
        check()
        parts.append(_counted(_text_groups(texts[start : start + TEXTS_AT_ONCE])))
    if len(parts) == 1:
        return parts[0]
    groups = [part.groups + 2 * start for part, start in zip(parts, starts, strict=True)]
    hashes, counts = (np.concatenate([part[i] for part in parts]) for i in (1, 2))
    return CountedFeatures(np.concatenate(groups), hashes, counts)


def _text_groups(texts: Sequence[str]) -> list[Sequence[int]]:
    """The checksums of each text's words, then of its letters, text after text."""
    words = [words_to_hash(text) for text in texts]
    return [checksums(each) for each in words for checksums in (_word_checksums, _letter_checksums)]


def normed(groups: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Float64 (features,): 1 + ln of each count, divided by the length of its group's vector."""
    values = 1 + np.log(counts)
    return np.asarray(values / np.maximum(np.sqrt(np.bincount(groups, np.square(values))), 1.0)[groups])


def signed(is_negative: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The values, negative where that is not 0."""
    return np.where(is_negative, -values, values)


def hashed_pair(first: str, second: str, columns: int) -> HashedText:
    """A pair of texts in so many columns: the words that one alone has as `hashed_text`, and OVERLAP times `overlap`.

    The order of the texts makes a difference to `overlap` only.
    """
    return _in_columns(hashed_pairs([(first, second)]), columns)


def hashed_pairs(pairs: Sequence[tuple[str, ...]], *, check: Callable[[], None] = _nothing) -> HashedRows:
    """The same for several pairs at once; none depends on the others. `check` as in `hashed_texts`."""
    starts = range(0, max(1, len(pairs)), TEXTS_AT_ONCE)
    parts = list[HashedRows]()
    for start in starts:
        check()
        parts.append(_hashed_pairs(pairs[start : start + TEXTS_AT_ONCE]))
    rows = np.concatenate([part.rows + start for part, start in zip(parts, starts, strict=True)])
    hashes, values = (np.concatenate([part[i] for part in parts]) for i in (1, 2))
    return HashedRows(rows, hashes, values, len(pairs))


def _hashed_pairs(pairs: Sequence[tuple[str, ...]]) -> HashedRows:
    groups, facts = list[Sequence[int]](), list[list[float]]()
    words_of = {text: words_to_hash(text) for text in {*chain.from_iterable(pairs)}}  # a text may be in several
    for pair in pairs:
        first, second = (words_of[text] for text in pair)
        common = set(first) & set(second)
        apart = [[word for word in words if word not in common] for words in (first, second)]
        groups += ([*chain.from_iterable(map(of, apart))] for of in (_word_checksums, _letter_checksums))
        facts.append([*overlap(first, second).values()])
    counted, names = _counted(groups), _facts_hashes()
    rows = np.concatenate([counted.groups >> 1, np.repeat(np.arange(len(pairs)), len(names))])
    hashes = np.concatenate([counted.hashes, np.tile(names, len(pairs))])
    values = np.concatenate([normed(counted.groups, counted.counts), OVERLAP * np.array(facts).ravel()])
    values, order = signed(hashes >> np.uint32(31), values).astype(np.float32), np.argsort(rows, kind="stable")
    return HashedRows(rows[order], hashes[order], values[order], len(pairs))


@cache
def _facts_hashes() -> np.ndarray:
    return _mixed([_checksum(name, _FACT) for name in overlap((), ())])


def overlap(first_words: Sequence[str], second_words: Sequence[str]) -> dict[str, float]:
    """Measures of the overlap of two texts with these words, by name; most are between 0 and 1.

    The share of each text's words, pairs of neighbours and 4 letters of a word that the other text has too, and of the
    union the share in both; the lengths, ln(1 + words), their difference and its size; whether a text has a number or a
    negation that the other lacks.
    """
    texts = (first_words, second_words)
    sets: dict[str, list[set[str]]] = {
        "word": [set(words) for words in texts],
        "pair": [{f"{a} {b}" for a, b in pairwise(words)} for words in texts],
        "letters": [set().union(*map(_fours, words)) for words in texts],
    }
    facts = dict[str, float]()
    for name, (first, second) in sets.items():
        common = len(first & second)
        for of, whole in (("first", first), ("second", second), ("both", first | second)):
            facts[f"{name}, {of}"] = common / max(1, len(whole))
    lengths = [math.log1p(len(words)) for words in texts]
    facts |= {"length, first": lengths[0], "length, second": lengths[1]}
    facts |= {"length, more": lengths[0] - lengths[1], "length, apart": abs(lengths[0] - lengths[1])}
    numbers = [{word for word in words if word[0].isdigit()} for words in texts]
    facts |= {"number, first": bool(numbers[0] - numbers[1]), "number, second": bool(numbers[1] - numbers[0])}
    negated = [not NEGATING.isdisjoint(words) for words in texts]
    return facts | {"not, first": negated[0], "not, second": negated[1], "not, one": negated[0] != negated[1]}


def hashed_input(example: TaskInput, columns: int) -> list[HashedText]:
    """The hashed words of a text or of a pair, and of each option's pair of a question."""
    return [
        hashed_text(texts[0], columns) if len(texts) == 1 else hashed_pair(texts[0], texts[1], columns)
        for texts in read_alone([example])
    ]


def hashed_in_context(words: Sequence[str], columns: int) -> list[HashedText]:
    """Each word of a text with its neighbours, in so many columns, a power of two; every vector has about the length 1.

    The word, the one before and the one after have features of equal weight: the word in lower case and in the form
    NFKC, its first and last 1 to 4 characters, and its shape (`Xx9-` for `Ab12-`). The places beyond both ends of the
    text have features too.
    """
    contexts = hashed_in_contexts([words])
    hashes = contexts.hashes[contexts.near].reshape(len(words), CONTEXT)
    rows = np.zeros(CONTEXT, np.int64)
    return [_in_columns(HashedRows(rows, of, _word_values(of), 1), columns) for of in hashes]


def hashed_in_contexts(texts: Sequence[Sequence[str]], *, check: Callable[[], None] = _nothing) -> HashedContexts:
    """The same for the words of several texts, one after the other, in any number of columns.

    No text changes another's. `check` as in `hashed_texts`.
    """
    numbers, flat = dict[str, int](), array("q")  # of the different words; "" stands beyond both ends of a text
    for words in texts:
        flat.extend(numbers.setdefault(word, len(numbers)) for word in ("", *words, ""))
    forms = array("I")
    for word in numbers:
        check()
        forms.extend(_forms(word) if len(word) <= LONGEST else _forms.__wrapped__(word))
    places = np.arange(3, dtype=np.uint32)
    hashes = _mixed(np.frombuffer(forms, np.uint32).reshape(-1, 1, FORMS) + places[:, None])
    lengths = [len(words) for words in texts]
    before = np.arange(sum(lengths)) + np.repeat(2 * np.arange(len(texts)), lengths)  # the place before each word
    near = 3 * np.frombuffer(flat, np.int64)[before[:, None] + places] + places
    return HashedContexts(hashes.reshape(-1, FORMS), near)


def _word_values(hashes: np.ndarray) -> np.ndarray:
    """The values of features with these hashes of words with their neighbours, float32 of the same shape."""
    return signed(hashes >> np.uint32(31), np.full(hashes.shape, 1 / math.sqrt(CONTEXT), np.float32))


@lru_cache(maxsize=2**14)
def _forms(word: str) -> array[int]:
    """The checksums of a word's features."""
    word = repair(word)
    lower = unicodedata.normalize("NFKC", word).lower()
    shape = "".join("X" if c.isupper() else "9" if c.isdigit() else "x" if c.isalpha() else c for c in word)
    ends = (lower[:size] for size in AFFIXES), (lower[-size:] for size in AFFIXES)
    features = [lower, "".join(c for c, before in zip(shape, " " + shape, strict=False) if c != before)]
    every = enumerate([*features, *ends[0], *ends[1]])
    return array("I", [_checksum(feature, begins) for begins, feature in every])


def words_to_hash(text: str) -> list[str]:
    """The words of the text, as `text.words` finds them, in lower case and in the form NFKC."""
    text = (text if text.isascii() else unicodedata.normalize("NFKC", repair(text))).lower()
    return [match.group() for match in word_pattern(text).finditer(text)]


def word_hashes(words: Sequence[str]) -> np.ndarray:
    """A hash of each word and of each pair of neighbours, uint32 (2 words - 1,)."""
    return _mixed(_word_checksums(words))


def _word_checksums(words: Sequence[str]) -> list[int]:
    return [_checksum(word, _WORD) for word in words] + [_checksum(f"{a} {b}", _PAIR) for a, b in pairwise(words)]


def _letter_checksums(words: Sequence[str]) -> array[int]:
    """The checksums of all runs of 3, 4 and 5 characters of each word, with a space before and after the word."""
    flat = array("I")
    for word in words:
        flat.extend(_grams(word) if len(word) <= LONGEST else _grams.__wrapped__(word))
    return flat


@lru_cache(maxsize=2**14)
def _grams(word: str) -> array[int]:
    spaced = f" {word} "
    sizes = [size for size in GRAMS if size <= len(spaced)]
    return array("I", [_checksum(spaced[i : i + size], _GRAM) for size in sizes for i in range(len(spaced) - size + 1)])


@lru_cache(maxsize=2**14)
def _fours(word: str) -> frozenset[str]:
    """All runs of 4 characters of a word, with a space before and after it."""
    spaced = f" {word} "
    return frozenset(spaced[i : i + 4] for i in range(len(word) - 1))


def _checksum(feature: str, begins: int) -> int:
    return crc32(feature.encode(), begins)


def _mixed(checksums: Sequence[int] | np.ndarray) -> np.ndarray:
    """Checksums with all bits mixed, one to one (the last steps of MurmurHash3): those of like texts are alike."""
    mixed = np.array(checksums, np.uint32)
    for shift, factor in _MIXING:
        mixed ^= mixed >> shift
        mixed *= factor
    mixed ^= mixed >> _MIXING[0][0]
    return mixed


_MIXING = tuple((np.uint32(shift), np.uint32(factor)) for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)))


def _counted(groups: Sequence[Sequence[int]]) -> CountedFeatures:
    """The features with these checksums, of each group."""
    flat = array("I")
    for checksums in groups:
        flat.extend(checksums)
    of_each = np.repeat(np.arange(len(groups), dtype=np.uint64), [len(checksums) for checksums in groups])
    ordered = np.sort(of_each << np.uint64(32) | _mixed(np.frombuffer(flat, np.uint32)))
    starts = _starts(ordered)
    each = ordered[starts]
    counts = np.diff(starts, append=len(ordered))
    return CountedFeatures((each >> np.uint64(32)).astype(np.int64), each.astype(np.uint32), counts)


def _starts(ordered: np.ndarray) -> np.ndarray:
    """The places of the first of each number in ordered ones."""
    is_first = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return np.flatnonzero(is_first)


def _in_columns(row: HashedRows, columns: int) -> HashedText:
    """The one row in so many columns."""
    unordered = (row.hashes & np.uint32(columns - 1)).astype(np.int32)
    order = np.argsort(unordered, kind="stable")
    ordered, values = unordered[order], row.values[order].astype(np.float64)
    starts = _starts(ordered)
    sums = np.add.reduceat(values, starts) if len(starts) else values
    return HashedText(ordered[starts], sums.astype(np.float32))
