"""What a format of annotated texts does: it knows its files by their content, and makes plain rows of them."""

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
    """A format of annotated texts. An instance reads one file; a label that nobody gave is None."""

    name: ClassVar[str]

    def __init__(self) -> None:
        self.counts = Counter[str]()  # what was decided about records, and of how many


class RecordFormat(AnnotationFormat):
    """A format of JSON values, each of them a record: lines of a file, items of an array, or what a document lists."""

    of_objects: ClassVar[bool] = True  # whether its records are JSON objects; of other files it is then not asked
    many: ClassVar[bool] = False  # whether a record holds several rows; rows are then numbered one by one

    def begin(self, head: Sequence[Any]) -> None:
        """`head` holds the first records of the file; of a file that is one JSON document it holds all of them."""

    @classmethod
    @abstractmethod
    def knows(cls, head: Sequence[Any]) -> bool:
        """Whether a file that begins with these JSON values, at least one, is of this format."""

    @abstractmethod
    def rows(self, record: Any) -> Iterable[dict[str, object]]:
        """The rows of a record by column. Raises BadValue for one that cannot be read; the reader adds the place."""


class FileFormat(AnnotationFormat):
    """A format with a syntax of its own, or of several files in a folder."""

    @classmethod
    @abstractmethod
    def knows(cls, path: str, head: bytes) -> bool:
        """Whether a file that begins so, unpacked, is of this format; of a folder `head` is empty."""

    @abstractmethod
    def rows(self, path: str) -> Numbered:
        """The rows of the file. Raises DataError for one that cannot be read at all."""


ANNOTATIONS: Registry[type[AnnotationFormat]] = Registry("annotation format")
"""The formats of annotated texts by name, in the order in which files are compared with them."""
register_annotations = ANNOTATIONS.register


def record_format(head: Sequence[Any]) -> RecordFormat | None:
    """A reader of the first format that knows these records; None where they are rows already."""
    are_objects = all(isinstance(record, dict) for record in head)
    for each in ANNOTATIONS.values() if head else ():
        if issubclass(each, RecordFormat) and (are_objects or not each.of_objects) and each.knows(head):
            form = each()
            form.begin(head)
            return form
    return None


def file_format(path: str, head: bytes) -> FileFormat | None:
    """A reader of the first format that knows this file or folder; None where it holds a table or JSON."""
    for each in ANNOTATIONS.values():
        if issubclass(each, FileFormat) and each.knows(path, head):
            return each()
    return None
