"""A file to read and chunks of its rows, in any format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from polyhead.errors import BadValue
from polyhead.jobs.columns import Ask, Roles
from polyhead.jobs.survey import Survey

Show = Callable[[str], None]


class Chunk(ABC):
    """Consecutive rows."""

    @abstractmethod
    def __len__(self) -> int:
        """How many."""

    @abstractmethod
    def asks(self, roles: Roles) -> list[Ask | BadValue]:
        """The input of each row, or the error of a row without one."""

    @abstractmethod
    def kept(self, names: Sequence[str]) -> list[dict[str, object]]:
        """The values of these columns, row by row; a row may lack some."""

    @abstractmethod
    def column(self, name: str) -> Any:
        """The values of one column, a list or an array of pyarrow; None where a row has none."""


class Source(ABC):
    """A file to read."""

    def __init__(self, path: str) -> None:
        self.path = path

    @abstractmethod
    def survey(self, show: Show) -> Survey:
        """Its rows and columns. Raises DataError for a file that cannot be read."""

    @abstractmethod
    def chunks(self, wanted: Sequence[str], *, start: int, size: int) -> Iterator[Chunk]:
        """These columns of the rows from `start` on, `size` at a time; no more are held."""

    @abstractmethod
    def schema(self, survey: Survey, names: Sequence[str]) -> Any:
        """The columns as a schema of pyarrow."""
