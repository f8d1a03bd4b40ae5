"""What lies beside the arrays of a task's version: scores, probes and the card, of whatever owns the version."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path as FilePath
from typing import Any

import msgspec

from polyhead.bundle.files import read_inside
from polyhead.bundle.format import CARD, LARGEST_TEXT, PROBES, SCORES
from polyhead.errors import CorruptFile


class Notes(ABC):
    """Reads them by a task's name; `root` is the bundle's folder."""

    root: FilePath

    def scores(self, name: str) -> dict[str, Any]:
        """The scores written with the task: `splits` (split -> metric -> value) and other notes."""
        found = _json(self._read(name, SCORES), self.root.joinpath(*self._place(name), SCORES))
        if not isinstance(found, dict):
            raise CorruptFile(f"the scores of task '{name}' are no table", do="restore the file")
        return found

    def probes(self, name: str) -> list[dict[str, Any]]:
        """The pinned probes of a task: inputs from its validation data, chosen when it was added."""
        path = self.root.joinpath(*self._place(name), PROBES)
        return [_json(line, path) for line in self._read(name, PROBES).splitlines() if line]

    def card(self, name: str) -> str:
        """The task's card, in Markdown; people may edit it, so it is not hashed."""
        return read_inside(self.root, *self._place(name), CARD, limit=LARGEST_TEXT).decode("utf-8", "replace")

    @abstractmethod
    def _place(self, name: str) -> tuple[str, str, str]:
        """The folder of the task's live version, step by step."""

    @abstractmethod
    def _read(self, name: str, file: str) -> bytes:
        """A file of that folder, its hash checked."""


def _json(raw: bytes, path: FilePath) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptFile(f"{path} is not JSON", got=error, do="restore the file", path=path) from None
