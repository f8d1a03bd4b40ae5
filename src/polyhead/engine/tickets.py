"""Calls in a queue, the batches that they share, and how long these take."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from itertools import chain, count
from time import monotonic

import msgspec
import numpy as np

from polyhead.engine.answers import AnswerTable, Result
from polyhead.engine.inputs import AnyInput
from polyhead.engine.loaded import LoadedTasks
from polyhead.engine.request import Request, TaskResults
from polyhead.lazy import lazy
from polyhead.tasks.task import Answer
from polyhead.values import Value

log = logging.getLogger(__name__)
SMOOTHING = 0.1  # weight of the newest batch in running means; in that of seconds, of a full one
SLOWER = 0.5  # its weight there where it was slower: what is promised too early is late
TOKENS_A_CHARACTER, TOKENS_AN_INPUT, SECONDS_A_TOKEN = 0.3, 4.0, 3e-5  # before any text was read


class Ticket:
    """A caller's inputs in the queue. `cancel` drops those that are not being read yet."""

    def __init__(
        self,
        loaded: LoadedTasks,
        inputs: Sequence[AnyInput],
        tasks: tuple[str, ...],
        words: Sequence[np.ndarray | None] | None,
        *,
        end: float | None,
        done: Callable[[Ticket], None],
        stage: Callable[[TaskResults], None] | None,
        is_gone: Callable[[], bool] | None = None,
        unseen: frozenset[str] = frozenset(),
    ) -> None:
        """`unseen` are those of `tasks` that no receipt counts."""
        self.loaded, self.inputs, self.tasks, self.words = loaded, inputs, tasks, words
        self.unseen = unseen
        self.begun, self.end, self.stage, self._is_gone = monotonic(), end, stage, is_gone
        self._dropped: Exception | None = None
        self.results: list[Result | None] = [None] * len(inputs)
        self.outputs: list[dict[str, np.ndarray]] = [{} for _ in inputs]  # of hidden tasks: raw, by name
        self.error: Exception | None = None
        self.taken: float | None = None  # when the first of its inputs was taken into a batch; None before
        self.cached = 0  # inputs that were answered without the queue
        self._done, self._unanswered = done, len(inputs)

    def cancel(self) -> None:
        """Drops the inputs that are not being read yet."""
        self._dropped = self._dropped or CancelledError("nobody waits for this any longer")

    @property
    def dropped(self) -> Exception | None:
        """Why inputs that are not being read yet are dropped: it was cancelled, or its `is_gone` raised."""
        if self._dropped is None and self._is_gone is not None:
            try:
                if self._is_gone():
                    self.cancel()
            except Exception as error:  # of a caller's own function: no other call is touched
                self._dropped = error
        return self._dropped

    @property
    def is_cancelled(self) -> bool:
        """True if inputs that are not being read yet are dropped."""
        return self.dropped is not None

    def is_late_at(self, moment: float) -> bool:
        """Whether its deadline has passed at `moment`, in seconds of the monotonic clock."""
        return self.end is not None and moment >= self.end

    def give(self, number: int, result: Result) -> bool:
        """Takes the result of an input; True with the last one."""
        if self.results[number] is None:
            self.results[number] = result
            self._unanswered -= 1
        return not self._unanswered and self.error is None

    def fail(self, error: Exception) -> bool:
        """Sets an error that its inputs do not cause; True the first time."""
        is_first, self.error = self.error is None and self._unanswered > 0, self.error or error
        return is_first

    def end_now(self) -> None:
        """Tells the caller, once."""
        # A caller's functions that keep the ticket would else be cycles, which keep answers until garbage is collected.
        done, self._done, self._is_gone = self._done, lambda ticket: None, None
        done(self)


