"""Which encodings an input needs, for which tasks, and their batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

from polyhead.engine.backends.base import TokenBatch
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.text.batch import batches
from polyhead.text.tokenise import Encoded, Input, Tokeniser, Windows
from polyhead.text.words import best_windows, first_subtokens, words_of
from polyhead.trunk_data import TextSettings

TOKEN_BUDGET = 4096  # padded tokens in one batch
FIXED_ROWS, TOKEN_STEP = 8, 8  # deterministic mode: rows of a batch, and lengths in steps
Role = Literal["only", "first", "second"]


class Reading(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One pass of the trunk over one encoding, and the tasks that read it."""

    id: int
    row: int  # of the inputs
    role: Role
    tasks: tuple[str, ...]
    encoded: Encoded
    all_words: np.ndarray  # (words, 2) of the text, in characters
    words: np.ndarray  # (words,) first sub-token of each in this encoding, -1 for none

    def best_windows(self, windows: Sequence[Encoded]) -> np.ndarray:
        """For each word the window in which it sits farthest from an edge (words, 2)."""
        return best_windows(windows, self.all_words)


def readings_of(
    inputs: Sequence[Input],
    tasks: Mapping[str, Task],
    tokeniser: Tokeniser,
    settings: TextSettings,
    words: Sequence[np.ndarray | None] | None,
) -> list[Reading]:
    """One reading for a text or a joined pair, two for a pair read separately; more where a task reads windows.

    An input with an empty text has none.
    """
    roles: list[tuple[Role, list[int], list[Input], tuple[str, ...]]] = []
    single = tuple(name for name, task in tasks.items() if task.pair == "none")
    joined = tuple(name for name, task in tasks.items() if task.pair == "joined")
    apart = tuple(name for name, task in tasks.items() if task.pair == "separate")
    full = [i for i, text in enumerate(inputs) if all(part.strip() for part in text)]
    ones = [i for i in full if len(inputs[i]) == 1]
    pairs = [i for i in full if len(inputs[i]) == 2]
    roles.append(("only", ones, [inputs[i] for i in ones], single))
    roles.append(("only", pairs, [inputs[i] for i in pairs], joined))
    roles.append(("first", pairs, [(inputs[i][0],) for i in pairs], apart))
    roles.append(("second", pairs, [(inputs[i][-1],) for i in pairs], apart))
    found: list[Reading] = []
    for role, rows, texts, names in roles:
        if names and rows:
            found += _read(
                role, rows, texts, {n: tasks[n] for n in names}, tokeniser, settings, words, len(found)
            )
    return found


def _read(
    role: Role,
    rows: Sequence[int],
    texts: Sequence[Input],
    tasks: Mapping[str, Task],
    tokeniser: Tokeniser,
    settings: TextSettings,
    words: Sequence[np.ndarray | None] | None,
    next_id: int,
) -> Iterator[Reading]:
    # A text's first window is its cut form, so tasks that cut and tasks that read windows share that pass.
    windowed = tuple(n for n, t in tasks.items() if t.long_texts == "windows" and t.pair != "separate")
    per_word = any(kind_of(task).per_word for task in tasks.values())
    windows = Windows(size=settings.max_tokens, stride=settings.max_tokens // 4) if windowed else None
    for encoded in tokeniser.encode(texts, windows=windows):
        row, text = rows[encoded.row], texts[encoded.row]
        given = words[row] if words is not None else None
        spans = (
            (given if given is not None else words_of(text[0])) if per_word else np.zeros((0, 2), np.int32)
        )
        yield Reading(
            id=next_id,
            row=row,
            role=role,
            tasks=tuple(tasks) if encoded.window == 0 else windowed,
            encoded=encoded,
            all_words=spans,
            words=first_subtokens(encoded, spans),
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
        longest = max([1, *(len(reading.words) for reading in members)])
        if deterministic:
            longest = -(-longest // TOKEN_STEP) * TOKEN_STEP
        words = np.full((len(piece.ids), longest), -1, np.int64)
        for row, reading in enumerate(members):
            words[row, : len(reading.words)] = reading.words
        yield TokenBatch(ids=piece.ids, mask=piece.mask, segments=piece.segments, words=words), members
