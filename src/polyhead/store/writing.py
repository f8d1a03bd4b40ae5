"""Texts that tasks write for documents of a store, from the states of all tokens that it keeps."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from polyhead.bundle.manifest import Live
from polyhead.bundle.read import Bundle
from polyhead.engine.generate.texts import TextStates
from polyhead.engine.session import Session
from polyhead.plan.coding import decode
from polyhead.store.corpus.base import FeatureColumn, PackedRows


class _Opened:
    """A session on versions of tasks, opened when it is first asked for, once in a process."""

    def __init__(self, root: FilePath, lines: Mapping[str, Live]) -> None:
        self._root, self._lines = root, dict(lines)
        self._session: Session | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_session": None}

    def session(self) -> Session:
        if self._session is None:
            self._session = Session(Bundle.open(self._root).view(self._lines), precision="float32", deterministic=True)
        return self._session


class StoredWriting:
    """Some versions of a bundle's tasks that write; can be sent to other processes, which open the bundle themselves.

    Each text is written alone, in float32, so that documents do not affect each other.
    """

    def __init__(self, root: FilePath, lines: Mapping[str, Live], column: FeatureColumn) -> None:
        self._column = column
        self.tasks = tuple(lines)
        self._opened = _Opened(root, lines)

    def only(self, names: Sequence[str]) -> StoredWriting | None:
        """The same, which writes for some of the tasks; None for none of them."""
        chosen = copy.copy(self)
        chosen.tasks = tuple(name for name in self.tasks if name in names)
        return chosen if chosen.tasks else None

    def texts(self, rows: PackedRows) -> dict[str, np.ndarray]:
        """Each task's texts for documents, str (rows,); "" for a document without a token."""
        loaded, column, lengths = self._opened.session().loaded, self._column, rows.lengths
        waiting = []
        for row in np.flatnonzero(lengths).tolist():
            raw = np.asarray(rows.data[rows.offsets[row] : rows.offsets[row + 1]])
            waiting.append(TextStates(row=row, values=decode(raw, column.codec, column.width)))
        written = {}
        for name in self.tasks:
            writer, texts = loaded.writer(name), [""] * len(lengths)
            for result in writer.written(waiting):
                if result.error is not None:
                    raise result.error
                if result.text is not None:
                    texts[result.row] = writer.text(result.text)
            written[name] = np.array(texts, np.str_)
        return written
