"""Which encodings an input needs, for which tasks, and their batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

from polyhead.engine.backends.base import TokenBatch
from polyhead.engine.inputs import AnyInput, Form, form_of, forms_of, is_blank, plain
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.text.batch import batches
from polyhead.text.question import read_alone
from polyhead.text.tokenise import Encoded, Input, Tokeniser, windows_of
from polyhead.text.words import Search, best_windows, words_in
from polyhead.trunk_data import TextSettings

TOKEN_BUDGET = 4096  # padded tokens in one batch
FIXED_ROWS, TOKEN_STEP = 8, 8  # deterministic mode: rows of a batch, and lengths in steps
Role = Literal["only", "first", "second", "option"]


class Reading(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One pass of the trunk over one encoding, and the tasks that read it."""

    id: int
    row: int  # of the inputs
    role: Role
    tasks: tuple[str, ...]
    encoded: Encoded
    all_words: np.ndarray  # (words, 2) of the text that is answered by words, in characters
    places: np.ndarray  # (read,) which of all words stand in this encoding
    read: np.ndarray  # (read,) first sub-token of each of those
    option: int = 0  # which of a question's options this is

    def best_windows(self, windows: Sequence[Encoded]) -> np.ndarray:
        """For each word the window in which it sits farthest from an edge (words, 2)."""
        return best_windows(windows, self.all_words)


class _Text(msgspec.Struct, frozen=True):
    """A text or a pair that the trunk reads, of an input."""

    row: int
    texts: Input
    option: int = 0


class _Pass(msgspec.Struct, frozen=True):
    """Texts that some tasks read in the same way."""

    role: Role
    texts: list[_Text]
    tasks: dict[str, Task]


def readings_of(
    inputs: Sequence[AnyInput],
    tasks: Mapping[str, Task],
    tokeniser: Tokeniser,
    settings: TextSettings,
    words: Sequence[np.ndarray | None] | None,
) -> list[Reading]:
    """One reading for a text or a joined pair, two for a pair read separately, one an option; more for windows.

    An input has none for tasks that it does not fit, and none at all where a text of it is empty.
    """
    found: list[Reading] = []
    for one in _passes(inputs, tasks):
        if one.tasks:
            found += _read(one, tokeniser, settings, words, len(found))
    return found


def _passes(inputs: Sequence[AnyInput], tasks: Mapping[str, Task]) -> Iterator[_Pass]:
    """What has to be read, form by form."""
    rows: dict[Form, list[int]] = {}
    for row, given in enumerate(inputs):
        if not is_blank(given):
            rows.setdefault(form_of(given), []).append(row)
    for form, some in rows.items():
        mine = {name: task for name, task in tasks.items() if form in forms_of(task)}
        apart = {name: task for name, task in mine.items() if task.pair == "separate"}
        texts = [text for row in some for text in _texts(row, inputs[row])]
        role: Role = "option" if form == "question" else "only"
        yield _Pass(role, texts, {name: task for name, task in mine.items() if name not in apart})
        yield _Pass("first", [_Text(one.row, (one.texts[0],)) for one in texts], apart)
        yield _Pass("second", [_Text(one.row, (one.texts[-1],)) for one in texts], apart)


def _texts(row: int, given: AnyInput) -> Iterator[_Text]:
    """What is read of an input: it as it is, or a pair for each option, in order."""
    for option, texts in enumerate(read_alone([plain(given)])):
        yield _Text(row, texts, option)


def _read(
    one: _Pass,
    tokeniser: Tokeniser,
    settings: TextSettings,
    words: Sequence[np.ndarray | None] | None,
    next_id: int,
) -> Iterator[Reading]:
    # A text's first window is its cut form, so tasks that cut and tasks that read windows share that pass.
    tasks = one.tasks
    windowed = tuple(n for n, t in tasks.items() if t.long_texts == "windows" and t.pair != "separate")
    per_word = any(kind_of(task).per_word for task in tasks.values())
    windows = windows_of(settings.max_tokens) if windowed else None
    search = Search(np.zeros((0, 2), np.int32))
    for encoded in tokeniser.encode([text.texts for text in one.texts], windows=windows):
        text = one.texts[encoded.row]
        if per_word and encoded.window == 0:  # a text's windows follow each other, and share its words
            given = words[text.row] if words is not None else None
            search = Search(words_in(text.texts) if given is None else given)
        places, read = search.read_in(encoded)
        yield Reading(
            id=next_id,
            row=text.row,
            role=one.role,
            tasks=tuple(tasks) if encoded.window == 0 else windowed,
            encoded=encoded,
            all_words=search.words,
            places=places,
            read=read,
            option=text.option,
        )
        next_id += 1


def batched(
    readings: Sequence[Reading], pad_id: int, max_tokens: int, *, deterministic: bool
) -> Iterator[tuple[TokenBatch, list[Reading]]]:
    """Padded batches of readings of like length; in deterministic mode all of fixed rows and stepped lengths."""
    if deterministic:
        # A row's shapes follow from its own length alone, never from its batch mates'.
        steps: dict[int, list[Reading]] = {}
        for reading in readings:
            steps.setdefault(-(-len(reading.encoded.ids) // TOKEN_STEP), []).append(reading)
        for step in sorted(steps):
            yield from _batched(steps[step], pad_id, max_tokens, deterministic=True)
        return
    yield from _batched(readings, pad_id, max_tokens, deterministic=False)


def _batched(
    readings: Sequence[Reading], pad_id: int, max_tokens: int, *, deterministic: bool
) -> Iterator[tuple[TokenBatch, list[Reading]]]:
    pieces = batches(
        [reading.encoded for reading in readings],
        token_budget=TOKEN_BUDGET,
        pad_id=pad_id,
        multiple_of=TOKEN_STEP if deterministic else 1,
        fixed_rows=FIXED_ROWS if deterministic else None,
        max_tokens=max_tokens,
    )
    for piece in pieces:
        members = [readings[i] for i in piece.members]
        longest = max([1, *(len(reading.read) for reading in members)])
        if deterministic:
            longest = -(-longest // TOKEN_STEP) * TOKEN_STEP
        words = np.full((len(piece.ids), longest), -1, np.int64)
        for row, reading in enumerate(members):
            words[row, : len(reading.read)] = reading.read
        yield TokenBatch(ids=piece.ids, mask=piece.mask, segments=piece.segments, words=words), members
