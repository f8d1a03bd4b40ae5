"""Inputs encoded for the trunk, piece by piece: which entries which tasks read, and the batches of these entries."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import msgspec
import numpy as np

from polyhead.engine.backends.base import TokenBatch
from polyhead.engine.inputs import AnyInput, InputType, Words, task_input, types_of_inputs
from polyhead.engine.readers import Readers, TypeReaders
from polyhead.text.batch import Cut, batch_indices, cuts, pad_cut
from polyhead.text.encodings import Encodings, ranges
from polyhead.text.question import Question, texts_of
from polyhead.text.tokenize import Input, Tokenizer, windows_of
from polyhead.text.words import WindowWords, read_words, words_in_each
from polyhead.values import Value

# Tokens in one batch on a processor, with their padding where the backend reads it: more were no faster and took more
# memory.
TOKEN_BUDGET = 2048
FIXED_ROWS, TOKEN_STEP = 8, 8  # deterministic mode: rows of a batch, and lengths in steps
FIRST, INPUTS, CHARACTERS = 256, 2048, 1_000_000  # of a piece; the first is waited for, so it is small
AHEAD = 2  # pieces that wait to be computed, at most

Product = TypeVar("Product")
Source = TypeVar("Source")


class Texts(Value, eq=False):
    """Encoded texts and joined pairs that are read in the same way, and the input that each belongs to.

    A text that is read for pairs alone belongs to the first pair that holds it.
    """

    row: np.ndarray  # int64 (entries,): number of the input
    option: np.ndarray  # int64 (entries,): which of a question's options
    limit: int  # tokens of the longest text that is read whole
    encodings: Encodings  # its `row` counts the texts here
    reads: WindowWords | None  # of tasks that answer each word
    cut: np.ndarray  # int64 (entries,): tokens of the input that no window holds
    beyond: np.ndarray  # int64 (entries,): tokens beyond the limit, unread by tasks that cut
    windowed: tuple[str, ...]  # the tasks that read windows
    pairs: np.ndarray  # int64 (pairs, 3): input, first and second text of pairs that are read as two texts
    separate: tuple[str, ...]  # the tasks that read these pairs

    def halves(self, entries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each pair the places of its first and its second text among these entries; -1 for nowhere."""
        place = np.full(1 + int(self.pairs[:, 1:].max()), -1)
        place[self.encodings.row[entries]] = np.arange(len(entries))
        return place[self.pairs[:, 1]], place[self.pairs[:, 2]]

    def inputs_of(self, task: str, entries: np.ndarray) -> np.ndarray:
        """The inputs that these entries of the task belong to."""
        if task not in self.separate:
            return np.asarray(self.row[entries])
        first, second = self.halves(entries)
        return np.asarray(self.pairs[(first >= 0) | (second >= 0), 0])

    def word_counts(self, entries: np.ndarray) -> np.ndarray:
        """The number of words' tokens read in each of these entries, int64 (entries,); 0 if no task reads words."""
        if self.reads is None:
            return np.zeros(len(entries), np.int64)
        counts = self.reads.starts[entries + 1] - self.reads.starts[entries]
        return np.asarray(counts if self.reads.ends is None else 2 * counts)

    def word_tokens(self, entries: np.ndarray) -> np.ndarray:
        """These tokens, entry after entry: of each word the first one, or the first and the last."""
        if self.reads is None:
            return np.zeros(0, np.int64)
        starts, ends = self.reads.starts, self.reads.ends
        read = ranges(starts[entries], starts[entries + 1] - starts[entries])
        tokens = self.reads.tokens[read]
        return np.asarray(tokens if ends is None else np.stack([tokens, ends[read]], axis=1).ravel())

    def of_words(self, values: np.ndarray) -> np.ndarray:
        """Outputs of words from those of their tokens: where two are read, one number of the first, one of the last."""
        if self.reads is None or self.reads.ends is None:
            return values
        return np.stack([values[::2, 0], values[1::2, 1]], axis=1)


