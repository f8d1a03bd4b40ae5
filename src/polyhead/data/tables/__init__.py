"""Formats of tables, one file each."""

from polyhead.data.tables.base import (
    TABLES,
    Chunk,
    NewColumn,
    Numbered,
    Row,
    Survey,
    TableFormat,
    Word,
    Writer,
    file_endings,
    is_address,
    joint_word,
    register_table,
    table_format,
    word_of,
)
from polyhead.data.tables.delimited import Delimited
from polyhead.data.tables.hub import HubSet
from polyhead.data.tables.json_rows import JsonRows
from polyhead.data.tables.memory import InMemory
from polyhead.data.tables.parquet import Parquet
from polyhead.data.tables.sheet import Sheet

__all__ = [
    "TABLES",
    "Chunk",
    "NewColumn",
    "Numbered",
    "Row",
    "Survey",
    "TableFormat",
    "Word",
    "Writer",
    "file_endings",
    "is_address",
    "joint_word",
    "register_table",
    "table_format",
    "word_of",
]

for _known in (JsonRows, Delimited, Sheet, Parquet, HubSet, InMemory):
    register_table(_known)
