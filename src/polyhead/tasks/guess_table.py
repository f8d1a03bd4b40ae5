"""Which columns of a table are texts and labels: guesses from their names and values, each with its reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from polyhead.config import Value
from polyhead.errors import ConfigError
from polyhead.tasks.guess import MULTI_LABEL, SINGLE_LABEL, SPAN, TAGGING, is_blank, is_number, looks_like_labels, plain
from polyhead.tasks.kinds.base import listed
from polyhead.tasks.kinds.multiple_choice import MultipleChoice
from polyhead.tasks.rows import Row, Rows

CHOICE = MultipleChoice.name
MOST_ROWS = 20_000  # that are looked at, evenly spread over a file
TEXTS = (
    "text",
    "sentence",
    "message",
    "content",
    "body",
    "review",
    "utterance",
    "comment",
    "question",
    "query",
    "tweet",
)
LABELS = ("label", "labels", "tags", "spans", "answers", "entities")
LIKE_LABELS = (
    "class",
    "category",
    "categories",
    "target",
    "y",
    "intent",
    "sentiment",
    "topic",
    "topics",
    "gold",
    "score",
)
CHOICES = ("choices", "options", "endings", "candidates")
TOKENS = ("tokens", "words")
CONTEXTS = ("context", "passage", "document", "article")
NOT_ASKED = ("id", "idx", "index", "uid", "guid", "split", "fold", "group", "url", "date", "time", "timestamp", "")
PAIRS = (
    ("text", "text_b"),
    ("text_a", "text_b"),
    ("premise", "hypothesis"),
    ("question", "passage"),
    ("question", "context"),
    ("question", "sentence"),
    ("query", "document"),
    ("query", "passage"),
)
ENDS = (("1", "2"), ("a", "b"), ("A", "B"), ("_left", "_right"))


class Given(Value):
    """What somebody said of the columns; None and () are to be guessed."""

    kind: str | None = None
    text: str | None = None
    text_b: str | None = None
    label: str | None = None
    tokens: str | None = None
    spans: str | None = None
    choices: str | None = None
    answers: str | None = None
    one_hot: tuple[str, ...] = ()


class Layout(Given):
    """The columns of a task. `kind` is None where its labels have to tell it; `others` are other columns of labels."""

    whys: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


class Table(Value, eq=False):
    """Rows of a file, all or some evenly spread; `values` holds by column what is not blank, JSON lists as lists."""

    path: str
    rows: list[dict[str, object]]
    values: dict[str, list[Any]]
    has_cells: bool


Seen = tuple[str | None, str, str]
"""The kind of which a column is the label, the reason, and the key that names the column."""
Test = Callable[[str, list[Any]], Seen | None]


class _Candidate(Value):
    """A column that may be the label, or several of 0 and 1; the lower `rank` is the better."""

    columns: tuple[str, ...]
    kind: str | None
    rank: int
    why: str
    key: str = "label"  # what the column is: "label", "spans", "answers" or "one_hot"

    @property
    def option(self) -> str:
        """The option that chooses it."""
        return f"--{self.key.replace('_', '-')} {','.join(self.columns)}"


def table_of(path: str, *, readable: bool = False) -> Table:
    """The file's rows to guess from, or those alone that are `readable`; raises what `Rows` raises."""
    rows, kept, step = Rows(path, every_column(path)), list[dict[str, object]](), 1
    read = (row for row in rows.each() if isinstance(row, Row)) if readable else rows
    for index, row in enumerate(read):
        if index % step == 0:
            kept.append({name: plain(value) for name, value in row.values.items()})
        if len(kept) > MOST_ROWS:
            kept, step = kept[::2], step * 2
    columns = rows.columns
    values = {name: [v for row in kept if (v := row.get(name)) is not None and not is_blank(v)] for name in columns}
    for name, cells in values.items():
        if cells and all(isinstance(cell, str) and cell.lstrip().startswith("[") for cell in cells):
            lists = [listed(str(cell), cell) for cell in cells]
            values[name] = lists if all(isinstance(value, list) for value in lists) else cells
    return Table(path=path, rows=kept, values=values, has_cells=rows.has_cells)


