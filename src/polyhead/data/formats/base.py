"""The interface of annotation formats: a format knows its files by their content, and converts them to plain rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

from polyhead.errors import BadValue
from polyhead.registry import Registry

Numbered = Iterator["tuple[int, dict[str, object]] | BadValue"]
"""Rows with their numbers, from 1; in the place of one that cannot be read the error, with its number in `row`."""


class AnnotationFormat(ABC):
    """A format of annotated texts. An instance reads one file; a missing label is None."""

    name: ClassVar[str]

    def __init__(self) -> None:
        self.counts = Counter[str]()  # decisions about records, and the number of records that each applied to


class RecordFormat(AnnotationFormat):
    """A format whose records are JSON values: the lines of a file, the items of an array, or the list in a document."""

    of_objects: ClassVar[bool] = True  # whether its records are JSON objects; of other files it is then not asked
    many: ClassVar[bool] = False  # whether a record holds several rows; rows are then numbered individually

    def begin(self, head: Sequence[Any]) -> None:
        """Prepares for the file; `head` holds its first records, or all of them if the file is one JSON document."""

    @classmethod
    @abstractmethod
    def knows(cls, head: Sequence[Any]) -> bool:
        """Whether a file whose first JSON values (at least one) are these is of this format."""

    @abstractmethod
    def rows(self, record: Any) -> Iterable[dict[str, object]]:
        """The rows of a record, by column. Raises BadValue for an unreadable record; the reader adds its place."""


class FileFormat(AnnotationFormat):
    """A format with its own syntax, or with several files in a folder."""

    @classmethod
    @abstractmethod
    def knows(cls, path: str, head: bytes) -> bool:
        """Whether a file that begins with these bytes, unpacked, is of this format; for a folder, `head` is empty."""

    @abstractmethod
    def rows(self, path: str) -> Numbered:
        """The rows of the file. Raises DataError for a file that cannot be read at all."""


ANNOTATIONS: Registry[type[AnnotationFormat]] = Registry("annotation format")
"""The formats of annotated texts by name, in the order in which files are compared with them."""
register_annotations = ANNOTATIONS.register


def record_format(head: Sequence[Any]) -> RecordFormat | None:
    """A reader of the first format that recognizes these records; None if they are plain rows."""
    are_objects = all(isinstance(record, dict) for record in head)
    for each in ANNOTATIONS.values() if head else ():
        if issubclass(each, RecordFormat) and (are_objects or not each.of_objects) and each.knows(head):
            form = each()
            form.begin(head)
            return form
    return None


def file_format(path: str, head: bytes) -> FileFormat | None:
    """A reader of the first format that recognizes this file or folder; None if it holds a table or JSON."""
    for each in ANNOTATIONS.values():
        if issubclass(each, FileFormat) and each.knows(path, head):
            return each()
    return None
