"""Texts longer than the trunk's limit, read in windows, whose outputs are merged to one per text, as in answering.

For kinds that read words each window is a separate example, whose words are those in the window. For kinds that answer
a whole text with the mean of its windows' outputs the text is the example, and this mean is what is learned from.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from polyhead.data.read import Examples
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.kinds.tagged import parts_marked
from polyhead.tasks.task import Kind, Task
from polyhead.text.hashing import HashedText
from polyhead.text.question import read_alone
from polyhead.text.tokenize import Encoded, Tokenizer, windows_of
from polyhead.text.words import WordFinder, best_windows


def reads_windows(task: Task) -> bool:
    """Whether training reads every window of the task's texts; of kinds that merge by a rule of their own the first."""
    kind = kind_of(task)
    return task.long_texts == "windows" and (kind.per_word or type(kind).merge_windows is Kind.merge_windows)


class TextWindows:
    """The windows of texts, text after text."""

    def __init__(self, texts: np.ndarray, numbers: np.ndarray) -> None:
        self.texts = np.asarray(texts, np.int64)  # (windows,) the text of each
        self.numbers = np.asarray(numbers, np.int64)  # (windows,) from 0 in each text

    @property
    def counts(self) -> np.ndarray:
        """(texts,) int64: how many each has."""
        return np.bincount(self.texts)


class WordWindows(TextWindows):
    """The windows of a task's texts that are examples: their words, targets, and the merging of outputs."""

    def __init__(self, task: Task, encoded: Sequence[Encoded], words: Sequence[np.ndarray]) -> None:
        """`encoded` are all windows of all texts, `words` (words, 2) each text's."""
        super().__init__(
            np.array([encoding.row for encoding in encoded]), np.array([encoding.window for encoding in encoded])
        )
        self._task = task
        self.read: list[np.ndarray] = []  # (read,) the words of its text in a window, in order
        self.tokens: list[np.ndarray] = []  # (read,) the first sub-token of each
        self._whole: list[np.ndarray] = []  # (read,) whether the window holds the whole word
        self._best: list[np.ndarray] = []  # (words,) for each text, the window that should answer a word
        self.goes_on: list[np.ndarray] = []  # (words,) for each text, whether it shares the token of the word before
        for row, text_windows in groupby(encoded, key=lambda encoding: encoding.row):
            self._add(list(text_windows), words[row])

    def targets(self, targets: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The target of each window, from its text's target."""
        kind, facts = kind_of(self._task), zip(self.texts, self.read, self._whole, strict=True)
        return [kind.in_window(targets[text], read, whole) for text, read, whole in facts]

    def places(self, windows: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The texts of these windows, and which words of these are at these places of the windows' own words."""
        each = zip(windows.tolist(), places.tolist(), strict=True)
        return self.texts[windows], np.array([self.read[window][place] for window, place in each], np.int64)

    def of_words(self, each: Sequence[Sequence[HashedText]]) -> list[list[HashedText]]:
        """The hashed features of each window's words, from those of the texts' words."""
        return [[each[text][word] for word in read] for text, read in zip(self.texts.tolist(), self.read, strict=True)]

    def merged(self, outputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """One output (words, width) per text from those of the windows, (read, width) each."""
        kind, starts = kind_of(self._task), np.flatnonzero(self.numbers == 0).tolist()
        each = zip(starts, [*starts[1:], len(self.texts)], self._best, self.goes_on, strict=True)
        return [
            parts_marked(kind.merge_words(self._task, outputs[start:stop], self.read[start:stop], best), goes_on)
            for start, stop, best, goes_on in each
        ]

    def _add(self, windows: list[Encoded], words: np.ndarray) -> None:
        search, goes_on = WordFinder(words), np.zeros(len(words), bool)
        for encoding in windows:
            goes_on[search.going_on_in(encoding)] = True
            read, tokens = search.read_in(encoding)
            self.read.append(read)
            self.tokens.append(tokens)
            self._whole.append(_whole(encoding, words[read], last=encoding is windows[-1]))
        self._best.append(best_windows(windows, words)[:, 0])
        self.goes_on.append(goes_on)


def windowed(task: Task, examples: Examples, tokenizer: Tokenizer) -> TextWindows | None:
    """The windows of the examples; None for a task trained without windows, or where each whole text has one."""
    if not reads_windows(task):
        return None
    inputs, windows = read_alone(examples.inputs), windows_of(tokenizer.max_tokens)
    if kind_of(task).per_word:
        assert examples.words is not None
        return WordWindows(task, tokenizer.encode(inputs, windows=windows), examples.words)
    encodings = tokenizer.encodings(inputs, windows=windows)
    return TextWindows(encodings.row, encodings.window) if encodings.window.any() else None


def _whole(window: Encoded, words: np.ndarray, *, last: bool) -> np.ndarray:
    """Which words neither begin before the window nor end after it; the text's own ends do not cut."""
    offsets = window.offsets[window.sequence == window.texts - 1]
    begun = words[:, 0] >= offsets[:, 0].min(initial=np.iinfo(np.int32).max)
    ended = words[:, 1] <= offsets[:, 1].max(initial=0)
    return np.asarray((begun | (window.window == 0)) & (ended | last))