def every_column(path: str) -> tuple[str, ...]:
    """The columns of a format that leaves columns unread."""
    if not path.lower().endswith(".parquet"):
        return ()
    rows = Rows(path, ())
    next(iter(rows), None)
    return tuple(rows.columns)


def layout_of(table: Table, given: Given) -> Layout:
    """The columns of one task, as given and else as they look.

    Raises ConfigError where two guesses are equally good, with the options that choose one of them.
    """
    tokens = given.tokens or _tokens(table)
    choices = given.choices or _choices(table, given)
    if given.label and given.label not in table.values:
        return Layout(kind=given.kind, **_given(given), whys=())  # whoever reads it says what is missing
    chosen, others = _label(table, given, tokens, choices)
    if chosen is None:
        return Layout(kind=given.kind, **_given(given))
    own: dict[str, Any] = {}
    kind = given.kind or chosen.kind
    own[chosen.key] = chosen.columns if chosen.key == "one_hot" else chosen.columns[0]
    whys = [chosen.why]
    if kind == TAGGING and "spans" not in own:
        own["tokens"] = tokens
    else:
        own["choices"] = choices if kind == CHOICE else None
        texts, why = _texts(table, given, {*chosen.columns, *others, choices or "", tokens or ""}, kind)
        own |= dict(zip(("text", "text_b"), texts, strict=False))
        whys.append(why)
    own |= _given(given)
    return Layout(kind=kind, **own, whys=tuple(why for why in whys if why), others=tuple(others))


def labels_in(table: Table, column: str) -> list[object]:
    """The column's values that are not blank."""
    return list(table.values.get(column, ()))


def _given(given: Given) -> dict[str, Any]:
    values = msgspec.structs.asdict(given)
    return {name: value for name, value in values.items() if value and name != "kind"}


def _tokens(table: Table) -> str | None:
    fitting = [name for name, values in table.values.items() if name.lower() in TOKENS and _are_lists(values, str)]
    return fitting[0] if fitting else None


def _choices(table: Table, given: Given) -> str | None:
    if given.kind not in (None, CHOICE):
        return None
    fitting = [
        name
        for name, values in table.values.items()
        if name.lower() in CHOICES and _are_lists(values, str) and all(len(value) >= 2 for value in values)
    ]
    return fitting[0] if fitting else None


def _are_lists(values: Sequence[Any], of: type) -> bool:
    return bool(values) and all(isinstance(v, list) and all(isinstance(item, of) for item in v) for v in values)


def _label(table: Table, given: Given, tokens: str | None, choices: str | None) -> tuple[_Candidate | None, list[str]]:
    """The label, and other columns that look like labels."""
    candidates = [*_candidates(table, tokens, choices, {given.text, given.text_b}), *_one_hot(table, given)]
    named = given.one_hot or tuple(name for name in (given.spans, given.answers, given.label) if name)[:1]
    if named:
        for candidate in candidates:
            if candidate.columns == named:
                fits = given.kind is None or _fits(candidate, given.kind)
                return candidate if fits else _plain(named, given), _beside(candidates, named)
        return _plain(named, given), _beside(candidates, named)
    fitting = [c for c in candidates if given.kind is None or _fits(c, given.kind)]
    if given.tokens:
        fitting = [c for c in fitting if c.kind == TAGGING]
    if not fitting:
        return None, []
    best = min(candidate.rank for candidate in fitting)
    first, *rivals = [candidate for candidate in fitting if candidate.rank == best]
    if rivals:
        options = " or ".join(candidate.option for candidate in (first, *rivals[:3]))
        several = [c.columns[0] for c in (first, *rivals) if c.option.startswith("--label")]
        together = f"; for a task of each: {' '.join(f'--label {c}' for c in several)}" if len(several) > 1 else ""
        raise ConfigError(
            f"several columns of {table.path} look like the label, and none more than the others",
            got=", ".join("+".join(candidate.columns) for candidate in (first, *rivals)),
            do=f"choose with {options}{together}",
        )
    return first, _beside(candidates, first.columns)


