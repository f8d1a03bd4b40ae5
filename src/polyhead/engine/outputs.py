"""Collects outputs of batches and assembles them by task and input: windows, halves of pairs, options."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from itertools import accumulate, chain, pairwise

import numpy as np

from polyhead.engine.batch import EncodedInputs
from polyhead.engine.inputs import AnyInput, task_input
from polyhead.engine.word_order import WordOrder
from polyhead.errors import BackendError
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Kind, Task
from polyhead.text.encodings import end_to_end
from polyhead.text.hashing import HashedContexts, HashedRows, hashed_in_contexts, hashed_pairs, hashed_texts
from polyhead.text.question import read_alone, texts_of
from polyhead.values import Value

FEWEST_AHEAD = 4  # inputs: with fewer, a thread that hashes words while the encoder runs takes more than it gives

Compare = Callable[[str, np.ndarray, np.ndarray], np.ndarray]
"""Outputs of a task over pairs read separately, from the features of first and second texts."""
BatchOutputs = tuple[EncodedInputs, np.ndarray]
"""Outputs of a batch for a task: (entries, width); for words (words of all entries, width)."""

Order = tuple[np.ndarray | None, np.ndarray, np.ndarray, np.ndarray]
"""The order of batches' entries by input, option and window, None where they came so; the inputs, ascending; and for
each input the place of its first entry in that order and its number of entries."""


class Outputs(Value, eq=False):
    """A task's outputs for some inputs."""

    rows: np.ndarray  # int64 (answered,): the inputs, ascending
    values: np.ndarray | Sequence[np.ndarray]  # float32 (answered, width); of words and options an array for each
    words: Sequence[np.ndarray] | None = None  # of a kind that answers words: those of each input, (words, 2)

    def only(self, is_kept: np.ndarray) -> Outputs:
        """Outputs of some of the inputs, bool (answered,)."""
        places, values = np.flatnonzero(is_kept), self.values
        return Outputs(
            rows=self.rows[places],
            values=values[places] if isinstance(values, np.ndarray) else [values[i] for i in places.tolist()],
            words=None if self.words is None else [self.words[i] for i in places.tolist()],
        )


NO_OUTPUTS = Outputs(rows=np.zeros(0, np.int64), values=[])


