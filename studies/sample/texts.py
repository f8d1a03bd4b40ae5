"""Rows of the packaged sample: near-duplicates, pairs that were written together, and five folds over all rows."""

from __future__ import annotations

import importlib.resources
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

Row = dict[str, Any]
Words = tuple[str, ...]

FOLDS = 5
SHARED = 0.4  # of the words of two messages, above which they are near-duplicates; the closest two share 0.3
SHARED_SHORT = 0.5  # the same where a text of a pair is one of the two: such texts have about eight words
RUN, FRAME_RUN = 5, 6  # words in a row that two messages share, as written and with spans replaced by their labels


def sample_rows(name: str) -> list[Row]:
    """The rows of `messages` or `pairs`."""
    raw = importlib.resources.files("polyhead.sample").joinpath(f"{name}.jsonl").read_bytes()
    return [msgspec.json.decode(line) for line in raw.splitlines()]


def words_of(text: str) -> Words:
    """The words of a text in lower case."""
    return tuple(re.findall(r"\w+", text.lower()))


def frame_of(message: Row) -> Words:
    """The words of a message with each span replaced by its label: what stays when its details are exchanged."""
    text = message["text"]
    for span in reversed(message["spans"]):
        text = f"{text[: span['start']]} <{span['label']}> {text[span['end'] :]}"
    return tuple(re.findall(r"<\w+>|\w+", text.lower()))


def near_duplicates(messages: Sequence[Row], pairs: Sequence[Row]) -> list[tuple[str, str, str]]:
    """Ids of two rows that are too much alike, and why; pairs that were written together are not compared."""
    return [*_alike_messages(messages), *_alike_pairs(messages, pairs)]


def _alike_messages(messages: Sequence[Row]) -> Iterator[tuple[str, str, str]]:
    ids = [row["id"] for row in messages]
    plain, frames = [words_of(row["text"]) for row in messages], [frame_of(row) for row in messages]
    for texts, run, what in ((plain, RUN, "words"), (frames, FRAME_RUN, "words of the frame")):
        bags = [frozenset(words) for words in texts]
        for (one, bag), (other, other_bag) in itertools.combinations(zip(ids, bags, strict=True), 2):
            if _shared(bag, other_bag) > SHARED:
                yield one, other, f"share {_shared(bag, other_bag):.0%} of their {what}"
        first = dict[Words, str]()
        for name, words in zip(ids, texts, strict=True):
            for start in range(len(words) - run + 1):
                piece = words[start : start + run]
                if first.setdefault(piece, name) != name:
                    yield first[piece], name, f"share {run} {what} in a row: {' '.join(piece)}"


def _alike_pairs(messages: Sequence[Row], pairs: Sequence[Row]) -> Iterator[tuple[str, str, str]]:
    group_of = [number for number, group in enumerate(written_together(pairs)) for _ in group]
    own = [
        (group, pair["id"], frozenset(words_of(pair[side])))
        for group, pair in zip(group_of, pairs, strict=True)
        for side in ("text_a", "text_b")
    ]
    others = [(-1, row["id"], frozenset(words_of(row["text"]))) for row in messages]
    for (group, one, bag), (other_group, other, other_bag) in itertools.chain(
        itertools.combinations(own, 2), itertools.product(own, others)
    ):
        if group != other_group and _shared(bag, other_bag) > SHARED_SHORT:
            yield one, other, f"share {_shared(bag, other_bag):.0%} of their words"


def _shared(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / len(one | other)


def written_together(pairs: Sequence[Row]) -> list[list[int]]:
    """Row numbers, group by group: a `no` that follows a `yes` may start from the same text, and stays with it."""
    groups = list[list[int]]()
    for number, pair in enumerate(pairs):
        if number and pair["same_request"] == "no" and pairs[number - 1]["same_request"] == "yes":
            groups[-1].append(number)
        else:
            groups.append([number])
    return groups


def fold_of_rows(groups: Sequence[Sequence[int]]) -> list[int]:
    """The fold of each row, from 0: groups in random order, each to the fold with the fewest rows so far."""
    folds, sizes = dict[int, int](), [0] * FOLDS
    for index in np.random.default_rng(0).permutation(len(groups)):
        smallest = sizes.index(min(sizes))
        sizes[smallest] += len(groups[index])
        folds |= dict.fromkeys(groups[index], smallest)
    return [folds[number] for number in range(len(folds))]


def refolded(rows: Sequence[Row], groups: Sequence[Sequence[int]], fold: int) -> list[Row]:
    """The rows with their splits for one fold: it is the test split, the next one validates, three train."""
    named = {fold: "test", (fold + 1) % FOLDS: "validation"}
    own = fold_of_rows(groups)
    return [{**row, "split": named.get(number, "train")} for row, number in zip(rows, own, strict=True)]
