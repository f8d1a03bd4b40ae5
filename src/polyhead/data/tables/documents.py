"""JSON files that are one document: an array, a pandas data frame, or an object that holds the records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, BinaryIO

import msgspec

from polyhead.data.formats.lines import strict_json
from polyhead.errors import DataError
from polyhead.tasks.limits import lines_of

LARGEST_DOCUMENT = 2**28  # bytes of a file that is read whole
HEAD_RECORDS, HEAD_BYTES = 200, 2**20  # lines examined to recognize a format
HOLDERS = ("data", "records", "rows", "examples", "items", "instances", "samples", "entries")
SERVED = {"row", "row_idx", "truncated_cells"}  # keys of a record in the responses of data set servers
SPLIT_NAMES = ("train", "training", "validation", "valid", "val", "dev", "test", "testing", "eval")
AS_LINES = "save it as JSON Lines: an object on each line, in a file named .jsonl"
BY_PANDAS = "write it anew: frame.to_json('rows.jsonl', orient='records', lines=True)"


def document_in(file: BinaryIO, path: str) -> list[Any] | None:
    """The records of a file that is one JSON value; None for a file with one value per line.

    It is a document if its first line is not a complete JSON value, or is the only one; in a file named .jsonl the only
    line is a row. Raises DataError for a document that is too large, not UTF-8 or not JSON, whose records have no
    order, or with an object that names a key twice.
    """
    lines = (line for line in lines_of(file) if line is None or line.strip(b"\xef\xbb\xbf \t\r\n"))
    first, second = next(lines, b""), next(lines, b"")
    file.seek(0)
    if first is not None:
        value = _decoded(first)
        is_line = second != b"" or (path.lower().removesuffix(".gz").endswith(".jsonl") and not _are_records(value))
        if value is not _NOTHING and is_line or _start(first) not in (b"[", b"{"):
            return None
    raw = file.read(LARGEST_DOCUMENT + 1)
    file.seek(0)
    start = _start(raw)
    if len(raw) > LARGEST_DOCUMENT and start == b"[":
        allowed = f"{LARGEST_DOCUMENT:,} bytes"
        raise DataError(f"{path} is too large to be read as one JSON array", allowed=allowed, do=AS_LINES)
    try:
        value = strict_json(raw.decode("utf-8-sig"))
    except DataError as error:
        raise error.at(path) from None
    except (ValueError, RecursionError) as error:
        if start != b"[":
            return None  # lines, some of them damaged
        raise DataError(f"{path} is no JSON array", got=error, do=AS_LINES) from None
    return value if isinstance(value, list) else _records(value, path)


def head_of_lines(file: BinaryIO) -> list[Any]:
    """The first values of a file with one JSON value per line, without unreadable ones."""
    values, size = [], 0
    for line in islice(lines_of(file), HEAD_RECORDS):
        size += len(line or b"")
        if line is not None and (value := _decoded(line)) is not _NOTHING:
            values.append(value)
        if size > HEAD_BYTES:
            break
    file.seek(0)
    return values


_NOTHING = object()


def _start(raw: bytes) -> bytes:
    """The first visible character."""
    return raw[: 2**12].removeprefix(b"\xef\xbb\xbf").lstrip()[:1]


def _decoded(line: bytes) -> Any:
    try:
        return msgspec.json.decode(line.removeprefix(b"\xef\xbb\xbf"))
    except (ValueError, RecursionError):
        return _NOTHING


def _records(value: Any, path: str) -> list[Any]:
    """The records of an object in any of the known shapes; else the object itself as the only record."""
    if not isinstance(value, dict) or not value:
        return [value]
    columns, data = value.get("columns"), value.get("data")
    if isinstance(columns, list) and isinstance(data, list):
        return _of_cells(columns, data, path)
    if all(name.lower() in SPLIT_NAMES for name in value):
        return _of_parts(value, path)
    tables = [name for name, records in value.items() if _are_records(records)]
    if len(tables) == 1 and (tables[0].lower() in HOLDERS or len(value) == 1):
        return _unwrapped(value[tables[0]])
    if all(isinstance(each, dict) and each for each in value.values()):
        return _of_objects(value, path)
    if all(isinstance(each, list) for each in value.values()) and not path.lower().endswith((".jsonl", ".jsonl.gz")):
        return _of_columns(value)
    return [value]


def _are_records(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)


def _unwrapped(records: Sequence[dict[str, Any]]) -> list[Any]:
    """Records, each possibly wrapped in `row`, as data set servers return them."""
    if all(isinstance(each.get("row"), dict) and set(each) <= SERVED for each in records):
        return [each["row"] for each in records]
    return list(records)


def _of_cells(columns: Sequence[object], data: Sequence[object], path: str) -> list[Any]:
    """pandas' orient "split"."""
    names = [str(name) for name in columns]
    if not all(isinstance(cells, list) and len(cells) == len(names) for cells in data):
        got = next(cells for cells in data if not isinstance(cells, list) or len(cells) != len(names))
        raise DataError(f"{path}: a row has not one cell for each column", got=got, allowed=names, do=BY_PANDAS)
    return [dict(zip(names, cells, strict=True)) for cells in data if isinstance(cells, list)]


def _of_parts(value: Mapping[str, Any], path: str) -> list[Any]:
    """The records of the only split; several splits are not one set of rows."""
    if len(value) == 1:
        (records,) = value.values()
        return list(records) if isinstance(records, list) else _records(records, path)
    sizes = [f"{name} ({len(part):,})" if isinstance(part, list) else name for name, part in value.items()]
    raise DataError(
        f"{path} holds several splits, and a file is one",
        got=", ".join(sizes),
        do=f"write a file of each: python -c \"import json; d = json.load(open('{path}')); "
        f"[json.dump(d[k], open(k + '.json', 'w')) for k in d]\"; then give them together: "
        f"polyhead init {' '.join(f'{name}.json' for name in value)}",
    )


def _of_objects(value: Mapping[str, dict[str, Any]], path: str) -> list[Any]:
    """pandas' orient "columns", whose inner keys number the rows, or "index", whose outer keys do."""
    outer, inner = list(value), [list(each) for each in value.values()]
    rows_outside, rows_inside = all(map(_is_number, outer)), all(all(map(_is_number, keys)) for keys in inner)
    if rows_inside and not rows_outside:
        keys = list(dict.fromkeys(key for each in inner for key in each))
        return [{name: each.get(key) for name, each in value.items()} for key in keys]
    if rows_outside and not rows_inside:
        return list(value.values())
    if rows_inside or all(keys == inner[0] for keys in inner) and len(outer) > 1:
        raise DataError(
            f"{path} is an object of objects, and nothing says whether a row is an inner or an outer one",
            got=f"{', '.join(outer[:5])} of {', '.join(inner[0][:5])}",
            do=BY_PANDAS,
        )
    return [value]


def _is_number(key: str) -> bool:
    return key.isascii() and key.isdigit()


def _of_columns(value: Mapping[str, list[Any]]) -> list[Any]:
    """One list per column; lists of different lengths are a single row."""
    lengths = {len(cells) for cells in value.values()}
    if len(lengths) > 1 or lengths == {0}:
        return [value]
    return [dict(zip(value, cells, strict=True)) for cells in zip(*value.values(), strict=True)]
