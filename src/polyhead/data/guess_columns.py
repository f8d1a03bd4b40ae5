"""Guesses which columns of a table are texts and labels, from their names and values, each with its reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from polyhead.data.columns import Columns
from polyhead.data.guess_kind import (
    DATE,
    MULTI_LABEL,
    SINGLE_LABEL,
    SPAN,
    TAGGING,
    are_codes,
    is_blank,
    is_numeric,
    looks_like_labels,
    plain,
)
from polyhead.data.guess_texts import (
    CONTEXTS,
    in_roles,
    may_hold_data,
    named_texts,
    one_text,
    pair_of,
    several_options,
    text_columns,
)
from polyhead.data.rows import Rows
from polyhead.data.tables import Row
from polyhead.errors import ConfigError
from polyhead.tasks.kinds.base import listed
from polyhead.tasks.kinds.multiple_choice import MultipleChoice, place_of_letter
from polyhead.text.question import by_mark, unmarked
from polyhead.values import Value

CHOICE = MultipleChoice.name
MOST_ROWS = 20_000  # rows examined, evenly spread over a file
LABELS = ("label", "labels", "tags", "spans", "answers", "entities")
LIKE_LABELS = {"class", "category", "categories", "target", "y", "intent", "sentiment", "topic", "topics"}
LIKE_LABELS |= {"gold", "score"}
CHOICES = ("choices", "options", "endings", "candidates")
TOKENS = ("tokens", "words")


class Layout(Columns):
    """The columns of a task. `kind` is None if the labels must decide it; `others` are other columns of labels."""

    kind: str | None = None
    whys: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


class Table(Value, eq=False):
    """All or evenly spread rows of a file; `values` holds the non-blank values by column, JSON lists as lists."""

    path: str
    rows: list[dict[str, object]]
    values: dict[str, list[Any]]
    has_cells: bool


LabelGuess = tuple[str | None, str, str]
"""The kind (None if the values must decide), the reason, and the key of the column: "label", "spans" or "answers"."""


class _Candidate(Value):
    """A column, or several of 0 and 1, that may be the label; a lower `rank` is better."""

    columns: tuple[str, ...]
    kind: str | None
    rank: int
    why: str
    key: str = "label"  # what the column holds: "label", "spans", "answers" or "soft"

    @property
    def option(self) -> str:
        """The command-line option that selects it."""
        return f"--{'one-hot' if self.key == 'soft' else self.key} {','.join(self.columns)}"


def table_of(path: str, *, readable: bool = False) -> Table:
    """The file's rows for guessing, or only those that are `readable`; raises the errors of `Rows`."""
    rows, kept, step = Rows(path), list[dict[str, object]](), 1
    read = (row for row in rows.each() if isinstance(row, Row)) if readable else rows
    for index, row in enumerate(read):
        if index % step == 0:
            kept.append({name: plain(value) for name, value in row.values.items()})
        if len(kept) > MOST_ROWS:
            kept, step = kept[::2], step * 2
    columns = rows.columns
    values: dict[str, list[Any]] = {name: [] for name in columns}
    for cells_of_row in kept:
        for name, value in cells_of_row.items():
            if value is not None and not is_blank(value):
                values[name].append(value)
    for name, cells in values.items():
        if cells and all(isinstance(cell, str) and cell.lstrip().startswith("[") for cell in cells):
            lists = [listed(str(cell), cell) for cell in cells]
            values[name] = lists if all(isinstance(value, list) for value in lists) else cells
    return Table(path=path, rows=kept, values=values, has_cells=rows.has_cells)


def layout_of(table: Table, named: Columns, kind: str | None = None) -> Layout:
    """The columns of one task: the named ones, and guesses for the others.

    Raises ConfigError if two guesses are equally good, with the options that select one of them.
    """
    fields = {name: value for name in Columns.__struct_fields__ if (value := getattr(named, name))}
    tokens = named.tokens or _tokens(table)
    choices = named.choices or _choices(table, kind)
    if named.label and named.label not in table.values:
        return Layout(kind=kind, **fields)  # the reader of the columns reports what is missing
    labels = {named.label, named.spans, named.answers, *named.one_hot}
    texts = () if named.text else named_texts(table.values, {tokens, choices, *labels})
    chosen, others = _label(table, named, kind, tokens, choices, {*named.text_columns, named.text_b, *texts})
    if chosen is None:
        return Layout(kind=kind, **fields)
    if kind is None and chosen.kind is None:
        _check_no_options(table, chosen.columns[0], choices, named)
    kind = kind or chosen.kind
    guessed: dict[str, Any] = {chosen.key: chosen.columns if chosen.key == "soft" else chosen.columns[0]}
    whys = [chosen.why]
    if kind == TAGGING and "spans" not in guessed:
        guessed["tokens"] = tokens
    else:
        guessed["choices"] = choices if kind == CHOICE else None
        texts = named.text_columns[:1] or _texts(table, {*chosen.columns, *others, choices, tokens}, kind)
        guessed |= dict(zip(("text", "text_b"), texts, strict=False))
        whys.append("" if named.text else in_roles(texts, kind))
    return Layout(kind=kind, **(guessed | fields), whys=tuple(why for why in whys if why), others=tuple(others))


