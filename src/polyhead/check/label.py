"""Checks of labels: unknown, spelled in several ways, rare, missing in a split, or given away by the text."""

from __future__ import annotations

import difflib
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from polyhead.check.split_rows import WORD, Finding, SplitRows, counted, names_text
from polyhead.codecs.base import evenly_spaced
from polyhead.errors import BadValue, UnknownLabel
from polyhead.tasks.gold import widened
from polyhead.text.normalize import normalized_text
from polyhead.text.words import words_of

TINY = 5  # rows: with fewer, no fold of five can hold one out
EXPECTED = 5.0  # expected rows of a class from which on its absence from a split is reported
ALIKE, RARELY = 0.85, 0.02  # similarity of a misspelt label to another one, and its maximum share of that one's rows
SAMPLE = 20_000  # rows searched for words that give a label away
FIRST_WORDS = 100  # of a text
GIVEAWAY_ROWS = 10
GIVEAWAY, ELSEWHERE = 0.95, 0.02  # share of a class's rows with the word; rows of others with it, as a share of those
NAMED, NAMED_ELSEWHERE = 0.5, 0.05  # the same for the label's own name
SHARE = 0.5  # share of rows whose class is given away from which on it is reported, if there are many classes
FEW_CLASSES = 5


def unknown(split: SplitRows) -> Iterator[Finding]:
    """Labels that the task does not declare, and rows that cannot be read."""
    wrong: dict[str, list[int]] = {}
    unread = list[BadValue]()
    for error in split.reading.wrong:
        if isinstance(error, UnknownLabel):
            wrong.setdefault(str(error.facts["label"]), []).append(_row(error))
        else:
            unread.append(error)
    known = {_folded(label): label for label in split.task.labels}
    variants = {label: known[_folded(label)] for label in wrong if _folded(label) in known}
    if variants:
        pairs = [f"'{label}' for '{meant}'" for label, meant in variants.items()]
        message = f"labels differ from declared ones in case or spaces alone: {', '.join(pairs[:5])}"
        places = [
            place for label, meant in variants.items() for place in split.at(wrong[label], label=label, other=meant)
        ]
        yield split.found("label_variant", "fault", message, do="write each label in one way", places=places)
    if others := [label for label in wrong if label not in variants]:
        near = {label: difflib.get_close_matches(label, split.task.labels, n=1, cutoff=0.8) for label in others[:50]}
        meant = "; ".join(f"'{label}' may be '{names[0]}'" for label, names in near.items() if names)
        message = f"labels that the task does not declare: {names_text(others)}" + (f" ({meant})" if meant else "")
        do = "add them to the task's labels, or fix the rows"
        places = [place for label in others for place in split.at(wrong[label], label=label)]
        yield split.found("unknown_label", "fault", message, do=do, places=places)
    if unread:
        message = f"{counted(len(unread), 'row')} cannot be used; the first: {unread[0].what}"
        places = [place for error in unread for place in split.at([_row(error)], other=error.what)]
        yield split.found("unreadable", "fault", message, do=unread[0].do or "fix the rows", places=places)


def _row(error: BadValue) -> int:
    row = error.facts.get("row")
    return row if isinstance(row, int) else 0


def _folded(label: str) -> str:
    """A label without case, spaces, hyphens and underscores, if it has a letter."""
    folded = unicodedata.normalize("NFKC", label).casefold().strip()
    return re.sub(r"[\s_\-]+", "", folded) if any(map(str.isalpha, folded)) else folded


def alike(labels: Sequence[str]) -> list[list[int]]:
    """Groups of labels, by their indices, that differ only in case, spaces, hyphens and underscores."""
    groups: dict[str, list[int]] = {}
    for index, label in enumerate(labels):
        groups.setdefault(_folded(label), []).append(index)
    return [indices for indices in groups.values() if len(indices) > 1]


def variants(split: SplitRows) -> Iterator[Finding]:
    """Declared labels that differ only in case, spaces or hyphens, or of which one looks like a misspelling."""
    if not split.has_classes or not split.is_train:
        return
    if similar := alike(split.task.labels):
        groups = [" and ".join(f"'{split.task.labels[i]}' ({split.counts[i]:,})" for i in group) for group in similar]
        message = f"labels differ in case or spaces alone: {'; '.join(groups[:5])}"
        rarer = {i for group in similar for i in group if i != max(group, key=lambda index: int(split.counts[index]))}
        indices = [row for row, labels in enumerate(split.labels) if rarer.intersection(labels)]
        yield split.found("label_variant", "fault", message, do="write each label in one way", indices=indices)
    grouped = {index for group in similar for index in group}
    slips = [(i, j) for i, j in _slips(split) if not {i, j} <= grouped]
    if slips:
        pairs = [f"'{split.task.labels[i]}' ({split.counts[i]:,}) beside '{split.task.labels[j]}'" for i, j in slips]
        message = f"labels that may be misspelt: {'; '.join(pairs[:5])}"
        rare = {i for i, _ in slips}
        indices = [row for row, labels in enumerate(split.labels) if rare.intersection(labels)]
        yield split.found(
            "misspelt_label", "hint", message, do="correct the label, or leave it if it is meant", indices=indices
        )


