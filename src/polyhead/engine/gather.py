"""From what batches give, in any order, to each task's outputs for inputs: windows, halves and options put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from polyhead.config import Value
from polyhead.engine.ragged import TextWords, WordOrder
from polyhead.engine.rows import Batch, PairHalves, Readings, Texts
from polyhead.errors import BackendError
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task

Compare = Callable[[str, np.ndarray, np.ndarray], np.ndarray]
"""Outputs of a task over pairs read separately, from the features of first and second texts."""


class Outputs(Value, eq=False):
    """A task's outputs for some inputs."""

    rows: np.ndarray  # int64 (answered,): the inputs, ascending
    values: np.ndarray | Sequence[np.ndarray]  # float32 (answered, width); of words and options an array for each
    words: Sequence[np.ndarray] | None = None  # of a kind that answers words: those of each input, (words, 2)


class _Piece(msgspec.Struct, frozen=True):
    """What one batch gave a task."""

    batch: Batch
    readings: int  # number of the readings that the batch was made of
    values: np.ndarray  # (rows of readings, width); of words (all that these rows read, width)


class _Order(msgspec.Struct, frozen=True):
    """How entries of batches stand in the order of inputs, options and windows."""

    order: np.ndarray | None  # (entries,): of what batches gave; None where they gave it in order
    rows: np.ndarray  # (inputs,): those that have entries here, ascending
    first: np.ndarray  # (inputs,): the first entry of each, in order
    counts: np.ndarray  # (inputs,): how many it has
    entries: int


