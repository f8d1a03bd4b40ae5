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
        self, step: DecoderStep, head: Head, rules: GenerationRules, tokenizer: Tokenizer, *, width: int, singly: bool
    ) -> None:
        self._step, self._head, self._rules, self._tokenizer = step, head, rules, tokenizer
        self._width, self._singly = width, singly

    def written(
        self, waiting: Sequence[TextStates], *, is_late: Callable[[], bool] = lambda: False
    ) -> Iterator[WrittenText]:
        """Each text once, in batches of like length; the texts of a batch that fails are written one by one."""
        most = 1 if self._singly else max(1, TEXTS // self._rules.beams)
        for batch in _batches(waiting, most):
            try:
                texts = _batch(self._step, batch, self._rules, is_late)
            except Exception as error:
                if isinstance(error, MemoryError | OSError) or len(batch) == 1:
                    yield from (_failed(states, error) for states in batch)
                    continue
                for states in batch:
                    yield from self.written([states], is_late=is_late)
                continue
            for states, text in zip(batch, texts, strict=True):
                if text is not None and text.error is not None:
                    yield _failed(states, text.error)
                else:
                    yield WrittenText(row=states.row, tokens=len(states.values), text=text)

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
    lengths = np.array([len(text.values) for text in batch])
    mask = np.arange(lengths.max()) < lengths[:, None]
    states = np.zeros((*mask.shape, batch[0].values.shape[1]), np.float32)
    for number, text in enumerate(batch):
        states[number, : len(text.values)] = text.values
    return write(step, states, mask, rules, is_late=is_late)


def _failed(text: TextStates, error: Exception) -> WrittenText:
    return WrittenText(row=text.row, tokens=len(text.values), error=error)


def _batches(waiting: Sequence[TextStates], most: int) -> Iterator[list[TextStates]]:
    """Texts of like length, shortest first: at most `most`, of at most `most` * TOKENS / TEXTS padded tokens."""
    batch: list[TextStates] = []
    for text in sorted(waiting, key=lambda text: len(text.values)):
        is_long = (len(batch) + 1) * len(text.values) > most * TOKENS // TEXTS
        if batch and (len(batch) == most or is_long):
            yield batch
            batch = []
        batch.append(text)
    if batch:
        yield batch