def _tokens(table: Table) -> str | None:
    return next(
        (name for name, values in table.values.items() if name.lower() in TOKENS and _are_lists(values, str)), None
    )


def _choices(table: Table, kind: str | None) -> str | None:
    if kind not in (None, CHOICE):
        return None
    for name, values in table.values.items():
        options: list[Any] = [its for value in values if (its := unmarked(value)) != []]
        if name.lower() in CHOICES and _are_lists(options, str) and all(len(its) >= 2 for its in options):
            return name
    return None


def _check_no_options(table: Table, label: str, choices: str | None, named: Columns) -> None:
    """Raises ConfigError if a label seems to name an option of a question: without a kind it would not be read so."""
    columns = [choices] if choices else [] if named.text else several_options(table.values)
    values = table.values.get(label, [])
    if columns and values and all(_place(str(value).upper()) is not None for value in values):
        raise ConfigError(
            f"'{label}' of {table.path} may say which option of a question is right, and cannot be read so",
            got=f"{', '.join(sorted(set(map(str, values)))[:6])}, beside options in {', '.join(columns)}",
            allowed="one column with the list of options, such as 'choices', and a label that is an index from 0, a "
            "letter from A on, or an option's text",
            do=f"write the rows so, or choose --kind {SINGLE_LABEL} for a label that is no option",
        )


def _are_lists(values: Sequence[Any], of: type) -> bool:
    return bool(values) and all(isinstance(v, list) and all(isinstance(item, of) for item in v) for v in values)


def _label(
    table: Table, named: Columns, kind: str | None, tokens: str | None, choices: str | None, texts: set[str | None]
) -> tuple[_Candidate | None, list[str]]:
    """The label, and other columns that look like labels; columns in `texts` are excluded."""
    candidates = [*_candidates(table, tokens, choices, texts), *_one_hot(table, named)]
    columns = named.one_hot or tuple(name for name in (named.spans, named.answers, named.label) if name)[:1]
    fitting = [c for c in candidates if kind is None or _fits(c, kind)]
    if columns:
        same = [c for c in candidates if c.columns == columns][:1]
        return next((c for c in same if c in fitting), _plain(columns, named, kind)), _other_labels(candidates, columns)
    if named.tokens:
        fitting = [c for c in fitting if c.kind == TAGGING]
    if not fitting:
        return None, []
    best = min(candidate.rank for candidate in fitting)
    first, *rivals = [candidate for candidate in fitting if candidate.rank == best]
    if rivals:
        options = " or ".join(candidate.option for candidate in (first, *rivals[:3]))
        names = [c.columns[0] for c in (first, *rivals) if c.option.startswith("--label")]
        together = f"; for a task of each: {' '.join(f'--label {c}' for c in names)}" if len(names) > 1 else ""
        raise ConfigError(
            f"several columns of {table.path} look like the label, and none more than the others",
            got=", ".join("+".join(candidate.columns) for candidate in (first, *rivals)),
            do=f"choose with {options}{together}",
        )
    return first, _other_labels(candidates, first.columns)


def _other_labels(candidates: Iterable[_Candidate], chosen: Sequence[str]) -> list[str]:
    taken = {*chosen}
    return [name for c in candidates for name in c.columns if len(c.columns) == 1 and name not in taken]


def _plain(columns: tuple[str, ...], named: Columns, kind: str | None) -> _Candidate:
    key = "spans" if named.spans else "answers" if named.answers else "soft" if named.one_hot else "label"
    shown = {"spans": TAGGING, "answers": SPAN, "soft": MULTI_LABEL}.get(key)
    return _Candidate(columns=columns, kind=kind or shown, rank=0, why="", key=key)


def _fits(candidate: _Candidate, kind: str) -> bool:
    if len(candidate.columns) > 1:
        return kind in (MULTI_LABEL, SINGLE_LABEL)
    return candidate.kind == kind or (candidate.kind is None and kind not in (TAGGING, SPAN, CHOICE))


def _rank(name: str) -> int:
    lower = name.strip().lower()
    return 0 if lower in LABELS else 1 if lower in LIKE_LABELS or "label" in lower else 2


def _candidates(table: Table, tokens: str | None, choices: str | None, texts: set[str | None]) -> list[_Candidate]:
    kept = []
    named = {name for name in table.values if may_hold_data(name) or _rank(name) < 2}
    # a lone id column may hold the id of a class
    named = named if named - {tokens, choices, *texts} else {*table.values}
    for name, values in table.values.items():
        if name in (tokens, choices) or name in texts or name not in named or not values:
            continue
        if _rank(name) == 2 and 2 * len(values) < len(table.rows) and len(set(map(str, values))) == len(values):
            continue  # comments on a few rows
        if (seen := _label_guess(table, name, values, tokens, choices)) is not None:
            kind, why, key = seen
            kept.append(_Candidate(columns=(name,), kind=kind, rank=_rank(name), why=why, key=key))
    if choices and any(candidate.kind == CHOICE for candidate in kept):
        kept = [candidate for candidate in kept if candidate.kind == CHOICE]
    return kept


