"""One queue for all callers: their inputs share passes of the encoder, and each gets the answers of a call of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from heapq import heappop, heappush
from itertools import count
from time import monotonic
from typing import Any

import numpy as np

from polyhead.config import Value
from polyhead.engine.answers import Columns, Result
from polyhead.engine.inputs import AnyInput, checked_deadline, checked_inputs, checked_words, input_types_of, plain
from polyhead.engine.inputs import types_of_inputs as input_types
from polyhead.engine.loaded import LoadedTasks
from polyhead.engine.receipt import Receipt
from polyhead.engine.request import Request, TaskResults
from polyhead.engine.session import Session
from polyhead.errors import BackendError, ConfigError, Overloaded
from polyhead.text.question import texts_of

SMOOTHING = 0.1  # weight of the newest batch in running means
TOKENS_A_CHARACTER, TOKENS_AN_INPUT = 0.3, 4.0  # before any text was read
SECONDS_A_TOKEN = 2e-5


class QueueLimits(Value):
    """How much is read at once, and how much may wait."""

    batch_tokens: int = 2048  # of one pass
    batch_seconds: float | None = 0.012  # that a pass should take, by those before; None: as much as `batch_tokens`
    waiting_inputs: int = 8192
    waiting_characters: int = 32_000_000

    def __post_init__(self) -> None:
        for name in ("batch_tokens", "waiting_inputs", "waiting_characters"):
            if getattr(self, name) < 1:
                raise ConfigError(f"'{name}' of a queue is too small", got=getattr(self, name), allowed="1 or more")
        if self.batch_seconds is not None and not self.batch_seconds > 0:
            raise ConfigError("'batch_seconds' of a queue is too small", got=self.batch_seconds, allowed="more than 0")


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
    budget: int  # tokens that it might have had


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
    ) -> None:
        self.loaded, self.inputs, self.tasks, self.words = loaded, inputs, tasks, words
        self.begun, self.end, self.stage, self.is_cancelled = monotonic(), end, stage, False
        self.results: list[Result | None] = [None] * len(inputs)
        self.outputs: list[dict[str, np.ndarray]] = [{} for _ in inputs]  # of hidden tasks: raw, by name
        self.error: Exception | None = None
        self._done, self._left = done, len(inputs)

    def cancel(self) -> None:
        """Nobody waits any longer."""
        self.is_cancelled = True

    @property
    def is_late(self) -> bool:
        """Whether its deadline has passed."""
        return self.end is not None and monotonic() >= self.end

    def give(self, number: int, result: Result) -> bool:
        """Takes the result of an input; True with the last one."""
        if self.results[number] is None:
            self.results[number] = result
            self._left -= 1
        return not self._left and self.error is None

    def fail(self, error: Exception) -> bool:
        """Takes an error that no input of its own causes; True the first time."""
        is_first, self.error = self.error is None and self._left > 0, self.error or error
        return is_first

    def end_now(self) -> None:
        """Tells the caller."""
        self._done(self)


class _Piece:
    """Some inputs of a ticket that are read in one batch."""

    def __init__(self, ticket: Ticket, numbers: Sequence[int], characters: Sequence[int]) -> None:
        self.ticket, self.numbers, self.characters = ticket, numbers, characters


class Queue:
    """Answers inputs of many callers in batches of one session; a thread of its own runs the encoder.

    A batch holds inputs whose tasks run the same layers, those with the nearest deadlines first, then those that came
    first. It begins as soon as the encoder is idle. A call is answered by the tasks that were loaded when it came.
    `deliver` gets what is to be done for each batch's callers, all at once (an event loop passes it to its own thread).
    """

    def __init__(
        self,
        session: Session,
        limits: QueueLimits = QueueLimits(),
        *,
        deliver: Callable[[list[Callable[[], None]]], None] | None = None,
        observe: Callable[[BatchFacts], None] = lambda facts: None,
    ) -> None:
        self.session, self.limits = session, limits
        self._deliver, self._observe = deliver or _run_all, observe
        self._ready, self._order = threading.Condition(), count()
        self._lanes: dict[Hashable, list[tuple[float, int, _Piece]]] = {}
        self._inputs = self._characters = 0  # that wait
        self._is_closed = self._is_busy = False
        self._rate = _Rate()
        self._thread = threading.Thread(target=self._work, name="polyhead-queue", daemon=True)
        self._thread.start()

    def submit(
        self,
        inputs: Iterable[AnyInput | str],
        done: Callable[[Ticket], None],
        *,
        tasks: Iterable[str] | None = None,
        words: Iterable[np.ndarray | None] | None = None,
        deadline: float | None = None,
        stage: Callable[[TaskResults], None] | None = None,
    ) -> Ticket:
        """Puts a call into the queue. `done` is called once with its ticket: `results`, in order, or its `error`.

        `stage` gets each task's answers as soon as they are known. Inputs and `tasks` are those of `Session.predict`;
        after `deadline` seconds nothing more of it is begun, and its tasks are late. Raises BadValue, UnknownTask and,
        where too much waits already, Overloaded, whose `retry_after` says in how many seconds that will be done.
        """
        loaded, listed = self.session.loaded, checked_inputs(inputs)
        seconds, checked = checked_deadline(deadline), checked_words(words, listed)
        end = None if seconds is None else monotonic() + seconds
        names = loaded.task_names(tasks)
        ticket = Ticket(loaded, listed, names, checked, end=end, done=done, stage=stage)
        sizes = [sum(map(len, texts_of(plain(entry)))) for entry in listed]
        waiting = self._answered_at_once(ticket)
        if not waiting:
            self._deliver([ticket.end_now])
            return ticket
        self._put(ticket, waiting, sizes)
        return ticket

    def answers(
        self,
        inputs: Iterable[AnyInput | str],
        *,
        tasks: Iterable[str] | None = None,
        words: Iterable[np.ndarray | None] | None = None,
        deadline: float | None = None,
    ) -> list[Result]:
        """The results, waited for: for callers in threads of their own."""
        future: Future[list[Result]] = Future()

        def done(ticket: Ticket) -> None:
            if ticket.error is None:
                future.set_result([result for result in ticket.results if result is not None])
            else:
                future.set_exception(ticket.error)

        self.submit(inputs, done, tasks=tasks, words=words, deadline=deadline)
        return future.result()

    @property
    def waiting(self) -> int:
        """Inputs that wait."""
        return self._inputs

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing runs."""
        return not self._inputs and not self._is_busy

    def seconds(self, characters: float = 0.0, inputs: int = 0) -> float:
        """Estimated time until all that waits, and so much more, is answered."""
        tokens = self._rate.tokens(self._characters + characters, self._inputs + inputs)
        return tokens * self._rate.seconds_a_token

    def close(self, *, drain: bool = True, timeout: float | None = None) -> None:
        """Takes no more calls; answers those that wait, or fails them with BackendError. Returns when the thread ends."""
        with self._ready:
            self._is_closed = True
            dropped = [] if drain else [piece.ticket for lane in self._lanes.values() for _, _, piece in lane]
            if not drain:
                self._lanes.clear()
                self._inputs = self._characters = 0
            self._ready.notify_all()
        error = BackendError("the queue was closed before this was answered", do="ask again")
        self._deliver([ticket.end_now for ticket in dict.fromkeys(dropped) if ticket.fail(error)])
        self._thread.join(timeout)

    def _answered_at_once(self, ticket: Ticket) -> list[int]:
        """The numbers of inputs that some task reads; the others have their results."""
        loaded = ticket.loaded
        read = {each for name in ticket.tasks for each in input_types_of(loaded.tasks[name])}
        types = input_types(ticket.inputs)
        waiting = [number for number, each in enumerate(types) if each in read]
        unread = [number for number, each in enumerate(types) if each not in read]
        if unread:
            columns = Request(loaded, [ticket.inputs[number] for number in unread], ticket.tasks).columns()
            for number, result in zip(unread, columns.results(), strict=True):
                ticket.give(number, result)
        return waiting

    def _put(self, ticket: Ticket, waiting: Sequence[int], sizes: Sequence[int]) -> None:
        pieces = list(self._pieces(ticket, waiting, sizes))
        characters, key = sum(sizes), (id(ticket.loaded), ticket.loaded.runs_alike(ticket.tasks))
        with self._ready:
            if self._is_closed:
                raise BackendError("the queue is closed, and takes no more calls", do="ask a server that is up")
            limits = self.limits
            is_over = self._inputs + len(waiting) > limits.waiting_inputs
            if self._inputs and (is_over or self._characters + characters > limits.waiting_characters):
                raise Overloaded(
                    "too much waits to be answered",
                    got=f"{self._inputs:,} inputs of {self._characters:,} characters, and {len(waiting):,} more",
                    allowed=f"{limits.waiting_inputs:,} inputs of {limits.waiting_characters:,} characters",
                    do="ask again later, or ask for less at once",
                    retry_after=self.seconds(),
                )
            lane = self._lanes.setdefault(key, [])
            for piece in pieces:
                end = float("inf") if ticket.end is None else ticket.end
                heappush(lane, (end, next(self._order), piece))
                self._inputs += len(piece.numbers)
                self._characters += sum(piece.characters)
            self._ready.notify()

    def _pieces(self, ticket: Ticket, waiting: Sequence[int], sizes: Sequence[int]) -> Iterator[_Piece]:
        """Parts that a batch has room for."""
        numbers, characters, tokens = list[int](), list[int](), 0.0
        for number in waiting:
            more = self._rate.tokens(sizes[number], 1)
            if numbers and tokens + more > self.limits.batch_tokens:
                yield _Piece(ticket, numbers, characters)
                numbers, characters, tokens = [], [], 0.0
            numbers.append(number)
            characters.append(sizes[number])
            tokens += more
        yield _Piece(ticket, numbers, characters)

    def _work(self) -> None:
        while True:
            with self._ready:
                self._is_busy = False
                while not self._lanes and not self._is_closed:
                    self._ready.wait()
                if not self._lanes:
                    return
                budget = self._budget()
                pieces, dropped = self._take(budget)
                self._is_busy = bool(pieces)
            self._end_late(dropped)
            if pieces:
                self._answer(pieces, budget)

    def _budget(self) -> int:
        """Tokens of the next batch: as many as take `batch_seconds`, within the limit."""
        seconds, most = self.limits.batch_seconds, self.limits.batch_tokens
        return most if seconds is None else min(most, max(1, int(seconds / self._rate.seconds_a_token)))

    def _take(self, budget: int) -> tuple[list[_Piece], list[_Piece]]:
        """The pieces of the next batch, and those that nobody waits for or that are late."""
        key = min(self._lanes, key=lambda lane: self._lanes[lane][0][:2])
        lane, pieces, dropped, tokens = self._lanes[key], list[_Piece](), list[_Piece](), 0.0
        while lane:
            piece = lane[0][2]
            is_over = piece.ticket.is_cancelled or piece.ticket.error is not None or piece.ticket.is_late
            more = self._rate.tokens(sum(piece.characters), len(piece.numbers))
            if pieces and not is_over and tokens + more > budget:
                break
            heappop(lane)
            self._inputs -= len(piece.numbers)
            self._characters -= sum(piece.characters)
            (dropped if is_over else pieces).append(piece)
            tokens += 0.0 if is_over else more
        if not lane:
            del self._lanes[key]
        return pieces, dropped

    def _end_late(self, pieces: Sequence[_Piece]) -> None:
        ended = list[Ticket]()
        for piece in pieces:
            ticket = piece.ticket
            if ticket.is_cancelled or ticket.error is not None:
                continue
            for number in piece.numbers:
                nothing = Result(answers={}, receipt=Receipt(passes=0, layers=0, tokens=0), late=ticket.tasks)
                if ticket.give(number, nothing):
                    ended.append(ticket)
        self._finish(ended)

    def _answer(self, pieces: Sequence[_Piece], budget: int) -> None:
        """One batch; where it fails as a whole, each call by itself."""
        began = monotonic()
        try:
            batch = _Batch(pieces)
            columns = batch.run(self._deliver)
            ended = batch.spread(columns)
        except Exception as error:
            if len(pieces) > 1:
                for piece in pieces:
                    self._answer([piece], budget)
                return
            self._finish([piece.ticket for piece in pieces if piece.ticket.fail(error)])
            return
        self._finish(ended)
        self._tell(batch, columns, budget, began)

    def _tell(self, batch: _Batch, columns: Columns, budget: int, began: float) -> None:
        receipts, seconds = columns.receipts, monotonic() - began
        tokens = int(receipts.tokens.sum())
        self._rate.learn(batch.characters, len(batch.inputs), tokens, seconds)
        self._observe(
            BatchFacts(
                inputs=len(batch.inputs),
                tickets=len(batch.tickets),
                tasks=len(batch.tasks),
                tokens=tokens,
                passes=int(receipts.passes.sum()),
                layers=int(receipts.layers.sum()),
                seconds=seconds,
                waited=tuple(began - ticket.begun for ticket, _, _ in batch.places),
                budget=budget,
            )
        )

    def _finish(self, tickets: Iterable[Ticket]) -> None:
        calls: list[Callable[[], None]] = [ticket.end_now for ticket in tickets]
        if calls:
            self._deliver(calls)


