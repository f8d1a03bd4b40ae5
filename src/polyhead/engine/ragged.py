"""A task's outputs for the words of many texts: arrays of unlike lengths, end to end in one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np

from polyhead.config import Value
from polyhead.engine.rows import Texts
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.text.encodings import ranges, starts_of
from polyhead.text.tokenize import encoded_at
from polyhead.text.words import best_windows

TextWords = tuple[int, np.ndarray, np.ndarray]  # an input, its outputs (words, width) and its words (words, 2)


class Ragged(Sequence[np.ndarray]):
    """Arrays (n, width) of several n, each cut out of one when it is asked for."""

    def __init__(self, flat: np.ndarray, starts: np.ndarray) -> None:
        """`flat` (all, width); `starts` (arrays + 1,), where each begins and the last one ends."""
        self.flat, self.starts = flat, starts

    @classmethod
    def joined(cls, parts: Sequence[Ragged]) -> Ragged:
        """Those of all, one after the other."""
        sizes = np.concatenate([np.diff(one.starts) for one in parts])
        return cls(np.concatenate([one.flat for one in parts]), starts_of(sizes))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, index: int) -> np.ndarray: ...
    @overload
    def __getitem__(self, index: slice) -> list[np.ndarray]: ...
    def __getitem__(self, index: int | slice) -> np.ndarray | list[np.ndarray]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        return np.asarray(self.flat[self.starts[place] : self.starts[place + 1]])

    def __iter__(self) -> Iterator[np.ndarray]:
        starts = self.starts.tolist()
        return (self.flat[start:stop] for start, stop in zip(starts[:-1], starts[1:], strict=True))


class WordOrder(Value, eq=False):
    """Where outputs for entries of some texts stand among the words of these texts: the same for all their tasks."""

    texts: Texts
    entries: np.ndarray  # int64 (entries,): in the order in which batches gave them
    # Texts of one window, in the order of their inputs.
    rows: np.ndarray  # int64 (alone,): their inputs
    words: list[np.ndarray]  # of each (words, 2)
    starts: np.ndarray  # int64 (alone + 1,): where its words begin
    own: np.ndarray | None  # bool (outputs,): which are of such texts; None: all
    into: np.ndarray  # int64: the word that each of these is of
    windowed: np.ndarray  # int64: texts of several windows of which all are there

    @classmethod
    def of(cls, texts: Texts, read: np.ndarray, entries: np.ndarray) -> WordOrder:
        """`read` are the entries that a task reads, `entries` those that batches gave, in their order."""
        reads, encodings = texts.reads, texts.encodings
        assert reads is not None
        counts = np.diff(reads.starts)
        sizes, text = counts[entries], encodings.row[entries]
        windows = np.bincount(encodings.row[read])
        is_alone = windows[text] == 1
        alone = np.flatnonzero(is_alone)
        alone = alone[np.argsort(texts.row[entries[alone]], kind="stable")]
        starts, base = starts_of(np.diff(reads.text_starts)[text[alone]]), np.zeros(len(entries), np.int64)
        base[alone] = starts[:-1]
        into = np.repeat(base, sizes) + reads.places[ranges(reads.starts[entries], sizes)]
        own = np.repeat(is_alone, sizes)
        windowed_texts, given_windows = np.unique(text[~is_alone], return_counts=True)
        return cls(
            texts=texts,
            entries=entries,
            rows=texts.row[entries[alone]],
            words=[reads.of(one) for one in text[alone].tolist()],
            starts=starts,
            own=None if is_alone.all() else own,
            into=into[own],
            windowed=windowed_texts[given_windows == windows[windowed_texts]],
        )

    def outputs(self, flat: np.ndarray) -> Ragged:
        """Of the texts of one window a row for each of its words, NaN where none is read."""
        outputs = np.full((int(self.starts[-1]), flat.shape[-1]), np.nan, np.float32)
        outputs[self.into] = flat if self.own is None else flat[self.own]
        return Ragged(outputs, self.starts)

    def merged(self, task: Task, flat: np.ndarray) -> Iterator[TextWords]:
        """Those of several windows, put together as the task's kind does."""
        reads, encodings = self.texts.reads, self.texts.encodings
        assert reads is not None
        sizes = np.diff(reads.starts)[self.entries]
        stops, text = np.cumsum(sizes), encodings.row[self.entries]
        for one in self.windowed.tolist():
            order = np.flatnonzero(text == one)
            order = order[np.argsort(self.entries[order])]
            spans = [slice(stops[i] - sizes[i], stops[i]) for i in order]
            starts = reads.starts[self.entries[order]]
            places = [reads.places[start : start + size] for start, size in zip(starts, sizes[order], strict=True)]
            best = best_windows([encoded_at(encodings, entry) for entry in self.entries[order]], reads.of(one))[:, 0]
            merged = kind_of(task).merge_words(task, [flat[span] for span in spans], places, best)
            yield int(self.texts.row[self.entries[order[0]]]), merged, reads.of(one)