class EncodedInputs(Value, eq=False):
    """Some entries of these texts, and the tasks that read them in one pass: all of them, or those of a batch."""

    texts: Texts
    entries: np.ndarray  # int64 (readings,)
    tasks: tuple[str, ...]

    @property
    def row(self) -> np.ndarray:
        """For each reading the number of the input that it is counted for."""
        return np.asarray(self.texts.row[self.entries])

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each reading, special tokens included."""
        return np.asarray(self.texts.encodings.lengths[self.entries])

    def rows_beyond(self, tokens: int) -> np.ndarray:
        """The numbers of inputs with a text of more tokens than these; some may stand there more than once."""
        is_long = self.lengths > tokens
        pairs, long_texts = self.texts.pairs, self.texts.encodings.row[self.entries[is_long]]
        return np.concatenate([self.row[is_long], pairs[np.isin(pairs[:, 1:], long_texts).any(axis=1), 0]])


def prepared(
    inputs: Sequence[AnyInput], types: Sequence[InputType | None], readers: Readers, tokenizer: Tokenizer, words: Words
) -> Iterator[list[EncodedInputs]]:
    """The readings of all inputs in order, a chunk of the inputs at a time."""

    def read(span: tuple[int, int]) -> list[EncodedInputs]:
        start, stop = span
        span_words = None if words is None else words[start:stop]
        return readings_of(inputs[start:stop], readers, tokenizer, span_words, types=types[start:stop], start=start)

    yield from ahead(read, list(tokenizer_ranges(inputs)))


def tokenizer_ranges(inputs: Sequence[AnyInput]) -> Iterator[tuple[int, int]]:
    """Ranges of inputs that are tokenized at once."""
    start = characters = 0
    for row, entry in enumerate(inputs):
        size = sum(map(len, texts_of(task_input(entry))))
        most = INPUTS if start else FIRST
        if row > start and (row - start == most or characters + size > CHARACTERS):
            yield start, row
            start, characters = row, 0
        characters += size
    if start < len(inputs):
        yield start, len(inputs)


def ahead(make: Callable[[Source], Product], values: Sequence[Source]) -> Iterator[Product]:
    """`make` of each value in order, with up to AHEAD of several prefetched in a thread."""
    if len(values) < 2:
        yield from map(make, values)
        return
    pool = ThreadPoolExecutor(1, "polyhead-tokenize")  # of this call alone: a fork finds no thread that it would lose
    try:
        waiting: deque[Future[Product]] = deque()
        for value in values:
            waiting.append(pool.submit(make, value))
            if len(waiting) > AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def readings_of(
    inputs: Sequence[AnyInput],
    readers: Readers,
    tokenizer: Tokenizer,
    words: Words,
    *,
    types: Sequence[InputType | None] | None = None,
    start: int = 0,
) -> list[EncodedInputs]:
    """One reading for a text or a joined pair, one an option; more for windows, and where tasks cut a text differently.

    Of pairs read separately each different text has one: its own where it is an input that some task reads.
    An input has none for tasks that it does not fit, and none at all where a text of it is empty. `types` are those of
    the inputs, where they are known; `start` is the number of the first input.
    """
    types = types_of_inputs(inputs) if types is None else types

    def read(
        limit: int | None, by_type: Mapping[InputType, TypeReaders], types: Sequence[InputType | None]
    ) -> list[EncodedInputs]:
        limited = tokenizer if limit is None else tokenizer.limited(limit)
        return list(_readings(inputs, by_type, limited, words, types=types, start=start))

    limits = list(readers.by_limit)
    readings = read(limits[0] if len(limits) == 1 else None, readers.together, types)
    if len(limits) < 2:
        return readings
    # Within every limit in whole steps: a text has the same shape in deterministic mode, whatever tasks are asked.
    fits_all = min(limit for limit in limits if limit is not None) // TOKEN_STEP * TOKEN_STEP
    long = {row - start for each in readings for row in each.rows_beyond(fits_all).tolist()}
    if not long:
        return readings
    readings = read(None, readers.together, [None if row in long else types[row] for row in range(len(types))])
    long_types = [types[row] if row in long else None for row in range(len(types))]
    for limit, by_type in readers.by_limit.items():
        readings += read(limit, by_type, long_types)
    return readings


def _readings(
    inputs: Sequence[AnyInput],
    by_type: Mapping[InputType, TypeReaders],
    tokenizer: Tokenizer,
    words: Words,
    *,
    types: Sequence[InputType | None],
    start: int,
) -> Iterator[EncodedInputs]:
    separate = by_type.get("pair", TypeReaders()).separate
    pairs = [row for row, input_type in enumerate(types) if input_type == "pair"] if separate else []
    order: list[InputType] = [input_type for input_type in dict.fromkeys(types) if input_type is not None]
    if pairs:  # texts of pairs that are read separately stand with the single texts
        order = [*(input_type for input_type in order if input_type != "text"), "text"]
    for input_type in order:
        reading = by_type.get(input_type, TypeReaders())
        source = _Source(input_type, inputs, reading, types)
        if pairs and input_type == "text":
            source.add_pairs(pairs, separate, inputs)
        if source.texts:
            yield from source.readings(tokenizer, words, start)
        if reading.to_last is not None:
            yield from _Source(input_type, inputs, reading.to_last, types).readings(tokenizer, words, start)


class _Source:
    """The texts of all inputs of one type, for the tasks that read it; none where there are no such tasks."""

    def __init__(
        self, input_type: InputType, inputs: Sequence[AnyInput], reading: TypeReaders, types: Sequence[InputType | None]
    ) -> None:
        self.reading = reading
        rows = [row for row, given_type in enumerate(types) if given_type == input_type] if reading.tasks else []
        examples = [task_input(inputs[row]) for row in rows]
        if input_type == "question":
            options = [example.pairs for example in examples if isinstance(example, Question)]
            self.texts: list[Input] = [pair for pairs in options for pair in pairs]
            self.rows = [row for row, pairs in zip(rows, options, strict=True) for _ in pairs]
            self.options = [number for pairs in options for number in range(len(pairs))]
        else:
            self.texts = [texts for texts in examples if not isinstance(texts, Question)]
            self.rows, self.options = rows, [0] * len(rows)
        self.own = len(self.texts)  # so many of the texts, the first, are inputs; those after them are of pairs alone
        self.pairs, self.separate = np.zeros((0, 3), np.int64), tuple[str, ...]()

    def add_pairs(self, pairs: Sequence[int], tasks: tuple[str, ...], inputs: Sequence[AnyInput]) -> None:
        """Adds every other text of these pairs once, for the tasks that read pairs as two texts."""
        numbers, triples = {texts: i for i, texts in reversed(list(enumerate(self.texts)))}, list[tuple[int, ...]]()
        for row in pairs:
            texts = [(text,) for text in texts_of(task_input(inputs[row]))]
            for text in texts:
                if text not in numbers:
                    numbers[text] = len(self.texts)
                    self.texts.append(text)
                    self.rows.append(row)
            triples.append((row, *(numbers[text] for text in texts)))
        self.options, self.separate = [0] * len(self.rows), tasks
        self.pairs = np.array(triples, np.int64)

    def readings(self, tokenizer: Tokenizer, words: Words, start: int) -> Iterator[EncodedInputs]:
        # A text's first window is its cut form, so tasks that cut and tasks that read windows share it.
        windowed, per_word = self.reading.windowed, self.reading.per_word
        windows = windows_of(tokenizer.max_tokens) if windowed else None
        encodings = tokenizer.encodings(self.texts, windows=windows, offsets=per_word)
        cut, beyond = encodings.cut, encodings.beyond
        rows, options = np.array(self.rows, np.int64), np.array(self.options, np.int64)
        is_own = None  # which entries are of inputs; None: all
        if self.own < len(self.texts):
            is_own = encodings.row < self.own
            cut, beyond = np.where(is_own, cut, 0), np.where(is_own, beyond, 0)
        is_whole = len(encodings.row) == len(self.texts)  # one window each, in order
        texts = Texts(
            row=(rows if is_whole else rows[encodings.row]) + start,
            option=options if is_whole else options[encodings.row],
            limit=tokenizer.max_tokens,
            encodings=encodings,
            reads=read_words(encodings, self._words(words), ends=self.reading.ends) if per_word else None,
            cut=cut,
            beyond=beyond,
            windowed=windowed,
            pairs=self.pairs + np.array([start, 0, 0]) if len(self.pairs) else self.pairs,
            separate=self.separate,
        )
        for entries, readers in self._readers(encodings, is_own, is_whole=is_whole):
            if len(entries):
                yield EncodedInputs(texts=texts, entries=entries, tasks=readers)

    def _readers(
        self, encodings: Encodings, is_own: np.ndarray | None, *, is_whole: bool
    ) -> Iterator[tuple[np.ndarray, tuple[str, ...]]]:
        tasks, windowed, entries = self.reading.tasks, self.reading.windowed, len(encodings.row)
        if is_whole and not len(self.pairs):
            yield np.arange(entries), tasks
            return
        is_of_input = np.ones(entries, bool) if is_own is None else is_own
        first, is_half = encodings.window == 0, np.zeros(len(self.texts), bool)
        is_half[self.pairs[:, 1:]] = True
        shared = is_half[encodings.row]
        yield np.flatnonzero(first & is_of_input & ~shared), tasks
        yield np.flatnonzero(first & is_of_input & shared), (*tasks, *self.separate)
        yield np.flatnonzero(first & ~is_of_input), self.separate
        yield np.flatnonzero(~first & is_of_input), windowed

    def _words(self, words: Words) -> list[np.ndarray]:
        """The words of each text: those passed with its input, else those found in it; none for texts of pairs."""
        places = words_in_each(self.texts[: self.own])
        if words is not None:
            passed = (words[row] for row in self.rows[: self.own])
            places = [
                default if spans is None else np.asarray(spans) for default, spans in zip(places, passed, strict=True)
            ]
        return places + [np.zeros((0, 2), np.int32)] * (len(self.texts) - self.own)


def batched(
    readings: EncodedInputs, tokenizer: Tokenizer, *, deterministic: bool, width: int | None = None, breadth: int = 1
) -> Iterator[tuple[EncodedInputs, TokenBatch]]:
    """Batches of these readings: texts of like length, or those that fill rows together.

    Of each the readings, and what a backend computes at once: a row an entry, in order; rows beyond these are spare.

    In deterministic mode all have fixed rows and stepped lengths, and room for as many words as tokens. With the
    `width` of a trunk whose backend reads no padding, texts stand together that fill rows together. `breadth` is that
    of the backend.
    """
    lengths, texts = readings.lengths, readings.texts
    if deterministic:
        batch_cuts = _fixed_cuts(readings)
    elif width is not None:
        batch_cuts = _packed_cuts(lengths, width, breadth * TOKEN_BUDGET)
    else:
        batch_cuts = cuts(lengths, token_budget=breadth * TOKEN_BUDGET, max_tokens=texts.limit)
    for cut in batch_cuts:
        entries = readings.entries[cut.members]
        rows = pad_cut(texts.encodings, msgspec.structs.replace(cut, members=entries), pad_id=tokenizer.pad_id)
        room, step = (cut.tokens, TOKEN_STEP) if deterministic else (1, 1)
        words = _word_tokens(texts, entries, cut.rows, at_least=room, multiple_of=step)
        tokens = TokenBatch(ids=rows.ids, mask=rows.mask, segments=rows.segments, words=words)
        yield EncodedInputs(texts=texts, entries=entries, tasks=readings.tasks), tokens


def _packed_cuts(lengths: np.ndarray, width: int, budget: int) -> Iterator[Cut]:
    """Cuts whose texts fill rows together, the longest first."""
    if len(lengths) == 1:
        yield Cut(members=np.zeros(1, np.int64), rows=1, tokens=int(lengths[0]))
        return
    for members in batch_indices(lengths, budget=budget, width=width):
        yield Cut(members=members, rows=len(members), tokens=int(lengths[members[0]]))


def _fixed_cuts(readings: EncodedInputs) -> Iterator[Cut]:
    """Cuts in which a row's shapes depend only on its own tokens and words, not on other rows."""
    lengths = readings.lengths
    tokens = -(-lengths // TOKEN_STEP)
    # Of most texts no more words than tokens; those that were given more are with those that have as many.
    extra = np.maximum(-(-readings.texts.word_counts(readings.entries) // TOKEN_STEP) - tokens, 0)
    for step, surplus in np.unique(np.stack([tokens, extra]), axis=1).T:
        members = np.flatnonzero((tokens == step) & (extra == surplus))
        for cut in cuts(
            lengths[members],
            token_budget=TOKEN_BUDGET,
            multiple_of=TOKEN_STEP,
            fixed_rows=FIXED_ROWS,
            max_tokens=readings.texts.limit,
        ):
            yield msgspec.structs.replace(cut, members=members[cut.members])


def _word_tokens(texts: Texts, entries: np.ndarray, rows: int, *, at_least: int, multiple_of: int) -> np.ndarray:
    """The tokens that stand for words, int64 (rows, words), -1 for none; with room for `at_least` so many."""
    counts = texts.word_counts(entries)
    longest = int(counts.max(initial=at_least))
    words = np.full((rows, -(-longest // multiple_of) * multiple_of), -1, np.int64)
    if texts.reads is not None:
        is_word = np.arange(words.shape[1]) < counts[:, None]
        words[: len(entries)][is_word] = texts.word_tokens(entries)
    return words