def _label_guess(
    table: Table, name: str, values: list[Any], tokens: str | None, choices: str | None
) -> LabelGuess | None:
    """The content of a column that may be a label."""
    items = [item for value in values for item in (value if isinstance(value, list) else [value])]
    objects = [item for item in items if isinstance(item, dict)]
    if objects and len(objects) == len(items):
        if all({"start", "end", "label"} <= set(item) for item in objects):
            return (TAGGING, f"spans: '{name}', labelled spans of the text", "spans")
        are_answers = all("text" in item and ("start" in item or "answer_start" in item) for item in objects)
        if are_answers and not any("label" in item for item in objects):
            return SPAN, f"answers: '{name}', each with its place in a context", "answers"
    if tokens and _are_lists(values, str) and list(map(len, table.values[tokens])) == list(map(len, values)):
        return TAGGING, f"tags: '{name}', one for each of '{tokens}'", "label"
    chosen = _chosen(table, name, choices) if choices else []
    if chosen and all(_is_option(value, options) for value, options in chosen):
        return CHOICE, f"label: '{name}', one of '{choices}'", "label"
    return _plain_label(name, values)


def _chosen(table: Table, name: str, choices: str) -> list[tuple[object, Any]]:
    """The label in a column of each row that has both, with the row's options."""
    chosen = []
    for row in table.rows:
        cell = row.get(choices)
        cell = listed(cell, cell) if isinstance(cell, str) else cell
        label, options = by_mark(row.get(name), cell), unmarked(cell)
        if label is not None and not is_blank(label) and options not in (None, []) and not is_blank(options):
            chosen.append((label, options))
    return chosen


def _is_option(value: object, options: Any) -> bool:
    place = _place(value)
    return str(value) in options or (place is not None and place < len(options))


def _place(value: object) -> int | None:
    """The place of an option that an index or a letter names; None for anything else."""
    index = MultipleChoice().parse(str(value).removesuffix(".0"), None)  # 1.0 is 1, as frames write it
    return index if isinstance(index, int) else place_of_letter(str(value))


def _plain_label(name: str, values: list[Any]) -> LabelGuess | None:
    rank = _rank(name)
    if all(isinstance(value, list) for value in values):
        items = [item for value in values for item in value]
        if items and all(isinstance(item, (str, int)) for item in items) and looks_like_labels(items):
            is_single = all(len(value) == 1 and isinstance(value[0], str) for value in values)
            shape = "a list of one label in each row" if is_single else "a list in each row"
            return None if is_single else MULTI_LABEL, f"labels: '{name}', {shape}", "label"
        return None
    if any(isinstance(value, (list, dict)) for value in values):
        return None
    different = f"{len({str(value) for value in values}):,}"
    if is_numeric(values) and (are_codes(values, name) is None):
        is_id = len(set(values)) == len(values) and all(str(value).isdigit() for value in values) and rank == 2
        return None if is_id else (None, f"label: '{name}', {different} numbers", "label")
    if rank == 2 and all(DATE.fullmatch(str(value)) for value in values):
        return None
    parts = [part.strip() for value in values for part in str(value).replace("|", ";").split(";")]
    if looks_like_labels(values) or (rank < 2 and looks_like_labels(parts)) or name.lower() in ("label", "labels"):
        return None, f"label: '{name}', {different} values", "label"
    return None


def _one_hot(table: Table, named: Columns) -> list[_Candidate]:
    marks = {"0", "1", "true", "false", "0.0", "1.0"}
    columns = tuple(
        name
        for name, values in table.values.items()
        if len(values) == len(table.rows)
        and all(str(value).lower() in marks for value in values)
        and name not in (*named.text_columns, named.text_b)
        and _rank(name) == 2
        and may_hold_data(name)
    )
    columns = named.one_hot or columns
    if len(columns) < 2 or any(name not in table.values for name in columns):
        return []
    sums = [sum(str(row.get(name)).lower() in ("1", "true", "1.0") for name in columns) for row in table.rows]
    kind = SINGLE_LABEL if set(sums) == {1} else MULTI_LABEL
    why = f"labels: {', '.join(columns)}: columns of 0 and 1, a label each"
    return [_Candidate(columns=columns, kind=kind, rank=1, why=why, key="soft")]


def _texts(table: Table, taken: set[str | None], kind: str | None) -> tuple[str, ...]:
    """The column of the text or the question, or those of both texts."""
    names = text_columns(table.values, taken)
    if kind not in (SPAN, CHOICE):
        return pair_of(table.values, names) or one_text(table.path, table.values, names)
    context = next((name for name in names if name.lower() in CONTEXTS), None)
    question = one_text(table.path, table.values, [name for name in names if name != context])
    return (*question, context) if question and context else question
