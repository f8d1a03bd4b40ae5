"""Guesses which columns of a table are texts: by their names, else by their length."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from polyhead.data.guess_kind import SPAN, is_number, looks_like_labels
from polyhead.errors import ConfigError

TEXTS: tuple[str, ...] = ("text", "sentence", "message", "content", "body", "review", "utterance", "comment")
TEXTS += ("question", "query", "tweet")
CONTEXTS = ("context", "passage", "document", "article")
NAMES_WITHOUT_DATA = {"", "id", "idx", "index", "uid", "guid", "uuid", "split", "fold", "group", "url"}
NAMES_WITHOUT_DATA |= {"date", "time", "timestamp"}
ROW_NUMBER = re.compile(r".*(_id|_ID|Id| id| ID)|[Uu]nnamed: [0-9]+", re.DOTALL)
PAIRS = (
    ("text", "text_b"),
    ("text_a", "text_b"),
    ("premise", "hypothesis"),
    ("question", "passage"),
    ("question", "context"),
    ("question", "sentence"),
    ("query", "document"),
    ("query", "passage"),
    ("claim", "evidence"),
    *((name, f"{name}{end}") for name in TEXTS for end in ("_b", "b", "2", "_2")),
)
OPTION = re.compile(r"(choice|option|ending)[_ ]?([0-9]|[a-e])|answer[_ ]?[a-e]", re.IGNORECASE)
ENDS = (("1", "2"), ("a", "b"), ("A", "B"), ("_left", "_right"))


def named_texts(columns: Mapping[str, Sequence[Any]], taken: Collection[str | None]) -> tuple[str, ...]:
    """The column with the name of a text, or the two with the names of a pair, however often their values recur.

    An ambiguous name such as `review` is taken as a label's if its values recur and there are longer texts.
    """
    names = text_columns(columns, taken)
    if pair := pair_of(columns, names):
        return pair
    known = sorted((name for name in names if _rank(name) < len(TEXTS)), key=_rank)
    different = {name for name in names if not looks_like_labels(columns[name])} if known else set()
    longest = max((_length(columns[name]) for name in different), default=0.0)
    for name in known:
        if _rank(name) == 0 or name in different or _length(columns[name]) >= longest:
            return (name,)
    return ()


def may_hold_data(name: str) -> bool:
    """Whether a column may be a text or a label: its name is not that of a row number, a place or a time."""
    return name.strip().lower() not in NAMES_WITHOUT_DATA and not ROW_NUMBER.fullmatch(name.strip())


def text_columns(columns: Mapping[str, Sequence[Any]], taken: Collection[str | None]) -> list[str]:
    """The columns of strings that are not numbers, without those already taken or named like a row number."""
    names = [name for name in columns if name not in taken and may_hold_data(name)]
    return [name for name in names if columns[name] and _are_texts(columns[name])]


def _are_texts(values: Sequence[object]) -> bool:
    return all(isinstance(value, str) for value in values) and not all(map(is_number, values))


def pair_of(columns: Mapping[str, Sequence[Any]], names: Sequence[str]) -> tuple[str, ...]:
    """Two columns with the names of a pair; unless these are names of texts, at least one is no label."""
    by_name = {name.strip().lower(): name for name in names}
    for first, second in [*PAIRS, *_numbered(by_name)]:
        if first in by_name and second in by_name:
            pair = by_name[first], by_name[second]
            counts = sorted(len(columns[name]) for name in pair)
            if 2 * counts[0] < counts[1]:
                continue  # most rows have only one of them
            is_named = (first, second) in PAIRS or first.rstrip("1a_") in (*TEXTS, *CONTEXTS)
            if is_named or not all(looks_like_labels(columns[name]) for name in pair):
                return pair
    return ()


def _numbered(by_name: Mapping[str, str]) -> list[tuple[str, str]]:
    return [
        (name, name.removesuffix(first) + second)
        for name in by_name
        for first, second in ENDS
        if name.endswith(first) and len(name) > len(first)
    ]


def several_options(columns: Mapping[str, Sequence[Any]]) -> list[str]:
    """The columns with one option each of a question, such as `choice1` and `choice2`; empty if there are none."""
    options = [name for name in text_columns(columns, ()) if OPTION.fullmatch(name.strip())]
    return options if len(options) > 1 else []


def one_text(path: str, columns: Mapping[str, Sequence[Any]], names: Sequence[str]) -> tuple[str, ...]:
    """The column with the name of a text, else the longest; raises ConfigError if two are about equally long."""
    known = sorted((name for name in names if _rank(name) < len(TEXTS)), key=_rank)
    if known:
        return (known[0],)
    lengths = {name: _length(columns[name]) for name in names}
    longest = sorted(names, key=lengths.__getitem__, reverse=True)
    if len(longest) > 1 and lengths[longest[0]] < 2 * lengths[longest[1]]:
        first, second = longest[:2]
        raise ConfigError(
            f"two columns of {path} look like the text",
            got=f"{first}, {second}",
            do=f"choose with --text {first} or --text {second}, or ask about both: --text {first} --text-b {second}",
        )
    return tuple(longest[:1])


def in_roles(texts: Sequence[str], kind: str | None) -> str:
    """The role of each column, as text for the user."""
    if len(texts) < 2:
        return "".join(f"text: '{name}'" for name in texts)
    if kind == SPAN or texts[1].lower() in CONTEXTS:
        return f"question: '{texts[0]}', its context: '{texts[1]}'"
    return f"pair: '{texts[0]}' and '{texts[1]}' are two texts of one question"


def _rank(name: str) -> int:
    lower = name.strip().lower()
    return TEXTS.index(lower) if lower in TEXTS else len(TEXTS)


def _length(values: Sequence[str]) -> float:
    return sum(map(len, values)) / len(values)
