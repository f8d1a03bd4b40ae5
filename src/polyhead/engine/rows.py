"""What the trunk reads of many inputs, for which tasks, as flat tables; and their batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np

from polyhead.config import Value
from polyhead.engine.backends.base import TokenBatch
from polyhead.engine.inputs import AnyInput, InputType, input_type_of, input_types_of, is_blank, plain
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.text.batch import Cut, cuts, padded
from polyhead.text.encodings import Encodings, ranges
from polyhead.text.packing import together
from polyhead.text.question import Question, texts_of
from polyhead.text.tokenize import Input, Tokenizer, windows_of
from polyhead.text.words import WindowWords, read_words, words_in_each
from polyhead.trunk.data import TextSettings

# Tokens in one batch, with their padding where the backend reads it: more were no faster and took more memory.
TOKEN_BUDGET = 2048
FIXED_ROWS, TOKEN_STEP = 8, 8  # deterministic mode: rows of a batch, and lengths in steps


class PairHalves(Value, eq=False):
    """Pairs that some tasks read as two texts, and which these are: numbers of texts, as in `Encodings.row`."""

    rows: np.ndarray  # int64 (pairs,): index of the input, ascending
    first: np.ndarray  # int64 (pairs,)
    second: np.ndarray  # int64 (pairs,)
    tasks: tuple[str, ...]

    def among(self, texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each pair where among these texts of pairs its first stands, and where its second; -1 for nowhere."""
        place = np.full(1 + int(max(self.first.max(), self.second.max())), -1)
        place[texts] = np.arange(len(texts))
        return place[self.first], place[self.second]


class Texts(Value, eq=False):
    """Encoded texts and pairs that are read in the same way, and the input each belongs to.

    A text that is read for pairs alone is of the first pair that holds it.
    """

    row: np.ndarray  # int64 (entries,): index of the input
    option: np.ndarray  # int64 (entries,): which of a question's options
    encodings: Encodings  # its `row` counts the texts here
    reads: WindowWords | None  # of tasks that answer each word
    unread: np.ndarray  # int64 (entries,): tokens of the input that some task does not read
    halves: PairHalves | None = None  # pairs that are made of these texts

    def inputs_of(self, task: str, entries: np.ndarray) -> np.ndarray:
        """The inputs of which the task reads these entries."""
        if self.halves is None or task not in self.halves.tasks:
            return np.asarray(self.row[entries])
        first, second = self.halves.among(self.encodings.row[entries])
        return np.asarray(self.halves.rows[(first >= 0) | (second >= 0)])

    def word_counts(self, entries: np.ndarray) -> np.ndarray:
        """How many words each of these entries has, int64 (entries,); 0 where no task reads words."""
        if self.reads is None:
            return np.zeros(len(entries), np.int64)
        return np.asarray(self.reads.starts[entries + 1] - self.reads.starts[entries])


