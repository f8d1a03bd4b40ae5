"""What lies beside the arrays of a task's version: scores, probes and the card, of whatever owns the version."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path as FilePath
from typing import Any, TypeVar

import msgspec

from polyhead.bundle.files import read_inside
from polyhead.bundle.format import CARD, LARGEST_TEXT, PROBES, SCORES
from polyhead.errors import CorruptFile

Decoded = TypeVar("Decoded")


class Notes(ABC):
    """Reads them by a task's name; `root` is the bundle's folder."""

    root: FilePath

    def scores(self, name: str) -> dict[str, Any]:
        """The scores written with the task: `splits` (split -> metric -> value) and other notes."""
        raw, path = self._read(name, SCORES), self.root.joinpath(*self._place(name), SCORES)
        _json(raw, path, _Scores)
        return _json(raw, path, dict[str, Any])

    def split_scores(self, name: str) -> dict[str, dict[str, float]]:
        """Split -> metric -> value; none of a task that was added without."""
        path = self.root.joinpath(*self._place(name), SCORES)
        return _json(self._read(name, SCORES), path, _Scores).splits

    def baselines(self, name: str, split: str) -> dict[str, dict[str, float]]:
        """`constant` and `linear`, where training measured them on its rows of the split -> metric -> value."""
        path = self.root.joinpath(*self._place(name), SCORES)
        measured = _json(self._read(name, SCORES), path, _Scores).baselines
        return {simple: of[split] for simple, of in measured.items() if split in of}

    def probes(self, name: str) -> list[dict[str, Any]]:
        """The pinned probes of a task: inputs from its validation data, chosen when it was added."""
        path = self.root.joinpath(*self._place(name), PROBES)
        return [_json(line, path, dict[str, Any]) for line in self._read(name, PROBES).splitlines() if line]

    def card(self, name: str) -> str:
        """The task's card, in Markdown; people may edit it, so it is not hashed."""
        return read_inside(self.root, *self._place(name), CARD, limit=LARGEST_TEXT).decode("utf-8", "replace")

    @abstractmethod
    def _place(self, name: str) -> tuple[str, str, str]:
        """The folder of the task's live version, step by step."""

    @abstractmethod
    def _read(self, name: str, file: str) -> bytes:
        """A file of that folder, its hash checked."""


class _Scores(msgspec.Struct):
    """What others read of scores.json; any other key is a note for people."""

    splits: dict[str, dict[str, float]] = {}
    baselines: dict[str, dict[str, dict[str, float]]] = {}


def _json(raw: bytes, path: FilePath, kind: type[Decoded]) -> Decoded:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptFile(f"{path} cannot be understood", got=error, do="restore the file", path=path) from None
