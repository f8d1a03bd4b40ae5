"""Parts that the runs of every study share: rows that are made once, the data sets, the pre-trained trunk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cached_property
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Protocol

import msgspec

from polyhead.values import digested

if TYPE_CHECKING:
    from polyhead.encoder.data import TrunkData

Facts = dict[str, object]
Say = Callable[[str], None]


def silent(line: str) -> None:
    """Says nothing."""


class Rows(Protocol):
    """A study: rows that are there are not run again (`report.results.Study`)."""

    rows: list[Facts]

    def row(self, run: Callable[[], Facts], **key: object) -> Facts:
        """The row of this key, run now if it was not yet."""


class Runs:
    """The data sets, a folder for what the runs make, the rows, and a trunk, loaded when it is first read."""

    max_tokens: int  # of a text

    def __init__(
        self, data: FilePath, folder: FilePath, study: Rows, *, trunk: TrunkData | None = None, say: Say = silent
    ) -> None:
        """`trunk` stands in for minilm."""
        self.data, self.folder, self.study, self.say = data, folder, study, say
        self._given = trunk

    @cached_property
    def plain(self) -> TrunkData:
        """The pre-trained trunk."""
        from polyhead.project.pretrained import load_trunk

        return self._given or load_trunk("minilm", max_tokens=self.max_tokens)

    def rows_of(self, key: Facts) -> list[Facts]:
        """The rows that are there with these values."""
        return [row for row in self.study.rows if key.items() <= row.items()]

    def learned(self, folder: FilePath, key: Facts, learn: Callable[[], Facts]) -> Facts:
        """The row of a learned trunk; `learn` makes the bundle `folder`, now if it is not there."""
        if not (folder / "bundle.json").exists():
            self.study.rows[:] = [row for row in self.study.rows if not key.items() <= row.items()]
        return self.study.row(learn, **key)


def whole_digest(content: object) -> str:
    """A digest of the settings of a run, defaults included, in 8 hex digits: other settings make other rows."""
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()[:8]


def short_digest(*content: object, size: int = 8) -> str:
    """As `whole_digest`, without fields at their default: a new field changes no earlier digest."""
    return hashlib.sha256(msgspec.json.encode(digested(content), order="sorted")).hexdigest()[:size]
