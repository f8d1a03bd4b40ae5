"""Words of a text as sparse vectors: hashed words, pairs of words and letters, without a vocabulary.

Of a pair of texts: those that one of them alone has, and how much the two have in common.

Every feature is a hash of its own 32 bits, the same in every process and on every machine; its lowest bits are the
column and its highest bit is the sign, so that what shares a column cancels out on average (Weinberger et al. 2009).
"""

from __future__ import annotations

import math
import unicodedata
from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple
from zlib import crc32

import numpy as np

from polyhead.text.characters import word_pattern
from polyhead.text.question import TaskInput, read_alone
from polyhead.text.tokenize import repair

GRAMS = (3, 4, 5)  # characters of a word with a space before and after it
AFFIXES = (1, 2, 3, 4)  # first and last characters of a word
FORMS = 2 + 2 * len(AFFIXES)  # features of a word itself
LONGEST = 64  # characters of a word whose hashes are remembered
_WORD, _PAIR, _GRAM, _FACT = range(4)  # where the checksum begins: a word and an equal n-gram are two features
OVERLAP = 8.0  # what a share counts: as much as a word that few texts have does by its inverse document frequency
NEGATING = frozenset(("no", "not", "never", "none", "nobody", "nothing", "neither", "nor", "without", "cannot", "t"))


class HashedText(NamedTuple):
    """A sparse vector: the columns that are not 0, ascending and each once."""

    columns: np.ndarray  # int32 (features,)
    values: np.ndarray  # float32 (features,)


NO_WORDS = HashedText(np.zeros(0, np.int32), np.zeros(0, np.float32))


def hashed_text(text: str, columns: int) -> HashedText:
    """The text in so many columns, a power of two: words with pairs of neighbours, and characters of each word.

    Each of the two groups has the length 1. A feature that occurs n times counts 1 + ln n. Case and the Unicode form of
    a character (NFKC) make no difference. A text without words has no features.
    """
    return in_columns(weighed_features(text), columns)