class WordOutputs:
    """Adds to outputs of tasks what their heads make of the inputs' words (`plan.Head`): of whole inputs, once each.

    Every input is hashed once, whatever tasks need it; no batch is involved, so that its bits are always the same.
    """

    def __init__(self, inputs: Sequence[AnyInput], weights: Mapping[str, np.ndarray]) -> None:
        """`weights` (columns, outputs), float32, of each task that has some."""
        self._inputs, self._weights = inputs, weights
        self._hashed: dict[tuple[bytes, str], tuple[HashedRows | HashedContexts, list[int]]] = {}
        self._sums: dict[tuple[bytes, str], np.ndarray] = {}  # by rows and task: computed ahead
        self._ahead: threading.Thread | None = None
        self._is_ended = False

    def begin(self, expected: Mapping[str, Outputs]) -> None:
        """Computes in another thread what will be added to these outputs, whose values are not known yet."""
        wanted = {task: outputs for task, outputs in expected.items() if task in self._weights and len(outputs.rows)}
        if max((len(outputs.rows) for outputs in wanted.values()), default=0) >= FEWEST_AHEAD:
            self._ahead = threading.Thread(target=self._sum, args=(wanted,), name="polyhead-words")
            self._ahead.start()

    def close(self) -> None:
        """Ends the other thread; what it has not computed is computed when it is added."""
        if self._ahead is not None:
            self._is_ended = True
            self._ahead.join()
            self._ahead, self._is_ended = None, False

    def _check(self) -> None:
        if self._is_ended:
            raise CancelledError

    def _sum(self, expected: Mapping[str, Outputs]) -> None:
        with suppress(Exception):  # it is raised where the sums are needed
            for task, outputs in expected.items():
                self._check()
                self._sums[outputs.rows.tobytes(), task] = self._summed(task, outputs)

    def added(self, task: str, outputs: Outputs) -> Outputs:
        """The task's outputs with its words; unchanged for a task without any."""
        if task not in self._weights or not len(outputs.rows):
            return outputs
        if self._ahead is not None:
            self._ahead.join()
        sums = self._sums.pop((outputs.rows.tobytes(), task), None)
        sums = self._summed(task, outputs) if sums is None else sums
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is told of its task
            if isinstance(outputs.values, np.ndarray):
                return Outputs(rows=outputs.rows, values=outputs.values + sums)
            parts = (sums[start:end] for start, end in pairwise(self._hashed_of(outputs)[1]))
            values = [of + added.reshape(of.shape) for of, added in zip(outputs.values, parts, strict=True)]
        return Outputs(rows=outputs.rows, values=values, words=outputs.words)

    def _summed(self, task: str, outputs: Outputs) -> np.ndarray:
        hashed, _ = self._hashed_of(outputs)
        with np.errstate(over="ignore", invalid="ignore"):
            return hashed.sums(self._weights[task])

    def _hashed_of(self, outputs: Outputs) -> tuple[HashedRows | HashedContexts, list[int]]:
        return self._of_inputs(outputs) if outputs.words is None else self._of_words(outputs)

    def _of_inputs(self, outputs: Outputs) -> tuple[HashedRows | HashedContexts, list[int]]:
        """The hashed inputs, or their options, and the first row of each input, the number of rows last."""
        key = outputs.rows.tobytes(), "inputs"
        if key not in self._hashed:
            of_each = [read_alone([task_input(self._inputs[row])]) for row in outputs.rows.tolist()]
            read = [*chain.from_iterable(of_each)]
            are_texts = len(read[0]) == 1  # so are all that a task reads, or none
            texts = [each[0] for each in read]
            rows = hashed_texts(texts, check=self._check) if are_texts else hashed_pairs(read, check=self._check)
            self._hashed[key] = rows, [*accumulate(map(len, of_each), initial=0)]
        return self._hashed[key]

    def _of_words(self, outputs: Outputs) -> tuple[HashedRows | HashedContexts, list[int]]:
        """The hashed words of all inputs, and the first row of each input, the number of rows last."""
        assert outputs.words is not None
        key = outputs.rows.tobytes(), "words"
        if key not in self._hashed:
            texts = [texts_of(task_input(self._inputs[row]))[-1] for row in outputs.rows.tolist()]
            words = [[text[a:b] for a, b in of.tolist()] for text, of in zip(texts, outputs.words, strict=True)]
            self._hashed[key] = hashed_in_contexts(words, check=self._check), [*accumulate(map(len, words), initial=0)]
        return self._hashed[key]


def concatenate_outputs(parts: Sequence[Outputs]) -> Outputs:
    """Outputs of a task for several ranges of inputs, in order, as one."""
    if len(parts) == 1:
        return parts[0]
    filled = [outputs for outputs in parts if len(outputs.rows)]
    if len(filled) == 1:
        return filled[0]
    words = [outputs.words for outputs in filled if outputs.words is not None]
    values = [outputs.values for outputs in filled]
    arrays = [array for array in values if isinstance(array, np.ndarray)]
    return Outputs(
        rows=np.concatenate([NO_OUTPUTS.rows, *(outputs.rows for outputs in filled)]),
        values=np.concatenate(arrays) if arrays and len(arrays) == len(filled) else list(chain.from_iterable(values)),
        words=list(chain.from_iterable(words)) if words else None,
    )