class Readings(Value, eq=False):
    """Some entries of these texts, and the tasks that read them in one pass."""

    texts: Texts
    entries: np.ndarray  # int64 (readings,)
    tasks: tuple[str, ...]

    @property
    def row(self) -> np.ndarray:
        """For each reading the index of the input that it is counted for."""
        return np.asarray(self.texts.row[self.entries])

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each reading, special tokens included."""
        return np.asarray(self.texts.encodings.lengths[self.entries])


class Batch(Value, eq=False):
    """Rows for a backend, those of the readings first; rows beyond these are spare."""

    tokens: TokenBatch
    members: np.ndarray  # int64 (rows of readings,): index of each in the readings


class _Source(Value):
    """Texts that some tasks read in the same way."""

    texts: list[Input]
    rows: list[int]
    options: list[int]
    tasks: dict[str, Task]
    own: int  # so many of the texts, the first, are inputs; those after them are there for pairs alone
    halves: PairHalves | None = None


def forms_in(inputs: Sequence[AnyInput]) -> list[InputType | None]:
    """The form of each input; None where a text of it is empty."""
    return [None if is_blank(entry) else input_type_of(entry) for entry in inputs]


def readings_of(
    inputs: Sequence[AnyInput],
    tasks: Mapping[str, Task],
    tokenizer: Tokenizer,
    settings: TextSettings,
    words: Sequence[np.ndarray | None] | None,
    *,
    forms: Sequence[InputType | None] | None = None,
) -> list[Readings]:
    """One reading for a text or a joined pair, one an option; more for windows.

    Of pairs read separately each different text has one: its own where it is an input that some task reads.
    An input has none for tasks that it does not fit, and none at all where a text of it is empty. `forms` are those of
    the inputs, where they are known.
    """
    readings: list[Readings] = []
    for source in _sources(inputs, tasks, forms_in(inputs) if forms is None else forms):
        if source.texts:
            readings += _read(source, tokenizer, settings, words)
    return readings


def _sources(
    inputs: Sequence[AnyInput], tasks: Mapping[str, Task], forms: Sequence[InputType | None]
) -> Iterator[_Source]:
    """What has to be read, form by form; the texts of pairs that are read separately stand with the single texts."""
    apart = tuple(name for name, task in tasks.items() if task.pair == "separate")
    whole = {name: task for name, task in tasks.items() if name not in apart} if apart else tasks
    pairs = [row for row, form in enumerate(forms) if form == "pair"] if apart else []
    for form in dict.fromkeys(forms):
        if form is not None and not (pairs and form == "text"):
            yield _of_form(form, inputs, whole, forms)
    if pairs:
        yield _with_halves(_of_form("text", inputs, whole, forms), inputs, pairs, apart)


def _of_form(
    form: InputType, inputs: Sequence[AnyInput], tasks: Mapping[str, Task], forms: Sequence[InputType | None]
) -> _Source:
    """The inputs of one form, for the tasks that read it; nothing where there are none."""
    readers = {name: task for name, task in tasks.items() if form in input_types_of(task)}
    rows = [row for row, one in enumerate(forms) if one == form] if readers else []
    texts, options = [plain(inputs[row]) for row in rows], [0] * len(rows)
    if form == "question":
        pairs = [one.pairs for one in texts if isinstance(one, Question)]
        rows = [row for row, options_of_row in zip(rows, pairs, strict=True) for _ in options_of_row]
        options = [option for options_of_row in pairs for option in range(len(options_of_row))]
        texts = [pair for options_of_row in pairs for pair in options_of_row]
    encodable: list[Input] = [one for one in texts if not isinstance(one, Question)]
    return _Source(texts=encodable, rows=rows, options=options, tasks=readers, own=len(encodable))


def _with_halves(source: _Source, inputs: Sequence[AnyInput], pairs: Sequence[int], tasks: tuple[str, ...]) -> _Source:
    """These single texts, and after them every other text of the pairs once."""
    texts, rows, numbers = list(source.texts), list(source.rows), list[int]()
    number = {text_given: i for i, text_given in reversed(list(enumerate(texts)))}  # the first of equal ones
    for row in pairs:
        for text in texts_of(plain(inputs[row])):
            if (text,) not in number:
                number[text,] = len(texts)
                texts.append((text,))
                rows.append(row)
            numbers.append(number[text,])
    halves = PairHalves(
        rows=np.array(pairs, np.int64), first=np.array(numbers[::2]), second=np.array(numbers[1::2]), tasks=tasks
    )
    return _Source(texts=texts, rows=rows, options=[0] * len(rows), tasks=source.tasks, own=source.own, halves=halves)


def _read(
    source: _Source, tokenizer: Tokenizer, settings: TextSettings, words: Sequence[np.ndarray | None] | None
) -> Iterator[Readings]:
    # A text's first window is its cut form, so tasks that cut and tasks that read windows share it.
    windowed = tuple(name for name, task in source.tasks.items() if task.long_texts == "windows")
    per_word = any(kind_of(task).per_word for task in source.tasks.values())
    windows = windows_of(settings.max_tokens) if windowed else None
    encodings = tokenizer.encodings(source.texts, windows=windows, offsets=per_word)
    unread = encodings.cut if len(windowed) == len(source.tasks) else encodings.beyond
    texts = Texts(
        row=np.array(source.rows, np.int64)[encodings.row],
        option=np.array(source.options, np.int64)[encodings.row],
        encodings=encodings,
        reads=read_words(encodings, _words(source, words)) if per_word else None,
        unread=np.where(encodings.row < source.own, unread, 0),
        halves=source.halves,
    )
    for entries, tasks in _readers(source, encodings, windowed):
        if len(entries):
            yield Readings(texts=texts, entries=entries, tasks=tasks)


def _readers(
    source: _Source, encodings: Encodings, windowed: tuple[str, ...]
) -> Iterator[tuple[np.ndarray, tuple[str, ...]]]:
    """Which entries are read by which tasks."""
    own, first = encodings.row < source.own, encodings.window == 0
    tasks, apart, is_half = tuple(source.tasks), tuple[str, ...](), np.zeros(len(source.texts), bool)
    if source.halves is not None:
        apart = source.halves.tasks
        is_half[source.halves.first] = is_half[source.halves.second] = True
    shared = is_half[encodings.row]
    yield np.flatnonzero(first & own & ~shared), tasks
    yield np.flatnonzero(first & own & shared), (*tasks, *apart)
    yield np.flatnonzero(first & ~own), apart
    yield np.flatnonzero(~first & own), windowed


def _words(source: _Source, words: Sequence[np.ndarray | None] | None) -> list[np.ndarray]:
    """The words of each text: those given with its input, else those that are found in it; none of pairs' texts."""
    places = words_in_each(source.texts[: source.own])
    if words is not None:
        given_places = (words[row] for row in source.rows[: source.own])
        places = [
            default if own is None else np.asarray(own) for default, own in zip(places, given_places, strict=True)
        ]
    return places + [np.zeros((0, 2), np.int32)] * (len(source.texts) - source.own)