def _beside(candidates: Iterable[_Candidate], chosen: Sequence[str]) -> list[str]:
    return [name for c in candidates for name in c.columns if len(c.columns) == 1 and name not in chosen]


def _plain(columns: tuple[str, ...], given: Given) -> _Candidate:
    kind = given.kind or (TAGGING if given.spans else SPAN if given.answers else MULTI_LABEL if given.one_hot else None)
    key = "spans" if given.spans else "answers" if given.answers else "one_hot" if given.one_hot else "label"
    return _Candidate(columns=columns, kind=kind, rank=0, why="", key=key)


def _fits(candidate: _Candidate, kind: str) -> bool:
    if len(candidate.columns) > 1:
        return kind in (MULTI_LABEL, SINGLE_LABEL)
    return candidate.kind == kind or (candidate.kind is None and kind not in (TAGGING, SPAN, CHOICE))


def _rank(name: str) -> int:
    lower = name.lower()
    return 0 if lower in LABELS else 1 if lower in LIKE_LABELS or "label" in lower else 2


def _candidates(table: Table, tokens: str | None, choices: str | None, texts: set[str | None]) -> list[_Candidate]:
    kept = []
    for name, values in table.values.items():
        if name in (tokens, choices) or name in texts or name.lower() in NOT_ASKED or not values:
            continue
        for test in (_answers, _spans, _tags(table, tokens), _choice(table, choices), _plain_label):
            if (seen := test(name, values)) is not None:
                kind, why, key = seen
                kept.append(_Candidate(columns=(name,), kind=kind, rank=_rank(name), why=why, key=key))
                break
    if choices and any(candidate.kind == CHOICE for candidate in kept):
        kept = [candidate for candidate in kept if candidate.kind == CHOICE]
    return kept


def _answers(name: str, values: list[Any]) -> Seen | None:
    items = [item for value in values for item in (value if isinstance(value, list) else [value])]
    if items and all(isinstance(i, dict) and "text" in i and ("start" in i or "answer_start" in i) for i in items):
        is_labelled = any("label" in item for item in items)
        return None if is_labelled else (SPAN, f"'{name}' holds answers in a context", "answers")
    return None


def _spans(name: str, values: list[Any]) -> Seen | None:
    items = [item for value in values if isinstance(value, list) for item in value]
    if items and all(isinstance(item, dict) and {"start", "end", "label"} <= set(item) for item in items):
        return TAGGING, f"'{name}' holds labelled spans of the text", "spans"
    return None


def _tags(table: Table, tokens: str | None) -> Test:
    def test(name: str, values: list[Any]) -> Seen | None:
        if tokens is None or not _are_lists(values, str):
            return None
        lengths = [len(value) for value in table.values[tokens]]
        if lengths == [len(value) for value in values]:
            return TAGGING, f"'{name}' holds a tag for each of '{tokens}'", "label"
        return None

    return test


def _choice(table: Table, choices: str | None) -> Test:
    def test(name: str, values: list[Any]) -> Seen | None:
        options = table.values.get(choices or "", [])
        if len(options) != len(values):
            return None
        if all(_is_option(value, several) for value, several in zip(values, options, strict=True)):
            return CHOICE, f"'{name}' names one of '{choices}'", "label"
        return None

    return test


def _is_option(value: object, options: list[str]) -> bool:
    text = str(value)
    return text in options or (text.isdigit() and int(text) < len(options))


