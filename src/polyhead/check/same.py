"""Rows with the same text, or nearly: inside a split, across splits, and across tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from polyhead.check.finding import Finding, RowRef
from polyhead.check.near import near_pairs
from polyhead.check.part import TRAIN, SplitRows, counted
from polyhead.text.question import Question, texts_of

APART = 0.25  # of a range, by which the numbers of two equal texts differ
NEAR_SHARE = 0.005  # of a split's rows that are near others, from which on it is told
NEAR_LEAST = 3
PARALLEL = 0.9  # of a task's training inputs that another has, from which on the two ask of the same rows
LONG = 25  # letters of a text that two tasks have in common; shorter ones are the same by chance
FEW = 20


def repeated(parts: Sequence[SplitRows]) -> Iterator[Finding]:
    """Rows of one split with the same text and label."""
    for part in parts:
        first, again = dict[str, int](), list[RowRef]()
        for index, key in enumerate(part.keys):
            before = first.setdefault(key, index)
            if before != index and _agree(part, before, part, index):
                again.append(part.place(index, other=f"row {part.rows[before]}"))
        if again:
            what = f"{counted(len(again), 'row')} repeat another of the same label, but for case and punctuation"
            do = "keep one of each, unless a text counts as often as it comes"
            yield part.found("duplicate", "hint", what, do=do, places=again)


def conflicting(parts: Sequence[SplitRows]) -> Iterator[Finding]:
    """Rows with the same text, but for case and spaces, and different labels."""
    first, told = dict[str, tuple[SplitRows, int]](), list[RowRef]()
    for part in parts:
        if not part.answers or part.answers[0] is None:
            continue
        for index, line in enumerate(part.lines):
            where, before = first.setdefault(line, (part, index))
            if (where, before) != (part, index) and not _agree(where, before, part, index):
                other = f"{where.split} row {where.rows[before]}: {where.label_of(before) or 'another answer'}"
                told.append(part.place(index, other=other))
    if told:
        what = f"{counted(len(told), 'row')} with the text of another row and another label"
        yield parts[0].found("conflict", "fault", what, do="decide for one label, or remove the rows", places=told)


def _agree(first: SplitRows, one: int, second: SplitRows, other: int) -> bool:
    a, b = first.answers[one], second.answers[other]
    if isinstance(a, float) and isinstance(b, float):
        low, high = first.task.range or (0.0, 1.0)
        return abs(a - b) <= APART * (high - low)
    return a == b


def leaking(parts: Sequence[SplitRows]) -> Iterator[Finding]:
    """Rows of an evaluation split whose text stands in an earlier split too."""
    known: dict[str, tuple[SplitRows, int]] = {}
    for part in sorted(parts, key=lambda part: not part.is_train):
        told = list[RowRef]()
        sources = set[str]()
        for index, key in enumerate(part.keys):
            where = known.get(key)
            if where is not None and where[0] is not part:
                told.append(part.place(index, other=f"{where[0].split} row {where[0].rows[where[1]]}"))
                sources.add(where[0].split)
            else:
                known.setdefault(key, (part, index))
        if told:
            what = f"{counted(len(told), 'row')} with a text that {' and '.join(sorted(sources))} has too"
            do = "remove them from one of the two: the score counts what was learned by heart"
            yield part.found("leak", "fault", what, do=do, places=told)


def near_duplicates(parts: Sequence[SplitRows]) -> Iterator[Finding]:
    """Rows that are nearly the text of another one: in the same split a hint, across splits a fault."""
    owners, texts, seen = list[tuple[SplitRows, int]](), list[str](), set[str]()
    for part in sorted(parts, key=lambda part: not part.is_train):
        for index, key in enumerate(part.keys):
            if key not in seen:
                seen.add(key)
                owners.append((part, index))
                texts.append(part.texts[index])
    inside: dict[int, list[RowRef]] = {}
    across: dict[int, list[RowRef]] = {}
    told = set[int]()
    for first, second in near_pairs(texts):
        (one, i), (other, j) = owners[first], owners[second]
        if second in told:
            continue
        told.add(second)
        place = other.place(j, other=f"{one.split} row {one.rows[i]}: {one.place(i).text}")
        (inside if one is other else across).setdefault(id(other), []).append(place)
    for part in parts:
        for places, level in ((across.get(id(part), []), "fault"), (inside.get(id(part), []), "hint")):
            if len(places) >= max(NEAR_LEAST, NEAR_SHARE * len(part)):
                where = "of an earlier split" if level == "fault" else "of the split"
                what = f"{counted(len(places), 'text')} with nearly the words of another one {where}"
                do = "keep the rows of one source or template in one split"
                kind = "near_leak" if level == "fault" else "near_duplicate"
                yield part.found(kind, "fault" if level == "fault" else "hint", what, do=do, places=places)


def of_tasks(tasks: Sequence[Sequence[SplitRows]]) -> Iterator[Finding]:
    """Texts on which one task is evaluated and another one trains; training drops these rows."""
    trained = [{key for part in parts if part.split == TRAIN for key in part.keys} for parts in tasks]
    if len(tasks) < 2:
        return
    for number, parts in enumerate(tasks):
        for other, keys in enumerate(trained):
            if other == number or _are_parallel(trained[number], keys):
                continue
            for part in parts:
                if part.is_train:
                    continue
                same = [i for i, key in enumerate(part.keys) if len(key) >= LONG and key in keys]
                if same:
                    name = tasks[other][0].task.name
                    what = f"{counted(len(same), 'text')} of this split are among those that task '{name}' trains on"
                    do = f"training drops them from '{name}'; remove them there to see what is left"
                    yield part.found("shared_text", "hint", what, do=do, indices=same)


def _are_parallel(first: set[str], second: set[str]) -> bool:
    return len(first & second) >= PARALLEL * min(len(first), len(second)) if first and second else False


def within(parts: Sequence[SplitRows]) -> Iterator[Finding]:
    """Rows whose own texts are the same: options of a question, or both texts of a pair."""
    for part in parts:
        options = [i for i, v in enumerate(part.inputs) if isinstance(v, Question) and _repeats(v.options)]
        if options:
            what = f"{counted(len(options), 'question')} with two equal options"
            yield part.found("same_options", "fault", what, do="make the options differ", indices=options)


def _repeats(options: Sequence[str]) -> bool:
    return len({option.casefold().strip() for option in options}) < len(options)


def equal_pairs(parts: Sequence[SplitRows]) -> Iterator[Finding]:
    """A pair of columns that hold the same text in most rows: one of them is the wrong column."""
    for part in parts:
        pairs = [(i, texts_of(v)) for i, v in enumerate(part.inputs) if not isinstance(v, Question)]
        equal = [i for i, texts in pairs if len(texts) == 2 and texts[0].strip() == texts[1].strip()]
        if len(part) >= FEW and len(equal) >= len(part) / 2:
            what = f"{counted(len(equal), 'row')} have the same text twice"
            yield part.found("same_pair", "fault", what, do="name the column of the second text", indices=equal)


CHECKS = (repeated, conflicting, leaking, near_duplicates, within, equal_pairs)
