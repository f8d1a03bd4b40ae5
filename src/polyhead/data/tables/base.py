"""The interface of table formats: they read rows, in order or from any row on, and may write them with new columns."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

from polyhead.arguments import twice_in
from polyhead.data.formats.lines import bad_row
from polyhead.data.tables.dialect import NULL
from polyhead.errors import BadValue, DataError
from polyhead.progress import counted
from polyhead.registry import Registry
from polyhead.tasks.task import CellForm
from polyhead.text.tokenize import lone_surrogates
from polyhead.values import Value

Word = Literal["null", "bool", "int", "float", "text", "list", "object", "mixed", "other"]
"""Type of a column. `mixed`: values of several types, or integers that no type holds; `other`: dates, bytes."""
Met = Word | Literal["long"]
"""Type of one value; `long`: an integer of 64 bits beyond EXACT."""
EXACT = 2**53  # the range in which a column of floating-point numbers represents every integer
ROW_NAMES = re.compile(r"(^|[^A-Za-z])(?i:id|idx|index|key|no|nr|number)$|[a-z](Id|ID|Idx|Index|Key|Number)$")
"""Names of columns whose cells tell which row it is."""
Numbered = tuple[int, object] | BadValue
"""A value with the number of its row, from 1; or the error of a row that cannot be read."""


class Row(Value):
    """One row: its number, from 1 (the line of a JSONL file, else the record), and its values by column."""

    number: int
    values: Mapping[str, object]


class Survey(Value):
    """Row count and columns of a whole table."""

    rows: int  # includes unreadable rows
    columns: dict[str, Word]  # type by name, in file order


class NewColumn(Value):
    """A column written in addition to the table's; of form `shares`, it holds a number for each of `fields`."""

    name: str
    form: CellForm
    fields: tuple[str, ...] = ()
    sparse: bool = False  # null is omitted in formats that allow it


class Chunk:
    """Consecutive rows of a table."""

    def __init__(self, rows: Sequence[Row | BadValue], path: str, *, has_cells: bool) -> None:
        self._rows, self.name, self.has_cells = rows, Path(path).name, has_cells

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self, names: Sequence[str]) -> Sequence[Row | BadValue]:
        """Each row with at least these columns, or the error of an unreadable row."""
        return self._rows

    def kept(self, names: Sequence[str]) -> list[dict[str, object]]:
        """The values of these columns that each row has; of an unreadable row those that could be read."""
        chosen = frozenset(names)
        return [{n: v for n, v in _values(row).items() if n in chosen} for row in self._rows]

    def column(self, name: str) -> Any:
        """The values of one column, a list or an array of pyarrow; None where a row has no value."""
        return [_values(row).get(name) for row in self._rows]


def _values(row: Row | BadValue) -> Mapping[str, object]:
    """The values of a row by column; of an unreadable one, those that could be read."""
    if isinstance(row, Row):
        return row.values
    return cast(Mapping[str, object], row.facts.get("kept", {}))