def batched(
    readings: Readings, *, pad_id: int, max_tokens: int, deterministic: bool, width: int | None = None
) -> Iterator[Batch]:
    """Batches of these readings: texts of like length, or those that fill rows together.

    In deterministic mode all have fixed rows and stepped lengths, and room for as many words as tokens. With the
    `width` of a trunk whose backend reads no padding, texts stand together that fill rows together.
    """
    lengths = readings.lengths
    if deterministic:
        batch_cuts = _fixed_cuts(readings, max_tokens)
    elif width is not None:
        batch_cuts = _packed_cuts(lengths, width)
    else:
        batch_cuts = cuts(lengths, token_budget=TOKEN_BUDGET, max_tokens=max_tokens)
    for cut in batch_cuts:
        entries = readings.entries[cut.members]
        rows = padded(readings.texts.encodings, msgspec.structs.replace(cut, members=entries), pad_id=pad_id)
        room, step = (cut.tokens, TOKEN_STEP) if deterministic else (1, 1)
        words = _word_tokens(readings.texts, entries, cut.rows, at_least=room, multiple_of=step)
        tokens = TokenBatch(ids=rows.ids, mask=rows.mask, segments=rows.segments, words=words)
        yield Batch(tokens=tokens, members=cut.members)


def _packed_cuts(lengths: np.ndarray, width: int) -> Iterator[Cut]:
    """Cuts whose texts fill rows together, the longest first."""
    for members in together(lengths, budget=TOKEN_BUDGET, width=width):
        yield Cut(members=members, rows=len(members), tokens=int(lengths[members[0]]))


def _fixed_cuts(readings: Readings, max_tokens: int) -> Iterator[Cut]:
    """Cuts in which a row's shapes follow from its own tokens and words alone, never from its batch mates'."""
    lengths = readings.lengths
    tokens = -(-lengths // TOKEN_STEP)
    # Of most texts no more words than tokens; those that were given more are with those that have as many.
    more = np.maximum(-(-readings.texts.word_counts(readings.entries) // TOKEN_STEP) - tokens, 0)
    for step, rest in np.unique(np.stack([tokens, more]), axis=1).T:
        members = np.flatnonzero((tokens == step) & (more == rest))
        for cut in cuts(
            lengths[members],
            token_budget=TOKEN_BUDGET,
            multiple_of=TOKEN_STEP,
            fixed_rows=FIXED_ROWS,
            max_tokens=max_tokens,
        ):
            yield msgspec.structs.replace(cut, members=members[cut.members])


def _word_tokens(texts: Texts, entries: np.ndarray, rows: int, *, at_least: int, multiple_of: int) -> np.ndarray:
    """The tokens that stand for words, int64 (rows, words), -1 for none; with room for `at_least` so many."""
    counts = texts.word_counts(entries)
    longest = int(counts.max(initial=at_least))
    words = np.full((rows, -(-longest // multiple_of) * multiple_of), -1, np.int64)
    if texts.reads is not None:
        is_word = np.arange(words.shape[1]) < counts[:, None]
        words[: len(entries)][is_word] = texts.reads.tokens[ranges(texts.reads.starts[entries], counts)]
    return words
