"""NHC, the tasks of Huang et al. 2022 (section 5): is this headline of HuffPost one of this category?

The paper's sets were not released. Built as it says: the seven most frequent categories, each with as many headlines of
its own as random others, a fifth of them held out. We hold headlines out for all tasks at once: no text on which one
task is evaluated is trained on by another one. The paper's eighth task, Opinion, has labels that nobody can buy; in its
place stands another task about style, subjective or objective (`subj`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from polyhead.errors import DataError
from polyhead.values import Value

CATEGORIES = ("politics", "wellness", "entertainment", "travel", "style & beauty", "parenting", "healthy living")
SIZE = 2000  # of the paper: headlines of the category, and as many others
HELD_OUT = 5  # one in so many
LABELS = ("no", "yes")
STYLE = "subj"
STYLE_LABELS = ("objective", "subjective")

# Words and signs apart as in the set `huffpost41`: of its headlines that `huffpost_news` has too, an uncased
# WordPiece tokenizer reads 99.8 % alike, 95.1 % without this.
_SIGNS = re.compile(
    r"n['’]t\b|['’](?:s|re|ve|ll|d|m)\b|\w+?(?=n['’]t\b)|\d+-\w+|(?:\w\.){2,}|o['’]\w+|\w+(?:[.,:]\d+)*|[^\w\s]"
)


class Headline(Value):
    """A text and what it is."""

    text: str
    label: str


class Source(Value, eq=False):
    """What the tasks are made of, by the letters of each text: training rows alone, but for `test`."""

    headlines: Mapping[str, Headline]
    test: tuple[Headline, ...] = ()  # evaluated on, whole; none of its texts is in `headlines`
    style: Mapping[str, Headline] = {}
    style_test: tuple[Headline, ...] = ()
    left_out: int = 0  # rows whose text is one of the test's
    unclear: int = 0  # texts with two labels
    files: Mapping[str, str] = {}  # SHA-256 of what was read, by name


class NhcTask(Value, eq=False):
    """One binary task: equally many rows of both labels, a fifth of them for validation; `test` as it comes."""

    name: str
    labels: tuple[str, ...]
    train: tuple[Headline, ...]
    validation: tuple[Headline, ...]
    test: tuple[Headline, ...] = ()

    @property
    def splits(self) -> dict[str, tuple[Headline, ...]]:
        """By name; test only where there is one."""
        by_name = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: rows for name, rows in by_name.items() if rows}


class Nhc(Value, eq=False):
    """All tasks, and what decides them: the source, `size` rows of each label, the seed."""

    tasks: tuple[NhcTask, ...]
    size: int
    seed: int
    source: Source


def task_name(category: str) -> str:
    """The category as a task's name."""
    return re.sub(r"\W+", "_", category)


TASKS = tuple(task_name(category) for category in CATEGORIES)


def build(source: Source, *, size: int | None = None, seed: int = 0) -> Nhc:
    """The tasks; the same source, size and seed give the same rows, in whatever order the source was read.

    Without a size it is the paper's, or the largest that every category has. Raises DataError where there are fewer.
    """
    by_label = {category: list[str]() for category in CATEGORIES}
    for key, headline in source.headlines.items():
        by_label.setdefault(headline.label, []).append(key)
    chosen = _size(by_label, size)
    pools = _parted(by_label, seed)
    tasks = [_category_task(category, source, pools, chosen, seed) for category in CATEGORIES]
    if source.style:
        tasks.append(_style_task(source, chosen, seed))
    return Nhc(tasks=tuple(tasks), size=chosen, seed=seed, source=source)


def jsonl(rows: Iterable[Headline]) -> bytes:
    """The rows as JSON lines {"text", "label"}."""
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)


def letters(text: str) -> str:
    """Letters and digits in small letters: texts that have the same ones are one text."""
    return "".join(sign for sign in text.casefold() if sign.isalnum())


