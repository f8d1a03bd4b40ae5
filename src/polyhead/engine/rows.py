"""What the trunk reads of many inputs, for which tasks, as flat tables; and their batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Literal

import msgspec
import numpy as np

from polyhead.config import Value
from polyhead.engine.backends.base import TokenBatch
from polyhead.engine.inputs import AnyInput, Form, form_of, forms_of, is_blank, plain
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.text.batch import Cut, cuts, padded
from polyhead.text.encodings import Encodings, joined, ranges, starts_of
from polyhead.text.question import Question
from polyhead.text.tokenise import Input, Tokeniser, windows_of
from polyhead.text.words import Reads, read_words, words_in_each
from polyhead.trunk_data import TextSettings

TOKEN_BUDGET = 4096  # tokens in one batch, with their padding where the backend reads it
FIXED_ROWS, TOKEN_STEP = 8, 8  # deterministic mode: rows of a batch, and lengths in steps
Role = Literal["only", "first", "second", "option"]


class Texts(Value, eq=False):
    """Texts and pairs that are read in the same way, encoded, and what they are of the inputs."""

    role: Role
    row: np.ndarray  # int64 (entries,): index of the input
    option: np.ndarray  # int64 (entries,): which of a question's options
    encodings: Encodings  # its `row` counts the texts here
    reads: Reads | None  # of tasks that answer each word
    unread: np.ndarray  # int64 (entries,): tokens that some task does not read


class Readings(Value, eq=False):
    """Passes of the trunk over some entries of these texts, and the tasks that read them."""

    texts: Texts
    entries: np.ndarray  # int64 (readings,)
    tasks: tuple[str, ...]

    @property
    def row(self) -> np.ndarray:
        """For each reading the index of its input."""
        return np.asarray(self.texts.row[self.entries])

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each reading, special tokens included."""
        return np.asarray(self.texts.encodings.lengths[self.entries])


class Part(Value, eq=False):
    """Those of a batch's rows that are of the same readings."""

    readings: int  # which of what was batched
    rows: np.ndarray | slice  # of the batch
    members: np.ndarray  # for each of these rows its index in the readings


class Batch(Value, eq=False):
    """Rows for a backend, and whose they are; rows beyond those of the parts are spare."""

    tokens: TokenBatch
    parts: tuple[Part, ...]


class _Pass(Value):
    """Texts that some tasks read in the same way."""

    role: Role
    texts: list[Input]
    rows: list[int]
    options: list[int]
    tasks: dict[str, Task]


def forms_in(inputs: Sequence[AnyInput]) -> list[Form | None]:
    """The form of each input; None where a text of it is empty."""
    return [None if is_blank(given) else form_of(given) for given in inputs]


def readings_of(
    inputs: Sequence[AnyInput],
    tasks: Mapping[str, Task],
    tokeniser: Tokeniser,
    settings: TextSettings,
    words: Sequence[np.ndarray | None] | None,
    *,
    forms: Sequence[Form | None] | None = None,
) -> list[Readings]:
    """One reading for a text or a joined pair, two for a pair read separately, one an option; more for windows.

    An input has none for tasks that it does not fit, and none at all where a text of it is empty. `forms` are those of
    the inputs, where they are known.
    """
    found: list[Readings] = []
    for one in _passes(inputs, tasks, forms_in(inputs) if forms is None else forms):
        if one.tasks:
            found += _read(one, tokeniser, settings, words)
    return found


def _passes(
    inputs: Sequence[AnyInput], tasks: Mapping[str, Task], forms: Sequence[Form | None]
) -> Iterator[_Pass]:
    """What has to be read, form by form."""
    for form in dict.fromkeys(forms):
        if form is None:
            continue
        mine = {name: task for name, task in tasks.items() if form in forms_of(task)}
        apart = {name: task for name, task in mine.items() if task.pair == "separate"}
        rows = [row for row, one in enumerate(forms) if one == form]
        texts, options = [plain(inputs[row]) for row in rows], [0] * len(rows)
        if form == "question":
            pairs = [one.pairs for one in texts if isinstance(one, Question)]
            rows = [row for row, several in zip(rows, pairs, strict=True) for _ in several]
            options = [option for several in pairs for option in range(len(several))]
            texts = [pair for several in pairs for pair in several]
        given: list[Input] = [one for one in texts if not isinstance(one, Question)]
        role: Role = "option" if form == "question" else "only"
        together = {name: task for name, task in mine.items() if name not in apart}
        yield _Pass(role=role, texts=given, rows=rows, options=options, tasks=together)
        for half, place in (("first", 0), ("second", -1)) if apart else ():
            yield _Pass(
                role=half,  # type: ignore[arg-type]
                texts=[(one[place],) for one in given],
                rows=rows,
                options=options,
                tasks=apart,
            )


def _read(
    one: _Pass,
    tokeniser: Tokeniser,
    settings: TextSettings,
    words: Sequence[np.ndarray | None] | None,
) -> Iterator[Readings]:
    # A text's first window is its cut form, so tasks that cut and tasks that read windows share that pass.
    tasks = tuple(one.tasks)
    windowed = tuple(
        name for name, task in one.tasks.items() if task.long_texts == "windows" and task.pair != "separate"
    )
    per_word = any(kind_of(task).per_word for task in one.tasks.values())
    windows = windows_of(settings.max_tokens) if windowed else None
    encodings = tokeniser.encodings(one.texts, windows=windows, offsets=per_word)
    texts = Texts(
        role=one.role,
        row=np.array(one.rows, np.int64)[encodings.row],
        option=np.array(one.options, np.int64)[encodings.row],
        encodings=encodings,
        reads=read_words(encodings, _words(one, words)) if per_word else None,
        unread=encodings.cut if set(windowed) == set(tasks) else encodings.beyond,
    )
    first = encodings.window == 0
    yield Readings(texts=texts, entries=np.flatnonzero(first), tasks=tasks)
    if not first.all():
        yield Readings(texts=texts, entries=np.flatnonzero(~first), tasks=windowed)


