"""Shadow candidates of live tasks: they also answer a share of requests, for comparison only."""

from __future__ import annotations

import hashlib
import logging
import queue
import random
import secrets
import statistics
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import msgspec
import numpy as np

from polyhead.bundle.manifest import TaskRecord, renamed
from polyhead.bundle.owners import FAMILY_OF, is_family, owner_named
from polyhead.bundle.read import Bundle
from polyhead.engine.answers import Result
from polyhead.engine.inputs import AnyInput, task_input
from polyhead.engine.loaded import LoadedTasks
from polyhead.engine.request import Request
from polyhead.engine.session import Session
from polyhead.engine.tickets import Ticket
from polyhead.errors import PolyheadError
from polyhead.serve.event_loop import ALONE, Pace
from polyhead.serve.http import HttpError
from polyhead.serve.trial import built_in, pinned, trial_outputs
from polyhead.serve.uploads import StagedTask, Staging
from polyhead.tasks.agreement import AnswerChange, same_answer, wilson, without_scores
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Answer, Example
from polyhead.text.question import texts_of
from polyhead.values import Value

log = logging.getLogger(__name__)

FLIPS = 200  # that are kept of one candidate, the newest
CHARACTERS = 2000  # of a text that are kept with a flip
WAITING = 1024  # answers that wait to be compared; more are left out, and counted
FAILURES = 3  # in a row, after which a candidate is asked no more
TIMED, ROUNDS = 16, 7  # probes of which the cost is measured, and how often

LiveVersion = tuple[str, TaskRecord | None]
"""The version of a live task and its record: after a removal another task may have both its name and its number."""


class AddedCost(Value):
    """The cost that the candidate adds to a text with all other tasks, measured on probes when it was attached."""

    flops: int
    milliseconds: float  # 0 where what it adds is less than two measurements differ by
    texts: int


class ShadowState(Value):
    """The comparison of a candidate with the live task."""

    task: str
    version: str  # the live one that it is compared with; a change of that begins anew
    digest: str  # of the candidate's arrays
    share: float
    is_asked: bool  # False where it failed too often
    failure: str | None
    compared: int
    agreement: float | None  # share of equal answers
    interval: tuple[float, float] | None  # 95 %, Wilson
    flips: int
    mean_difference: float | None  # of scores of the same label, or of numbers: the largest of each input
    largest_difference: float | None
    failed: int
    left_out: int  # answers that were not compared since too many waited
    cost: AddedCost
    newest_flips: tuple[AnswerChange, ...]  # of the live task's answer to the candidate's


def difference_of(live: Answer, candidate: Answer) -> float | None:
    """The largest difference of scores of the same label, or of the two numbers; None where there are none."""
    if "value" in live and "value" in candidate:
        return abs(float(live["value"]) - float(candidate["value"]))
    first, second = live.get("scores"), candidate.get("scores")
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return max(
            (abs(float(first[label]) - float(second[label])) for label in first if label in second), default=None
        )
    return None


