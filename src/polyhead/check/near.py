"""Texts that say nearly the same: MinHash (Broder 1997) over words and pairs of words, in bands, then compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

NEAR = 0.75  # shared words and pairs of words, of all that two texts have
LEAST = 6  # words of a text; shorter ones are near others by chance
MOST = 128  # words that are read of a text
BANDS, ROWS = 8, 3  # of a band all values must be equal: two texts of likeness s meet with 1 - (1 - s^3)^8
BLOCK = 2**20  # characters that are hashed at a time

_BASE = np.uint64(0x9E3779B97F4A7C15)
_INVERSE = np.uint64(pow(int(_BASE), -1, 2**64))
_PAIR = np.uint64(0xC2B2AE3D27D4EB4F)
_LOWER = bytes.maketrans(bytes(range(65, 91)), bytes(range(97, 123)))
_IN_WORD = np.array([chr(code).isalnum() or code >= 128 for code in range(256)])


def near_pairs(texts: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs of texts that are near each other; of many near ones each with one of them, not with all."""
    several = [(start, _words(texts[start:stop])) for start, stop in _blocks(texts)]
    signatures, chosen = [], []
    for start, (words, counts) in several:
        long = np.flatnonzero(counts >= LEAST)
        if len(long):
            signatures.append(_signatures(words, counts, long))
            chosen.append(long + start)
    if not chosen:
        return []
    members = np.concatenate(chosen)
    bands = np.concatenate(signatures)
    shingles = _Shingles([words for _, (words, _) in several], [counts for _, (_, counts) in several])
    return sorted(set(_verified(bands, members, shingles)))


def _verified(bands: np.ndarray, members: np.ndarray, shingles: _Shingles) -> Iterator[tuple[int, int]]:
    """Of the texts that meet in a band, those that are near the first of them or the one before."""
    tried = set[tuple[int, int]]()
    for band in range(bands.shape[1]):
        order = np.argsort(bands[:, band], kind="stable")
        keys = bands[order, band]
        starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(keys)], strict=True):
            group = members[order[start:stop]].tolist()
            for place in range(1, len(group)):
                for other in {group[0], group[place - 1]}:
                    pair = (min(other, group[place]), max(other, group[place]))
                    if pair not in tried:
                        tried.add(pair)
                        if shingles.likeness(*pair) >= NEAR:
                            yield pair


class _Shingles:
    """The words and pairs of words of each text, as sets of hashes."""

    def __init__(self, words: Sequence[np.ndarray], counts: Sequence[np.ndarray]) -> None:
        self._words = np.concatenate(words)
        self._stops = np.cumsum(np.concatenate(counts))
        self._sets: dict[int, frozenset[int]] = {}

    def of(self, text: int) -> frozenset[int]:
        if text not in self._sets:
            start = int(self._stops[text - 1]) if text else 0
            words = self._words[start : self._stops[text]]
            self._sets[text] = frozenset(words.tolist() + (words[:-1] * _PAIR + words[1:]).tolist())
        return self._sets[text]

    def likeness(self, first: int, second: int) -> float:
        """Jaccard's: what both have, of what one of them has."""
        one, other = self.of(first), self.of(second)
        shared = len(one & other)
        return shared / (len(one) + len(other) - shared)


def _blocks(texts: Sequence[str]) -> list[tuple[int, int]]:
    """Texts of about `BLOCK` characters together."""
    sizes = np.cumsum([len(text) + 1 for text in texts])
    cuts = np.flatnonzero(np.diff(sizes // BLOCK)) + 1
    starts = [0, *cuts.tolist()]
    return [pair for pair in zip(starts, [*starts[1:], len(texts)], strict=True) if pair[0] < pair[1]]


def _words(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Hashes of the first words of each text, one text after the other, uint64 (words,), and how many each has.

    A word's hash is that of its characters from its start: `sum c_i b^(i - start)`, from sums over all characters.
    """
    raw = "\n".join(text.replace("\n", " ") for text in texts).casefold().encode("utf-8", "surrogatepass")
    codes = np.frombuffer(raw.translate(_LOWER), np.uint8)
    inside = _IN_WORD[codes]
    edges = np.diff(inside.astype(np.int8), prepend=0, append=0)
    starts, stops = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    powers = np.cumprod(np.full(len(codes), _BASE, np.uint64))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum((codes.astype(np.uint64) + np.uint64(1)) * powers)])
    back = np.cumprod(np.full(len(codes), _INVERSE, np.uint64))
    hashes = (sums[stops] - sums[starts]) * back[starts]
    hashes ^= hashes >> np.uint64(29)
    text_of = np.searchsorted(np.flatnonzero(codes == 10), starts)
    counts = np.bincount(text_of, minlength=len(texts))
    first = np.cumsum(counts) - counts
    kept = np.arange(len(starts)) - first[text_of] < MOST
    return hashes[kept], np.minimum(counts, MOST)


def _signatures(words: np.ndarray, counts: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """A value for each band of the chosen texts, uint64 (texts, bands)."""
    stops = np.cumsum(counts)
    kept = np.repeat(np.isin(np.arange(len(counts)), chosen), counts)
    starts = np.concatenate([[0], np.cumsum(counts[chosen])[:-1]])
    own = words[kept]
    pairs = np.empty_like(own)
    pairs[:-1] = own[:-1] * _PAIR + own[1:]
    pairs[np.cumsum(counts[chosen]) - 1] = own[starts]  # the last word begins no pair
    generator = np.random.default_rng(1)
    factors = generator.integers(1, 2**63, size=(BANDS, ROWS), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    bands = np.zeros((len(chosen), BANDS), np.uint64)
    assert stops[-1] == len(words)
    for band in range(BANDS):
        for factor in factors[band]:
            least = np.minimum(
                np.minimum.reduceat(_mixed(own, factor), starts), np.minimum.reduceat(_mixed(pairs, factor), starts)
            )
            bands[:, band] = bands[:, band] * _BASE + least
    return bands


def _mixed(values: np.ndarray, factor: np.uint64) -> np.ndarray:
    mixed = values * factor
    mixed ^= mixed >> np.uint64(32)
    mixed *= _PAIR
    return mixed
