"""The counts of a server, and the load of the last minute."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, chain
from time import monotonic

from polyhead.engine.answers import Result
from polyhead.engine.loaded import LoadedTasks
from polyhead.engine.queue import BatchFacts
from polyhead.engine.request import TaskResults
from polyhead.engine.tickets import Ticket
from polyhead.serve.exchange import Exchange
from polyhead.values import Value

SECONDS = (0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.125, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
TOKENS = tuple(float(2**n) for n in range(4, 13))
INPUTS = tuple(float(2**n) for n in range(9))
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
GROUPS = 1024  # sets of tasks that are counted apart until they are added up

Labels = tuple[str, str]  # a task and its version


class Histogram:
    """Counts of values up to each bound, and beyond the last."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts, self.total = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Counts a value."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def merge(self, other: Histogram) -> None:
        """Adds the counts of another with the same bounds."""
        self.counts = [ours + theirs for ours, theirs in zip(self.counts, other.counts, strict=True)]
        self.total += other.total

    def cumulative(self) -> list[int]:
        """Counts of values up to each bound; the last is of all."""
        return list(accumulate(self.counts))


class _Group:
    """Calls of one set of tasks, counted together: most answer every task of every input."""

    __slots__ = ("answered", "labels", "seconds")

    def __init__(self, labels: tuple[Labels, ...]) -> None:
        self.labels, self.answered, self.seconds = labels, 0, Histogram(SECONDS)


class TaskCounts:
    """Counts by task and version: answers, missing answers by reason, and the time of answers."""

    def __init__(self) -> None:
        self.answers: defaultdict[Labels, int] = defaultdict(int)
        self.without: dict[str, defaultdict[Labels, int]] = {
            reason: defaultdict(int) for reason in ("failed", "late", "skipped", "cut")
        }
        self.seconds: defaultdict[Labels, Histogram] = defaultdict(lambda: Histogram(SECONDS))
        self._versions: Mapping[str, str] = {}  # of the groups
        self._groups: dict[tuple[str, ...], _Group] = {}

    def ticket(self, ticket: Ticket, seconds: float) -> None:
        """Counts an answered call, and its seconds from begin to end."""
        loaded = ticket.loaded
        if loaded.versions is not self._versions or len(self._groups) > GROUPS:
            self.add_up()
            self._versions = loaded.versions
        group = self._groups.get(ticket.tasks)
        if group is None:
            names = [name for name in ticket.tasks if name not in loaded.hidden]
            group = _Group(tuple((name, loaded.versions.get(name, "")) for name in names))
            self._groups[ticket.tasks] = group
        group.answered += len(ticket.results)
        if ticket.stage is None:
            group.seconds.add(seconds, len(ticket.results))
        results = [result for result in ticket.results if result is not None]
        lacking = [result for result in results if len(result.answers) < len(group.labels)]
        if lacking:
            self._without(lacking, group.labels, None if ticket.stage is not None else seconds)
        if cut := sum(result.receipt.cut > 0 for result in results):
            self._cut(ticket, group.labels, cut)

    def stage(self, loaded: LoadedTasks, results: TaskResults, seconds: float) -> None:
        """Counts the time of answers that were sent before the call's end."""
        if results.task not in loaded.hidden:
            label = (results.task, loaded.versions.get(results.task, ""))
            self.seconds[label].add(seconds, len(results.answers))

    def add_up(self) -> None:
        """Adds the counts of sets of tasks to each task's counts."""
        for group in self._groups.values():
            for label in group.labels:
                self.answers[label] += group.answered
                self.seconds[label].merge(group.seconds)
        self._groups.clear()

    def _without(self, results: Sequence[Result], labels: Sequence[Labels], seconds: float | None) -> None:
        """Counts missing answers, for all results at once, since there may be many tasks and results."""
        for reason in ("failed", "late", "skipped"):
            lacking = Counter(chain.from_iterable(getattr(result, reason) for result in results))
            for label in labels if lacking else ():
                if times := lacking[label[0]]:
                    self.answers[label] -= times  # they were counted with their group
                    self.without[reason][label] += times
                    if seconds is not None:
                        self.seconds[label].add(seconds, -times)

    def _cut(self, ticket: Ticket, labels: Sequence[Labels], times: int) -> None:
        for label in labels:
            if ticket.loaded.tasks[label[0]].long_texts != "windows":
                self.without["cut"][label] += times


