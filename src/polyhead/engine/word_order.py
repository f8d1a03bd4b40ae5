"""The places of words' outputs among the words of their texts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from polyhead.engine.batch import Texts
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.kinds.tagged import parts_marked
from polyhead.tasks.task import Task
from polyhead.text.encodings import ranges, starts_of
from polyhead.text.tokenize import encoded_at
from polyhead.text.words import best_windows
from polyhead.values import Value


class WordOrder(Value, eq=False):
    """Positions of outputs of some entries among the words of their texts: the same for all tasks."""

    texts: Texts
    entries: np.ndarray  # int64 (entries,): in the order in which batches gave them
    # Texts of one window, in the order of their inputs.
    rows: np.ndarray  # int64 (alone,): their inputs
    words: list[np.ndarray]  # of each (words, 2)
    starts: np.ndarray  # int64 (alone + 1,): where its words begin
    own: np.ndarray | None  # bool (outputs,): which are of such texts; None: all
    into: np.ndarray  # int64: the word that each of these is of
    goes_on: np.ndarray  # bool (words,): of all of them, which share the token of the word before
    windowed: np.ndarray  # int64: texts of several windows of which all are there

    @classmethod
    def of(cls, texts: Texts, read: np.ndarray, entries: np.ndarray) -> WordOrder:
        """`read` are the entries that a task reads, `entries` those of the batches, in their order."""
        reads, encodings = texts.reads, texts.encodings
        assert reads is not None
        if len(encodings.row) == len(entries) == 1:  # one text in one window
            return cls(
                texts=texts,
                entries=entries,
                rows=texts.row,
                words=[reads.words],
                goes_on=reads.goes_on,
                starts=reads.text_starts,
                own=None,
                into=reads.places,
                windowed=np.zeros(0, np.int64),
            )
        sizes, text = np.diff(reads.starts)[entries], encodings.row[entries]
        windows = np.bincount(encodings.row[read])
        is_alone = windows[text] == 1
        in_one_window = np.flatnonzero(is_alone)
        in_one_window = in_one_window[np.argsort(texts.row[entries[in_one_window]], kind="stable")]
        starts, base = starts_of(np.diff(reads.text_starts)[text[in_one_window]]), np.zeros(len(entries), np.int64)
        base[in_one_window] = starts[:-1]
        into = np.repeat(base, sizes) + reads.places[ranges(reads.starts[entries], sizes)]
        collected = np.repeat(is_alone, sizes)
        windowed, window_counts = np.unique(text[~is_alone], return_counts=True)
        return cls(
            texts=texts,
            entries=entries,
            rows=texts.row[entries[in_one_window]],
            words=[reads.of(number) for number in text[in_one_window].tolist()],
            goes_on=reads.going_on(text[in_one_window]),
            starts=starts,
            own=None if is_alone.all() else collected,
            into=into[collected],
            windowed=windowed[window_counts == windows[windowed]],
        )

    def outputs(self, flat: np.ndarray) -> list[np.ndarray]:
        """One row for each word of the texts of one window, NaN for words that are not read."""
        outputs = np.full((int(self.starts[-1]), flat.shape[-1]), np.nan, np.float32)
        outputs[self.into] = flat if self.own is None else flat[self.own]
        marked = parts_marked(outputs, self.goes_on)
        return [marked[start:stop] for start, stop in pairwise(self.starts.tolist())]

    def merged(self, task: Task, flat: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Input, outputs and words of each text of several windows, put together as the task's kind does."""
        reads, encodings = self.texts.reads, self.texts.encodings
        assert reads is not None
        sizes = np.diff(reads.starts)[self.entries]
        stops, text = np.cumsum(sizes), encodings.row[self.entries]
        for number in self.windowed.tolist():
            order = np.flatnonzero(text == number)
            order = order[np.argsort(self.entries[order])]
            spans = [slice(stops[i] - sizes[i], stops[i]) for i in order]
            starts = reads.starts[self.entries[order]]
            places = [reads.places[start : start + size] for start, size in zip(starts, sizes[order], strict=True)]
            words = reads.of(number)
            best = best_windows([encoded_at(encodings, entry) for entry in self.entries[order]], words)[:, 0]
            merged = kind_of(task).merge_words(task, [flat[span] for span in spans], places, best)
            merged = parts_marked(merged, reads.going_on(np.array([number])))
            yield int(self.texts.row[self.entries[order[0]]]), merged, words
