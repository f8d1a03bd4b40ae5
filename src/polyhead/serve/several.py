"""A set of bundles served at one address: a service for each bundle, and one that combines their tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic

import msgspec
import numpy as np

from polyhead.engine.answers import Result
from polyhead.engine.familiar import NoneBelow
from polyhead.engine.inputs import AnyInput
from polyhead.engine.loaded import LoadedTasks
from polyhead.engine.queue import BatchFacts
from polyhead.engine.request import TaskResults
from polyhead.engine.several import NOTHING, SessionSet, TasksOfSet, Turns, errors_of_call, homes_of, limits_of
from polyhead.engine.tickets import Ticket
from polyhead.errors import BadValue, Overloaded
from polyhead.serve.changes import ChangeState
from polyhead.serve.exchange import EXCHANGE
from polyhead.serve.metrics import Metrics
from polyhead.serve.service import Service, TaskSelection
from polyhead.serve.settings import ServeSettings, check_served_labels
from polyhead.tasks.task import Task


class ServiceSet(Service):
    """The service of a set. Vectors, and answers by similarity, are those of the first bundle."""

    def __init__(self, sessions: SessionSet, settings: ServeSettings) -> None:
        """As a `Service` of one bundle; the cache is shared out among the bundles."""
        self.sessions, self.settings = sessions, settings
        check_served_labels(settings.labels, sessions.tasks)
        cache_bytes = settings.cache_bytes // len(sessions.sessions)
        member_settings = msgspec.structs.replace(settings, labels={}, cache_bytes=cache_bytes)
        self.members, taking = dict[str, Service](), threading.Lock()
        for name, session in sessions.sessions.items():
            is_first = not self.members
            unknown = settings.unknown if is_first else "refuse"
            self.members[name] = Service(session, msgspec.structs.replace(member_settings, unknown=unknown))
            self.members[name].check_new = partial(self._check_new, name)
            self.members[name].observers.append(self._observe)
            self.members[name].changes.taking = taking
        first = next(iter(self.members.values()))
        self.session, self.vectors, self.similarity = first.session, first.vectors, first.similarity
        self.metrics = Metrics(batch_tokens=settings.queue.batch_tokens)  # of requests alone
        self.observers, self._observing = list[Callable[[BatchFacts], None]](), threading.Lock()
        self.is_ready = self.is_closing = False
        self.began, self._ends = monotonic(), None
        self._moment: TasksOfSet | None = None

    async def start(self) -> None:
        """Starts every bundle's service."""
        for member in self.members.values():
            await member.start()
        self.is_ready = True

    def drain(self) -> None:
        """The server begins to stop."""
        super().drain()
        for member in self.members.values():
            member.drain()

    async def stop(self) -> None:
        """Stops every bundle's service."""
        self.drain()
        self.is_ready, self.is_closing = False, True
        for member in self.members.values():
            await member.stop()

    @property
    def loaded(self) -> TasksOfSet:
        """The tasks of this moment, of all bundles."""
        parts, now = {name: member.loaded for name, member in self.members.items()}, self._moment
        if now is None or any(now.parts[name] is not part for name, part in parts.items()):
            now = self._moment = TasksOfSet(parts, self.sessions.cascades)
        return now

    @property
    def waiting(self) -> int:
        """Inputs that wait, in all queues."""
        return sum(member.waiting for member in self.members.values())

    @property
    def change_state(self) -> ChangeState:
        """The state of following the bundles' changes: all changes, and the first refusal."""
        states = [member.change_state for member in self.members.values()]
        return ChangeState(
            is_watched=states[0].is_watched,
            taken=sum(state.taken for state in states),
            refused=sum(state.refused for state in states),
            refusal=next((state.refusal for state in states if state.refusal is not None), None),
        )

    def home(self, task: str) -> Service:
        """The service of the bundle that has the task: of a cascade the last, of a task that is not there the first."""
        bundles = self.loaded.bundles.get(task)
        return self.members[bundles[-1]] if bundles else next(iter(self.members.values()))

    def changed(self, task: str | None, bundle: str | None, *, is_removed: bool = False) -> Service:
        """The service of the bundle that a change is of: the task's own, or the one that is named. Raises BadValue."""
        bundles = self.loaded.bundles.get(task or "", ())
        if is_removed and len(bundles) > 1:
            raise BadValue(f"task '{task}' is a cascade, which needs all its bundles", do="serve without --cascade")
        if bundle is None and len(bundles) > 1:
            raise BadValue(
                f"several bundles have task '{task}'", allowed=list(bundles), do="say which one changes: ?bundle=NAME"
            )
        if bundle is not None and bundle not in self.members:
            raise BadValue("the server has no such bundle", got=bundle, allowed=list(self.members))
        if bundle is not None and bundles and bundle not in bundles:
            raise BadValue(
                f"task '{task}' is in another bundle", got=bundle, allowed=list(bundles), do="give it another name"
            )
        return self.home(task or "") if bundle is None else self.members[bundle]

    def check_task(self, bundle: str, task: Task) -> None:
        """Raises ConfigError for a task of this bundle that conflicts with one of another bundle."""
        parts = self.loaded.parts
        tasks = {name: part.tasks for name, part in parts.items()}
        homes_of({**tasks, bundle: {**tasks[bundle], task.name: task}}, self.sessions.cascades)

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
        """The ticket of these inputs, answered by each bundle in turn for its tasks: see `Service.ask`."""
        loaded = tasks.loaded if isinstance(tasks, TaskSelection) else self.loaded
        assert isinstance(loaded, TasksOfSet)
        ticket = Ticket(loaded, inputs, tuple(tasks), words, end=None, done=lambda ticket: None, stage=stage)
        turns, exchange = Turns(loaded, ticket.tasks, len(inputs)), EXCHANGE.get()
        seconds = self.settings.timeout if deadline is None else min(deadline, self.settings.timeout)
        end = monotonic() + seconds - (0.0 if exchange is None else exchange.age)
        held = list[TaskResults]()  # until it is known that no bundle cuts
        tell = stage if stage is None or self.settings.long_texts == "cut" else held.append
        token = EXCHANGE.set(None)  # it counts the whole, not each bundle's part
        try:
            for bundle, member in self.members.items():
                for rows, names in turns.questions(bundle):
                    try:
                        with errors_of_call(rows):
                            answered = await member.ask(
                                [inputs[row] for row in rows],
                                TaskSelection.of(names, loaded.parts[bundle]),
                                words=None if words is None else [words[row] for row in rows],
                                deadline=max(0.0, end - monotonic()),
                                stage=None if tell is None else partial(_staged, tell, turns, bundle, rows),
                                is_gone=is_gone,
                                familiar=familiar,
                                none_below=limits_of(none_below, names),
                                cuts=cuts,
                            )
                    except Overloaded:
                        if ticket.taken is None:
                            raise
                        turns.take(bundle, rows, names, [_late(names)] * len(rows))  # other bundles have answered
                        continue
                    turns.take(bundle, rows, names, [result for result in answered.results if result is not None])
                    for row, outputs in zip(rows, answered.outputs, strict=True):
                        ticket.outputs[row] |= outputs
                    ticket.taken = ticket.taken or answered.taken
        finally:
            EXCHANGE.reset(token)
        if stage is not None:
            for results in held:
                stage(results)
        for row, result in enumerate(turns.results()):
            ticket.give(row, result)
            ticket.cached += bool(result.receipt.tokens and not result.receipt.passes)
        if exchange is not None:
            exchange.add(ticket)
        return ticket

    def _check_new(self, bundle: str, new: LoadedTasks) -> None:
        self.loaded.check_with(bundle, new)

    def _observe(self, facts: BatchFacts) -> None:
        """Passes a batch of any queue to all observers, one batch at a time."""
        with self._observing:
            for observer in self.observers:
                observer(facts)


def _late(tasks: Sequence[str]) -> Result:
    """The result of an input that was not read before its deadline."""
    return Result(answers={}, receipt=NOTHING, late=tuple(tasks))


def _staged(
    tell: Callable[[TaskResults], None], turns: Turns, bundle: str, rows: Sequence[int], results: TaskResults
) -> None:
    """Tells those answers that stand, by the numbers that the inputs have in the call."""
    sure = {
        rows[number]: answer
        for number, answer in results.answers.items()
        if turns.is_sure(bundle, results.task, answer)
    }
    if sure:
        tell(msgspec.structs.replace(results, answers=sure, bundle=bundle))