class Metrics:
    """All counts of a service. Batches are counted in the queue's thread, everything else in the event loop's."""

    def __init__(self, *, batch_tokens: int) -> None:
        """`batch_tokens` is the most that a batch has, but for a single longer text."""
        self._most = batch_tokens
        self.requests: defaultdict[tuple[str, int], int] = defaultdict(int)  # by route and status
        self.seconds: dict[str, Histogram] = {}  # by route
        self.refused: defaultdict[int, int] = defaultdict(int)  # connections, by status
        self.tasks = TaskCounts()
        self.waited = Histogram(SECONDS)
        self.batch = {"tokens": Histogram(TOKENS), "inputs": Histogram(INPUTS), "fill": Histogram(SHARES)}
        self.batch_seconds = Histogram(SECONDS)
        self.passes = self.layers = self.tokens = 0

    def exchange(self, exchange: Exchange) -> None:
        """Counts a request that was answered."""
        self.requests[exchange.route, exchange.status] += 1
        seconds = self.seconds.get(exchange.route)
        if seconds is None:
            seconds = self.seconds[exchange.route] = Histogram(SECONDS)
        seconds.add(exchange.seconds)

    def refuse(self, status: int) -> None:
        """Counts a connection that was closed because of a limit."""
        self.refused[status] += 1

    def ticket(self, ticket: Ticket) -> None:
        """Counts a call that was answered just now."""
        self.tasks.ticket(ticket, monotonic() - ticket.begun)

    def batched(self, facts: BatchFacts) -> None:
        """Counts a batch."""
        self.passes += facts.passes
        self.layers += facts.layers
        self.tokens += facts.tokens
        self.batch["tokens"].add(facts.tokens)
        self.batch["inputs"].add(facts.inputs)
        self.batch["fill"].add(facts.tokens / self._most)
        self.batch_seconds.add(facts.seconds)
        for waited in facts.waited:
            self.waited.add(waited)


LAST_SECONDS = 60


class LoadAnswer(Value):
    """Columns of the last full seconds, oldest first."""

    now: int  # inputs that wait at this moment
    requests: list[int]  # answered in each second; one that was read in several batches counts in each
    inputs: list[int]
    waiting: list[int]  # the most inputs that waited behind a batch
    milliseconds: list[float | None]  # from an input's coming to its answer, the mean; None where there was no answer
    slowest: list[float | None]


class Load:
    """Counts of the last minute. `batch` is called by one thread, `answer` by any other."""

    def __init__(self, waiting: Callable[[], int], *, clock: Callable[[], float] = monotonic) -> None:
        """`waiting` says how many inputs wait."""
        self._waiting, self._clock = waiting, clock
        # A ring: a second is replaced as a whole, so that no reader sees it half made.
        self._ring = [_Second(-1) for _ in range(LAST_SECONDS + 2)]

    def batch(self, facts: BatchFacts) -> None:
        """Counts a batch."""
        now = int(self._clock())
        place = now % len(self._ring)
        second = self._ring[place]
        if second.at != now:
            second = self._ring[place] = _Second(now)
        second.requests += facts.tickets
        second.inputs += facts.inputs
        second.time += sum(facts.waited) + facts.seconds * len(facts.waited)
        second.slowest = max(second.slowest, max(facts.waited, default=0.0) + facts.seconds)
        second.waiting = max(second.waiting, self._waiting())

    def answer(self) -> LoadAnswer:
        """The last minute, without the current second."""
        now = int(self._clock())
        seconds = [self._second(at) for at in range(now - LAST_SECONDS, now)]
        return LoadAnswer(
            now=self._waiting(),
            requests=[each.requests for each in seconds],
            inputs=[each.inputs for each in seconds],
            waiting=[each.waiting for each in seconds],
            milliseconds=[round(1000 * each.time / each.inputs, 2) if each.inputs else None for each in seconds],
            slowest=[round(1000 * each.slowest, 2) if each.inputs else None for each in seconds],
        )

    def _second(self, at: int) -> _Second:
        second = self._ring[at % len(self._ring)]
        return second if second.at == at else _Second(at)


class _Second:
    __slots__ = ("at", "inputs", "requests", "slowest", "time", "waiting")

    def __init__(self, at: int) -> None:
        self.at = at
        self.requests = self.inputs = self.waiting = 0
        self.time = self.slowest = 0.0  # seconds
