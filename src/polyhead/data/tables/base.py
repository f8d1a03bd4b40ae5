"""What a format of tables does: it reads rows, in order or from any row on, and may write them with new columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, ClassVar, Literal

from polyhead.arguments import twice_in
from polyhead.data.formats.lines import bad_row
from polyhead.data.tables.dialect import NULL
from polyhead.errors import BadValue, DataError
from polyhead.registry import Registry
from polyhead.tasks.task import CellForm
from polyhead.text.tokenize import lone_surrogates
from polyhead.values import Value

Word = Literal["null", "bool", "int", "float", "text", "list", "object", "mixed", "other"]
"""Type of a column. `mixed`: values of several types, or integers that no type holds; `other`: dates, bytes."""
Met = Word | Literal["long"]
"""Type of one value; `long`: an integer of 64 bits beyond EXACT."""
EXACT = 2**53  # up to here a column of floating-point numbers holds every integer
Numbered = tuple[int, object] | BadValue
"""A value with the number of its row, from 1; or the error of a row that cannot be read."""


class Row(Value):
    """One row: its number, from 1 (the line of a JSONL file, else the record), and its values by column."""

    number: int
    values: Mapping[str, object]


class Survey(Value):
    """What a whole table holds."""

    rows: int  # including those that cannot be read
    columns: dict[str, Word]  # type by name, in the order of the file


class NewColumn(Value):
    """A column that is written beside those of the table; of form `shares` it holds a number for each of `fields`."""

    name: str
    form: CellForm
    fields: tuple[str, ...] = ()
    sparse: bool = False  # null is left out in formats that allow it


class Chunk:
    """Consecutive rows of a table."""

    def __init__(self, rows: Sequence[Row | BadValue], path: str, *, has_cells: bool) -> None:
        self._rows, self.name, self.has_cells = rows, Path(path).name, has_cells

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self, names: Sequence[str]) -> Sequence[Row | BadValue]:
        """Each row with these columns at least, or the error of one that cannot be read."""
        return self._rows

    def kept(self, names: Sequence[str]) -> list[dict[str, object]]:
        """The values of these columns; a row has those that its line has, and none where it cannot be read."""
        chosen = frozenset(names)
        return [
            {} if isinstance(row, BadValue) else {n: v for n, v in row.values.items() if n in chosen}
            for row in self._rows
        ]

    def column(self, name: str) -> Any:
        """The values of one column, a list or an array of pyarrow; None where a row has none."""
        return [None if isinstance(row, BadValue) else row.values.get(name) for row in self._rows]


class Writer(ABC):
    """Writes kept and new columns in one format. Equal rows give equal bytes."""

    def __init__(
        self,
        kept: Sequence[str],
        columns: Sequence[NewColumn],
        *,
        packed: bool = False,
        types: Mapping[str, Word] | None = None,
        schema: Any = None,
    ) -> None:
        """`types` and `schema` (of pyarrow, where the table that is read has one) are those of the kept columns."""
        self.kept, self.columns, self.packed = tuple(kept), tuple(columns), packed
        self.types, self.kept_schema = dict(types or {}), schema

    @abstractmethod
    def piece(self, chunk: Chunk, answers: Sequence[Sequence[object]]) -> bytes:
        """A chunk with the cells of `columns` of each of its rows."""

    @abstractmethod
    def whole(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """The file that these pieces make."""


class TableFormat(ABC):
    """A format of tables. An instance reads one file once, and gathers its columns."""

    name: ClassVar[str]
    endings: ClassVar[tuple[str, ...]] = ()  # of the names of its files
    is_packable: ClassVar[bool] = False  # whether files packed with gzip are read too
    address: ClassVar[str] = ""  # the beginning of paths that name no file
    place: ClassVar[str] = ""  # what follows an address, for messages
    has_cells: ClassVar[bool] = False  # every value is a string
    written: ClassVar[tuple[str, ...]] = ()  # endings of files that `writer` makes
    writer: ClassVar[type[Writer]]

    def __init__(self, path: str, wanted: Sequence[str] | None) -> None:
        self.path = path
        self.wanted = wanted  # columns to read, where the format can leave others unread; None: all
        self.columns: dict[str, None] = {}

    @classmethod
    def reads(cls, path: str) -> bool:
        """Whether the path says that it is of this format."""
        if cls.address:
            return path.startswith(cls.address)
        name = path.lower()
        return (name.removesuffix(".gz") if cls.is_packable else name).endswith(cls.endings)

    @abstractmethod
    def records(self) -> Iterator[Numbered]:
        """The values of the rows; `columns` holds those of a table with a header before the first of them."""

    def head(self) -> list[Any] | None:
        """The first values, where a format of annotated texts may be known by them; None: those of `records`."""
        return None

    def survey(self) -> Survey | None:
        """What the table holds, where that can be known without reading all of it."""
        return None

    def chunks(self, start: int, size: int) -> Iterator[Chunk] | None:
        """The rows from `start` on, where those before need not be read."""
        return None

    def schema(self, names: Sequence[str]) -> Any:
        """These columns as a schema of pyarrow; None where the table has no types beyond those of its survey."""
        return None

    def begin(self, names: Sequence[str], what: str, do: str) -> None:
        """Takes the columns; raises DataError where two have one name. Some may have none."""
        if twice := twice_in(filter(None, names)):
            raise DataError(f"{what} has two columns of one name", got=twice, do=do)
        self.columns.update(dict.fromkeys(names))

    def by_column(self, header: Sequence[str], record: Sequence[str], number: int) -> Numbered:
        """A record as the cells of its columns; the error of one that is not as the header says."""
        if len(record) != len(header):
            do = "quote cells that hold the delimiter or a line end"
            got = f"{len(record)} cells, where the header has {len(header)}"
            return self.bad("the row has a different number of columns than the header", got, number, do)
        if any(map(lone_surrogates, record)):
            return self.bad("the record is not UTF-8", record, number, "save the file as UTF-8")
        return number, {name: None if cell == NULL else cell for name, cell in zip(header, record, strict=True)}

    def bad(self, what: str, got: object, number: int, do: str, allowed: object = None) -> BadValue:
        """The error of one row."""
        return bad_row(self.path, number, what, got=got, allowed=allowed, do=do)


TABLES: Registry[type[TableFormat]] = Registry("table format")
"""The formats of tables by name, in the order in which paths are compared with them."""
register_table = TABLES.register


def table_format(path: str) -> type[TableFormat] | None:
    """The format that a path names; None for none."""
    return next((table for table in TABLES.values() if table.reads(path)), None)


def is_address(path: str) -> bool:
    """Whether a path names no file: a data set of a hub, or rows in memory."""
    table = table_format(path)
    return table is not None and bool(table.address)


def file_endings(*, written: bool = False) -> tuple[str, ...]:
    """The endings of the names of tables that are read, or of those that can be written."""
    return tuple(
        form + packed
        for table in TABLES.values()
        for form in (table.written if written else table.endings)
        for packed in ("", *([".gz"] if table.is_packable else ()))
    )


def written_ending(path: str) -> str:
    """The ending of a file that takes the rows of this one with answers: of its own format if that is written."""
    table = table_format(path)
    return next(iter(table.written), ".csv") if table else ".csv"


def word_of(value: object) -> Met:
    """The type of one value from JSON."""
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
    """The type of a column that holds values of these types; null fits any."""
    if "long" in met and "float" in met:
        return "mixed"
    words: set[Word] = {"int" if word == "long" else word for word in met if word != "null"}
    if len(words) < 2:
        return next(iter(words), "null")
    return "float" if words == {"int", "float"} else "mixed"
