"""The service behind every route: one session, one queue, the current tasks. It is independent of HTTP."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from time import monotonic, sleep

import numpy as np
from msgspec import UNSET, UnsetType

from polyhead.engine.familiar import NoneBelow, is_wanted
from polyhead.engine.inputs import AnyInput, task_input
from polyhead.engine.loaded import FactOfTasks, LoadedTasks, shown_tasks
from polyhead.engine.queue import BatchFacts, Queue
from polyhead.engine.request import Request, TaskResults
from polyhead.engine.session import Session, attach_vectors
from polyhead.engine.tickets import Ticket, run_all
from polyhead.errors import BadValue, EmptyData, Overloaded
from polyhead.machine import trim
from polyhead.serve.cache import Cache
from polyhead.serve.changes import BundleChanges, ChangeState
from polyhead.serve.checks import Failures, characters_of, check_characters, check_cut, check_options, check_tokens
from polyhead.serve.drift import DriftWatch
from polyhead.serve.event_loop import LoopLag, Pace, off_loop
from polyhead.serve.exchange import EXCHANGE
from polyhead.serve.hidden_tasks import AddedTasks, HiddenTasks, forget_hidden, tell_familiar
from polyhead.serve.metrics import Metrics
from polyhead.serve.settings import ServeSettings, check_served_labels
from polyhead.serve.similarity import Similarity
from polyhead.serve.trial import every_head, every_shape
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.text.question import texts_of

# A higher threshold than Python's: a collection stops all requests.
COLLECT_AFTER = (50_000, 20, 50)
# Python's 5 ms would let the event loop wait so long for the queue's thread, each time that it has waited for a socket.
SWITCH_AFTER = 0.0005  # seconds
LULL = 1.0  # seconds without a caller, after which nobody is taken to ask
CLOSED_BY = 0.95  # of the drain time: until then what is under way is waited for
FAMILIAR_SIZE = 512  # of the work for one text and task, as `off_loop` counts it: the rows that it is compared with
TRIMMED_EVERY = 60.0  # seconds between two returns of freed memory to the system


class TaskSelection(tuple[str, ...]):
    """The tasks of a request, and the moment when they were looked up, whose versions answer."""

    loaded: LoadedTasks

    @classmethod
    def of(cls, names: Iterable[str], loaded: LoadedTasks) -> TaskSelection:
        """These names at that moment."""
        selection = cls(names)
        selection.loaded = loaded
        return selection

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks as they were in that moment."""
        return tuple(self.loaded.tasks[name] for name in self)