def weighed_features(text: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """All that `hashed_text` knows of a text before it has a number of columns: two groups of features and values."""
    return [(each, normed(counts)) for each, counts in counted_features(text)]


def counted_features(text: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """The features of a text's words and of their letters: hashes, ascending and each once, and how often each occurs.

    They do not depend on a number of columns: all that `hashed_text` knows of a text.
    """
    words = words_to_hash(text)
    checksums = _word_checksums(words), _letter_checksums(words)
    hashes, end = _mixed(np.concatenate(checksums)), len(checksums[0])
    return [_counted(hashes[:end]), _counted(hashes[end:])]


def hashed_pair(first: str, second: str, columns: int) -> HashedText:
    """A pair of texts in so many columns: the words that one alone has as `hashed_text`, and OVERLAP times `overlap`.

    The order of the texts makes a difference to `overlap` only.
    """
    first_words, second_words = words_to_hash(first), words_to_hash(second)
    common = set(first_words) & set(second_words)
    apart = [[word for word in words if word not in common] for words in (first_words, second_words)]
    counted = [_counted(np.concatenate([of(words) for words in apart])) for of in (word_hashes, letter_hashes)]
    facts = overlap(first_words, second_words)
    names = _mixed(np.array([_checksum(name, _FACT) for name in facts], np.uint32))
    groups = [(each, normed(counts)) for each, counts in counted]
    return in_columns([*groups, (names, OVERLAP * np.array([*facts.values()]))], columns)


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
        "letters": [{f" {word} "[i : i + 4] for word in words for i in range(len(word) - 1)} for words in texts],
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


def hashed_sum(text: HashedText, weights: np.ndarray) -> np.ndarray:
    """The sum of the values times their columns' rows of `weights`, float32 (columns, outputs) to (outputs,).

    Added feature after feature by numpy's own loop, so that a text has the same bits wherever it is answered.
    """
    return np.asarray(np.einsum("f,fo->o", text.values, weights.take(text.columns, axis=0)), np.float32)


def hashed_sums(words: Sequence[HashedText], weights: np.ndarray) -> np.ndarray:
    """The same for each of several with features, float32 (words, outputs); none depends on the others."""
    starts = np.cumsum([0, *(len(word.columns) for word in words[:-1])])
    columns, values = (np.concatenate([word[i] for word in words]) for i in range(2))
    return np.asarray(np.add.reduceat(values[:, None] * weights.take(columns, axis=0), starts))


def hashed_in_context(words: Sequence[str], columns: int) -> list[HashedText]:
    """Each word of a text with its neighbours, in so many columns, a power of two; every vector has about the length 1.

    The word, the one before and the one after have features of equal weight: the word in lower case and in the form
    NFKC, its first and last 1 to 4 characters, and its shape (`Xx9-` for `Ab12-`). The places beyond both ends of the
    text have features too.
    """
    return hashed_in_contexts([words], columns)[0]


def hashed_in_contexts(texts: Sequence[Sequence[str]], columns: int) -> list[list[HashedText]]:
    """The same for the words of each of several texts, at once; none depends on the others."""
    flat = array("I")
    for words in texts:
        for word in ("", *words, ""):
            flat.extend(_forms(word))
    forms = np.frombuffer(flat, np.uint32).reshape(-1, FORMS)
    lengths = [len(words) for words in texts]
    before = np.arange(sum(lengths)) + np.repeat(2 * np.arange(len(texts)), lengths)  # the place before each word
    near = np.stack([forms[before + place] + np.uint32(place) for place in range(3)], axis=1)
    hashes = _mixed(near.reshape(-1, 3 * FORMS))
    signs = hashes >> np.uint32(31)
    ordered = np.sort((hashes & np.uint32(columns - 1)) << np.uint32(1) | signs, axis=1)
    row_columns = (ordered >> np.uint32(1)).astype(np.int32)
    signed = (1.0 - 2.0 * (ordered & np.uint32(1))) / np.sqrt(max(1, hashes.shape[1]))
    is_first = np.ones(row_columns.shape, bool)  # of a column that several features of a word have
    is_first[:, 1:] = row_columns[:, 1:] != row_columns[:, :-1]
    starts = np.flatnonzero(is_first)
    values = (signed.ravel() if len(starts) == signed.size else np.add.reduceat(signed.ravel(), starts)).astype(
        np.float32
    )
    ends, own_columns = np.cumsum([0, *is_first.sum(axis=1).tolist()]).tolist(), row_columns.ravel()[starts]
    of_words = [HashedText(own_columns[start:stop], values[start:stop]) for start, stop in pairwise(ends)]
    return [of_words[start:stop] for start, stop in pairwise(np.cumsum([0, *lengths]).tolist())]


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


def letter_hashes(words: Sequence[str]) -> np.ndarray:
    """A hash of each 3, 4 and 5 characters of each word, uint32 (n-grams,); a space stands at both of its ends."""
    return _mixed(_letter_checksums(words))


def _word_checksums(words: Sequence[str]) -> np.ndarray:
    singles = [_checksum(word, _WORD) for word in words]
    return np.array(singles + [_checksum(f"{a} {b}", _PAIR) for a, b in pairwise(words)], np.uint32)


def _letter_checksums(words: Sequence[str]) -> np.ndarray:
    flat = array("I")
    for word in words:
        flat.extend(_grams(word) if len(word) <= LONGEST else _grams.__wrapped__(word))
    return np.frombuffer(flat, np.uint32)


@lru_cache(maxsize=2**14)
def _grams(word: str) -> array[int]:
    spaced = f" {word} "
    sizes = [size for size in GRAMS if size <= len(spaced)]
    return array("I", [_checksum(spaced[i : i + size], _GRAM) for size in sizes for i in range(len(spaced) - size + 1)])


def _checksum(feature: str, begins: int) -> int:
    return crc32(feature.encode(), begins)


def _mixed(checksums: np.ndarray) -> np.ndarray:
    """Checksums with all bits mixed, one to one (the last steps of MurmurHash3): those of like texts are alike."""
    mixed: np.ndarray = checksums.copy()
    for shift, factor in _MIXING:
        mixed ^= mixed >> shift
        mixed *= factor
    mixed ^= mixed >> _MIXING[0][0]
    return mixed


_MIXING = tuple((np.uint32(shift), np.uint32(factor)) for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)))


def _counted(hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The hashes, ascending and each once, and how often each occurs."""
    ordered = np.sort(hashes)
    starts = _starts(ordered)
    return ordered[starts], np.diff(starts, append=len(ordered))


def _starts(ordered: np.ndarray) -> np.ndarray:
    """The places of the first of each number in ordered ones."""
    is_first = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return np.flatnonzero(is_first)


def normed(counts: np.ndarray) -> np.ndarray:
    """The values of features that occur so often, float64, with length 1 together."""
    values = 1 + np.log(counts)
    return np.asarray(values / max(float(np.sqrt(np.square(values).sum())), 1.0))


def in_columns(groups: Sequence[tuple[np.ndarray, np.ndarray]], columns: int) -> HashedText:
    """The sum of features, uint32, and their values, in so many columns."""
    features, values = (np.concatenate(parts) for parts in zip(*groups, strict=True))
    signed = np.where(features >> np.uint32(31), -values, values)
    unordered = (features & np.uint32(columns - 1)).astype(np.int32)
    order = np.argsort(unordered, kind="stable")
    ordered = unordered[order]
    starts = _starts(ordered)
    sums = np.add.reduceat(signed[order], starts) if len(starts) else signed
    return HashedText(ordered[starts], sums.astype(np.float32))