def in_form(text: str) -> str:
    """The text in small letters, words and signs apart, as `huffpost41` has its headlines."""
    return " ".join(_SIGNS.findall(text.lower()))


def _size(by_label: Mapping[str, Sequence[str]], wanted: int | None) -> int:
    """Rows of a label in each task, a multiple of `HELD_OUT`."""
    counts = {category: len(by_label[category]) for category in CATEGORIES}
    most = min(counts.values()) // HELD_OUT * HELD_OUT
    size = min(SIZE, most) if wanted is None else wanted
    if not 0 < size <= most or size % HELD_OUT:
        raise DataError(
            f"no tasks of {size:,} + {size:,} rows can be made of these headlines",
            got=", ".join(f"{category} {count:,}" for category, count in counts.items()),
            allowed=f"a multiple of {HELD_OUT} up to {most:,}" if most else f"{HELD_OUT} or more of each",
            do="give the full file of headlines, or another size",
        )
    return size


class _Pools(Value, eq=False):
    """Texts by label, in a random order: those that may be trained on, and those held out from every task."""

    train: dict[str, list[str]]
    validation: dict[str, list[str]]


def _parted(by_label: Mapping[str, Sequence[str]], seed: int) -> _Pools:
    train, validation = {}, {}
    for label, keys in by_label.items():
        ordered = _shuffled(keys, seed, "split")
        held = len(ordered) // HELD_OUT
        train[label], validation[label] = ordered[held:], ordered[:held]
    return _Pools(train=train, validation=validation)


def _category_task(category: str, source: Source, pools: _Pools, size: int, seed: int) -> NhcTask:
    def rows(pool: Mapping[str, list[str]], count: int) -> tuple[Headline, ...]:
        rest = [key for label, keys in pool.items() if label != category for key in keys]
        others = _shuffled(rest, seed, f"others than {category}")[:count]
        if len(others) < count:
            raise DataError(
                f"there are too few headlines of other categories than '{category}'",
                got=f"{len(others):,}",
                allowed=f"{count:,} or more",
            )
        labelled = {**dict.fromkeys(pool[category][:count], "yes"), **dict.fromkeys(others, "no")}
        return _rows(source.headlines, labelled, seed, category)

    held = size // HELD_OUT
    return NhcTask(
        name=task_name(category),
        labels=LABELS,
        train=rows(pools.train, size - held),
        validation=rows(pools.validation, held),
        test=tuple(Headline(text=headline.text, label=LABELS[headline.label == category]) for headline in source.test),
    )


def _style_task(source: Source, size: int, seed: int) -> NhcTask:
    by_label = {
        label: [key for key, headline in source.style.items() if headline.label == label] for label in STYLE_LABELS
    }
    fewest = min(map(len, by_label.values()))
    if fewest < size:
        raise DataError(f"there are too few texts for '{STYLE}'", got=fewest, allowed=f"{size:,} of a label")
    held, pools = size // HELD_OUT, _parted(by_label, seed)
    train = {key: label for label, keys in pools.train.items() for key in keys[: size - held]}
    validation = {key: label for label, keys in pools.validation.items() for key in keys[:held]}
    return NhcTask(
        name=STYLE,
        labels=STYLE_LABELS,
        train=_rows(source.style, train, seed, STYLE),
        validation=_rows(source.style, validation, seed, STYLE),
        test=source.style_test,
    )


def _rows(texts: Mapping[str, Headline], labelled: Mapping[str, str], seed: int, task: str) -> tuple[Headline, ...]:
    order = _shuffled(labelled, seed, f"rows of {task}")
    return tuple(Headline(text=texts[key].text, label=labelled[key]) for key in order)


def _shuffled(keys: Iterable[str], seed: int, use: str) -> list[str]:
    """In a random order that a text keeps however many others there are."""
    prefix = f"{seed}:{use}:".encode()
    return sorted(keys, key=lambda key: (hashlib.blake2b(prefix + key.encode(), digest_size=8).digest(), key))