def _plain_label(name: str, values: list[Any]) -> Seen | None:
    rank = _rank(name)
    if all(isinstance(value, list) for value in values):
        items = [item for value in values for item in value]
        if items and all(isinstance(item, (str, int)) for item in items) and looks_like_labels(items):
            is_single = all(len(value) == 1 and isinstance(value[0], str) for value in values)
            return None if is_single else MULTI_LABEL, f"'{name}' holds lists of labels", "label"
        return None
    if any(isinstance(value, (list, dict)) for value in values):
        return None
    if all(map(is_number, values)):
        is_id = len(set(values)) == len(values) and all(str(value).isdigit() for value in values) and rank == 2
        return None if is_id else (None, f"'{name}' holds numbers", "label")
    several = [part.strip() for value in values for part in str(value).replace("|", ";").split(";")]
    if looks_like_labels(values) or (rank < 2 and looks_like_labels(several)) or name.lower() in ("label", "labels"):
        return None, f"'{name}' holds {len({str(value) for value in values}):,} different values", "label"
    return None


def _one_hot(table: Table, given: Given) -> list[_Candidate]:
    marks = {"0", "1", "true", "false", "0.0", "1.0"}
    columns = tuple(
        name
        for name, values in table.values.items()
        if len(values) == len(table.rows)
        and all(str(value).lower() in marks for value in values)
        and name not in (given.text, given.text_b)
        and _rank(name) == 2
        and name.lower() not in NOT_ASKED
    )
    columns = given.one_hot or columns
    if len(columns) < 2 or any(name not in table.values for name in columns):
        return []
    sums = [sum(str(row.get(name)).lower() in ("1", "true", "1.0") for name in columns) for row in table.rows]
    kind = SINGLE_LABEL if set(sums) == {1} else MULTI_LABEL
    why = f"{len(columns)} columns hold 0 and 1 alone, a label each"
    return [_Candidate(columns=columns, kind=kind, rank=1, why=why, key="one_hot")]


def _texts(table: Table, given: Given, taken: set[str], kind: str | None) -> tuple[tuple[str, ...], str]:
    """The column of the text, or of both texts of a pair."""
    names = [name for name in table.values if name not in taken and name.lower() not in NOT_ASKED]
    names = [n for n in names if table.values[n] and _are_texts(table.values[n])]
    if given.text:
        return (given.text,), ""
    if kind in (SPAN, CHOICE):
        context = next((name for name in names if name.lower() in CONTEXTS), None)
        rest = [name for name in names if name != context]
        question = _one_text(table, rest)
        return ((question, context) if context and question else (question,) if question else ()), ""
    by_name = {name.lower(): name for name in names}
    for first, second in [*PAIRS, *_numbered(by_name)]:
        if first in by_name and second in by_name:
            pair = by_name[first], by_name[second]
            return pair, f"'{pair[0]}' and '{pair[1]}' are two texts that are asked about together"
    text = _one_text(table, names)
    return ((text,), f"'{text}' holds the text") if text else ((), "")


def _are_texts(values: Sequence[object]) -> bool:
    return all(isinstance(value, str) for value in values) and not all(map(is_number, values))


def _numbered(by_name: dict[str, str]) -> list[tuple[str, str]]:
    return [
        (name, name.removesuffix(first) + second)
        for name in by_name
        for first, second in ENDS
        if name.endswith(first) and len(name) > len(first)
    ]


def _one_text(table: Table, names: Sequence[str]) -> str | None:
    ranks = {name: TEXTS.index(name.lower()) if name.lower() in TEXTS else len(TEXTS) for name in names}
    lengths = {name: sum(map(len, table.values[name])) / len(table.values[name]) for name in names}
    known = sorted((name for name in names if ranks[name] < len(TEXTS)), key=ranks.__getitem__)
    if known:
        return known[0]
    longest = sorted(names, key=lengths.__getitem__, reverse=True)
    if len(longest) > 1 and lengths[longest[0]] < 2 * lengths[longest[1]]:
        first, second = longest[:2]
        raise ConfigError(
            f"two columns of {table.path} look like the text",
            got=f"{first}, {second}",
            do=f"choose with --text {first} or --text {second}, or ask about both: --text {first} --text-b {second}",
        )
    return longest[0] if longest else None