class _Rate:
    """Running means of batches: how many tokens characters are, and how long tokens take."""

    def __init__(self) -> None:
        self.seconds_a_token, self._a_character = SECONDS_A_TOKEN, TOKENS_A_CHARACTER

    def tokens(self, characters: float, inputs: int) -> float:
        """Tokens that so many inputs of so many characters probably have."""
        return TOKENS_AN_INPUT * inputs + self._a_character * characters

    def learn(self, characters: int, inputs: int, tokens: int, seconds: float) -> None:
        """Takes a batch into the means."""
        if not tokens:
            return
        self.seconds_a_token += SMOOTHING * (seconds / tokens - self.seconds_a_token)
        if characters:
            own = max(0.01, (tokens - TOKENS_AN_INPUT * inputs) / characters)
            self._a_character += SMOOTHING * (own - self._a_character)


class _Batch:
    """The inputs of several calls, asked as one call for the tasks of all."""

    def __init__(self, pieces: Sequence[_Piece]) -> None:
        self.loaded = pieces[0].ticket.loaded
        self.tickets = list(dict.fromkeys(piece.ticket for piece in pieces))
        wanted = {name for ticket in self.tickets for name in ticket.tasks}
        self.tasks = tuple(name for name in self.loaded.tasks if name in wanted)
        self.places, self.inputs, words = list[tuple[Ticket, int, int]](), list[AnyInput](), list[Any]()
        for piece in pieces:
            for number in piece.numbers:
                self.places.append((piece.ticket, number, len(self.inputs)))
                self.inputs.append(piece.ticket.inputs[number])
                words.append(None if piece.ticket.words is None else piece.ticket.words[number])
        self._words = words if any(own is not None for own in words) else None
        self.characters = sum(sum(piece.characters) for piece in pieces)

    def run(self, deliver: Callable[[list[Callable[[], None]]], None]) -> Columns:
        """The answers of all; callers that want stages get them meanwhile."""
        request = Request(self.loaded, self.inputs, self.tasks, words=self._words)
        if all(ticket.stage is None for ticket in self.tickets):
            try:
                return request.run(self.loaded)
            except Exception:
                columns = request.columns()
                if any(column.late for column in columns.tasks.values()):  # it stopped before its end
                    raise
                return columns  # every task failed, and each says so
        for stage in request.results(self.loaded):
            deliver(list(self._stages(stage)))
        return request.columns()

    def _stages(self, stage: TaskResults) -> Iterator[Callable[[], None]]:
        for ticket in self.tickets:
            if ticket.stage is None or stage.task not in ticket.tasks or ticket.is_cancelled:
                continue
            own = {
                number: stage.answers[row]
                for other, number, row in self.places
                if other is ticket and row in stage.answers
            }
            if own:
                results = TaskResults(task=stage.task, answers=own, layers_left=stage.layers_left)
                yield partial(ticket.stage, results)

    def spread(self, columns: Columns) -> list[Ticket]:
        """Gives each ticket its results; those that have all of theirs now."""
        by_task = {name: _OfTask(columns, name, is_raw=name in self.loaded.hidden) for name in self.tasks}
        flops = _OwnFlops(self.loaded)
        ended = list[Ticket]()
        for ticket, number, row in self.places:
            if ticket.is_cancelled:
                continue
            answers, skipped, failed, late = dict[str, Any](), dict[str, str](), dict[str, str](), list[str]()
            for name in ticket.tasks:
                own = by_task[name]
                if (place := own.places.get(row)) is not None:
                    if own.answers is None:
                        ticket.outputs[number][name] = own.column.outputs[place]
                    else:
                        answers[name] = own.answers[place]
                elif row in own.column.failed:
                    failed[name] = own.column.failed[row]
                elif row in own.column.skipped:
                    skipped[name] = own.column.skipped[row]
                else:
                    late.append(name)
            receipt = columns.receipts.at(row, flops.of(ticket.tasks))
            result = Result(answers=answers, receipt=receipt, skipped=skipped, failed=failed, late=tuple(late))
            if ticket.give(number, result):
                ended.append(ticket)
        return ended