class Gathered:
    """What batches of these readings have given so far."""

    def __init__(
        self, readings: Sequence[Readings], tasks: Mapping[str, Task], compare: Compare, *, alone: bool
    ) -> None:
        """`alone`: pairs are compared one by one, so that none depends on how many there are."""
        self.readings, self._known, self._compare, self._alone = list(readings), tasks, compare, alone
        self._pieces: dict[str, list[_Piece]] = {}
        self._orders: dict[tuple[int, ...], _Order] = {}
        self._word_orders: dict[tuple[int, ...], WordOrder] = {}
        self._wrong: dict[str, set[int]] = {}  # inputs of which a task gave what is no finite number
        self._expected: dict[str, int] = {}  # entries that a task reads
        for reading in self.readings:
            for task in reading.tasks:
                self._expected[task] = self._expected.get(task, 0) + len(reading.entries)

    def add(self, batch: Batch, readings: int, outputs: Mapping[str, np.ndarray]) -> None:
        """Takes the outputs of a batch, which was made of the readings of this number."""
        is_word = None
        for task in self.readings[readings].tasks:
            if task not in outputs:
                continue
            members = batch.members
            values = outputs[task][: len(members)]
            if kind_of(self._known[task]).per_word:
                if is_word is None:
                    source = self.readings[readings]
                    counts = source.texts.word_counts(source.entries[members])
                    is_word = np.arange(values.shape[1]) < counts[:, None]
                values = values[is_word]  # room for other texts' words is kept by nobody
                members = np.repeat(members, is_word.sum(axis=1))
            if not np.isfinite(values).all():
                values = self._without_wrong(task, readings, members, values)
            self._pieces.setdefault(task, []).append(_Piece(batch, readings, values))

    def not_finite(self, task: str) -> np.ndarray:
        """Inputs of which the task gave something else than finite numbers; `of` leaves them out."""
        return np.array(sorted(self._wrong.get(task, ())), np.int64)

    def _without_wrong(self, task: str, readings: int, members: np.ndarray, values: np.ndarray) -> np.ndarray:
        """The values with 0 for each that is not finite; the inputs that it is of are noted."""
        is_finite, source = np.isfinite(values), self.readings[readings]
        wrong = np.unique(members[~is_finite.reshape(len(values), -1).all(axis=1)])
        self._wrong.setdefault(task, set()).update(source.texts.inputs_of(task, source.entries[wrong]).tolist())
        return np.where(is_finite, values, np.float32(0))

    @property
    def tasks(self) -> tuple[str, ...]:
        """Every task that reads something here."""
        return tuple(self._expected)

    def rows_of(self, task: str) -> np.ndarray:
        """The inputs that the task reads, ascending."""
        rows = [reading.texts.inputs_of(task, reading.entries) for reading in self.readings if task in reading.tasks]
        return np.unique(np.concatenate(rows)) if rows else np.zeros(0, np.int64)

    def is_at_once(self, task: str) -> bool:
        """Whether each input's answer comes from one reading, and so from one batch."""
        known = self._known[task]
        if kind_of(known).per_option or known.pair == "separate":
            return False
        own = [reading for reading in self.readings if task in reading.tasks]
        return not any(reading.texts.encodings.window[reading.entries[0]] for reading in own)

    def of(self, task: str, *, batch: Batch | None = None) -> Outputs:
        """Outputs for each input of which all that the task reads is known, or for those of one batch alone."""
        outputs = self._known_of(task, batch)
        wrong = self.not_finite(task)
        return _only(outputs, ~np.isin(outputs.rows, wrong)) if len(wrong) else outputs

    def _known_of(self, task: str, batch: Batch | None) -> Outputs:
        pieces = self._pieces.get(task, [])
        if batch is not None:
            pieces = [piece for piece in pieces if piece.batch is batch]
        if not pieces:
            return Outputs(rows=np.zeros(0, np.int64), values=[])
        kind = kind_of(self._known[task])
        if kind.per_word:
            return self._of_words(task, pieces)
        halves = self.readings[pieces[0].readings].texts.halves
        if halves is not None and task in halves.tasks:
            return self._of_halves(task, halves, pieces)
        order, values = self._ordered(pieces)
        if not kind.per_option and order.entries == len(order.rows) == self._expected[task]:
            return Outputs(rows=order.rows, values=values)
        is_whole = self._is_whole(task, order)
        rows, first, counts = order.rows[is_whole], order.first[is_whole], order.counts[is_whole]
        if kind.per_option:
            spans = zip(first.tolist(), (first + counts).tolist(), strict=True)
            return Outputs(rows=rows, values=[values[start:stop, 0] for start, stop in spans])
        merged = values[first]
        for i in np.flatnonzero(counts > 1):
            windows = list(values[first[i] : first[i] + counts[i]])
            merged[i] = kind.merge_windows(self._known[task], windows)
        return Outputs(rows=rows, values=merged)

    def _ordered(self, pieces: Sequence[_Piece]) -> tuple[_Order, np.ndarray]:
        """The order of these, and what they give in this order."""
        key = tuple([id(piece.batch) for piece in pieces])
        if key not in self._orders:  # tasks that are read alike share it
            self._orders[key] = self._order(pieces)
        order = self._orders[key]
        values = pieces[0].values if len(pieces) == 1 else np.concatenate([p.values for p in pieces])
        return order, values if order.order is None else values[order.order]

    def _order(self, pieces: Sequence[_Piece]) -> _Order:
        entries = [self._entries(piece) for piece in pieces]
        facts = [(t.row[subset], t.option[subset], t.encodings.window[subset]) for t, subset in entries]
        row, option, window = (np.concatenate(fact) for fact in zip(*facts, strict=True))
        order = np.lexsort((window, option, row))
        rows, first, counts = np.unique(row[order], return_index=True, return_counts=True)
        is_in_order = bool((order[1:] > order[:-1]).all())
        return _Order(None if is_in_order else order, rows, first, counts, len(row))

    def _is_whole(self, task: str, order: _Order) -> np.ndarray:
        """Which of the inputs lack nothing that the task reads of them."""
        wanted = np.bincount(np.concatenate([reading.row for reading in self.readings if task in reading.tasks]))
        return np.asarray(order.counts == wanted[order.rows])

    def _entries(self, piece: _Piece) -> tuple[Texts, np.ndarray]:
        readings = self.readings[piece.readings]
        return readings.texts, readings.entries[piece.batch.members]

    def _of_halves(self, task: str, halves: PairHalves, pieces: Sequence[_Piece]) -> Outputs:
        """Of pairs read separately, those of which both texts are there."""
        texts = np.concatenate([t.encodings.row[subset] for t, subset in map(self._entries, pieces)])
        values = np.concatenate([piece.values for piece in pieces])
        first, second = halves.among(texts)
        is_paired = (first >= 0) & (second >= 0)
        rows, u, v = halves.rows[is_paired], values[first[is_paired]], values[second[is_paired]]
        if not len(rows):
            return Outputs(rows=rows, values=[])
        if self._alone:
            each = [self._compare(task, u[i : i + 1], v[i : i + 1]) for i in range(len(rows))]
            compared = np.concatenate(each)
        else:
            compared = self._compare(task, u, v)
        wrong = rows[~np.isfinite(compared).all(axis=1)]
        if len(wrong):
            self._wrong.setdefault(task, set()).update(wrong.tolist())
        return Outputs(rows=rows, values=compared)

    def _of_words(self, task: str, pieces: Sequence[_Piece]) -> Outputs:
        """For each input a row for each of its words, NaN where none of its windows reads it."""
        sources = {id(texts): texts for texts in (self._entries(piece)[0] for piece in pieces)}
        orders: list[tuple[WordOrder, np.ndarray]] = []
        for texts in sources.values():
            own = [piece for piece in pieces if self._entries(piece)[0] is texts]
            order = self._word_order(task, texts, own)
            orders.append((order, np.concatenate([piece.values for piece in own])))
        if len(orders) == 1 and not len(orders[0][0].windowed):
            ((order, flat),) = orders
            return Outputs(rows=order.rows, values=order.outputs(flat), words=order.words)
        answered: list[TextWords] = []
        for order, flat in orders:
            answered += zip(order.rows.tolist(), order.outputs(flat), order.words, strict=True)
            answered += order.merged(self._known[task], flat)
        answered.sort(key=lambda one: one[0])
        return Outputs(
            rows=np.array([row for row, _, _ in answered], np.int64),
            values=[output for _, output, _ in answered],
            words=[words for _, _, words in answered],
        )

    def _word_order(self, task: str, texts: Texts, pieces: Sequence[_Piece]) -> WordOrder:
        """Shared by tasks that read the same of these texts."""
        reading = [i for i, one in enumerate(self.readings) if one.texts is texts and task in one.tasks]
        key = (*[id(piece.batch) for piece in pieces], -1, *reading)
        if key not in self._word_orders:
            self._word_orders[key] = WordOrder.of(
                texts,
                np.concatenate([self.readings[i].entries for i in reading]),
                np.concatenate([self._entries(piece)[1] for piece in pieces]),
            )
        return self._word_orders[key]


def not_finite(task: str) -> BackendError:
    """The error of a task whose outputs are no numbers: no label, and no number, would be an answer."""
    return BackendError(
        f"task '{task}' gave an output that is not finite",
        got="NaN or infinity",
        allowed="finite numbers, of which an answer can be made",
        do="run `polyhead tasks verify`; where all files are whole, answer in precision float32 or train it again",
        task=task,
    )


def _only(outputs: Outputs, kept: np.ndarray) -> Outputs:
    """Those of some of the inputs."""
    places = np.flatnonzero(kept)
    values, words = outputs.values, outputs.words
    return Outputs(
        rows=outputs.rows[places],
        values=values[places] if isinstance(values, np.ndarray) else [values[i] for i in places.tolist()],
        words=None if words is None else [words[i] for i in places.tolist()],
    )