class Writer(ABC):
    """Writes kept and new columns in one format. Equal rows give equal bytes."""

    nulled_in: tuple[Word, ...] = ("float", "mixed", "list", "object")
    """Types of columns whose numbers become null where they are not finite."""

    def __init__(
        self,
        kept: Sequence[str],
        columns: Sequence[NewColumn],
        *,
        packed: bool = False,
        types: Mapping[str, Word] | None = None,
        schema: Any = None,
    ) -> None:
        """Prepares to write; `types` and `schema` (pyarrow's, if the input table has one) describe the kept columns."""
        self.kept, self.columns, self.packed = tuple(kept), tuple(columns), packed
        self.types, self.kept_schema = dict(types or {}), schema

    def nulled(self, chunk: Chunk) -> int:
        """How many kept numbers of a chunk the format cannot write, since they are not finite: they become null."""
        names = [name for name in self.kept if self.types.get(name) in self.nulled_in]
        return sum(map(count_not_finite, chunk.kept(names))) if names else 0

    @abstractmethod
    def piece(self, chunk: Chunk, answers: Sequence[Sequence[object]]) -> bytes:
        """A chunk as bytes, with the cells of `columns` for each of its rows."""

    @abstractmethod
    def whole(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """The file made of these pieces."""


class TableFormat(ABC):
    """A format of tables. An instance reads one file once, and collects its columns."""

    name: ClassVar[str]
    endings: ClassVar[tuple[str, ...]] = ()  # of file names
    is_packable: ClassVar[bool] = False  # whether gzip-compressed files are read too
    address: ClassVar[str] = ""  # the prefix of paths that are not files
    place: ClassVar[str] = ""  # what follows the prefix, for messages
    has_cells: ClassVar[bool] = False  # every value is a string
    written: ClassVar[tuple[str, ...]] = ()  # file endings that `writer` supports
    writer: ClassVar[type[Writer]]

    def __init__(self, path: str, wanted: Sequence[str] | None) -> None:
        self.path = path
        self.wanted = wanted  # columns to read, if the format can skip others; None: all
        self.columns: dict[str, None] = {}

    @classmethod
    def reads(cls, path: str) -> bool:
        """Whether the path names a table of this format."""
        if cls.address:
            return path.startswith(cls.address)
        name = path.lower()
        return (name.removesuffix(".gz") if cls.is_packable else name).endswith(cls.endings)

    @abstractmethod
    def records(self) -> Iterator[Numbered]:
        """The values of the rows; for a table with a header, `columns` holds its columns before the first row."""

    def head(self) -> list[Any] | None:
        """The first values, if a format of annotated texts can be recognized by them; None: the first of `records`."""
        return None

    def survey(self) -> Survey | None:
        """The content of the table, if it can be known without reading everything."""
        return None

    def chunks(self, start: int, size: int) -> Iterator[Chunk] | None:
        """The rows from `start` on, if earlier rows need not be read."""
        return None

    def schema(self, names: Sequence[str]) -> Any:
        """These columns as a schema of pyarrow; None if the table has no types beyond those of its survey."""
        return None

    def begin(self, names: Sequence[str], subject: str, do: str) -> None:
        """Sets the columns; raises DataError if two share a name. Some may have no name."""
        if twice := twice_in(filter(None, names)):
            raise DataError(f"{subject} has two columns of one name", got=twice, do=do)
        self.columns.update(dict.fromkeys(names))

    def by_column(self, header: Sequence[str], record: Sequence[str], number: int) -> Numbered:
        """A record as the cells of its columns; an error for a record that does not match the header."""
        if len(record) != len(header):
            do = "quote cells that hold the delimiter or a line end"
            got = f"{counted(len(record), 'cell')}, where the header has {len(header)}"
            # Nobody knows where a cell is missing or one too many, but seldom is it before the first.
            problem, name = "the row has a different number of columns than the header", row_name(header, record)
            return bad_row(self.path, number, problem, got=got, do=do, kept=name)
        values = {name: None if cell == NULL else cell for name, cell in zip(header, record, strict=True)}
        if any(map(lone_surrogates, record)):
            problem, do = "the record is not UTF-8", "save the file as UTF-8"
            return bad_row(self.path, number, problem, got=record, do=do, kept=_readable(values))
        return number, values

    def bad(self, problem: str, got: object, number: int, do: str, allowed: object = None) -> BadValue:
        """The error for one row."""
        return bad_row(self.path, number, problem, got=got, allowed=allowed, do=do)


def row_name(header: Sequence[str], record: Sequence[str]) -> dict[str, str | None]:
    """The first cell of an unreadable record by its column, if that tells which row it is."""
    return _readable(dict(zip(header[:1], record, strict=False))) if header and _names_rows(header[0]) else {}


def _names_rows(column: str) -> bool:
    """True if a column of this name tells which row it is; "" is the index that pandas writes."""
    return column in ("", "#") or ROW_NAMES.search(column) is not None


def _readable(values: Mapping[str, str | None]) -> dict[str, str | None]:
    """The values that are UTF-8."""
    return {name: value for name, value in values.items() if value is None or not lone_surrogates(value)}


TABLES: Registry[type[TableFormat]] = Registry("table format")
"""The formats of tables by name, in the order in which paths are compared with them."""
register_table = TABLES.register


def table_format(path: str) -> type[TableFormat] | None:
    """The format of a path; None if there is none."""
    return next((table for table in TABLES.values() if table.reads(path)), None)


def is_address(path: str) -> bool:
    """Whether a path is an address instead of a file: a hub data set, or rows in memory."""
    table = table_format(path)
    return table is not None and bool(table.address)


def file_endings(*, written: bool = False) -> tuple[str, ...]:
    """The file endings of tables that can be read, or of those that can be written."""
    return tuple(
        form + packed
        for table in TABLES.values()
        for form in (table.written if written else table.endings)
        for packed in ("", *([".gz"] if table.is_packable else ()))
    )


def written_ending(path: str) -> str:
    """The file ending for this table's rows with answers: its own, if that format can be written."""
    table = table_format(path)
    return next(iter(table.written), ".csv") if table else ".csv"


def count_not_finite(value: object) -> int:
    """The count of numbers in a value, at any depth, that are infinite or NaN."""
    waiting, count = [value], 0
    while waiting:
        match waiting.pop():
            case float() as number:
                count += not math.isfinite(number)
            case list() as items:
                waiting += items
            case dict() as items:
                waiting += items.values()
    return count


def word_of(value: object) -> Met:
    """The type of one JSON value."""
    match value:
        case None:
            return "null"
        case bool():
            return "bool"
        case int():
            if abs(value) <= EXACT:
                return "int"
            return "long" if -(2**63) <= value < 2**63 else "mixed"
        case float():
            return "float"
        case str():
            return "text"
        case list():
            return "list"
        case _:
            return "object"


def joint_word(met: Set[Met]) -> Word:
    """The common type of a column that holds values of these types; null fits any."""
    if "long" in met and "float" in met:
        return "mixed"
    words: set[Word] = {"int" if word == "long" else word for word in met if word != "null"}
    if len(words) < 2:
        return next(iter(words), "null")
    return "float" if words == {"int", "float"} else "mixed"
