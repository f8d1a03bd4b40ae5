"""Checks for rows that occur twice, or nearly so, in one split or across splits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from polyhead.check.split_rows import TRAIN, Finding, RowRef, SplitRows, counted
from polyhead.tasks.kinds.regression import CLOSE
from polyhead.text.question import Question, texts_of

NEAR = 0.75  # words and pairs of words that two texts share, as a part of all in either
LEAST = 6  # words of a text; shorter texts are similar by chance
MOST = 128  # words read from a text
# values per band, all of which must be equal: two texts of similarity s share a band with 1 - (1 - s^3)^8
BANDS, ROWS = 8, 3
BLOCK = 2**20  # characters hashed at a time

_BASE = np.uint64(0x9E3779B97F4A7C15)
_INVERSE = np.uint64(pow(int(_BASE), -1, 2**64))
_PAIR = np.uint64(0xC2B2AE3D27D4EB4F)
_LOWER = bytes.maketrans(bytes(range(65, 91)), bytes(range(97, 123)))
_IN_WORD = np.array([chr(code).isalnum() or code >= 128 for code in range(256)])


def near_pairs(texts: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs of similar texts; in a group of similar texts each is paired with one of them, not with all."""
    block_words = [(start, _words(texts[start:stop])) for start, stop in _blocks(texts)]
    signatures, chosen = [], []
    for start, (words, counts) in block_words:
        long = np.flatnonzero(counts >= LEAST)
        if len(long):
            signatures.append(_signatures(words, counts, long))
            chosen.append(long + start)
    if not chosen:
        return []
    members = np.concatenate(chosen)
    bands = np.concatenate(signatures)
    shingles = _Shingles([words for _, (words, _) in block_words], [counts for _, (_, counts) in block_words])
    return sorted(set(_verified(bands, members, shingles)))


def _verified(bands: np.ndarray, members: np.ndarray, shingles: _Shingles) -> Iterator[tuple[int, int]]:
    """Of the texts that share a band, those similar to the first of them or to the one before."""
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
        """Jaccard similarity: the size of the intersection over the size of the union."""
        left_set, right_set = self.of(first), self.of(second)
        shared = len(left_set & right_set)
        return shared / (len(left_set) + len(right_set) - shared)


