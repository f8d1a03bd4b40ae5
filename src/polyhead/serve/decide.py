"""Many questions about one text, answered with one pass of it: by tasks, and by similarity where none fits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

from polyhead.engine.answers import Result
from polyhead.engine.familiar import KEY, NONE
from polyhead.engine.loaded import shown_tasks
from polyhead.engine.several import error_of_call, errors_of_call
from polyhead.engine.tickets import Ticket
from polyhead.errors import BackendError, BadValue, EmptyData, PolyheadError
from polyhead.serve.checks import cut_inputs, too_many_characters
from polyhead.serve.event_loop import off_loop
from polyhead.serve.exchange import RequestCost, Served, total_cost, versions_served
from polyhead.serve.questions import AnswerReading, DecisionQuestion, reading_of
from polyhead.serve.service import Service, TaskSelection
from polyhead.serve.similarity import OptionVector, OptionVectors, Similarity, characters_read, words_read
from polyhead.tasks.task import Answer
from polyhead.text.characters import has_visible
from polyhead.values import Value

SHOWN = 60  # characters of an option's words in an error


class Decision(Value):
    """The answer to one question."""

    probabilities: tuple[float, ...]  # of its options, in order; of a predicate that it holds, and that it does not
    answered_by: Literal["task", "similarity"]
    task: str | None = None
    familiar: float | None = None  # of a task with a limit: which share of its known rows lies as far out as the text
    none_of_these: bool | None = None  # whether that is below the limit


class Decided(Value):
    """The answers to all questions about a text."""

    answers: list[Decision | PolyheadError]  # in order; an error for a question that is not answered
    receipt: RequestCost
    versions: Mapping[str, Served]
    options_read: int = 0  # tokens of options' words that were read for this request
    options_kept: int = 0  # tokens of those whose vectors were kept from earlier ones

    @property
    def input_tokens(self) -> int:
        """Tokens of the text and of all options' words that it was compared with, kept ones too."""
        return self.receipt.tokens + self.options_read + self.options_kept


async def decide_request(
    service: Service, text: str, questions: Sequence[DecisionQuestion], *, is_gone: Callable[[], bool] | None = None
) -> Decided:
    """Answers all questions with one pass of the text, by the tasks of now; no question changes the answer of another.

    Raises EmptyData for a text without words, BadValue for one that is too long, and what `Service.ask` raises.
    """
    if not has_visible(text):
        raise EmptyData("the text is empty", do="give the text that the questions are about")
    size = sum(characters_read(question) for question in questions)
    read = await off_loop(size, _Questions, service, text, questions)
    ticket, options = await read.ask(is_gone, size)
    return await off_loop(size, read.decided, ticket, options)