class Service:
    """A bundle that is being served. All coroutines run on one event loop; the queue's thread runs the encoder."""

    def __init__(self, session: Session, settings: ServeSettings) -> None:
        """Compiles nothing yet: see `start`. Raises ConfigError for labels that the bundle's tasks do not have."""
        check_served_labels(settings.labels, session.tasks)
        self.session, self.settings = session, settings
        self.members: dict[str, Service] = {}  # of a set of bundles: the service of each by name
        # Raises an error where new tasks of the bundle cannot stand beside those of the others.
        self.check_new: Callable[[LoadedTasks], None] = lambda new: None
        self.vectors = attach_vectors(session)
        # What answers questions of decisions APIs that no task answers; None where these are refused.
        self.similarity = Similarity(self.vectors, session.bundle.digest) if settings.unknown == "similarity" else None
        self.observers: list[Callable[[BatchFacts], None]] = []
        self.metrics, self._failures = Metrics(batch_tokens=settings.queue.batch_tokens), Failures()
        self.cache = Cache(settings.cache_bytes, vectors=self.vectors) if settings.cache_bytes else None
        self.is_ready = self.is_closing = False
        self.began = monotonic()
        self._answered = monotonic()  # when callers' inputs were last answered
        self.pace = Pace(self._is_busy)
        self.changes = BundleChanges(
            session, seconds=settings.watch_seconds, warm=self._warm_new, requested=self._default_tasks, pace=self.pace
        )
        self.drift = DriftWatch(session, self.vectors)
        self.hidden_tasks: list[HiddenTasks] = [self.drift]
        self.opening: list[Callable[[], None]] = []  # called once it is ready, on the event loop
        self.closing: list[Callable[[], Awaitable[None]]] = []  # what else ends with it
        self._ends: float | None = None  # until when what is under way is waited for (monotonic clock)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._trimming: asyncio.Task[None] | None = None
        self.lag = LoopLag()
        self.queue = Queue(session, settings.queue, deliver=self._deliver, observe=self._observe)

    async def start(self) -> None:
        """Answers built-in texts in batches of several sizes, so that no caller waits for a graph to be compiled."""
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._warm)
        self.observers.append(self.metrics.batched)  # what warmed it is not counted
        gc.collect()
        gc.freeze()  # what is loaded stays, and is not looked through again
        gc.set_threshold(*COLLECT_AFTER)
        sys.setswitchinterval(SWITCH_AFTER)
        self.changes.start()
        self._trimming = asyncio.create_task(_trim_often())
        self.is_ready = True
        for begin in self.opening:
            begin()

    def drain(self) -> None:
        """The server begins to stop: from the first call on `drain_seconds` are counted."""
        if self._ends is None:
            self._ends = monotonic() + CLOSED_BY * self.settings.drain_seconds

    @property
    def is_draining(self) -> bool:
        """Whether the server was told to stop."""
        return self._ends is not None

    def seconds_left(self) -> float:
        """The seconds left to running requests since the server was told to stop."""
        self.drain()
        assert self._ends is not None
        return max(0.0, self._ends - monotonic())

    async def stop(self) -> None:
        """Answers waiting requests within the rest of `drain_seconds`, and ends the queue."""
        self.drain()
        self.is_ready, self.is_closing = False, True
        if self._trimming is not None:
            self._trimming.cancel()
        await self.changes.stop(self.seconds_left())
        for close in self.closing:
            await close()
        await asyncio.to_thread(self.queue.close, timeout=self.seconds_left())
        await asyncio.to_thread(self.drift.close)
        if self._loop is not None:
            await asyncio.sleep(0)  # what the queue delivered last

    @property
    def loaded(self) -> LoadedTasks:
        """The tasks of this moment, hidden ones among them."""
        return self.session.loaded

    @property
    def tasks(self) -> dict[str, Task]:
        """The tasks that callers may ask now, by name."""
        return shown_tasks(self.loaded)

    @property
    def waiting(self) -> int:
        """Inputs that wait."""
        return self.queue.waiting

    @property
    def change_state(self) -> ChangeState:
        """The state of following the bundle's changes."""
        return self.changes.state

    @property
    def bundles(self) -> dict[str, str] | UnsetType:
        """The digest of each bundle's trunk, by the bundle's name, if a set is served."""
        return {name: each.session.bundle.digest for name, each in self.members.items()} or UNSET

    def home(self, task: str) -> Service:
        """The service of the bundle that answers this task last; of one bundle itself."""
        return self

    def default_tasks(self) -> list[str]:
        """The tasks of a request that names none: all but those that write texts, which take longer."""
        return list(_DEFAULT(self.loaded, ()))

    def named(self, tasks: Iterable[str] | None) -> TaskSelection:
        """These tasks, or the default ones; raises UnknownTask for a task that callers may not ask.

        Give what it returns to `ask`, so that a change between the two touches nothing.
        """
        loaded = self.loaded
        if tasks is None:
            return TaskSelection.of(_DEFAULT(loaded, ()), loaded)
        names = loaded.task_names(tasks)
        hidden = [name for name in names if name in loaded.hidden]
        return TaskSelection.of(loaded.task_names([f"{name} " for name in hidden]) if hidden else names, loaded)

    def check_count(self, inputs: int, tasks: int) -> None:
        """The part of `check_inputs` for which no input need be made first."""
        limits = self.settings.limits
        if not inputs:
            raise EmptyData("the request holds no input", do="give at least one text")
        if inputs > limits.inputs or inputs * tasks > limits.answers:
            raise BadValue(
                "the request holds too many inputs",
                got=f"{inputs:,} inputs" + f" and {tasks:,} tasks" * bool(tasks),
                allowed=f"{limits.inputs:,} inputs, and {limits.answers:,} answers in all",
                do="send several requests",
            )

    def check_inputs(self, inputs: Sequence[AnyInput], tasks: Sequence[str]) -> None:
        """Raises EmptyData for no input, BadValue for more than a request may hold."""
        limits = self.settings.limits
        self.check_count(len(inputs), len(tasks))
        for number, entry in enumerate(inputs):
            longest = max(map(len, texts_of(task_input(entry))), default=0)
            if longest > limits.characters:
                raise BadValue(
                    f"a text of input {number} is too long",
                    got=f"{longest:,} characters",
                    allowed=f"{limits.characters:,}",
                    do="shorten it, or split it into several inputs",
                    row=number,
                )
        check_options(inputs, limits.options)
        check_characters(inputs, limits.all_characters)

    async def ask(
        self,
        inputs: Sequence[AnyInput],
        tasks: Sequence[str],
        *,
        words: Sequence[np.ndarray | None] | None = None,
        deadline: float | None = None,
        stage: Callable[[TaskResults], None] | None = None,
        is_gone: Callable[[], bool] | None = None,
        familiar: bool = False,
        none_below: NoneBelow = None,
        cuts: bool = False,
    ) -> Ticket:
        """The ticket of these inputs, answered. If the caller `is_gone`, the part that has not begun is dropped.

        `familiar` and `none_below` are those of `Session.predict`; stages contain neither.
        Raises what `Queue.submit` raises, the error of a ticket that has one, and BadValue for inputs of more tokens
        than a call may have, or, where the server refuses those and the caller allows no `cuts`, than the trunk reads.
        """
        settings, names = self.settings, tuple(tasks)
        loaded = tasks.loaded if isinstance(tasks, TaskSelection) else self.loaded
        limits = settings.limits
        await check_tokens(loaded, inputs, names, words, tokens=limits.tokens, answers=limits.answers)
        seconds = settings.timeout if deadline is None else min(deadline, settings.timeout)
        by_name = {name: loaded.tasks[name] for name in names}
        tells = is_wanted(loaded.known, by_name, familiar=familiar, asked=none_below)
        unseen = (self.vectors,) if tells and self.vectors not in names else ()
        submit = partial(self._submitted, loaded=loaded, tasks=names, unseen=unseen, seconds=seconds, is_gone=is_gone)
        held, tell = list[TaskResults](), stage
        if stage is not None:
            tell = partial(self._staged, stage if settings.long_texts == "cut" else held.append, loaded, monotonic())
        if self.cache is None:
            ticket = await submit(inputs, words=words, stage=tell)
        else:
            ticket = await self.cache.ask(submit, loaded, inputs, names, unseen=unseen, words=words, stage=tell)
        if tells:
            size = FAMILIAR_SIZE * len(inputs) * (len(names) + len(unseen))
            await off_loop(size, tell_familiar, ticket, self.vectors, familiar=familiar, below=none_below)
            forget_hidden(ticket, frozenset(unseen))
        if settings.long_texts == "refuse" and not cuts:
            check_cut(ticket)
        if stage is not None:
            for results in held:
                stage(results)
        self._failures.tell(ticket)
        self.metrics.ticket(ticket)
        if (exchange := EXCHANGE.get()) is not None:
            exchange.add(ticket)
        return ticket

    def _staged(
        self, tell: Callable[[TaskResults], None], loaded: LoadedTasks, began: float, results: TaskResults
    ) -> None:
        if results.task == self.vectors:
            return
        self.metrics.tasks.stage(loaded, results, monotonic() - began)
        tell(results)

    async def _submitted(
        self,
        inputs: Sequence[AnyInput],
        *,
        loaded: LoadedTasks,
        tasks: tuple[str, ...],
        unseen: tuple[str, ...],
        words: Sequence[np.ndarray | None] | None,
        seconds: float,
        stage: Callable[[TaskResults], None] | None,
        is_gone: Callable[[], bool] | None,
    ) -> Ticket:
        """The ticket of the queue, answered."""
        loop = asyncio.get_running_loop()
        self._loop = loop
        answered: asyncio.Future[Ticket] = loop.create_future()

        def done(ticket: Ticket) -> None:
            if not answered.done():
                answered.set_result(ticket)

        added = AddedTasks(self.hidden_tasks if stage is None else (), (*tasks, *unseen), loaded)
        submitting = partial(
            self.queue.submit,
            inputs,
            done,
            tasks=tasks,
            unseen=(*unseen, *added.hidden),
            words=words,
            deadline=self._left(seconds),
            stage=stage,
            is_gone=lambda: answered.cancelled() or (is_gone is not None and is_gone()),
            loaded=loaded,
        )
        try:
            ticket = await off_loop(4 * len(inputs) * len(tasks) + characters_of(inputs), submitting)
            await answered
        except asyncio.CancelledError:
            answered.cancel()  # by which the queue knows it
            raise
        if ticket.error is not None:
            raise ticket.error
        if all(result is not None and result.late and not result.receipt.passes for result in ticket.results):
            raise Overloaded(
                "this could not be read before its deadline",
                got=f"{seconds:g} s",
                do="ask again later, or with a later deadline",
                retry_after=self.queue.seconds() + self.lag.seconds,
            )
        added.take(ticket)
        return ticket

    def _left(self, seconds: float) -> float:
        """The caller's seconds less the delay of the event loop: the seconds for the queue.

        A request may have waited unread for one turn of the loop, and its answer may wait for another. An idle queue
        shows that the loop is on time again.
        """
        exchange, lag = EXCHANGE.get(), 0.0 if self.queue.is_idle else self.lag.seconds
        return max(0.0, seconds - 2 * lag - (0.0 if exchange is None else exchange.age))

    def _warm(self) -> None:
        loaded, names = self.loaded, self._default_tasks(self.loaded)
        shapes = list(every_shape(self.session.tokenizer))
        self.queue.on_each_stream(lambda: [Request(loaded, texts, names).run(loaded) for texts in shapes])
        self.queue.answers(shapes[-1], tasks=names)
        if self.similarity is not None:
            self.similarity.fit(self.queue, self.session.bundle)
        while not self.queue.is_idle:  # observers are told of the last batch after it is answered
            sleep(0.001)

    def _warm_new(self, loaded: LoadedTasks) -> None:
        """Warms tasks that callers cannot ask yet, outside the queue."""
        self.check_new(loaded)
        names = self._default_tasks(loaded)
        for texts in every_head(self.session.tokenizer):
            with self.pace.one_pass():
                Request(loaded, texts, names).run(loaded)

    def _default_tasks(self, loaded: LoadedTasks) -> list[str]:
        """The tasks of a request that names none, and the hidden task that gives vectors."""
        return [*_DEFAULT(loaded, ()), self.vectors]

    def _deliver(self, calls: list[Callable[[], None]]) -> None:
        """From the queue's thread to the loop's, all at once; before there is a loop, where they are."""
        loop = self._loop
        if loop is None or loop.is_closed() or not calls:
            run_all(calls)
            return
        loop.call_soon_threadsafe(self._run_calls, calls, monotonic())

    def _run_calls(self, calls: list[Callable[[], None]], ready: float) -> None:
        self.lag.learn(monotonic() - ready)
        run_all(calls)

    def _is_busy(self) -> bool:
        """Whether callers wait, or did within the last second."""
        return not self.queue.is_idle or monotonic() - self._answered < LULL

    def _observe(self, facts: BatchFacts) -> None:
        self._answered = monotonic()
        for observer in self.observers:
            observer(facts)


async def _trim_often() -> None:
    """Returns freed memory to the system: batches differ in size, so the allocator would keep more and more."""
    while True:
        await asyncio.sleep(TRIMMED_EVERY)
        await asyncio.to_thread(trim)


def _default(loaded: LoadedTasks, _: tuple[str, ...]) -> tuple[str, ...]:
    hidden = loaded.hidden
    return tuple(name for name, task in loaded.tasks.items() if name not in hidden and not kind_of(task).generates)


_DEFAULT = FactOfTasks(_default)