class ShadowCandidate:
    """A candidate and its comparison so far. Threads use it under its lock."""

    def __init__(
        self, staged: StagedTask, staging: Staging, *, hidden: str, share: float, cost: AddedCost, version: LiveVersion
    ) -> None:
        """`version` is the live one, with which it is compared first."""
        self.staged, self.staging, self.hidden, self.share, self.cost = staged, staging, hidden, share, cost
        self.is_asked = True
        self._task, self._lock = staged.record.task, threading.Lock()
        self._failed = self._in_a_row = 0
        self._failure: str | None = None
        self.left_out = 0
        self._begin(version)

    def _begin(self, version: LiveVersion) -> None:
        self._version, self._flips = version, deque[AnswerChange](maxlen=FLIPS)
        self._compared = self._flipped = self._differences = 0
        self._sum, self._largest = 0.0, 0.0

    def fail(self, reason: str) -> None:
        """It did not answer."""
        with self._lock:
            self._failed += 1
            self._in_a_row += 1
            self._failure = reason
            if self._in_a_row >= FAILURES and self.is_asked:
                self.is_asked = False
                log.warning("the candidate of task '%s' failed and is asked no more: %s", self.staged.name, reason)

    def compare(
        self, version: LiveVersion, live: Answer, output: np.ndarray, entry: AnyInput, words: np.ndarray | None
    ) -> None:
        """Takes both answers to one input; `output` is the candidate's, as its head gives it."""
        example = Example(input=task_input(entry), words=words)
        (answer,) = kind_of(self._task).decode_all(self._task, [output], [example])
        same, difference = same_answer(self._task, live, answer), difference_of(live, answer)
        with self._lock:
            if version != self._version:
                self._begin(version)
            self._in_a_row = 0
            self._compared += 1
            if difference is not None:
                self._differences += 1
                self._sum += difference
                self._largest = max(self._largest, difference)
            if same:
                return
            self._flipped += 1
            texts = texts_of(example.input)
            digest = hashlib.sha256("\0".join(texts).encode("utf-8", "replace")).hexdigest()
            kept = tuple(text[:CHARACTERS] for text in texts)
            before, after = without_scores(live), without_scores(answer)
            change = AnswerChange(id=digest, before=before, after=after, difference=difference, texts=kept)
            self._flips.append(change)

    def state(self, *, has_texts: bool) -> ShadowState:
        """The comparison so far; the texts of flips are included only on request."""
        with self._lock:
            flips = tuple(self._flips)
            shown = flips if has_texts else tuple(msgspec.structs.replace(flip, texts=None) for flip in flips)
            equal = self._compared - self._flipped
            low, high = wilson(equal, max(1, self._compared))
            return ShadowState(
                task=self.staged.name,
                version=self._version[0],
                digest=self.staged.record.arrays,
                share=self.share,
                is_asked=self.is_asked,
                failure=self._failure,
                compared=self._compared,
                agreement=equal / self._compared if self._compared else None,
                interval=(float(low), float(high)) if self._compared else None,
                flips=self._flipped,
                mean_difference=self._sum / self._differences if self._differences else None,
                largest_difference=self._largest if self._differences else None,
                failed=self._failed,
                left_out=self.left_out,
                cost=self.cost,
                newest_flips=shown[::-1],
            )


