"""Texts of tasks that generate: states of several batches are kept, and their texts are written in separate batches.

Texts affect each other only by rounding; in deterministic mode each is written alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from polyhead.encoder.decoder import Decoder
from polyhead.engine.generate.search import Written, write
from polyhead.engine.generate.step import DecoderStep
from polyhead.plan import Head
from polyhead.plan.cost.work import decoder_flops
from polyhead.tasks.generation import GenerationRules
from polyhead.text.tokenize import Tokenizer
from polyhead.values import Value

TEXTS, TOKENS = 32, 4096  # of a batch: texts, and padded tokens of states, both times beams
KEPT = 256 * 2**20  # bytes of states that wait, after which they are written


class TextStates(Value, eq=False):
    """The states of one input's text."""

    row: int  # the input
    values: np.ndarray  # float32 (tokens, width)


class WrittenText(Value, eq=False):
    """The text or the error of one input; without either it was late."""

    row: int
    tokens: int  # of the input, read
    text: Written | None = None
    error: Exception | None = None


class TextWriter:
    """Writes the texts of one task; `alone` each by itself."""

    def __init__(
        self, step: DecoderStep, head: Head, rules: GenerationRules, tokenizer: Tokenizer, *, width: int, alone: bool
    ) -> None:
        self._step, self._head, self._rules, self._tokenizer = step, head, rules, tokenizer
        self._width, self._alone = width, alone

    def written(
        self, waiting: Sequence[TextStates], *, is_late: Callable[[], bool] = lambda: False
    ) -> Iterator[WrittenText]:
        """Each text once, those of like length in a batch; what fails in a batch is written alone, and fails alone."""
        most = 1 if self._alone else max(1, TEXTS // self._rules.beams)
        for batch in _batches(waiting, most):
            try:
                texts = _batch(self._step, batch, self._rules, is_late)
            except Exception as error:
                if isinstance(error, MemoryError | OSError) or len(batch) == 1:
                    yield from (_failed(one, error) for one in batch)
                    continue
                for one in batch:
                    yield from self.written([one], is_late=is_late)
                continue
            for one, text in zip(batch, texts, strict=True):
                if text is not None and text.error is not None:
                    yield _failed(one, text.error)
                else:
                    yield WrittenText(row=one.row, tokens=len(one.values), text=text)

    def text(self, written: Written) -> str:
        """The text of its tokens, without special ones."""
        return self._tokenizer.decode(written.ids)

    def cost(self, tokens: int, steps: int) -> tuple[int, int]:
        """Layers that a text of so many steps from so many states ran, and their FLOPs."""
        decoder, head = self._head.decoder, self._head
        assert isinstance(decoder, Decoder)
        flops = decoder_flops(decoder, self._width, head.width, tokens, steps, beams=self._rules.beams)
        return steps * decoder.layers, flops


def _batch(
    step: DecoderStep, batch: Sequence[TextStates], rules: GenerationRules, is_late: Callable[[], bool]
) -> list[Written | None]:
    lengths = np.array([len(one.values) for one in batch])
    mask = np.arange(lengths.max()) < lengths[:, None]
    states = np.zeros((*mask.shape, batch[0].values.shape[1]), np.float32)
    for number, one in enumerate(batch):
        states[number, : len(one.values)] = one.values
    return write(step, states, mask, rules, is_late=is_late)


def _failed(one: TextStates, error: Exception) -> WrittenText:
    return WrittenText(row=one.row, tokens=len(one.values), error=error)


def _batches(waiting: Sequence[TextStates], most: int) -> Iterator[list[TextStates]]:
    """Texts of like length, shortest first: up to so many, and as many times TOKENS / TEXTS padded tokens."""
    batch: list[TextStates] = []
    for one in sorted(waiting, key=lambda one: len(one.values)):
        is_long = (len(batch) + 1) * len(one.values) > most * TOKENS // TEXTS
        if batch and (len(batch) == most or is_long):
            yield batch
            batch = []
        batch.append(one)
    if batch:
        yield batch