class SharedBatch:
    """Inputs of several calls that are read at once, for the tasks of all these calls."""

    def __init__(self, tickets: Sequence[Ticket], places: Sequence[tuple[Ticket, int]], characters: int) -> None:
        """`places` are the call and the number there of each input; `tickets` are these calls, each once."""
        self.tickets, self.places, self.characters = tickets, places, characters
        self.loaded = tickets[0].loaded

    @classmethod
    def of(cls, parts: Sequence[SharedBatch]) -> SharedBatch:
        """The inputs of all."""
        tickets = list(dict.fromkeys(ticket for part in parts for ticket in part.tickets))
        places = list(chain.from_iterable(part.places for part in parts))
        return cls(tickets, places, sum(part.characters for part in parts))

    @lazy
    def inputs(self) -> list[AnyInput]:
        """All inputs."""
        return [ticket.inputs[number] for ticket, number in self.places]

    @lazy
    def tasks(self) -> tuple[str, ...]:
        """The tasks that some call asks."""
        wanted = {name for ticket in self.tickets for name in ticket.tasks}
        return tuple(name for name in self.loaded.tasks if name in wanted)

    def run(self, deliver: Callable[[list[Callable[[], None]]], None]) -> AnswerTable:
        """The answers of all; callers that want stages get them meanwhile."""
        words = [None if ticket.words is None else ticket.words[number] for ticket, number in self.places]
        own_words = words if any(input_words is not None for input_words in words) else None
        request = Request(self.loaded, self.inputs, self.tasks, words=own_words)
        if all(ticket.stage is None for ticket in self.tickets):
            return request.run(self.loaded, raises=False)
        for stage in request.results(self.loaded):
            deliver(list(self._stages(stage)))
        return request.columns()

    def _stages(self, stage: TaskResults) -> Iterator[Callable[[], None]]:
        answers: dict[Ticket, dict[int, Answer]] = {}
        for row, answer in stage.answers.items():
            ticket, number = self.places[row]
            answers.setdefault(ticket, {})[number] = answer
        for ticket in self.tickets:
            if ticket in answers and ticket.stage and stage.task in ticket.tasks and not ticket.is_cancelled:
                yield partial(ticket.stage, msgspec.structs.replace(stage, answers=answers[ticket]))

    def spread(self, columns: AnswerTable) -> list[Ticket]:
        """Gives each ticket its results; returns the tickets that have all of theirs now."""
        loaded, ended = self.loaded, list[Ticket]()
        place_of = {name: dict(zip(columns[name].rows.tolist(), count())) for name in self.tasks}
        versions = {ticket.tasks: loaded.versions_of(ticket.tasks) for ticket in self.tickets}
        counted = {ticket: frozenset(ticket.tasks) - ticket.unseen for ticket in self.tickets}
        flops = {tasks: loaded.flops_of(tasks - loaded.hidden) for tasks in counted.values()}
        parts = {counted[ticket] for ticket in self.tickets if ticket.unseen}
        receipts = {tasks: columns.receipts.of(tasks) if tasks in parts else columns.receipts for tasks in flops}
        for row, (ticket, number) in enumerate(self.places):
            answers, skipped, failed, late = dict[str, Answer](), dict[str, str](), dict[str, str](), list[str]()
            for name in ticket.tasks:
                column = columns[name]
                if (place := place_of[name].get(row)) is not None:
                    if name in loaded.hidden:  # its raw outputs are wanted, not answers
                        ticket.outputs[number][name] = column.outputs[place]
                    else:
                        answers[name] = column.answers[place]
                elif row in column.failed:
                    failed[name] = column.failed[row]
                elif row in column.skipped:
                    skipped[name] = column.skipped[row]
                else:
                    late.append(name)
            result = Result(
                answers=answers,
                receipt=receipts[counted[ticket]].at(row, flops[counted[ticket]]),
                skipped=skipped,
                failed=failed,
                late=tuple(late),
                versions=dict(versions[ticket.tasks]),  # the caller's own
            )
            if ticket.give(number, result):
                ended.append(ticket)
        return ended


def give_unread(ticket: Ticket, numbers: Sequence[int]) -> bool:
    """Gives results to inputs that are not read: tasks that fit them are late. True with the ticket's last one."""
    is_over = False
    if numbers:
        columns = Request(ticket.loaded, [ticket.inputs[number] for number in numbers], ticket.tasks).columns()
        for number, result in zip(numbers, columns.results(), strict=True):
            is_over = ticket.give(number, result)
    return is_over


class BatchFacts(Value):
    """One batch that was answered."""

    inputs: int
    tickets: int  # calls that had inputs in it
    tasks: int
    tokens: int
    passes: int
    layers: int  # of all passes
    seconds: float
    waited: tuple[float, ...]  # seconds that each input's call waited for it


class Rate:
    """Tokens per text and reading time per token: running means over earlier batches."""

    def __init__(self, batch_tokens: int) -> None:
        """`batch_tokens` are those of a full batch."""
        self._batch_tokens = batch_tokens
        self._a_character, self._seconds = TOKENS_A_CHARACTER, SECONDS_A_TOKEN

    def tokens(self, characters: float, inputs: int) -> float:
        """Tokens that so many inputs of so many characters probably have."""
        return TOKENS_AN_INPUT * inputs + self._a_character * characters

    def seconds(self, characters: float, inputs: int) -> float:
        """The estimated time of reading these, in seconds."""
        return self.seconds_of(self.tokens(characters, inputs))

    def seconds_of(self, tokens: float) -> float:
        """The estimated time of reading so many tokens, in seconds."""
        return self._seconds * tokens

    def learn(self, characters: int, inputs: int, tokens: int, seconds: float) -> None:
        """Takes a batch into the means."""
        if not tokens:
            return
        gain = seconds / tokens - self._seconds
        # A small batch says little of full ones: it may have compiled a graph.
        self._seconds += (SLOWER if gain > 0 else SMOOTHING) * min(1.0, tokens / self._batch_tokens) * gain
        if characters:
            tokens_a_character = max(0.01, (tokens - TOKENS_AN_INPUT * inputs) / characters)
            self._a_character += SMOOTHING * (tokens_a_character - self._a_character)


def run_all(calls: Iterable[Callable[[], None]]) -> None:
    """Calls each, in order; one that raises stops no other."""
    for call in calls:
        try:
            call()
        except Exception:  # of a caller's own function
            log.exception("a call's answers could not be told")


def settle(future: Future[None], work: Callable[[], object]) -> None:
    """Does the work, and tells the future that it is done, or why it is not."""
    try:
        work()
    except BaseException as error:  # it is raised where the future is waited for
        future.set_exception(error)
    else:
        future.set_result(None)