class _Questions:
    """The questions as the tasks of one moment read them."""

    def __init__(self, service: Service, text: str, questions: Sequence[DecisionQuestion]) -> None:
        """Raises BadValue where similarity would read more characters of options than a request may hold."""
        self._service, self._text, self._loaded, self._compared = service, text, service.loaded, 0
        self._tasks = shown_tasks(self._loaded)
        self._readings = [self._reading(question) for question in questions]
        self._names = list(dict.fromkeys(each.task for each in self._readings if isinstance(each, AnswerReading)))
        self._words = dict.fromkeys(
            text for each in self._readings if isinstance(each, _Compared) for text in each.words
        )

    def _reading(self, question: DecisionQuestion) -> AnswerReading | _Compared | PolyheadError:
        similarity = self._service.similarity
        try:
            return reading_of(question, self._tasks, self._service.settings.labels)
        except PolyheadError as error:
            if similarity is None:
                return error
        self._compared += characters_read(question)
        if self._compared > (most := self._service.settings.limits.all_characters):  # before any of them is made
            raise too_many_characters(f"over {most:,}, a question's once for each of its options", most)
        try:
            return _Compared(question=question, similarity=similarity, words=words_read(question))
        except PolyheadError as error:
            return error

    async def ask(self, is_gone: Callable[[], bool] | None, size: int) -> tuple[Ticket | None, OptionVectors]:
        """The text's answers, and the vectors of options; None where no question needs the text to be read.

        `size` is that of all questions, in characters.
        """
        service, similarity = self._service, self._service.similarity
        names = TaskSelection.of([*self._names, service.vectors] if self._words else self._names, self._loaded)
        with errors_of_call(["the text"]):
            service.check_inputs([(self._text,)], names)
        if not names:
            return None, {}
        options, unread = dict[str, OptionVector](), list[str]()
        if similarity is not None and self._words:
            options, unread = await off_loop(size, similarity.known, self._words)
        refused = self._refused(unread)
        left = [each for each in unread if each not in refused]
        ticket, read = await asyncio.gather(self._text_read(names, is_gone), self._options_read(left, is_gone, size))
        return ticket, {**options, **refused, **read}

    def _refused(self, words: Sequence[str]) -> dict[str, PolyheadError]:
        """The error of each option whose words are too long for any request.

        Raises BadValue if the others are too much for one.
        """
        service, refused = self._service, dict[str, PolyheadError]()
        if words:
            service.check_count(len(words), 1)
        for each in words:
            try:
                service.check_inputs([(each,)], (service.vectors,))
            except BadValue as error:
                refused[each] = error_of_call(error, [_called(each)])
        if left := [(each,) for each in words if each not in refused]:
            service.check_inputs(left, (service.vectors,))
        return refused

    async def _text_read(self, names: TaskSelection, is_gone: Callable[[], bool] | None) -> Ticket:
        with errors_of_call(["the text"]):
            return await self._service.ask([(self._text,)], names, is_gone=is_gone)

    async def _options_read(
        self, unread: Sequence[str], is_gone: Callable[[], bool] | None, size: int
    ) -> OptionVectors:
        """The vectors of options' words; an error for those that are not read whole, where the server refuses that."""
        service, similarity = self._service, self._service.similarity
        if similarity is None or not unread:
            return {}
        vectors, names = TaskSelection.of([service.vectors], self._loaded), [_called(each) for each in unread]
        with errors_of_call(names):
            read = await service.ask([(each,) for each in unread], vectors, is_gone=is_gone, cuts=True)
        cut = cut_inputs(read) if service.settings.long_texts == "refuse" else {}
        options = await off_loop(size, similarity.learned, unread, read, cut)
        return {**options, **{unread[number]: error_of_call(error, names) for number, error in cut.items()}}

    def decided(self, ticket: Ticket | None, options: OptionVectors) -> Decided:
        """The answer to each question."""
        if ticket is None or (result := ticket.results[0]) is None:
            unread = [each for each in self._readings if isinstance(each, PolyheadError)]
            return Decided(answers=[*unread], receipt=RequestCost(), versions={})
        vector = ticket.outputs[0].get(self._service.vectors)
        compared = [option for option in options.values() if isinstance(option, OptionVector)]
        read = [option for option in compared if option.receipt is not None]
        cost = total_cost([result.receipt], cached=ticket.cached)
        if read:
            options_cost = total_cost([option.receipt for option in read if option.receipt is not None])
            cost = msgspec.structs.replace(cost, options=options_cost)
        return Decided(
            answers=[
                _by_similarity(each, vector, options, result) if isinstance(each, _Compared) else _by_task(each, result)
                for each in self._readings
            ],
            receipt=cost,
            versions=versions_served(ticket),
            options_read=sum(option.tokens for option in read),
            options_kept=sum(option.tokens for option in compared if option.receipt is None),
        )


class _Compared(Value, eq=False):
    """A question that is answered by similarity, and the words that are compared."""

    question: DecisionQuestion
    similarity: Similarity
    words: tuple[str, ...]


def _called(words: str) -> str:
    """The name of an option's words in an error."""
    return f"the option '{words if len(words) <= SHOWN else words[:SHOWN] + '…'}'"


def _by_task(reading: AnswerReading | PolyheadError, result: Result) -> Decision | PolyheadError:
    """The decision from a task's answer."""
    if isinstance(reading, PolyheadError):
        return reading
    answer: Answer | None = result.answers.get(reading.task)
    if answer is None:
        return _lacking(f"task '{reading.task}'", reading.task, result)
    return Decision(
        probabilities=reading.probabilities(answer),
        answered_by="task",
        task=reading.task,
        familiar=answer.get(KEY),
        none_of_these=answer.get(NONE),
    )


def _by_similarity(
    reading: _Compared, vector: np.ndarray | None, options: OptionVectors, result: Result
) -> Decision | PolyheadError:
    """The decision from similarity to the options."""
    similarity = reading.similarity
    if vector is None:
        return _lacking("the similarity of the text", similarity.vectors, result)
    compared: dict[str, OptionVector] = {}
    for words in reading.words:
        option = options[words]
        if isinstance(option, PolyheadError):
            return option
        compared[words] = option
    shares = similarity.probabilities(reading.question, vector, compared)
    return Decision(probabilities=shares, answered_by="similarity")


def _lacking(subject: str, name: str, result: Result) -> PolyheadError:
    """Why a task, named or hidden, has no answer to a text that was read."""
    why = result.failed.get(name) or result.skipped.get(name)
    return BackendError(f"{subject} was not answered", got=why, do="ask again, or ask other questions")