class Shadows:
    """The candidates of a server, one a task at most. `asked` and `take` run on its event loop, and never wait."""

    def __init__(self, session: Session, *, chance: random.Random, pace: Pace = ALONE) -> None:
        """`chance` decides which requests a candidate sees."""
        self._session, self._chance, self._pace = session, chance, pace
        self.candidates: dict[str, ShadowCandidate] = {}  # by the live task's name; changed on the event loop alone
        self._hidden: dict[str, ShadowCandidate] = {}
        self._waiting: queue.Queue[tuple[Any, ...] | None] = queue.Queue(WAITING)
        self._comparing: threading.Thread | None = None

    def attach(self, staged: StagedTask, staging: Staging, *, share: float, others: Sequence[str]) -> ShadowCandidate:
        """Loads a candidate as a hidden task, tries it, and measures the cost that it adds to the tasks `others`.

        It blocks; `add` makes it asked. Raises the error of one that cannot answer its probes with finite numbers.
        """
        bundle = Bundle.open(staged.root, verify=False)
        hidden = f"shadow-{secrets.token_hex(8)}"
        families = {
            owner: f"{FAMILY_OF}{hidden}-{n}" for n, owner in enumerate(staged.record.needs) if is_family(owner)
        }
        record = renamed(staged.record, {owner_named(staged.name): owner_named(hidden), **families})
        arrays = {families[owner]: theirs for owner, theirs in bundle.others(staged.name).items()}
        self._session.attach(record, bundle.part(staged.name), others=arrays, hidden=True)
        try:
            loaded = self._session.loaded
            probes = pinned(bundle, staged.name) or built_in(loaded, [hidden])[hidden]
            trial_outputs(loaded, {hidden: probes}, self._pace)
            cost = added_cost(loaded, [probe.input for probe in probes[:TIMED]], [*others], hidden)
        except BaseException as error:
            self._session.detach(hidden)
            if isinstance(error, PolyheadError):
                why = error.what.replace(hidden, staged.name)
                problem = f"the candidate of task '{staged.name}' does not answer its own probes"
                raise HttpError(422, problem, got=why, do="train it again") from error
            raise
        live = _live_version(loaded, staged.name)
        return ShadowCandidate(staged, staging, hidden=hidden, share=share, cost=cost, version=live)

    def add(self, candidate: ShadowCandidate) -> ShadowCandidate | None:
        """Requests see it from now on; gives the one whose place it took, which is to be detached."""
        before = self.remove(candidate.staged.name)
        self.candidates[candidate.staged.name] = candidate
        self._hidden[candidate.hidden] = candidate
        if self._comparing is None:
            self._comparing = threading.Thread(target=self._compare, name="polyhead-shadow", daemon=True)
            self._comparing.start()
        return before

    def remove(self, name: str) -> ShadowCandidate | None:
        """No request sees it from now on; gives it, to be detached."""
        candidate = self.candidates.pop(name, None)
        if candidate is not None:
            del self._hidden[candidate.hidden]
        return candidate

    def detach(self, candidate: ShadowCandidate) -> None:
        """Forgets a candidate that was removed, and deletes its files; it blocks."""
        self._session.detach(candidate.hidden)
        candidate.staging.close()

    def close(self) -> None:
        """Ends the thread that compares; what waits there is left."""
        if self._comparing is not None:
            self._waiting.put(None)
            self._comparing.join()
            self._comparing = None

    def settle(self) -> None:
        """Waits until all that was answered by now is compared."""
        self._waiting.join()

    def asked(self, tasks: Sequence[str], loaded: LoadedTasks) -> tuple[str, ...]:
        """The candidates to ask with these tasks, each for its share of requests."""
        return tuple(
            candidate.hidden
            for name, candidate in self.candidates.items()
            if candidate.is_asked
            and name in tasks
            and candidate.hidden in loaded.tasks
            and self._chance.random() < candidate.share
        )

    def take(self, ticket: Ticket, hidden: tuple[str, ...]) -> None:
        """Has what the candidates answered compared."""
        for number, result in enumerate(ticket.results):
            if result is None:
                continue
            outputs = {name: ticket.outputs[number].get(name) for name in hidden}
            words = None if ticket.words is None else ticket.words[number]
            for name, output in outputs.items():
                candidate = self._hidden.get(name)
                if candidate is not None:
                    self._put(candidate, ticket, result, output, ticket.inputs[number], words)

    def _put(
        self,
        candidate: ShadowCandidate,
        ticket: Ticket,
        result: Result,
        output: np.ndarray | None,
        entry: AnyInput,
        words: np.ndarray | None,
    ) -> None:
        live = result.answers.get(candidate.staged.name)
        if candidate.hidden in result.failed:
            candidate.fail(result.failed[candidate.hidden].replace(candidate.hidden, "the candidate"))
        elif live is not None and output is not None:
            version = _live_version(ticket.loaded, candidate.staged.name)
            try:
                self._waiting.put_nowait((candidate, version, live, output, entry, words))
            except queue.Full:
                candidate.left_out += 1

    def _compare(self) -> None:
        while (item := self._waiting.get()) is not None:
            candidate, *facts = item
            try:
                candidate.compare(*facts)
            except Exception as error:
                log.exception("the answers of a candidate of task '%s' cannot be compared", candidate.staged.name)
                candidate.fail(f"its answer cannot be read: {type(error).__name__}")
            finally:
                self._waiting.task_done()


def _live_version(loaded: LoadedTasks, name: str) -> LiveVersion:
    return loaded.versions.get(name, ""), loaded.records.get(name)


def added_cost(loaded: LoadedTasks, inputs: Sequence[AnyInput], others: Sequence[str], hidden: str) -> AddedCost:
    """The cost that a hidden task adds to a text of `others`: FLOPs by its plan, and measured time."""
    tasks = {True: (*others, hidden), False: tuple(others)}
    seconds: dict[bool, list[float]] = {True: [], False: []}
    tokens = 0
    for _ in range(ROUNDS):
        for is_with, names in tasks.items():
            began = perf_counter()
            columns = Request(loaded, inputs, names).run(loaded) if names else None
            seconds[is_with].append(perf_counter() - began)
            if is_with and columns is not None:
                passes = int(columns.receipts.passes.sum())
                tokens = round(int(columns.receipts.tokens.sum()) / max(1, passes))
    reading = tuple(name for name in others if name in loaded.records)
    total = sum(loaded.flops((*reading, hidden), tokens).values())
    added = total - (sum(loaded.flops(reading, tokens).values()) if reading else 0)
    apart = statistics.median(seconds[True]) - statistics.median(seconds[False])
    # Below 0 the two times differ by less than they vary: nothing was added that can be measured.
    return AddedCost(flops=added, milliseconds=max(0.0, 1000 * apart / max(1, len(inputs))), texts=len(inputs))