def _words(one: _Pass, words: Sequence[np.ndarray | None] | None) -> list[np.ndarray]:
    """The words of each text: those given with its input, else those that are found in it."""
    found = words_in_each(one.texts)
    if words is None:
        return found
    given = (words[row] for row in one.rows)
    return [mine if own is None else np.asarray(own) for mine, own in zip(found, given, strict=True)]


def batched(
    readings: Sequence[Readings], *, pad_id: int, max_tokens: int, deterministic: bool, packed: bool = False
) -> Iterator[Batch]:
    """Batches of all these readings, those of like length together.

    In deterministic mode all have fixed rows and stepped lengths. `packed` says that the backend reads no padding.
    """
    table = _Table.of(readings)
    for cut in _cuts(table.lengths, max_tokens, deterministic=deterministic, packed=packed):
        entries = table.entries[cut.members]
        piece = padded(table.encodings, msgspec.structs.replace(cut, members=entries), pad_id=pad_id)
        words = table.words(entries, cut.rows, multiple_of=TOKEN_STEP if deterministic else 1)
        tokens = TokenBatch(ids=piece.ids, mask=piece.mask, segments=piece.segments, words=words)
        yield Batch(tokens=tokens, parts=table.parts(cut.members))


def _cuts(lengths: np.ndarray, max_tokens: int, *, deterministic: bool, packed: bool) -> Iterator[Cut]:
    if not deterministic:
        yield from cuts(lengths, token_budget=TOKEN_BUDGET, max_tokens=max_tokens, packed=packed)
        return
    # A row's shapes follow from its own length alone, never from its batch mates'.
    steps = -(-lengths // TOKEN_STEP)
    for step in np.unique(steps):
        members = np.flatnonzero(steps == step)
        for cut in cuts(
            lengths[members],
            token_budget=TOKEN_BUDGET,
            multiple_of=TOKEN_STEP,
            fixed_rows=FIXED_ROWS,
            max_tokens=max_tokens,
        ):
            yield msgspec.structs.replace(cut, members=members[cut.members])


class _Table(Value, eq=False):
    """Several readings as one table."""

    encodings: Encodings
    entries: np.ndarray  # (all readings,): of the encodings
    lengths: np.ndarray  # (all readings,): tokens
    firsts: list[int]  # (readings + 1,): where each of the readings begins
    reads: Reads | None

    @classmethod
    def of(cls, readings: Sequence[Readings]) -> _Table:
        if len(readings) == 1:
            texts, entries = readings[0].texts, readings[0].entries
            encodings, reads = texts.encodings, texts.reads
        else:
            sources = list({id(one.texts): one.texts for one in readings}.values())
            sizes = [len(texts.row) for texts in sources]
            begin = {id(texts): sum(sizes[:i]) for i, texts in enumerate(sources)}
            entries = np.concatenate([one.entries + begin[id(one.texts)] for one in readings])
            encodings, reads = joined([texts.encodings for texts in sources]), _all_reads(sources)
        return cls(
            encodings=encodings,
            entries=entries,
            lengths=encodings.lengths[entries],
            firsts=[0, *accumulate(len(one.entries) for one in readings)],
            reads=reads,
        )

    def words(self, entries: np.ndarray, rows: int, *, multiple_of: int) -> np.ndarray:
        """The tokens that stand for words, (rows, words), -1 for none."""
        if self.reads is None:
            return np.full((rows, multiple_of), -1, np.int64)
        starts = self.reads.starts[entries]
        sizes = self.reads.starts[entries + 1] - starts
        longest = max(1, int(sizes.max(initial=0)))
        words = np.full((rows, -(-longest // multiple_of) * multiple_of), -1, np.int64)
        there = np.arange(words.shape[1]) < sizes[:, None]
        words[: len(entries)][there] = self.reads.tokens[ranges(starts, sizes)]
        return words

    def parts(self, members: np.ndarray) -> tuple[Part, ...]:
        if len(self.firsts) == 2:
            return (Part(readings=0, rows=slice(0, len(members)), members=members),)
        owner = np.searchsorted(self.firsts, members, side="right") - 1
        found = []
        for one in np.unique(owner).tolist():
            rows = np.flatnonzero(owner == one)
            found.append(Part(readings=one, rows=rows, members=members[rows] - self.firsts[one]))
        return tuple(found)


def _all_reads(sources: Sequence[Texts]) -> Reads | None:
    """The tokens that stand for words in all of these, entry after entry."""
    some = [texts.reads for texts in sources if texts.reads is not None]
    if not some:
        return None
    nothing = np.zeros(0, np.int64)
    counts = [
        np.zeros(len(texts.row), np.int64) if texts.reads is None else np.diff(texts.reads.starts)
        for texts in sources
    ]
    return msgspec.structs.replace(
        some[0],
        words=np.zeros((0, 2), np.int32),
        text_starts=nothing,
        places=nothing,
        tokens=np.concatenate([reads.tokens for reads in some]),
        starts=starts_of(np.concatenate(counts)),
    )
