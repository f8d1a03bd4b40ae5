"""Guesses the kind of task from its labels, and the separator of several labels in a cell, each with its reason."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal

from polyhead.errors import ConfigError, EmptyData
from polyhead.progress import counted
from polyhead.tasks.kinds.base import listed, spelled
from polyhead.tasks.kinds.multi_label import BY_NAMES, NAMELESS, NAMES, MultiLabel, are_marks
from polyhead.tasks.kinds.regression import NUMBER, Regression
from polyhead.tasks.kinds.single_label import SingleLabel
from polyhead.tasks.kinds.span import Span
from polyhead.tasks.kinds.tagging import Tagging
from polyhead.values import Value

SINGLE_LABEL, MULTI_LABEL, REGRESSION = SingleLabel.name, MultiLabel.name, Regression.name
TAGGING, SPAN = Tagging.name, Span.name
SEPARATORS = (";", "|", ",")  # between the labels of a cell
MOST_LABELS = 1000  # more different values than this are texts
LONGEST_LABEL = 80  # mean characters; longer values are texts
COMMA = r"[0-9]+,[0-9]+"  # half of the world's decimal mark
THOUSANDS = r"[0-9]{1,3}([.,' \u00a0\u2019\u202f][0-9]{3})+([.,][0-9]+)?"
MARKED_NUMBER = re.compile(f"[+-]?({COMMA}|{THOUSANDS})")  # numbers in a format that programs do not write
POINTED_NUMBER = re.compile(r"[+-]?[1-9][0-9]{0,2}\.[0-9]{3}")  # thousands, or three digits after the point
CODE = re.compile(r"[+-]?0[0-9].*|\+[0-9]{7,}")  # a leading zero, or a telephone number
# whole numbers as data frames write them: with ".0" in a column with empty cells
WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+(\.0)?")
FEW_NUMBERS = 20  # up to this many recurring values may be names of classes
CODE_DIGITS = 4  # whole numbers with equally many digits: postcodes, years, product codes
CODE_FRACTION = 3  # digits after the point that a code or a version may have
CODES = {"code", "codes", "zip", "zipcode", "postcode", "postal", "plz", "phone", "telephone", "icd", "isbn", "ean"}
CODES |= {"sku", "naics", "sic", "isco", "version", "release"}
MEASURES = {"score", "scores", "rating", "similarity", "relatedness", "value", "price", "amount", "probability"}
MEASURES |= {"percent", "length", "weight", "temperature"}
DAY = r"[0-9]{4}[-/.][0-9]{1,2}[-/.][0-9]{1,2}([ T].*)?|[0-9]{1,2}[-/.][0-9]{1,2}[-/.][0-9]{2,4}( .*)?"
DATE = re.compile(rf"{DAY}|[0-9]{{1,2}}:[0-9]{{2}}(:[0-9.]+)?")


class Guess(Value):
    """The kind that fits the labels; `rivals` are kinds that fit equally well, so that a person must choose."""

    kind: str
    why: str
    separator: str | None = None  # separates several labels in one cell
    rivals: tuple[str, ...] = ()


def kind_of_labels(labels: Iterable[object], *, name: str = "") -> Guess:
    """The kind of a task with these labels, one per row; None and blank strings are rows without a label.

    A label is a string, a number, a bool (numpy's too) or a list: of strings, of `{start, end, label}` or of `{text,
    start}`. A string may also be a table's cell: a number, a JSON list, or several labels with a separator. `name` is
    the name of their column; it distinguishes codes from measures.
    Raises EmptyData if there is no label, or if all values differ or are too long for labels, ConfigError for numbers
    with a decimal comma or thousands separators, which are ambiguous.
    """
    rows = list(map(plain, labels))
    values = [value for value in rows if value is not None and not is_blank(value)]
    if not values:
        raise EmptyData("there is no label to guess a kind from", do="give a label for each text")
    if all(isinstance(value, str) for value in values):
        lists = [listed(str(value), None) for value in values]
        if any(isinstance(value, list) for value in lists):
            values = lists if all(isinstance(value, list) for value in lists) else values
    if any(isinstance(value, (list, dict)) for value in values):
        return _of_lists(values)
    has_lists = any(CODE.fullmatch(str(v)) for v in values) and not all(map(is_number, values))  # "01,02" next to "01"
    if is_numeric(values) and not has_lists:
        return _of_numbers(values, has_gaps=len(values) < len(rows), name=name)
    return _of_strings([spelled(value) or str(value) for value in values])


def plain(value: object) -> object:
    """A numpy scalar or array as a Python value, and None for every marker of a missing value."""
    if is_missing(value):
        return None
    if isinstance(value, str):
        return str.__str__(value)  # of exactly this type, as writers of JSON expect
    if not isinstance(value, (list, dict)):
        for method in ("tolist", "item"):
            if hasattr(value, method):
                value = getattr(value, method)()
                break
    if isinstance(value, (tuple, set, frozenset)):
        return list(value)
    if isinstance(value, Decimal) and value.is_finite():
        value = int(value) if value == value.to_integral_value() else float(value)
    return None if is_missing(value) else value


def with_plain_numbers(value: object) -> object:
    """The value with numbers of Python in place of decimals, at any depth."""
    if isinstance(value, list | tuple):
        return list(map(with_plain_numbers, value))
    if isinstance(value, dict):
        return {name: with_plain_numbers(item) for name, item in value.items()}
    return plain(value) if isinstance(value, Decimal) else value


def is_missing(value: object) -> bool:
    """True for None, NaN of any type, and pandas' markers of missing values: NA and NaT."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(value, (str, bytes, int)) or hasattr(value, "__len__"):
        return False
    try:
        return bool(value != value)  # only NaN differs from itself
    except (TypeError, ValueError, ArithmeticError):  # a signalling NaN of Decimal
        return False


def is_blank(value: object) -> bool:
    """True for a string without visible text."""
    return isinstance(value, str) and not value.strip()


def is_number(value: object) -> bool:
    """True for a number that is not a bool, and for a cell that spells one."""
    return NUMBER.fullmatch(value) is not None if isinstance(value, str) else type(value) in (int, float)


def separator_of(cells: Sequence[str]) -> tuple[str, bool] | None:
    """The separator of labels in the cells, and whether it is certain; None if each cell is one label.

    It is certain if labels occur in several combinations. Otherwise a semicolon or a bar may be part of a label, and a
    comma is.
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


def separator_between(cells: Sequence[str], labels: Collection[str]) -> str | None:
    """The separator that splits all cells into known `labels`; falls back to `separator_of`."""
    known = set(labels)
    for mark in (None, *SEPARATORS) if known else ():
        parts = {part.strip() for cell in cells for part in (cell.split(mark) if mark else [cell])} - {""}
        if parts <= known:
            return mark
    chosen = separator_of(cells)
    return chosen[0] if chosen else None


def _of_lists(values: Sequence[object]) -> Guess:
    items = [item for value in values for item in (value if isinstance(value, list) else [value])]
    objects = [set(item) for item in items if isinstance(item, Mapping)]
    if items and len(objects) == len(items):
        if all({"start", "end", "label"} <= keys for keys in objects):
            return Guess(kind=TAGGING, why="each label is a list of {start, end, label}")
        if all("text" in keys and keys & {"start", "answer_start"} for keys in objects):
            return Guess(kind=SPAN, why="each label is a list of answers with their places")
    if objects or any(isinstance(item, (list, tuple)) for item in items):
        raise ConfigError(
            "the labels are objects or lists of values, which no kind of task reads so",
            got=values[0],
            allowed="names of labels; lists of {start, end, label}, of {text, start} or of names",
            do="write labels so",
        )
    check_named(values)
    names = {item for item in items if isinstance(item, str)}
    if names and all(name == "O" or name[:2] in ("B-", "I-") for name in names):
        return Guess(kind=TAGGING, why="each label is a list of B-, I- and O tags")
    return Guess(kind=MULTI_LABEL, why="each label is a list of labels")


def check_named(values: Iterable[object]) -> None:
    """Raises ConfigError if every row is a list of 0 and 1, as many in each: these are marks, and no names.

    As names they would say both '0' and '1' of all rows, or nearly all.
    """
    rows = list(values)
    marked = [row for row in rows if isinstance(row, list) and are_marks(row)]
    if rows and len(marked) == len(rows) and len(set(map(len, marked))) == 1:
        raise ConfigError(NAMELESS, got=marked[0], allowed=NAMES, do=BY_NAMES)


def is_numeric(values: Sequence[object]) -> bool:
    """True if all values are numbers, possibly with a decimal comma or thousands separators."""
    return all(is_number(value) or (isinstance(value, str) and MARKED_NUMBER.fullmatch(value)) for value in values)


def are_codes(values: Sequence[object], name: str = "") -> str | None:
    """The reason why numeric values are names: their characters, or the name of their column."""
    cells = [value for value in values if isinstance(value, str)]
    if code := next((cell for cell in cells if CODE.fullmatch(cell)), None):
        return f"'{code}' is no number, but a code"
    spellings: dict[float, str] = {}
    for cell in cells:
        before = spellings.setdefault(float(cell), cell) if is_number(cell) else cell
        if cell != before and not (WHOLE_NUMBER.fullmatch(cell) and WHOLE_NUMBER.fullmatch(before)):
            return f"'{before}' and '{cell}' would be one number"
    return f"'{name}' names codes" if CODES.intersection(_words(name)) else None


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower())


def _of_numbers(values: Sequence[object], *, has_gaps: bool, name: str) -> Guess:
    """`has_gaps`: some rows have no value, for which data frames write whole numbers with '.0'."""
    cells = [str(value) for value in values]
    if looks_like_labels(cells) and (why := are_codes(values, name)) is not None:
        return Guess(kind=SINGLE_LABEL, why=f"{why}: {len(set(cells)):,} different labels")
    if CODES.intersection(_words(name)) or any(CODE.fullmatch(value) for value in values if isinstance(value, str)):
        raise _no_labels(cells)
    _check_marks(values)
    numbers = {float(str(value)) for value in values}
    if all(WHOLE_NUMBER.fullmatch(cell) for cell in cells):
        is_made = has_gaps or not any(isinstance(value, str) for value in values)
        with_point = {cell.endswith(".0") for cell in cells}
        return _of_whole(numbers, len(cells), is_plain=with_point == {False} or (is_made and len(with_point) == 1))
    is_few = len(numbers) <= FEW_NUMBERS and len(cells) >= 2 * len(numbers)
    is_fine = max(len(cell.partition(".")[2]) for cell in cells) > CODE_FRACTION
    is_measured = is_fine or max(map(abs, numbers)) <= 1 or min(numbers) < 0 or MEASURES.intersection(_words(name))
    if is_few and not is_measured:
        why = f"the labels are {_shown(numbers)}, which may be numbers or names"
        return Guess(kind=SINGLE_LABEL, why=why, rivals=(REGRESSION,))
    return Guess(kind=REGRESSION, why=f"the labels are {len(numbers):,} different numbers")


def _of_whole(numbers: set[float], rows: int, *, is_plain: bool) -> Guess:
    """`is_plain`: each number is spelled in only one way, as whole numbers are."""
    recurs = rows >= 2 * len(numbers)
    if is_plain and len(numbers) <= 2:
        return Guess(kind=SINGLE_LABEL, why=f"the labels are {_shown(numbers)}")
    if is_plain and numbers == set(range(len(numbers))) and recurs:
        return Guess(kind=SINGLE_LABEL, why=f"the labels are the whole numbers 0 to {len(numbers) - 1}")
    digits = {len(f"{abs(number):.0f}") for number in numbers}
    has_width = len(digits) == 1 and min(digits) >= CODE_DIGITS and len(numbers) <= MOST_LABELS
    if len(numbers) <= 2 or (recurs and (len(numbers) <= FEW_NUMBERS or has_width)):
        why = f"the labels are {len(numbers)} whole numbers, {min(numbers):.15g} to {max(numbers):.15g}"
        return Guess(kind=SINGLE_LABEL, why=why, rivals=(REGRESSION,))
    return Guess(kind=REGRESSION, why=f"the labels are {len(numbers):,} different numbers")


def _check_marks(values: Sequence[object]) -> None:
    """Raises ConfigError for a decimal comma, and for thousands separators that would be read as something else."""
    cells = [value for value in values if isinstance(value, str)]
    marked = [cell for cell in cells if not is_number(cell)]
    pointed = [cell for cell in cells if "." in cell]
    is_long = len(pointed) < len(cells) or any(len(cell.partition(".")[0].lstrip("+-")) > 1 for cell in pointed)
    if not marked and len(set(pointed)) > 1 and is_long and all(POINTED_NUMBER.fullmatch(cell) for cell in pointed):
        raise ConfigError(
            "the labels may be numbers of three decimals, or whole numbers with '.' between thousands",
            got=pointed[0],
            allowed=f"kind '{REGRESSION}', which reads {pointed[0]} as about {float(pointed[0]):.1f}",
            do="say the kind, or write the numbers without marks between thousands",
        )
    if marked:
        raise ConfigError(
            "the labels may be numbers with a decimal comma or with marks between thousands, or whole numbers with ',' "
            "between them",
            got=marked[0],
            allowed=f"kind '{MULTI_LABEL}' for several labels; numbers with a point and without other marks",
            do="write the numbers with a point, 4.5 for 4,5 and 1234.5 for 1.234,5; or say that kind",
        )


def _shown(numbers: set[float]) -> str:
    texts = [f"{number:.15g}" for number in sorted(numbers)]
    return " and ".join(texts) if len(texts) < 4 else f"{len(texts)} numbers, {texts[0]} to {texts[-1]}"


def _no_labels(cells: Sequence[str]) -> EmptyData:
    return EmptyData(
        "the values are no labels: nearly all are different, or they are long",
        got=f"{len(set(cells)):,} different values in {len(cells):,} rows, such as {cells[0][:60]!r}",
        do="give the labels, or say the kind if they are labels",
    )


def _of_strings(cells: Sequence[str]) -> Guess:
    if (chosen := separator_of(cells)) is not None:
        mark, is_certain = chosen
        why = f"cells hold several labels with '{mark}' between them"
        return Guess(kind=MULTI_LABEL, why=why, separator=mark, rivals=() if is_certain else (SINGLE_LABEL,))
    if not looks_like_labels(cells):
        raise _no_labels(cells)
    why = f"{counted(len(set(cells)), 'different label')} in {counted(len(cells), 'row')}"
    return Guess(kind=SINGLE_LABEL, why=why)


def looks_like_labels(values: Sequence[object]) -> bool:
    """Whether some non-blank values recur and are short, as names of classes are."""
    cells = [str(value) for value in values]
    different = len(set(cells))
    recurs = different <= max(2, len(cells) // 2) if len(cells) > 4 else True
    return bool(cells) and recurs and different <= MOST_LABELS and sum(map(len, cells)) <= LONGEST_LABEL * len(cells)