def _slips(split: SplitRows) -> list[tuple[int, int]]:
    """(rare label, frequent label with a similar spelling)."""
    names, counts = split.task.labels, split.counts
    frequent = [index for index in range(len(names)) if counts[index] >= TINY / RARELY]
    slips = []
    for rare in range(len(names)):
        if len(names[rare]) < 4 or any(map(str.isdigit, names[rare])) or counts[rare] > max(3, RARELY * counts.max()):
            continue
        for other in frequent:
            if counts[rare] > max(3, RARELY * counts[other]):
                continue
            if difflib.SequenceMatcher(a=names[rare], b=names[other]).ratio() >= ALIKE:
                slips.append((rare, other))
                break
    return slips


def rare(split: SplitRows) -> Iterator[Finding]:
    """Classes of which training sees too few rows, none, or no other."""
    if not split.has_classes or not split.is_train or not len(split):
        return
    names, counts = split.task.labels, split.counts
    present = np.flatnonzero(counts)
    if len(present) == 1 and not split.kind.label_is_list:
        message = f"every row has the label '{names[present[0]]}'"
        do = "give rows of other labels, or name another column"
        yield split.found("constant_label", "fault", message, do=do, indices=range(len(split)))
    if missing := [names[index] for index in np.flatnonzero(counts == 0)]:
        message = f"train has no row of {counted(len(missing), 'label')}: {names_text(missing)}"
        yield split.found("absent_label", "fault", message, do="add rows of these labels, or remove them from the task")
    few = [int(index) for index in present if counts[index] < TINY]
    if few:
        message = f"train has fewer than {TINY} rows of {counted(len(few), 'label')}: "
        message += names_text([f"{names[index]} ({counts[index]})" for index in few])
        indices = [row for row, labels in enumerate(split.labels) if set(few).intersection(labels)]
        do = "label more rows of them, or join them with others"
        yield split.found("tiny_class", "hint", message, do=do, indices=indices)


def absent(train: SplitRows, split: SplitRows) -> Iterator[Finding]:
    """Classes that a split lacks but should have, judged by train; and those that only train lacks."""
    if not train.has_classes or not len(train) or not len(split):
        return
    expected = train.counts / len(train) * len(split)
    least = EXPECTED + math.log(len(train.task.labels))  # with many labels, one is more likely to be missing by chance
    missing = [train.task.labels[i] for i in np.flatnonzero((split.counts == 0) & (expected >= least))]
    if missing:
        message = f"{split.name} has no row of {counted(len(missing), 'label')} that train has: {names_text(missing)}"
        yield split.found("absent_label", "fault", message, do="draw the split anew, so that it has every label")


def gold_out_of_reach(split: SplitRows) -> Iterator[Finding]:
    """Rows with a labelled span that does not begin and end with words, so that no answer can equal it."""
    examples = split.reading.examples
    if examples is None or examples.gold is None:
        return
    indices, spans = [], 0
    for index, example in enumerate(examples.each()):
        words = words_of(example.text)
        inside = sum(widened(span, words) != span for span in example.gold or ())
        spans += inside
        indices += [index] if inside else []
    if indices:
        message = f"{counted(spans, 'labelled span')} in {counted(len(indices), 'row')} not made of whole words"
        do = "correct their offsets (no space at an end, no half of a word); as they are, scores count them as missed"
        yield split.found("lost_span", "hint", message, do=do, indices=indices)


def given_away(split: SplitRows) -> Iterator[Finding]:
    """Words in nearly every text of a class and nearly no other: the label may be part of the text."""
    if not split.has_classes or not split.is_train or split.kind.label_is_list or len(split.task.labels) < 2:
        return
    rows: list[int] = evenly_spaced(len(split), SAMPLE).tolist()
    samples = [set(WORD.findall(split.texts[row].casefold())[:FIRST_WORDS]) for row in rows]
    of_label: dict[int, Counter[str]] = {}
    sizes, everywhere = Counter[int](), Counter[str]()
    for row, words in zip(rows, samples, strict=True):
        label = split.labels[row][0]
        sizes[label] += 1
        of_label.setdefault(label, Counter()).update(words)
        everywhere.update(words)
    readings = dict[int, str]()
    for label, size in sizes.items():
        if size < GIVEAWAY_ROWS:
            continue
        name = normalized_text(split.task.labels[label])
        for word, count in of_label[label].most_common():
            if count < NAMED * size:
                break
            elsewhere = everywhere[word] - count
            is_certain = count >= GIVEAWAY * size and elsewhere <= ELSEWHERE * count
            is_name = word == name and elsewhere <= NAMED_ELSEWHERE * count
            if is_certain or is_name:
                readings[label] = word
                break
    classes, covered = len(sizes), sum(sizes[label] for label in readings)
    if readings and classes > 1 and (classes <= FEW_CLASSES or covered >= SHARE * len(rows)):
        pairs = [f"'{word}' for '{split.task.labels[label]}'" for label, word in readings.items()]
        message = f"one word gives the label away: {', '.join(pairs[:5])}"
        do = "remove what was written into the texts after they were labelled, if it will not be there later"
        indices = [row for row, words in zip(rows, samples, strict=True) if readings.get(split.labels[row][0]) in words]
        yield split.found("label_in_text", "fault", message, do=do, indices=indices)


CHECKS = (unknown, variants, rare, gold_out_of_reach, given_away)
