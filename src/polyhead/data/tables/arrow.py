"""pyarrow values as plain Python values at any depth, so that no date, time or text stops a job (extra `store`)."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from itertools import islice
from typing import Any

from polyhead.data.guess_kind import with_plain_numbers
from polyhead.errors import MissingExtra

UNITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}  # digits of a fraction of a second


def arrow_for(purpose: str = "Parquet") -> Any:
    """pyarrow, which is of the extra `store`; raises MissingExtra."""
    try:
        importlib.import_module("pyarrow.parquet")
        return importlib.import_module("pyarrow")
    except ImportError:
        raise MissingExtra("pyarrow", "store", purpose) from None


def values_of(array: Any) -> list[object]:
    """One value per row. Durations, times finer than Python's, and dates outside its range become texts.

    An unknown time zone becomes UTC; bytes of a text that are not UTF-8 become lone surrogates. Raises ValueError for a
    struct with two fields of one name.
    """
    arrow, types, kind = arrow_for(), arrow_for().types, array.type
    if types.is_dictionary(kind):
        return values_of(array.dictionary_decode())
    if types.is_duration(kind):
        counts, unit = array.cast(arrow.int64()).to_pylist(), UNITS[kind.unit]
        return [None if count is None else _duration(count, unit) for count in counts]
    if types.is_temporal(kind) and not types.is_interval(kind):
        return _times(array)
    if types.is_struct(kind):
        return _structs(array)
    if types.is_map(kind):
        return _maps(array)
    if types.is_nested(kind) and not types.is_union(kind):
        return _lists(array)
    try:
        return list(array.to_pylist())
    except UnicodeDecodeError:
        texts = array.cast(arrow.large_binary()).to_pylist()
        return [None if text is None else text.decode("utf-8", "surrogateescape") for text in texts]


def with_numbers(values: dict[str, Any], types: Mapping[str, str]) -> dict[str, Any]:
    """A row with numbers of Python in place of decimals, at any depth of the columns whose type has some."""
    return {name: with_plain_numbers(value) if "decimal" in types[name] else value for name, value in values.items()}


def _times(array: Any) -> list[object]:
    """Dates and times; those that Python cannot represent are formatted by pyarrow: `10000-01-01`."""
    arrow, kind = arrow_for(), array.type
    if getattr(kind, "tz", None) is not None and not _is_known(kind):
        array = array.cast(arrow.timestamp(kind.unit, "UTC"))
    if getattr(kind, "unit", None) == "ns":
        return list(array.cast(arrow.string()).to_pylist())
    try:
        return list(array.to_pylist())
    except (ValueError, OverflowError):
        return [_time(array.slice(at, 1)) for at in range(len(array))]


def _time(array: Any) -> object:
    try:
        return array.to_pylist()[0]
    except (ValueError, OverflowError):
        return array.cast(arrow_for().string()).to_pylist()[0]


def _is_known(kind: Any) -> bool:
    """Whether both pyarrow and Python know the time zone."""
    arrow = arrow_for()
    first = arrow.array([0], kind)
    try:
        first.cast(arrow.string())
        first.cast(arrow.timestamp("s", kind.tz)).to_pylist()
    except ValueError:
        return False
    return True


def _structs(array: Any) -> list[object]:
    names = [field.name for field in array.type]
    if len(set(names)) < len(names):
        raise ValueError(f"a struct has two fields of one name: {', '.join(names)}")
    fields = [values_of(field) for field in array.flatten()]
    return [
        {name: field[at] for name, field in zip(names, fields, strict=True)} if is_there else None
        for at, is_there in enumerate(array.is_valid().to_pylist())
    ]


def _maps(array: Any) -> list[object]:
    """Lists of pairs: keys may have any type, and repeat."""
    places = array.offsets.to_pylist() or [0]
    first, inner = places[0], slice(places[0], places[-1])
    pairs = list(zip(values_of(array.keys[inner]), values_of(array.items[inner]), strict=True))
    return [
        pairs[places[at] - first : places[at + 1] - first] if is_there else None
        for at, is_there in enumerate(array.is_valid().to_pylist())
    ]


def _lists(array: Any) -> list[object]:
    inner = iter(values_of(array.flatten()))
    lengths = importlib.import_module("pyarrow.compute").list_value_length(array).to_pylist()
    return [None if length is None else list(islice(inner, length)) for length in lengths]


def _duration(count: int, digits: int) -> str:
    """A duration in ISO 8601, in days and seconds, with all digits: `P1DT3661.5S`."""
    seconds, part = divmod(abs(count), 10**digits)
    days, seconds = divmod(seconds, 24 * 60 * 60)
    fraction = f".{part:0{digits}d}".rstrip("0") if part else ""
    time = f"T{seconds}{fraction}S" if seconds or part else ""
    return f"{'-' if count < 0 else ''}P{f'{days}D' if days or not time else ''}{time}"
