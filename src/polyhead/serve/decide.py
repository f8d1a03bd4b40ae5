"""Many questions about one text, answered with one pass of it: by tasks, and by similarity where none fits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np

from polyhead.config import Value
from polyhead.engine.answers import Result
from polyhead.engine.inputs import AnyInput
from polyhead.engine.queue import Ticket
from polyhead.engine.receipt import Receipt
from polyhead.errors import BackendError, EmptyData, PolyheadError, UnknownTask
from polyhead.serve.questions import Asked, Reading, reading_of
from polyhead.serve.service import Served, Service
from polyhead.serve.similarity import OptionVector, Similarity, words_read

ATTEMPTS = 3  # where tasks change between the look at their labels and the answer


class Decision(Value):
    """The answer to one question."""

    probabilities: tuple[float, ...]  # of its options, in order; of a predicate that it holds, and that it does not
    answered_by: Literal["task", "similarity"]
    task: str | None = None


class Spent(Value, omit_defaults=True):
    """What reading cost: of the text, and of the options' words that were read with it."""

    passes: int = 0
    layers: int = 0
    tokens: int = 0
    cut: int = 0
    options: Spent | None = None


class Decided(Value):
    """The answers to all questions about a text."""

    answers: list[Decision | PolyheadError]  # in order; an error for a question that is not answered
    receipt: Spent
    versions: dict[str, Served]
    options_read: int = 0  # tokens of options' words that were read for this request
    options_kept: int = 0  # tokens of those whose vectors were kept from earlier ones

    @property
    def input_tokens(self) -> int:
        """Tokens of the text and of all options' words that it was compared with, kept ones too."""
        return self.receipt.tokens + self.options_read + self.options_kept


async def decided(
    service: Service, text: str, questions: Sequence[Asked], *, is_gone: Callable[[], bool] | None = None
) -> Decided:
    """Answers all questions with one pass of the text; no question changes the answer of another.

    Raises EmptyData for a text without words, BadValue for one that is too long, and what `Service.ask` raises.
    """
    if not text.strip():
        raise EmptyData("the text is empty", do="give the text that the questions are about")
    for _ in range(ATTEMPTS):
        attempt = _Attempt(service, text, questions)
        try:
            ticket, options = await attempt.ask(is_gone)
        except UnknownTask:  # removed meanwhile
            continue
        if attempt.is_current(ticket):
            return attempt.decided(ticket, options)
    raise BackendError("the tasks changed while a request was answered", do="ask again")


class _Attempt:
    """The questions as the tasks of one moment read them."""

    def __init__(self, service: Service, text: str, questions: Sequence[Asked]) -> None:
        self._service, self._text, self._questions = service, text, questions
        self._tasks = service.tasks
        self._readings = [self._reading(asked) for asked in questions]
        self._names = list(dict.fromkeys(each.task for each in self._readings if not isinstance(each, _UNREAD)))
        self._words = dict.fromkeys(
            text for each in self._readings if isinstance(each, _Compared) for text in each.words
        )

    def _reading(self, asked: Asked) -> Reading | _Compared | PolyheadError:
        try:
            return reading_of(asked, self._tasks, self._service.settings.labels)
        except PolyheadError as error:
            if self._service.similarity is None:
                return error
        try:
            return _Compared(asked, self._service.similarity)
        except PolyheadError as error:
            return error

    async def ask(self, is_gone: Callable[[], bool] | None) -> tuple[Ticket | None, dict[str, OptionVector]]:
        """The text's answers, and the vectors of options; None where no question needs the text to be read."""
        service, similarity = self._service, self._service.similarity
        names = [*self._names, service.vectors] if self._words else self._names
        inputs: list[AnyInput] = [(self._text,)]
        service.check_inputs(inputs, names)
        if not names:
            return None, {}
        if similarity is None or not self._words:
            return await service.ask(inputs, names, is_gone=is_gone), {}
        options, unread = similarity.known(self._words)
        if not unread:
            return await service.ask(inputs, names, is_gone=is_gone), options
        words: list[AnyInput] = [(each,) for each in unread]
        service.check_inputs(words, [service.vectors])
        ticket, read = await asyncio.gather(
            service.ask(inputs, names, is_gone=is_gone), service.ask(words, [service.vectors], is_gone=is_gone)
        )
        return ticket, options | similarity.learned(unread, read)

    def is_current(self, ticket: Ticket | None) -> bool:
        """Whether the tasks that answered are those whose labels were looked at."""
        return ticket is None or all(ticket.loaded.tasks.get(name) == self._tasks[name] for name in self._names)

    def decided(self, ticket: Ticket | None, options: Mapping[str, OptionVector]) -> Decided:
        """The answer to each question."""
        if ticket is None or (result := ticket.results[0]) is None:
            unread = [each for each in self._readings if isinstance(each, PolyheadError)]
            return Decided(answers=[*unread], receipt=Spent(), versions={})
        vector = ticket.outputs[0].get(self._service.vectors)
        read = [option for option in options.values() if option.receipt is not None]
        cost = spent([option.receipt for option in read if option.receipt is not None]) if read else None
        return Decided(
            answers=[
                _compared(each, vector, options, result) if isinstance(each, _Compared) else _told(each, result)
                for each in self._readings
            ],
            receipt=spent([result.receipt], options=cost),
            versions=self._service.served(ticket),
            options_read=sum(option.tokens for option in read),
            options_kept=sum(option.tokens for option in options.values() if option.receipt is None),
        )


class _Compared:
    """A question that is answered by similarity, and the words that are compared."""

    def __init__(self, asked: Asked, similarity: Similarity) -> None:
        self.asked, self.similarity, self.words = asked, similarity, words_read(asked)


_UNREAD = (_Compared, PolyheadError)


def spent(receipts: Sequence[Receipt], *, options: Spent | None = None) -> Spent:
    """The sum of these."""
    return Spent(
        passes=sum(each.passes for each in receipts),
        layers=sum(each.layers for each in receipts),
        tokens=sum(each.tokens for each in receipts),
        cut=sum(each.cut for each in receipts),
        options=options,
    )


def _told(reading: Reading | PolyheadError, result: Result) -> Decision | PolyheadError:
    """What a task answers."""
    if isinstance(reading, PolyheadError):
        return reading
    if (answer := result.answers.get(reading.task)) is None:
        return _lacking(f"task '{reading.task}'", reading.task, result)
    return Decision(probabilities=reading.probabilities(answer), answered_by="task", task=reading.task)


def _compared(
    reading: _Compared, vector: np.ndarray | None, options: Mapping[str, OptionVector], result: Result
) -> Decision | PolyheadError:
    """What similarity answers."""
    similarity = reading.similarity
    if vector is None:
        return _lacking("the similarity of the text", similarity.vectors, result)
    shares = similarity.probabilities(reading.asked, vector, options)
    return Decision(probabilities=shares, answered_by="similarity")


def _lacking(what: str, name: str, result: Result) -> PolyheadError:
    """Why a task, named or hidden, has no answer to a text that was read."""
    why = result.failed.get(name) or result.skipped.get(name)
    return BackendError(f"{what} was not answered", got=why, do="ask again, or ask other questions")
