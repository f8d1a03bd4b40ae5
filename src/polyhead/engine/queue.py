"""One queue for all callers: their inputs share passes of the encoder, and each is answered as if it were alone."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from heapq import heappop, heappush
from itertools import count
from time import monotonic
from typing import Annotated

import numpy as np
from msgspec import Meta

from polyhead.engine.answers import AnswerTable, Result
from polyhead.engine.inputs import AnyInput, checked_deadline, checked_inputs, checked_words, task_input
from polyhead.engine.inputs import types_of_inputs as input_types
from polyhead.engine.loaded import LoadedTasks
from polyhead.engine.request import TaskResults
from polyhead.engine.session import Session
from polyhead.engine.tickets import BatchFacts as BatchFacts
from polyhead.engine.tickets import Rate, SharedBatch, Ticket, give_unread, run_all, settle
from polyhead.errors import BackendError, ConfigError, Overloaded
from polyhead.text.question import texts_of
from polyhead.values import Value

log = logging.getLogger(__name__)
ROUNDING = 0.5  # tokens: sizes of texts do not add up to the bit to the size of all of them
TOLD = 2  # batches at most of which the callers are told, beside those that run


class QueueLimits(Value):
    """The maximum sizes of a batch and of the queue."""

    batch_tokens: Annotated[int, Meta(description="Tokens that the encoder reads at once.", ge=1)] = 2048
    waiting_inputs: Annotated[int, Meta(description="Inputs that may wait; more are refused with 429.", ge=1)] = 8192
    waiting_characters: Annotated[
        int, Meta(description="Characters that may wait; more are refused with 429.", ge=1)
    ] = 32_000_000

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                raise ConfigError(f"'{name}' of a queue is too small", got=getattr(self, name), allowed="1 or more")


LIMITS = QueueLimits()


class Queue:
    """Answers inputs of many callers in batches of one session; a thread for each of its streams runs the encoder.

    A batch holds inputs whose tasks run the same layers, those with the nearest deadlines first, then those that came
    first. It begins as soon as a stream is idle; idle streams share what waits. A call is answered by the tasks that
    were loaded when it came. `deliver` gets what is to be done for each batch's callers, all at once (an event loop
    passes it to its own thread).
    """

    def __init__(
        self,
        session: Session,
        limits: QueueLimits = LIMITS,
        *,
        deliver: Callable[[list[Callable[[], None]]], None] | None = None,
        observe: Callable[[BatchFacts], None] = lambda facts: None,
    ) -> None:
        self.session, self.limits = session, limits
        self._deliver, self._observe = deliver or run_all, observe
        self._ready, self._order = threading.Condition(), count()
        self._lanes: dict[Hashable, list[tuple[float, int, SharedBatch]]] = {}
        self._inputs = self._characters = 0  # that wait
        self._is_closed, self._under_way = False, 0  # batches that run, or of which the callers are told
        self._rate = Rate(limits.batch_tokens)
        self._streams: int = getattr(session.backend, "streams", 1)
        # Of each stream when the batch that it runs probably ends, 0 while it runs none; and what it is to do first.
        self._until, self._duties = [0.0] * self._streams, [list[Callable[[], None]]() for _ in range(self._streams)]
        self._telling = ThreadPoolExecutor(1, "polyhead-answers")
        self._threads = [
            threading.Thread(target=self._work, args=(number,), name=f"polyhead-queue-{number}", daemon=True)
            for number in range(self._streams)
        ]
        for thread in self._threads:
            thread.start()

    def submit(
        self,
        inputs: Iterable[AnyInput | str],
        done: Callable[[Ticket], None],
        *,
        tasks: Iterable[str] | None = None,
        unseen: Iterable[str] = (),
        words: Iterable[np.ndarray | None] | None = None,
        deadline: float | None = None,
        stage: Callable[[TaskResults], None] | None = None,
        is_gone: Callable[[], bool] | None = None,
        loaded: LoadedTasks | None = None,
    ) -> Ticket:
        """Adds a call to the queue. `done` is called once with its ticket: `results`, in order, or its `error`.

        `stage` gets each task's answers as soon as they are known. `is_gone` says whether nobody waits any longer: what
        is not begun by then is dropped, and its error is a CancelledError, or what `is_gone` raised. Inputs and `tasks`
        are those of `Session.predict`; `unseen` tasks are asked too, uncounted in receipts. `loaded` is the session's
        moment in which they are answered, by default this one. After `deadline` seconds nothing more of it is begun,
        and its tasks are late. If more waits than one batch holds, calls whose deadline falls before the expected end
        of the next batch are late as well. Raises BadValue, UnknownTask and, if too much waits already, or so much that
        the deadline will probably pass, Overloaded, whose `retry_after` is the number of seconds until that is done.
        """
        loaded, listed = self.session.loaded if loaded is None else loaded, checked_inputs(inputs)
        seconds, checked = checked_deadline(deadline), checked_words(words, listed)
        end = None if seconds is None else monotonic() + seconds
        names, more = loaded.task_names(tasks), loaded.task_names(unseen)
        every, hides = (*names, *more), frozenset(more)
        ticket = Ticket(loaded, listed, every, checked, end=end, done=done, stage=stage, is_gone=is_gone, unseen=hides)
        sizes = [sum(map(len, texts_of(task_input(entry)))) for entry in listed]
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
        return not self._inputs and not self._under_way

    def on_each_stream(self, work: Callable[[], object]) -> None:
        """Does this on the thread of each stream, between batches: a runtime prepares for each by itself."""
        done = [Future[None]() for _ in self._duties]
        with self._ready:
            for duties, future in zip(self._duties, done, strict=True):
                duties.append(partial(settle, future, work))
            self._ready.notify_all()
        for future in done:
            future.result()

    def seconds(self, characters: float = 0.0, inputs: int = 0) -> float:
        """Estimated time until all that waits, and so much more, is answered."""
        return self._rate.seconds(self._characters + characters, self._inputs + inputs) / self._streams

    def _expected(self, characters: int, inputs: int) -> float:
        """Estimated time until the first batch with so much more ends, after what runs and the batches before it."""
        most, added = self.limits.batch_tokens, self._rate.tokens(characters, inputs)
        waiting = self._rate.tokens(self._characters, self._inputs)
        before = waiting // most * most
        running = max(0.0, min(self._until) - monotonic())
        return running + self._rate.seconds_of(before / self._streams + min(most, waiting - before + added))

    def close(self, *, drain: bool = True, timeout: float | None = None) -> None:
        """Refuses new calls; answers waiting ones, or fails them with BackendError; waits for the thread's end.

        What still waits after `timeout` seconds fails too.
        """
        with self._ready:
            self._is_closed = True
            self._ready.notify_all()
        if not drain:
            self._fail_waiting()
        began = monotonic()
        for thread in self._threads:
            thread.join(None if timeout is None else max(0.0, began + timeout - monotonic()))
        self._fail_waiting()
        if not any(thread.is_alive() for thread in self._threads):  # else a running batch still delivers there
            self._telling.shutdown()

    def _fail_waiting(self) -> None:
        with self._ready:
            waiting = [piece.tickets[0] for lane in self._lanes.values() for _, _, piece in lane]
            self._lanes.clear()
            self._inputs = self._characters = 0
        error = BackendError("the queue was closed before this was answered", do="ask again")
        self._deliver([ticket.end_now for ticket in dict.fromkeys(waiting) if ticket.fail(error)])

    def _answered_at_once(self, ticket: Ticket) -> list[int]:
        """The numbers of inputs that some task reads; the others have their results."""
        loaded = ticket.loaded
        read = {input_type for types in loaded.asked(ticket.tasks).reads.values() for input_type in types}
        types = input_types(ticket.inputs)
        waiting = [number for number, input_type in enumerate(types) if input_type in read]
        unread = [number for number, input_type in enumerate(types) if input_type not in read]
        give_unread(ticket, unread)
        return waiting

    def _put(self, ticket: Ticket, waiting: Sequence[int], sizes: Sequence[int]) -> None:
        pieces = list(self._pieces(ticket, waiting, sizes))
        characters, key = sum(sizes), (id(ticket.loaded), ticket.loaded.runs_alike(ticket.tasks))
        with self._ready:
            if self._is_closed:
                raise BackendError("the queue is closed, and takes no more calls", do="ask a server that is up")
            limits, expected = self.limits, self._expected(characters, len(waiting))
            if self._inputs and ticket.end is not None and expected > ticket.end - monotonic():
                raise Overloaded(
                    "too much waits for this to be answered before its deadline",
                    got=f"{expected:.2f} s until it is answered, {max(0.0, ticket.end - monotonic()):.2f} s left",
                    do="ask again later, or with a later deadline",
                    retry_after=expected,
                )
            is_over = self._inputs + len(waiting) > limits.waiting_inputs
            if self._inputs and (is_over or self._characters + characters > limits.waiting_characters):
                raise Overloaded(
                    "too much waits to be answered",
                    got=f"{self._inputs:,} inputs of {self._characters:,} characters, and {len(waiting):,} more",
                    allowed=f"{limits.waiting_inputs:,} inputs of {limits.waiting_characters:,} characters",
                    do="ask again later, or ask for less at once",
                    retry_after=expected,
                )
            lane = self._lanes.setdefault(key, [])
            for piece in pieces:
                end = float("inf") if ticket.end is None else ticket.end
                heappush(lane, (end, next(self._order), piece))
                self._inputs += len(piece.places)
                self._characters += piece.characters
            self._ready.notify()

    def _pieces(self, ticket: Ticket, waiting: Sequence[int], sizes: Sequence[int]) -> Iterator[SharedBatch]:
        """Parts that a batch has room for, one for each stream at least."""
        places, characters, tokens = list[tuple[Ticket, int]](), 0, 0.0
        most = self._rate.tokens(sum(sizes[number] for number in waiting), len(waiting)) / self._streams
        most = min(most + ROUNDING, self.limits.batch_tokens)
        for number in waiting:
            more = self._rate.tokens(sizes[number], 1)
            if places and tokens + more > most:
                yield SharedBatch([ticket], places, characters)
                places, characters, tokens = [], 0, 0.0
            places.append((ticket, number))
            characters += sizes[number]
            tokens += more
        yield SharedBatch([ticket], places, characters)

    def _work(self, stream: int) -> None:
        duties = self._duties[stream]
        while True:
            with self._ready:
                while not duties and (self._under_way >= self._streams + TOLD or not self._lanes):
                    if not self._lanes and self._is_closed:
                        return
                    self._ready.wait()
                duty = duties.pop(0) if duties else None
                pieces, dropped = self._take() if duty is None else ([], [])
                self._under_way += bool(pieces) + bool(dropped)
                if pieces:
                    texts = sum(piece.characters for piece in pieces), sum(len(piece.places) for piece in pieces)
                    self._until[stream] = monotonic() + self._rate.seconds(*texts)
                if self._lanes:
                    self._ready.notify()  # another stream has work too
            if duty is not None:
                duty()
            if dropped:  # not here: what is in time would wait for that
                self._telling.submit(self._end, partial(self._end_late, dropped))
            if pieces:
                self._answer(pieces)
                with self._ready:
                    self._until[stream] = 0.0

    def _take(self) -> tuple[list[SharedBatch], list[SharedBatch]]:
        """The pieces of the next batch, and those that are cancelled or late."""
        key = min(self._lanes, key=lambda lane: self._lanes[lane][0][:2])
        lane, pieces, dropped, tokens = self._lanes[key], list[SharedBatch](), list[SharedBatch](), 0.0
        share = self._rate.tokens(self._characters, self._inputs) / max(1, self._until.count(0.0))
        ends, most = self._ends(lane), min(self.limits.batch_tokens, share + ROUNDING)  # of each idle stream
        while lane:
            piece = lane[0][2]
            (ticket,) = piece.tickets
            is_over = ticket.is_cancelled or ticket.error is not None or ticket.is_late_at(ends)
            more = self._rate.tokens(piece.characters, len(piece.places))
            if pieces and not is_over and tokens + more > most:
                break
            heappop(lane)
            self._inputs -= len(piece.places)
            self._characters -= piece.characters
            (dropped if is_over else pieces).append(piece)
            tokens += 0.0 if is_over else more
        if not lane:
            del self._lanes[key]
        return pieces, dropped

    def _ends(self, lane: Sequence[tuple[float, int, SharedBatch]]) -> float:
        """The moment before which deadlines are too early for the next batch of this lane.

        Usually that is now. Where more waits than a batch holds, and some of it would be answered in time, it is the
        probable end of the batch: what would be late gives its place to others.
        """
        now, most = monotonic(), self.limits.batch_tokens
        characters = sum(piece.characters for _, _, piece in lane)
        if self._rate.tokens(characters, sum(len(piece.places) for _, _, piece in lane)) <= most:
            return now
        ends = now + self._rate.seconds_of(most)
        return ends if any(end > ends for end, _, _ in lane) else now

    def _end_late(self, pieces: Sequence[SharedBatch]) -> None:
        ended = list[Ticket]()
        for piece in pieces:
            (ticket,) = piece.tickets
            reason, numbers = ticket.dropped, [number for _, number in piece.places]
            if give_unread(ticket, numbers) if reason is None else ticket.fail(reason):
                ended.append(ticket)
        self._finish(ended)

    def _answer(self, pieces: Sequence[SharedBatch]) -> None:
        """Runs one batch; its callers are notified on another thread if calls are waiting, else on this one."""
        began = monotonic()
        batch = SharedBatch.of(pieces)
        for ticket in batch.tickets:
            ticket.taken = ticket.taken or began
        try:
            columns = batch.run(self._deliver)
        except Exception as error:
            tell = partial(self._run_each, pieces, error)
        else:
            tell = partial(self._spread_answers, batch, columns, pieces, began, monotonic() - began)
        running = self._streams - self._until.count(0.0)
        if self._lanes or self._under_way > running:  # or earlier callers are being told: these come after them
            self._telling.submit(self._end, tell)
        else:
            self._end(tell)

    def _end(self, tell: Callable[[], None]) -> None:
        try:
            tell()
        except Exception:  # of `deliver`, or of `observe`
            log.exception("a batch's end could not be told")
        finally:
            with self._ready:
                self._under_way -= 1
                self._ready.notify_all()

    def _run_each(self, pieces: Sequence[SharedBatch], error: Exception) -> None:
        """Runs each call of a failed batch by itself, to find the call that caused the failure."""
        if len(pieces) == 1:
            self._finish([ticket for ticket in pieces[0].tickets if ticket.fail(error)])
            return
        for piece in pieces:
            began = monotonic()
            try:
                columns = piece.run(self._deliver)
            except Exception as failure:
                self._run_each([piece], failure)
            else:
                self._spread_answers(piece, columns, [piece], began, monotonic() - began)

    def _spread_answers(
        self, batch: SharedBatch, columns: AnswerTable, pieces: Sequence[SharedBatch], began: float, seconds: float
    ) -> None:
        """Gives each call its answers; `seconds` is how long the batch ran."""
        try:
            ended = batch.spread(columns)
        except Exception as error:
            self._run_each(pieces, error)
            return
        self._finish(ended)
        receipts = columns.receipts
        tokens = int(receipts.tokens.sum())
        self._rate.learn(batch.characters, len(batch.places), tokens, seconds)
        self._observe(
            BatchFacts(
                inputs=len(batch.places),
                tickets=len(batch.tickets),
                tasks=len(batch.tasks),
                tokens=tokens,
                passes=int(receipts.passes.sum()),
                layers=int(receipts.layers.sum()),
                seconds=seconds,
                waited=tuple(began - ticket.begun for ticket, _ in batch.places),
            )
        )

    def _finish(self, tickets: Iterable[Ticket]) -> None:
        if calls := [ticket.end_now for ticket in tickets]:
            self._deliver(calls)
