"""Texts and labels from any container (lists, arrays, series, data frames) as lists, and answers as a data frame."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from polyhead.data.columns import joined
from polyhead.data.guess_kind import is_missing, plain
from polyhead.data.tables.hub import with_names
from polyhead.engine.inputs import Passage
from polyhead.errors import BadValue, EmptyData, MissingColumn, MissingExtra, suggestion
from polyhead.text.question import Question

SEQUENCES = (list, tuple, np.ndarray)
_INPUTS = "a text, a pair of texts, a Question, a Passage, or a list of words"
_DROP = "drop the row, or name the column that holds the texts"


class Frame:
    """A data frame of pandas, polars, pyarrow or another library that narwhals reads, or a `datasets.Dataset`."""

    def __init__(self, names: Sequence[str], column: Callable[[str], list[Any]], frame: Any) -> None:
        self.names, self._column, self._frame = tuple(names), column, frame

    def column(self, name: str) -> list[Any]:
        """The cells of the column, None if missing; raises MissingColumn."""
        if name not in self.names:
            raise MissingColumn(
                f"the table has no column '{name}'",
                got=name,
                allowed=list(self.names),
                do=suggestion(name, self.names) or "name the column",
            )
        return list(map(_plain, self._column(name)))

    def answered(self, columns: Mapping[str, list[Any]]) -> Any:
        """A data frame of the same library with these columns, and the same index if it has one; else a dict."""
        if self._frame is None:
            return dict(columns)
        import narwhals as nw

        backend = self._frame.implementation
        series = [nw.new_series(name, cells, backend=backend) for name, cells in columns.items()]
        return self._frame.with_columns(*series).select(*columns).to_native()


def frame_of(value: object) -> Frame | None:
    """The value as a data frame; None for other values."""
    if isinstance(value, Mapping) and value and all(map(_is_set, value.values())):
        first = next(iter(value))
        do = f"give one of them, such as dataset[{first!r}]"
        raise BadValue("a set of several splits is no table", got=list(value), allowed="one split", do=do)
    if isinstance(value, (str, bytes, Mapping, *SEQUENCES)):
        return None
    if _is_set(value):
        return _frame_of_set(value)
    if not (hasattr(type(value), "columns") or hasattr(type(value), "column_names")):
        return None
    try:
        import narwhals as nw
    except ImportError:
        raise MissingExtra("narwhals", "frames", "reading a frame", instead="give lists") from None
    try:
        frame = nw.from_native(value, eager_only=True, pass_through=True)
    except nw.exceptions.DuplicateError:
        names = list(map(str, getattr(value, "columns", ())))
        raise BadValue("two columns of the table have one name", got=names, do="rename or drop one of them") from None
    if not isinstance(frame, nw.DataFrame):
        raise BadValue(
            "the table cannot be read",
            got=type(value).__name__,
            allowed="lists, arrays, a frame of pandas, polars or pyarrow, a Dataset",
            do="collect a lazy frame first",
        )
    names = list(map(str, frame.columns))  # pandas may number its columns
    return Frame(names, lambda name: frame[:, names.index(name)].to_list(), frame)


def _is_set(value: object) -> bool:
    """Whether the value is a data set of the `datasets` library: its type has members that no data frame has."""
    return hasattr(type(value), "features") and hasattr(type(value), "column_names")


def _frame_of_set(value: Any) -> Frame:
    """A `datasets.Dataset`, with class names instead of indices."""
    if not hasattr(value, "__getitem__"):
        do = "collect it first: Dataset.from_list(list(dataset), features=dataset.features)"
        raise BadValue("a set that is read as it comes is no table", got=type(value).__name__, do=do)
    features = value.features or {}
    return Frame(value.column_names, lambda name: [with_names(cell, features.get(name)) for cell in value[name]], None)


def values_of_rows(values: object, subject: str) -> list[Any]:
    """The values as a list, None if missing; rows of two-dimensional arrays become tuples, of one column its cells.

    Raises BadValue for anything that holds no values.
    """
    is_single = isinstance(values, str | bytes | Mapping) or getattr(values, "ndim", 1) == 0
    is_set = isinstance(values, set | frozenset)
    if is_single or is_set or not isinstance(values, Iterable):
        do = f"put a single one of {subject} into a list" if isinstance(values, str) else None
        raise BadValue(
            f"{subject} are given one a row, in order",
            got=values,
            allowed="a list, an array, a column or series",
            do="give a list: a set has no order, so that no answer or label could be told its row" if is_set else do,
        )
    if frame_of(values) is not None:
        raise BadValue(f"{subject} are a whole table", got=type(values).__name__, do="name the column that holds them")
    rows: list[Any]
    if isinstance(values, np.ndarray):
        rows = values.tolist()
        if values.ndim > 1:
            rows = [row[0] if len(row) == 1 else tuple(row) for row in rows]
    else:
        rows = values.to_pylist() if hasattr(values, "to_pylist") else list(values)  # a column of pyarrow, or another
    return list(map(_plain, rows))


def _plain(value: Any) -> Any:
    """A number or string of numpy as one of Python, in lists, tuples and dicts too, None if missing; else unchanged."""
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())  # a list of words, as Parquet gives it
    if isinstance(value, list):
        return list(map(_plain, value))
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if isinstance(value, dict):
        return {key: _plain(cell) for key, cell in value.items()}
    if is_missing(value) or isinstance(value, str):
        return plain(value)
    return value.item() if isinstance(value, np.generic) else value


def texts_of_rows(
    texts: object, *, text: str | Sequence[str] = "text", text_b: str | None = None
) -> tuple[list[Any], Frame | None]:
    """The inputs of these texts, None for a row without one, and their data frame, if they come from one.

    `text` and `text_b` name columns of a data frame; several columns `text` are joined to one text. Raises BadValue for
    a row that is not an input, with its number, and for names of columns without a data frame.
    """
    table = frame_of(texts)
    if table is None and text_b is not None:
        do = "give pairs: list(zip(first, second))"
        raise BadValue("text_b names a column of a data frame, and the texts are none", got=text_b, do=do)
    if table is None and text != "text":
        do = "leave it out, or give the data frame with that column"
        raise BadValue("text names a column of a data frame, and the texts are none", got=text, do=do)
    if table is None:
        rows = values_of_rows(texts, "texts")
    else:
        rows = table.column(text) if isinstance(text, str) else _joined_rows(table, text)
    if text_b is not None and text_b in ((text,) if isinstance(text, str) else text):
        raise BadValue(
            "text and text_b name one column, and a pair has two texts", got=text_b, do="name another column"
        )
    if table is not None and text_b is not None:
        rows = list(zip(rows, table.column(text_b), strict=True))
    rows = [None if _lacks_text(row) else row for row in rows]
    for number, row in enumerate(rows):
        if row is not None and not _is_input(row):
            raise BadValue(f"row {number} is no text", got=row, allowed=_INPUTS, do=_DROP, row=number)
    return [row[0] if isinstance(row, tuple) and len(row) == 1 else row for row in rows], table


def _joined_rows(table: Frame, names: Sequence[str]) -> list[Any]:
    """The texts of several columns, joined row by row; a cell that is no text stands for its row."""
    rows = list(zip(*(table.column(name) for name in names), strict=True))
    wrong = ([cell for cell in row if cell is not None and not isinstance(cell, str)] for row in rows)
    return [cells[0] if cells else joined(row) for row, cells in zip(rows, wrong, strict=True)]


def every_input_of(
    texts: object, *, text: str | Sequence[str] = "text", text_b: str | None = None
) -> tuple[list[Any], Frame | None]:
    """The same, if each row must have a text: raises EmptyData without rows, BadValue for a row without a text."""
    inputs, table = texts_of_rows(texts, text=text, text_b=text_b)
    if not inputs:
        raise EmptyData("there is no text", do="give one text or more")
    if missing := [number for number, row in enumerate(inputs) if row is None]:
        raise without_text(missing, len(inputs))
    return inputs, table


def without_text(rows: Sequence[int], count: int) -> BadValue:
    """The error for rows without a text, with the total number of rows."""
    which = f"row {rows[0]} has" if len(rows) == 1 else f"{len(rows):,} of {count:,} rows have"
    shown = ", ".join(map(str, rows[:10])) + (", ..." if len(rows) > 10 else "")
    return BadValue(
        f"{which} no text", got=f"rows {shown}", allowed=_INPUTS, do="drop these rows", row=rows[0], rows=tuple(rows)
    )


def _lacks_text(row: object) -> bool:
    return any(map(is_missing, row)) if isinstance(row, tuple) else is_missing(row)


def _is_input(row: object) -> bool:
    if isinstance(row, str | Question | Passage):
        return True
    if not isinstance(row, list | tuple) or not row or (isinstance(row, tuple) and len(row) > 2):
        return False
    return all(isinstance(part, str) for part in row)