class Gathered:
    """Outputs of batches of some readings so far."""

    def __init__(
        self,
        readings: Sequence[EncodedInputs],
        tasks: Mapping[str, Task],
        kinds: Mapping[str, Kind],
        compare: Compare,
        *,
        singly: bool,
        words: Callable[[str, Outputs], Outputs] = lambda task, outputs: outputs,
    ) -> None:
        """`singly`: compares pairs one by one, so that results do not depend on how many there are.

        `words` adds what a task's head makes of the inputs' words.
        """
        self._readings, self._known, self._compare, self._singly = readings, tasks, compare, singly
        self._with_words = words
        self._by_task: dict[str, list[BatchOutputs]] = {}
        # Tasks that are read alike share these.
        self._orders: dict[tuple[int, ...], Order] = {}
        self._word_orders: dict[tuple[int, ...], WordOrder] = {}
        self._wrong: dict[str, set[int]] = {}  # inputs of which a task gave what is no finite number
        self._expected: dict[str, int] = {}  # entries that a task reads
        for reading in readings:
            for task in reading.tasks:
                self._expected[task] = self._expected.get(task, 0) + len(reading.entries)
        self._per_word = {task for task in self._expected if kinds[task].per_word}
        self._per_option = {task for task in self._expected if kinds[task].per_option}

    @property
    def tasks(self) -> tuple[str, ...]:
        """Every task that reads something here."""
        return tuple(self._expected)

    def add(self, batch: EncodedInputs, outputs: Mapping[str, np.ndarray]) -> None:
        """Takes the outputs of a batch of these readings."""
        is_word, rows, are_finite = None, len(batch.entries), _are_finite(outputs.values())
        for task in batch.tasks:
            if task not in outputs:
                continue
            values = outputs[task][:rows]
            if task in self._per_word:
                if is_word is None:
                    is_word = np.arange(values.shape[1]) < batch.texts.word_counts(batch.entries)[:, None]
                values = values[is_word]  # drops padding positions
            if not are_finite:
                values = self._finite(task, batch, values, is_word)
            if task in self._per_word:
                values = batch.texts.of_words(values)
            self._by_task.setdefault(task, []).append((batch, values))

    def _finite(self, task: str, batch: EncodedInputs, values: np.ndarray, is_word: np.ndarray | None) -> np.ndarray:
        """The values with 0 in place of numbers that are not finite, whose inputs are noted."""
        is_finite = np.isfinite(values)
        if is_finite.all():
            return values
        entries = batch.entries
        if is_word is not None and task in self._per_word:
            entries = np.repeat(entries, is_word.sum(axis=1))
        wrong = np.unique(entries[~is_finite.reshape(len(values), -1).all(axis=1)])
        self._wrong.setdefault(task, set()).update(batch.texts.inputs_of(task, wrong).tolist())
        return np.where(is_finite, values, np.float32(0))

    @property
    def are_finite(self) -> bool:
        """Whether all that came is finite."""
        return not self._wrong

    def not_finite(self, task: str) -> np.ndarray:
        """Inputs for which the task's outputs are not finite; `of` omits them."""
        return np.array(sorted(self._wrong.get(task, ())), np.int64)

    def rows_of(self, task: str) -> np.ndarray:
        """The inputs that the task reads, ascending."""
        rows = [reading.texts.inputs_of(task, reading.entries) for reading in self._of_task(task)]
        return np.unique(end_to_end(rows))

    def expected(self, task: str) -> Outputs:
        """The inputs and words that the task's outputs will be of, unless something fails; without values."""
        rows, words = self.rows_of(task), dict[int, np.ndarray]()
        if task not in self._per_word:
            return Outputs(rows=rows, values=[])
        for reading in self._of_task(task):
            texts, reads = reading.texts.encodings.row[reading.entries], reading.texts.reads
            assert reads is not None
            words |= {row: reads.of(text) for row, text in zip(reading.row.tolist(), texts.tolist(), strict=True)}
        return Outputs(rows=rows, values=[], words=[words[row] for row in rows.tolist()])

    def is_at_once(self, task: str) -> bool:
        """Whether each input's answer comes from one reading, and so from one batch."""
        known = self._known[task]
        if kind_of(known).per_option or known.pair == "separate":
            return False
        return not any(reading.texts.encodings.window[reading.entries[0]] for reading in self._of_task(task))

    def of(self, task: str, *, batch: EncodedInputs | None = None) -> Outputs:
        """Outputs for each input whose parts are all known, or for those of one batch only."""
        collected = self._by_task.get(task, [])
        if batch is not None:
            collected = [item for item in collected if item[0] is batch]
        if not collected:
            return NO_OUTPUTS
        if task in self._per_word:
            bare = self._of_words(task, collected)
            outputs = self._with_words(task, bare)
            if outputs is not bare and np.isinf(np.concatenate(list(outputs.values))).any():  # NaN: a word is not read
                self._note_not_finite(task, outputs.rows, np.array([not np.isinf(out).any() for out in outputs.values]))
        else:
            is_separate = task in collected[0][0].texts.separate
            bare = (self._of_pairs if is_separate else self._of_rows)(task, collected)
            outputs = self._with_words(task, bare)
            values = [outputs.values] if isinstance(outputs.values, np.ndarray) else outputs.values
            if outputs is not bare and not _are_finite(values):
                self._note_not_finite(task, outputs.rows, np.array([np.isfinite(of).all() for of in outputs.values]))
        if task not in self._wrong:
            return outputs
        return outputs.only(~np.isin(outputs.rows, self.not_finite(task)))

    def _of_task(self, task: str) -> list[EncodedInputs]:
        return [reading for reading in self._readings if task in reading.tasks]

    def _of_rows(self, task: str, outputs: Sequence[BatchOutputs]) -> Outputs:
        """Joins options and windows by the task's kind, for inputs whose parts are all known."""
        key = tuple([id(batch) for batch, _ in outputs])
        if key not in self._orders:
            self._orders[key] = _order_of([batch for batch, _ in outputs])
        order, rows, first, counts = self._orders[key]
        if len(outputs) == 1 and order is None and self._expected[task] == len(rows) and task not in self._per_option:
            return Outputs(rows=rows, values=outputs[0][1])
        values = outputs[0][1] if len(outputs) == 1 else np.concatenate([values for _, values in outputs])
        values = values if order is None else values[order]
        if len(values) == len(rows) == self._expected[task] and task not in self._per_option:
            return Outputs(rows=rows, values=values)
        kind = kind_of(self._known[task])
        reading_rows = np.concatenate([reading.row for reading in self._of_task(task)])
        start = reading_rows.min()
        is_whole = counts == np.bincount(reading_rows - start)[rows - start]
        rows, first, counts = rows[is_whole], first[is_whole], counts[is_whole]
        if kind.per_option:
            spans = zip(first.tolist(), (first + counts).tolist(), strict=True)
            return Outputs(rows=rows, values=[values[start:stop, 0] for start, stop in spans])
        merged = values[first]
        for i in np.flatnonzero(counts > 1):
            windows = list(values[first[i] : first[i] + counts[i]])
            merged[i] = kind.merge_windows(self._known[task], windows)
        return Outputs(rows=rows, values=merged)

    def _of_pairs(self, task: str, outputs: Sequence[BatchOutputs]) -> Outputs:
        """Compares pairs read separately whose texts are both known."""
        pairs, halves = list[np.ndarray](), list[np.ndarray]()
        for group in _by_texts(outputs):
            texts, values = group[0][0].texts, np.concatenate([values for _, values in group])
            first, second = texts.halves(np.concatenate([batch.entries for batch, _ in group]))
            is_paired = (first >= 0) & (second >= 0)
            pairs.append(texts.pairs[is_paired, 0])
            halves.append(np.stack([values[first[is_paired]], values[second[is_paired]]]))
        rows = np.concatenate(pairs)
        order = np.argsort(rows)
        rows, (u, v) = rows[order], np.concatenate(halves, axis=1)[:, order]
        if not len(rows):
            return NO_OUTPUTS
        if self._singly:
            apart = [self._compare(task, u[i : i + 1], v[i : i + 1]) for i in range(len(rows))]
            compared = np.concatenate(apart)
        else:
            compared = self._compare(task, u, v)
        self._note_not_finite(task, rows, np.isfinite(compared).all(axis=1))
        return Outputs(rows=rows, values=compared)

    def _note_not_finite(self, task: str, rows: np.ndarray, are_finite: np.ndarray) -> None:
        """Notes the inputs, (rows,), whose computed values are not finite."""
        wrong = rows[~are_finite]
        if len(wrong):
            self._wrong.setdefault(task, set()).update(wrong.tolist())

    def _of_words(self, task: str, outputs: Sequence[BatchOutputs]) -> Outputs:
        """For each input a row for each of its words, NaN where none of its windows reads it."""
        answered: list[tuple[int, np.ndarray, np.ndarray]] = []
        for group in _by_texts(outputs):
            order, flat = self._word_order(task, [batch for batch, _ in group]), np.concatenate([v for _, v in group])
            answered += zip(order.rows.tolist(), order.outputs(flat), order.words, strict=True)
            answered += order.merged(self._known[task], flat)
        answered.sort(key=lambda answer: answer[0])
        return Outputs(
            rows=np.array([row for row, _, _ in answered], np.int64),
            values=[output for _, output, _ in answered],
            words=[words for _, _, words in answered],
        )

    def _word_order(self, task: str, batches: Sequence[EncodedInputs]) -> WordOrder:
        texts = batches[0].texts
        read = [i for i, reading in enumerate(self._readings) if reading.texts is texts and task in reading.tasks]
        key = (*[id(batch) for batch in batches], -1, *read)
        if key not in self._word_orders:
            self._word_orders[key] = WordOrder.of(
                texts,
                np.concatenate([self._readings[i].entries for i in read]),
                np.concatenate([batch.entries for batch in batches]),
            )
        return self._word_orders[key]


