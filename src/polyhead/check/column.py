"""Checks of other columns: undeclared labels, columns that reveal the label, columns without information."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from polyhead.check.split_rows import Finding, SplitRows, names_text
from polyhead.data.guess_columns import LABELS, LIKE_LABELS, Table
from polyhead.data.guess_kind import is_number, looks_like_labels
from polyhead.data.guess_texts import may_hold_data

FEW = 20  # rows with a value
MOST_VALUES = 100  # of a column that looks like labels, judged by its values alone
OFTEN = 5  # average rows per value
# share of rows whose label follows from a column's value, and share of the most frequent label
TELLS, MOSTLY = 0.99, 0.95


def columns(split: SplitRows, table: Table, declared: Collection[str]) -> Iterator[Finding]:
    """Findings about other columns of the file; `declared` are the columns that the tasks read."""
    others = [name for name in table.values if name not in declared]
    constant = [name for name in others if _is_constant(table, name)]
    if constant:
        message = f"{split.file}: the same value in every row of {names_text(constant)}"
        yield split.found("constant_column", "hint", message, do="leave the column out, or read the file anew")
    if split.has_classes and not split.kind.label_is_list:
        telling = [name for name in others if name not in constant and _tells(split, table, name)]
        if telling:
            message = f"{split.file}: {names_text(telling)} tells the label of nearly every row"
            do = "keep it out of the text, or declare it if it is the label that is meant"
            yield split.found("telling_column", "hint", message, do=do)
    else:
        telling = []
    labels = [name for name in others if name not in (*constant, *telling) and _looks_like_labels(table, name)]
    if labels:
        message = f"{split.file}: columns that look like labels, and belong to no task: {names_text(labels)}"
        do = f"add a task of each with `polyhead init --label {labels[0]}`, or leave them"
        yield split.found("undeclared_label", "hint", message, do=do)


def _is_constant(table: Table, name: str) -> bool:
    values = table.values[name]
    first = repr(values[0]) if values else ""
    return len(values) >= FEW and all(repr(value) == first for value in values)


def _looks_like_labels(table: Table, name: str) -> bool:
    values, lower = table.values[name], name.lower()
    if not may_hold_data(name) or len(values) < FEW:
        return False
    items = [item for value in values for item in (value if isinstance(value, list) else [value])]
    if any(isinstance(item, (dict, list)) for item in items) or not items:
        return False
    different = len({str(item) for item in items})
    if lower in LABELS or lower in LIKE_LABELS or "label" in lower:
        return all(map(is_number, items)) or looks_like_labels(items)
    is_fraction = any(isinstance(item, float) and not item.is_integer() for item in items)
    return different <= MOST_VALUES and len(items) >= OFTEN * different and not is_fraction and looks_like_labels(items)


def _tells(split: SplitRows, table: Table, name: str) -> bool:
    """Whether the column's values recur and determine the label of nearly every row."""
    column = split.source.label or split.kind.label_key
    pairs = [
        (str(row[name]), str(row[column]))
        for row in table.rows
        if row.get(name) is not None and row.get(column) not in (None, "", [])
    ]
    if len(pairs) < FEW or not may_hold_data(name):
        return False
    values = Counter(value for value, _ in pairs)
    if len(values) < 2 or len(values) * OFTEN > len(pairs):
        return False
    together, label_counts = Counter(pairs), Counter(label for _, label in pairs)
    best: dict[str, int] = {}
    for (value, _), count in together.items():
        best[value] = max(count, best.get(value, 0))
    return sum(best.values()) >= TELLS * len(pairs) and max(label_counts.values()) <= MOSTLY * len(pairs)