class _OfTask:
    """One task's column, and where each input's answer stands in it; raw outputs of hidden tasks are not decoded."""

    def __init__(self, columns: Columns, name: str, *, is_raw: bool) -> None:
        self.column = columns[name]
        self.places: Mapping[int, int] = {row: place for place, row in enumerate(self.column.rows.tolist())}
        self.answers = None if is_raw else self.column.answers


class _OwnFlops:
    """FLOPs of a pass as if only some of its tasks had been asked; hidden tasks are not counted."""

    def __init__(self, loaded: LoadedTasks) -> None:
        self._loaded = loaded
        self._known: dict[tuple[str, ...], Callable[[tuple[str, ...], int], Mapping[str, int]]] = {}

    def of(self, tasks: tuple[str, ...]) -> Callable[[tuple[str, ...], int], Mapping[str, int]]:
        """What these tasks add to a pass."""
        if tasks not in self._known:
            own = frozenset(tasks) - self._loaded.hidden
            self._known[tasks] = partial(self._flops, own)
        return self._known[tasks]

    def _flops(self, own: frozenset[str], tasks: tuple[str, ...], tokens: int) -> Mapping[str, int]:
        kept = tuple(name for name in tasks if name in own)
        return self._loaded.flops(kept, tokens)


def _run_all(calls: list[Callable[[], None]]) -> None:
    for call in calls:
        call()