def _by_texts(outputs: Sequence[BatchOutputs]) -> list[list[BatchOutputs]]:
    """The outputs of batches of the same texts together."""
    groups: dict[int, list[BatchOutputs]] = {}
    for batch, values in outputs:
        groups.setdefault(id(batch.texts), []).append((batch, values))
    return list(groups.values())


def _order_of(batches: Sequence[EncodedInputs]) -> Order:
    row = np.concatenate([batch.row for batch in batches])
    option = np.concatenate([batch.texts.option[batch.entries] for batch in batches])
    window = np.concatenate([batch.texts.encodings.window[batch.entries] for batch in batches])
    order = np.lexsort((window, option, row)) if len(row) > 1 else np.zeros(1, np.int64)
    is_in_order = bool((order[1:] > order[:-1]).all())
    rows = row[order]
    if (rows[1:] > rows[:-1]).all():  # one entry an input
        first, counts = np.arange(len(rows)), np.ones(len(rows), np.int64)
    else:
        rows, first, counts = np.unique(rows, return_index=True, return_counts=True)
    return None if is_in_order else order, rows, first, counts


def _are_finite(arrays: Iterable[np.ndarray]) -> bool:
    """Whether they hold finite numbers alone; arrays that are pieces of one are looked at together."""
    whole = {}
    for array in arrays:
        base = array.base if isinstance(array.base, np.ndarray) else array
        whole[id(base)] = base
    return all(np.isfinite(base).all() for base in whole.values())


def not_finite(task: str) -> BackendError:
    """The error of a task whose outputs are no numbers: no label, and no number, would be an answer."""
    return BackendError(
        f"task '{task}' gave an output that is not finite",
        got="NaN or infinity",
        allowed="finite numbers, of which an answer can be made",
        do="run `polyhead tasks verify`; where all files are whole, answer in precision float32 or train it again",
        task=task,
    )