def _blocks(texts: Sequence[str]) -> list[tuple[int, int]]:
    """Texts in groups of about `BLOCK` characters."""
    sizes = np.cumsum([len(text) + 1 for text in texts])
    cuts = np.flatnonzero(np.diff(sizes // BLOCK)) + 1
    starts = [0, *cuts.tolist()]
    return [pair for pair in zip(starts, [*starts[1:], len(texts)], strict=True) if pair[0] < pair[1]]


def _words(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Hashes of the first words of each text, text after text, uint64 (words,), and the number of words of each.

    A word's hash is that of its characters from its start: `sum c_i b^(i - start)`, from cumulative sums over all
    characters.
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
    """A value for each band of the given texts, uint64 (texts, bands)."""
    stops = np.cumsum(counts)
    kept = np.repeat(np.isin(np.arange(len(counts)), chosen), counts)
    starts = np.concatenate([[0], np.cumsum(counts[chosen])[:-1]])
    singles = words[kept]
    pairs = np.empty_like(singles)
    pairs[:-1] = singles[:-1] * _PAIR + singles[1:]
    pairs[np.cumsum(counts[chosen]) - 1] = singles[starts]  # the last word does not begin a pair
    generator = np.random.default_rng(1)
    factors = generator.integers(1, 2**63, size=(BANDS, ROWS), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    bands = np.zeros((len(chosen), BANDS), np.uint64)
    assert stops[-1] == len(words)
    for band in range(BANDS):
        for factor in factors[band]:
            least = np.minimum(
                np.minimum.reduceat(_mixed(singles, factor), starts), np.minimum.reduceat(_mixed(pairs, factor), starts)
            )
            bands[:, band] = bands[:, band] * _BASE + least
    return bands


def _mixed(values: np.ndarray, factor: np.uint64) -> np.ndarray:
    mixed = values * factor
    mixed ^= mixed >> np.uint64(32)
    mixed *= _PAIR
    return mixed


APART = 0.25  # share of the spread by which the numbers of two equal texts must differ
NEAR_SHARE = 0.005  # share of a split's similar rows from which on they are reported
NEAR_LEAST = 3
PARALLEL = 0.9  # share of a task's training inputs in another's from which on both are about the same rows
LONG = 25  # letters that the texts of two tasks share; shorter texts are equal by chance
FEW = 20


def repeated(splits: Sequence[SplitRows]) -> Iterator[Finding]:
    """Rows of one split with the same text and label."""
    for split in splits:
        first, again = dict[str, int](), list[RowRef]()
        for index, key in enumerate(split.keys):
            before = first.setdefault(key, index)
            if before != index and _agree(split, before, split, index, within=CLOSE):
                again.append(split.place(index, other=f"row {split.rows[before]}"))
        if again:
            message = f"{counted(len(again), 'row')} repeat another of the same label, but for case and punctuation"
            do = "keep one of each, unless a text counts as often as it comes"
            yield split.found("duplicate", "hint", message, do=do, places=again)


def conflicting(splits: Sequence[SplitRows]) -> Iterator[Finding]:
    """Rows with the same text, ignoring case and spaces, and different labels."""
    first, places = dict[str, tuple[SplitRows, int]](), list[RowRef]()
    for split in splits:
        if not split.answers or split.answers[0] is None:
            continue
        for index, line in enumerate(split.lines):
            where, before = first.setdefault(line, (split, index))
            if (where, before) != (split, index) and not _agree(where, before, split, index, within=APART):
                other = f"{where.name} row {where.rows[before]}: {where.label_of(before) or 'another answer'}"
                places.append(split.place(index, other=other))
    if places:
        message = f"{counted(len(places), 'row')} with the text of another row and another label"
        do = "decide for one label, or remove the rows"
        yield splits[0].found("conflict", "fault", message, do=do, places=places)


def _agree(first: SplitRows, first_row: int, second: SplitRows, second_row: int, *, within: float) -> bool:
    """True if the labels are equal, or the numbers differ by at most this share of the first split's spread."""
    a, b = first.answers[first_row], second.answers[second_row]
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) <= within * first.spread
    return a == b


def leaking(splits: Sequence[SplitRows]) -> Iterator[Finding]:
    """Rows of an evaluation split whose text is also in an earlier split."""
    known: dict[str, tuple[SplitRows, int]] = {}
    for split in sorted(splits, key=lambda split: not split.is_train):
        places = list[RowRef]()
        sources = set[str]()
        for index, key in enumerate(split.keys):
            where = known.get(key)
            if where is not None and where[0] is not split:
                places.append(split.place(index, other=f"{where[0].name} row {where[0].rows[where[1]]}"))
                sources.add(where[0].name)
            else:
                known.setdefault(key, (split, index))
        if places:
            message = f"{counted(len(places), 'row')} with a text that {' and '.join(sorted(sources))} has too"
            do = "remove them from one of the two: the score counts what was learned by heart"
            yield split.found("leak", "fault", message, do=do, places=places)


def near_duplicates(splits: Sequence[SplitRows]) -> Iterator[Finding]:
    """Rows whose text is nearly that of another row: a hint within one split, a fault across splits."""
    owners, texts, seen = list[tuple[SplitRows, int]](), list[str](), set[str]()
    for split in sorted(splits, key=lambda split: not split.is_train):
        for index, key in enumerate(split.keys):
            if key not in seen:
                seen.add(key)
                owners.append((split, index))
                texts.append(split.texts[index])
    inside: dict[int, list[RowRef]] = {}
    across: dict[int, list[RowRef]] = {}
    reported = set[int]()
    for first, second in near_pairs(texts):
        (earlier, i), (later, j) = owners[first], owners[second]
        if second in reported:
            continue
        reported.add(second)
        place = later.place(j, other=f"{earlier.name} row {earlier.rows[i]}: {earlier.place(i).text}")
        (inside if earlier is later else across).setdefault(id(later), []).append(place)
    for split in splits:
        for places, level in ((across.get(id(split), []), "fault"), (inside.get(id(split), []), "hint")):
            if len(places) >= max(NEAR_LEAST, NEAR_SHARE * len(split)):
                where = "of an earlier split" if level == "fault" else "of the split"
                message = f"{counted(len(places), 'text')} with nearly the words of another one {where}"
                do = "keep the rows of one source or template in one split"
                kind = "near_leak" if level == "fault" else "near_duplicate"
                yield split.found(kind, "fault" if level == "fault" else "hint", message, do=do, places=places)


def of_tasks(tasks: Sequence[Sequence[SplitRows]]) -> Iterator[Finding]:
    """Texts on which one task is evaluated and another is trained; training drops these rows."""
    trained = [{key for split in splits if split.name == TRAIN for key in split.keys} for splits in tasks]
    if len(tasks) < 2:
        return
    for number, (splits, task_keys) in enumerate(zip(tasks, trained, strict=True)):
        for other, keys in enumerate(trained):
            shared, smaller = len(task_keys & keys), min(len(task_keys), len(keys))
            if other == number or (smaller and shared >= PARALLEL * smaller):
                continue
            for split in splits:
                if split.is_train:
                    continue
                same = [i for i, key in enumerate(split.keys) if len(key) >= LONG and key in keys]
                if same:
                    name = tasks[other][0].task.name
                    message = f"{counted(len(same), 'text')} of this split are among those that task '{name}' trains on"
                    do = f"training drops them from '{name}'; remove them there to see what is left"
                    yield split.found("shared_text", "hint", message, do=do, indices=same)


def within(splits: Sequence[SplitRows]) -> Iterator[Finding]:
    """Rows with twice the same text: options of a question, or both texts of a pair."""
    for split in splits:
        questions = [(i, v.options) for i, v in enumerate(split.inputs) if isinstance(v, Question)]
        options = [i for i, texts in questions if len({o.casefold().strip() for o in texts}) < len(texts)]
        if options:
            message = f"{counted(len(options), 'question')} with two equal options"
            yield split.found("same_options", "fault", message, do="make the options differ", indices=options)


def equal_pairs(splits: Sequence[SplitRows]) -> Iterator[Finding]:
    """A pair of columns that hold the same text in most rows: one of them is the wrong column."""
    for split in splits:
        pairs = [(i, texts_of(v)) for i, v in enumerate(split.inputs) if not isinstance(v, Question)]
        equal = [i for i, texts in pairs if len(texts) == 2 and texts[0].strip() == texts[1].strip()]
        if len(split) >= FEW and len(equal) >= len(split) / 2:
            message = f"{counted(len(equal), 'row')} have the same text twice"
            yield split.found("same_pair", "fault", message, do="name the column of the second text", indices=equal)


CHECKS = (repeated, conflicting, leaking, near_duplicates, within, equal_pairs)
