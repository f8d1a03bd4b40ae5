"""Examples of different lengths in batches, their targets as arrays, and one output for each of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np

from polyhead.tasks.kinds.tagged import parts_marked
from polyhead.text.words import GOES_ON
from polyhead.train.data.windows import WordWindows

UNLABELLED = -100  # a word without a target: cut off, or padding; a place that does not compete
# tokens evaluated in one batch, padding included; more exceed a processor's cache and take twice as long
AT_ONCE = 2048


class BatchOfMembers(Protocol):
    """Some examples, in an order of their own."""

    @property
    def members(self) -> np.ndarray:
        """The indices of the examples."""


Batch = TypeVar("Batch", bound=BatchOfMembers)

SORTED_CHUNK = 64  # batches whose examples are sorted by length together: less padding, but still a random order


class LengthSorted(ABC, Generic[Batch]):
    """Examples of different lengths. `lengths` (examples,) are in tokens.

    For words read in windows each window is an example: `count`, `steps` and members are in windows.
    """

    windows: WordWindows | None = None  # set if windows are examples

    def __init__(
        self,
        lengths: np.ndarray,
        *,
        options: np.ndarray | None = None,
        window_counts: np.ndarray | None = None,
        words: Sequence[np.ndarray] | None = None,
    ) -> None:
        """`options` (examples,): each one's number; `lengths` are then of all options, and the longest one counts.

        `window_counts` (examples,) likewise for windows: an example's outputs are the mean of theirs. `words` are
        each example's `first_subtokens` of its words.
        """
        self.lengths, self.options, self.window_counts, self._words = lengths, options, window_counts, words
        self._rows = options if window_counts is None else window_counts
        if self._rows is not None:
            self.lengths = np.asarray(np.maximum.reduceat(lengths, np.cumsum(self._rows) - self._rows))
        self.count = len(self.lengths)

    def rows_of(self, members: np.ndarray) -> np.ndarray:
        """The rows of these examples: each one's own, or those of its options or windows."""
        return members if self._rows is None else option_rows(members, self._rows)

    def windows_of(self, members: np.ndarray) -> tuple[int, ...]:
        """The number of rows whose outputs are averaged for each of these examples; () if each has one row."""
        return () if self.window_counts is None else tuple(self.window_counts[members].tolist())

    def steps(self, batch: int) -> int:
        """Batches in one pass."""
        return -(-self.count // batch)

    def drawn(self, batch: int, generator: np.random.Generator, *, tokens: int | None = None) -> Iterator[np.ndarray]:
        """The members of each batch of one pass in random order; every example once.

        With `tokens` a batch ends before its rows times its longest would exceed it: it has fewer examples, and a
        longer one is alone. An example with options or windows has one row for each.
        """
        order = generator.permutation(self.count)
        for start in range(0, self.count, batch * SORTED_CHUNK):
            chunk = order[start : start + batch * SORTED_CHUNK]
            chunk = chunk[np.argsort(self.lengths[chunk], kind="stable")]
            pieces = self._pieces(chunk, batch, tokens)
            for index in generator.permutation(len(pieces)):
                yield pieces[index]

    def _pieces(self, chunk: np.ndarray, batch: int, tokens: int | None) -> list[np.ndarray]:
        """Cuts examples that are sorted by length, shortest first."""
        if tokens is None:
            return [chunk[i : i + batch] for i in range(0, len(chunk), batch)]
        rows = np.ones(len(chunk), np.int64) if self._rows is None else self._rows[chunk]
        lengths, starts, piece_rows = self.lengths[chunk], [0], 0
        for index, (example_rows, longest) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
            full = index - starts[-1] == batch or (piece_rows + example_rows) * longest > tokens
            if index and full:
                starts.append(index)
                piece_rows = 0
            piece_rows += example_rows
        return np.split(chunk, starts[1:])

    def in_order(self, batch: int, *, tokens: int | None = None) -> Iterator[Batch]:
        """One pass by length; `tokens` as in `drawn`."""
        for members in self._pieces(np.argsort(self.lengths, kind="stable"), batch, tokens):
            yield self.batch(members)

    @abstractmethod
    def batch(self, members: np.ndarray) -> Batch:
        """These examples, padded to the longest of them."""

    def goes_on(self, member: int) -> np.ndarray | None:
        """Which words of an example share the token of the word before; None if unknown."""
        return None if self._words is None else self._words[member] == GOES_ON

    def unread(self, member: int) -> np.ndarray | None:
        """For each word of an example, whether no token represents it; None for tasks that do not read words."""
        return None if self._words is None else self._words[member] < 0


def outputs_of(
    answer: Callable[[Batch], np.ndarray], examples: LengthSorted[Batch], *, batch: int = 256
) -> list[np.ndarray]:
    """The outputs that `answer` gives for every example, in order; windows of a text are merged by its kind.

    Words are without padding, unread ones NaN; an example's options are (options,).
    """
    outputs = outputs_of_each(answer, examples, batch=batch)
    return outputs if examples.windows is None else examples.windows.merged(outputs)


def outputs_of_each(
    answer: Callable[[Batch], np.ndarray], examples: LengthSorted[Batch], *, batch: int = 256
) -> list[np.ndarray]:
    """Like `outputs_of`, with an output for each window."""
    by_member: list[np.ndarray | None] = [None] * examples.count
    options = examples.options
    for piece in examples.in_order(batch, tokens=AT_ONCE):
        outputs = answer(piece)
        if options is not None:
            by_question = np.split(outputs[:, 0], np.cumsum(options[piece.members])[:-1])
            for member, member_outputs in zip(piece.members, by_question, strict=True):
                by_member[member] = member_outputs
            continue
        for row, member in enumerate(piece.members):
            unread = examples.unread(member)
            if unread is None:
                by_member[member] = outputs[row]
            else:
                member_outputs = np.where(unread[:, None], np.float32(np.nan), outputs[row, : len(unread)])
                goes_on = examples.goes_on(member)
                by_member[member] = member_outputs if goes_on is None else parts_marked(member_outputs, goes_on)
    return [o for o in by_member if o is not None]


def padded_words(words: Sequence[np.ndarray]) -> np.ndarray:
    """(rows, words) first sub-tokens, -1 beyond a row's end; at least one column."""
    out = np.full((len(words), max([1, *(len(w) for w in words)])), -1, np.int64)
    for row, index in enumerate(words):
        out[row, : len(index)] = index
    return out


def option_rows(members: np.ndarray, options: np.ndarray) -> np.ndarray:
    """The rows of these examples' options, in a list of all examples' options, example after example."""
    stops = np.cumsum(options)
    return np.concatenate([np.arange(stops[i] - options[i], stops[i]) for i in members])


def batch_targets(
    targets: Sequence[np.ndarray],
    members: np.ndarray,
    unread: Callable[[int], np.ndarray | None],
    options: np.ndarray | None,
) -> np.ndarray:
    """The targets of a batch in the form of their kind's loss."""
    if options is None:
        return stacked([without_unread(targets[i], unread(i)) for i in members])
    marks = [np.arange(options[i]) == targets[i] for i in members]
    which = np.repeat(np.arange(len(members)), options[members])
    return np.stack([which, np.concatenate(marks)], axis=1).astype(np.int64)


def soft_targets(outputs: Sequence[np.ndarray], options: np.ndarray | None) -> np.ndarray:
    """A teacher's outputs for a batch: (rows, labels), (options of all, 1), or (rows, words, labels).

    Words beyond a row's end are zeros, and so are unread words.
    """
    if options is not None:
        return np.concatenate(outputs)[:, None]
    if outputs[0].ndim == 1:
        return np.stack(outputs)
    longest = max(1, max(len(output) for output in outputs))
    out = np.zeros((len(outputs), longest, outputs[0].shape[-1]), np.float32)
    for row, output in enumerate(outputs):
        out[row, : len(output)] = np.nan_to_num(output)
    return out


def without_unread(target: np.ndarray, unread: np.ndarray | None) -> np.ndarray:
    """The target with UNLABELLED for words without a token, which nothing can be learned from.

    Of a text's right answers the first is used, as int64 (places, 2): 1 at its beginning and at its end, 0 at other
    places; if one of them is unread, both are 0.
    """
    if unread is None:
        return target
    if not is_answers(target):
        return np.where(unread, UNLABELLED, target)
    marks = np.where(unread, UNLABELLED, 0).astype(np.int64)[:, None].repeat(2, axis=1)
    first, last = target[0, :2]
    if not unread[first] and not unread[last]:
        marks[first, 0] = marks[last, 1] = 1
    return marks


def stacked(targets: Sequence[np.ndarray]) -> np.ndarray:
    """One array of targets; rows of words or places are padded with UNLABELLED to the longest."""
    if is_words(targets[0]) or is_answers(targets[0]):
        longest = max(1, max(len(words) for words in targets))
        out = np.full((len(targets), longest, *targets[0].shape[1:]), UNLABELLED, np.int64)
        for row, words in enumerate(targets):
            out[row, : len(words)] = words
        return out
    return np.stack(targets)


def is_words(target: np.ndarray) -> bool:
    """Whether a target is one label for each word."""
    return target.ndim == 1 and target.dtype == np.int64


def is_answers(target: np.ndarray) -> bool:
    """Whether a target is the right answers in a text."""
    return target.ndim == 2
