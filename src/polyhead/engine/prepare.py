"""Inputs made ready for the trunk piece by piece: while one piece is computed, the next is tokenized in a thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from polyhead.config import Value
from polyhead.engine.inputs import AnyInput, InputType, plain
from polyhead.engine.rows import Readings, forms_in, readings_of
from polyhead.tasks.task import Task
from polyhead.text.question import texts_of
from polyhead.text.tokenize import Tokenizer, lone_surrogates
from polyhead.trunk.data import TextSettings

FIRST, INPUTS, CHARACTERS = 256, 2048, 1_000_000  # of a piece; the first is waited for, so it is small
AHEAD = 2  # pieces that wait to be computed, at most

Product = TypeVar("Product")
Source = TypeVar("Source")


class Piece(Value, eq=False):
    """Some of a call's inputs, ready: all that is read of them."""

    start: int  # number of its first input
    forms: list[InputType | None]
    readings: list[Readings]
    repaired: dict[int, int]  # lone surrogates of inputs that have any, by number in the call


def prepared(
    inputs: Sequence[AnyInput],
    tasks: Mapping[str, Task],
    tokenizer: Tokenizer,
    settings: TextSettings,
    words: Sequence[np.ndarray | None] | None,
) -> Iterator[Piece]:
    """All inputs in order."""

    def make(span: tuple[int, int]) -> Piece:
        start, stop = span
        chunk, own = inputs[start:stop], None if words is None else words[start:stop]
        forms = forms_in(chunk)
        readings = readings_of(chunk, tasks, tokenizer, settings, own, forms=forms)
        return Piece(start=start, forms=forms, readings=readings, repaired=_repaired(chunk, start, readings))

    yield from ahead(make, list(spans_of(inputs)))


def spans_of(inputs: Sequence[AnyInput]) -> Iterator[tuple[int, int]]:
    """Ranges of inputs that are made ready at once."""
    start = characters = 0
    for row, entry in enumerate(inputs):
        size = sum(map(len, texts_of(plain(entry))))
        most = INPUTS if start else FIRST
        if row > start and (row - start == most or characters + size > CHARACTERS):
            yield start, row
            start, characters = row, 0
        characters += size
    if start < len(inputs):
        yield start, len(inputs)


def ahead(make: Callable[[Source], Product], values: Sequence[Source]) -> Iterator[Product]:
    """`make` of each in order; of several, up to AHEAD are made in a thread while the caller uses those before."""
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


def _repaired(inputs: Sequence[AnyInput], start: int, readings: Sequence[Readings]) -> dict[int, int]:
    texts: set[int] = set()
    for reading in readings:
        entries = reading.entries[reading.texts.encodings.repaired[reading.entries] > 0]
        for task in reading.tasks if len(entries) else ():
            texts.update(reading.texts.inputs_of(task, entries).tolist())
    return {start + row: sum(map(lone_surrogates, texts_of(plain(inputs[row])))) for row in texts}
