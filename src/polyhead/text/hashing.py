"""Words of a text as sparse vectors: hashed words, pairs of words and letters, without a vocabulary.

Every feature is a hash of its own 32 bits, the same in every process and on every machine; its lowest bits are the
column and its highest bit is the sign, so that what shares a column cancels out on average (Weinberger et al. 2009).
"""

from __future__ import annotations

import unicodedata
from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple
from zlib import crc32

import numpy as np

from polyhead.text.characters import word_pattern

GRAMS = (3, 4, 5)  # characters of a word with a space before and after it
LONGEST = 64  # characters of a word whose hashes are remembered
_WORD, _PAIR, _GRAM = 0, 1, 2  # where the checksum begins, so that a word and an equal n-gram are two features


class HashedText(NamedTuple):
    """A sparse vector: the columns that are not 0, ascending and each once."""

    columns: np.ndarray  # int32 (features,)
    values: np.ndarray  # float32 (features,)


def hashed_text(text: str, columns: int) -> HashedText:
    """The text in so many columns, a power of two: words with pairs of neighbours, and characters of each word.

    Each of the two groups has the length 1. A feature that occurs n times counts 1 + ln n. Case and the Unicode form of
    a character (NFKC) make no difference. A text without words has no features.
    """
    words = words_to_hash(text)
    hashes = word_hashes(words), letter_hashes(words)
    columns_of, values = zip(*(_normed(group, columns) for group in hashes), strict=True)
    every, place = np.unique(np.concatenate(columns_of), return_inverse=True)
    return HashedText(every, np.bincount(place, np.concatenate(values), len(every)).astype(np.float32))


def words_to_hash(text: str) -> list[str]:
    """The words of the text, as `text.words` finds them, in lower case and in the form NFKC."""
    text = (text if text.isascii() else unicodedata.normalize("NFKC", text)).lower()
    return [match.group() for match in word_pattern(text).finditer(text)]


def word_hashes(words: Sequence[str]) -> np.ndarray:
    """A hash of each word and of each pair of neighbours, uint32 (2 words - 1,)."""
    singles = [_checksum(word, _WORD) for word in words]
    return _mixed(array("I", singles + [_checksum(f"{one} {two}", _PAIR) for one, two in pairwise(words)]))


def letter_hashes(words: Sequence[str]) -> np.ndarray:
    """A hash of each 3, 4 and 5 characters of each word, uint32 (n-grams,); a space stands at both of its ends."""
    flat = array("I")
    for word in words:
        flat.extend(_grams(word) if len(word) <= LONGEST else _grams.__wrapped__(word))
    return _mixed(flat)


@lru_cache(maxsize=2**14)
def _grams(word: str) -> array[int]:
    spaced = f" {word} "
    sizes = [size for size in GRAMS if size <= len(spaced)]
    return array("I", [_checksum(spaced[i : i + size], _GRAM) for size in sizes for i in range(len(spaced) - size + 1)])


def _checksum(feature: str, begins: int) -> int:
    return crc32(feature.encode("utf-8", "surrogatepass"), begins)


def _mixed(checksums: array[int]) -> np.ndarray:
    """Checksums with all bits mixed, one to one (the last steps of MurmurHash3): those of like texts are alike."""
    mixed = np.frombuffer(checksums, np.uint32).copy()
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        mixed ^= mixed >> np.uint32(shift)
        mixed *= np.uint32(factor)
    return mixed ^ (mixed >> np.uint32(16))


def _normed(hashes: np.ndarray, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Columns int32 and values float64 of the features, each once, with length 1 together."""
    features, counts = np.unique(hashes, return_counts=True)
    values = 1 + np.log(counts)
    values /= max(float(np.sqrt(np.square(values).sum())), 1.0)
    signed = np.where(features >> np.uint32(31), -values, values)
    return (features & np.uint32(columns - 1)).astype(np.int32), signed
