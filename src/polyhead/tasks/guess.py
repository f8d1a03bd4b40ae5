"""What kind of task some labels make, and what separates several labels in a cell: guesses, each with its reason."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from polyhead.config import Value
from polyhead.errors import ConfigError, EmptyData
from polyhead.tasks.kinds.base import listed, spelled
from polyhead.tasks.kinds.multi_label import MultiLabel
from polyhead.tasks.kinds.regression import NUMBER, Regression
from polyhead.tasks.kinds.single_label import SingleLabel
from polyhead.tasks.kinds.span import Span
from polyhead.tasks.kinds.tagging import Tagging

SINGLE_LABEL, MULTI_LABEL, REGRESSION = SingleLabel.name, MultiLabel.name, Regression.name
TAGGING, SPAN = Tagging.name, Span.name
SEPARATORS = (";", "|", ",")  # between the labels of a cell
MOST_LABELS = 1000  # different values of more are texts
LONGEST_LABEL = 80  # mean characters; longer values are texts
COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+")  # half of the world's decimal mark
FEW_NUMBERS = 20  # whole numbers of so many values or less may be names of classes


class Guess(Value):
    """The kind that the labels make; `rivals` are kinds that fit them as well, of which a person must choose."""

    kind: str
    why: str
    separator: str | None = None  # between several labels in one cell
    rivals: tuple[str, ...] = ()


def kind_of_labels(labels: Iterable[object]) -> Guess:
    """The kind of a task with these labels, one a row; None and blank strings are rows without a label.

    A label is a string, a number, a bool (numpy's too) or a list: of strings, of `{start, end, label}` or of
    `{text, start}`. A string may also be a table's cell: a number, a JSON list, several labels with a separator.
    Raises EmptyData if there is no label, or if the values are all different or too long, so that they are no labels,
    ConfigError for numbers with a decimal comma, which may be pairs of labels.
    """
    values = [value for value in map(plain, labels) if value is not None and not is_blank(value)]
    if not values:
        raise EmptyData("there is no label to guess a kind from", do="give a label for each text")
    if all(isinstance(value, str) for value in values):
        lists = [listed(str(value), None) for value in values]
        if any(isinstance(value, list) for value in lists):
            values = lists if all(isinstance(value, list) for value in lists) else values
    if any(isinstance(value, (list, dict)) for value in values):
        return _of_lists(values)
    if all(is_number(value) or COMMA.fullmatch(str(value)) for value in values) and not all(map(is_number, values)):
        raise ConfigError(
            "the labels may be numbers with a decimal comma, or whole numbers with ',' between them",
            got=next(value for value in values if not is_number(value)),
            allowed=f"kind '{MULTI_LABEL}' for several labels; numbers with a point",
            do="say the kind, or write the numbers with a point",
        )
    if all(map(is_number, values)):
        return _of_numbers([str(value) for value in values], typed=any(isinstance(value, float) for value in values))
    return _of_strings([spelled(value) or str(value) for value in values])


def plain(value: object) -> object:
    """A scalar or array of numpy, and NaN, as what Python calls it."""
    if not isinstance(value, (str, list, dict)):
        for method in ("tolist", "item"):
            if hasattr(value, method):
                value = getattr(value, method)()
                break
    if isinstance(value, (tuple, set, frozenset)):
        return list(value)
    return None if isinstance(value, float) and math.isnan(value) else value


def is_blank(value: object) -> bool:
    """True for a string without visible text."""
    return isinstance(value, str) and not value.strip()


def is_number(value: object) -> bool:
    """True for a number that is no bool, and for a cell that spells one."""
    return NUMBER.fullmatch(value) is not None if isinstance(value, str) else type(value) in (int, float)


def separator_of(cells: Sequence[str]) -> tuple[str, bool] | None:
    """What separates labels in the cells, and whether that is certain; None if each cell is one label.

    It is certain where labels come in several combinations. A semicolon or a bar that never is so may be part of a
    label; a comma that never is so is one.
    """
    different = {cell for cell in cells if cell.strip()}
    for mark in SEPARATORS:
        if not any(mark in cell for cell in different):
            continue
        parts = [part.strip() for cell in different for part in cell.split(mark) if part.strip()]
        again = len(parts) - len(set(parts))
        if not parts or len(set(parts)) > MOST_LABELS or sum(map(len, parts)) > LONGEST_LABEL * len(parts):
            continue
        if again and (mark != "," or again >= len(set(parts)) / 2):
            return mark, True
        if mark != ",":
            return mark, False
    return None


def _of_lists(values: Sequence[object]) -> Guess:
    items = [item for value in values for item in (value if isinstance(value, list) else [value])]
    if items and all(isinstance(item, Mapping) for item in items):
        if all({"start", "end", "label"} <= set(item) for item in items if isinstance(item, Mapping)):
            return Guess(kind=TAGGING, why="each label is a list of {start, end, label}")
        return Guess(kind=SPAN, why="each label is a list of answers with their places")
    names = {item for item in items if isinstance(item, str)}
    if names and all(name == "O" or name[:2] in ("B-", "I-") for name in names):
        return Guess(kind=TAGGING, why="each label is a list of B-, I- and O tags")
    return Guess(kind=MULTI_LABEL, why="each label is a list of labels")


def _of_numbers(cells: Sequence[str], *, typed: bool) -> Guess:
    """`typed`: some are floats, which cannot be the name of a class."""
    numbers = {float(cell) for cell in cells}
    is_whole = all(cell.lstrip("+-").isdigit() for cell in cells)
    if is_whole and len(numbers) <= 2:
        return Guess(kind=SINGLE_LABEL, why=f"the labels are {_shown(numbers)}")
    if is_whole and numbers == set(range(len(numbers))) and len(cells) >= 2 * len(numbers):
        return Guess(kind=SINGLE_LABEL, why=f"the labels are the whole numbers 0 to {len(numbers) - 1}")
    if not is_whole and len(numbers) <= 2 and not typed:
        return Guess(kind=SINGLE_LABEL, why=f"the labels are {_shown(numbers)}", rivals=(REGRESSION,))
    if not is_whole or len(numbers) > FEW_NUMBERS or len(cells) < 2 * len(numbers):
        return Guess(kind=REGRESSION, why=f"the labels are {len(numbers):,} different numbers")
    why = f"the labels are {len(numbers)} whole numbers, {min(numbers):g} to {max(numbers):g}"
    return Guess(kind=SINGLE_LABEL, why=why, rivals=(REGRESSION,))


def _shown(numbers: set[float]) -> str:
    return " and ".join(f"{number:g}" for number in sorted(numbers))


def _of_strings(cells: Sequence[str]) -> Guess:
    if (chosen := separator_of(cells)) is not None:
        mark, is_certain = chosen
        why = f"cells hold several labels with '{mark}' between them"
        return Guess(kind=MULTI_LABEL, why=why, separator=mark, rivals=() if is_certain else (SINGLE_LABEL,))
    counts = Counter(cells)
    if not looks_like_labels(cells):
        raise EmptyData(
            "the values are no labels: nearly all are different, or they are long",
            got=f"{len(counts):,} different values in {len(cells):,} rows, such as {cells[0][:60]!r}",
            do="give the labels, or say the kind if they are labels",
        )
    return Guess(kind=SINGLE_LABEL, why=f"{len(counts)} different labels in {len(cells):,} rows")


def looks_like_labels(values: Sequence[object]) -> bool:
    """Whether some values, none of them blank, recur and are short, as names of classes are."""
    cells = [str(value) for value in values]
    different = len(set(cells))
    recurs = different <= max(2, len(cells) // 2) if len(cells) > 4 else True
    return bool(cells) and recurs and different <= MOST_LABELS and sum(map(len, cells)) <= LONGEST_LABEL * len(cells)
