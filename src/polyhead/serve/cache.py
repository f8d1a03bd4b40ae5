"""Answers that are kept for texts to come: by the digest of the text, and of all that makes each task's answer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import blake2b, sha256
from itertools import chain
from typing import Any
from weakref import ref

import msgspec
import numpy as np

from polyhead.engine.answers import Result
from polyhead.engine.inputs import AnyInput, InputType, input_type_of, task_input
from polyhead.engine.loaded import FactOfTasks, LoadedTasks
from polyhead.engine.receipt import Receipt
from polyhead.engine.request import TaskResults
from polyhead.engine.tickets import Ticket
from polyhead.text.question import Question, texts_of
from polyhead.values import Value

ORDERS = 1000  # sets of tasks that entries share
OVERHEAD = 400  # bytes of an entry beside its answers: its place in the table, its numbers
VECTOR = b"vector"  # the digest of the hidden task whose output is the mean vector of the one trunk

Submit = Callable[..., Awaitable[Ticket]]
"""Asks the queue: inputs, with `words` and `stage`."""


class _Entry(Value, eq=False):
    """The stored answers to one input, by tasks that read it in the same ways."""

    tasks: tuple[bytes, ...]  # digests, in the order of `answers`
    answers: bytes  # msgpack of a list: an answer, or the words why there is none
    vector: np.ndarray | None
    read: tuple[int, int, int, int]  # tokens, cut, windows, repaired

    @property
    def size(self) -> int:
        """Bytes in memory, nearly."""
        return OVERHEAD + len(self.answers) + (0 if self.vector is None else self.vector.nbytes)


class Cache:
    """Answers and vectors of the texts that were asked last, up to so many bytes; used in the event loop alone.

    An answer is found by the digests of the input and of the task's record, which names its arrays, its path, its
    trunk and its settings: another version of a task never finds what an earlier one said. Tasks that are not as the
    bundle has them are always computed. An input is read again for all tasks if the answer of one is not known, or if
    together they read it in other ways than those that were asked before: its receipt would be another.
    """

    def __init__(self, limit: int, *, vectors: str) -> None:
        """`vectors` is the name of the hidden task whose output is the text's vector."""
        self.limit, self._vectors = limit, vectors
        self.bytes = self.hits = self.misses = self.dropped = 0  # hits and misses count inputs
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._known: tuple[Callable[[], LoadedTasks | None], dict[str, bytes]] = (lambda: None, {})
        self._orders: dict[tuple[bytes, ...], tuple[bytes, ...]] = {}  # one tuple for all entries of the same tasks

    def __len__(self) -> int:
        return len(self._entries)

    async def ask(
        self,
        submit: Submit,
        loaded: LoadedTasks,
        inputs: Sequence[AnyInput],
        tasks: tuple[str, ...],
        *,
        unseen: tuple[str, ...],
        words: Sequence[np.ndarray | None] | None,
        stage: Callable[[TaskResults], None] | None,
    ) -> Ticket:
        """A ticket of these inputs, with results from the cache if it has them, else from `submit`.

        `unseen` are the tasks that `submit` asks beside `tasks`, and that no receipt counts.
        """
        digests, every = self._digests(loaded), (*tasks, *unseen)
        if not all(name in digests for name in every):
            return await submit(inputs, words=words, stage=stage)
        ways = _WAYS(loaded, tasks)
        keys = [_digest(entry, None if words is None else words[i], ways) for i, entry in enumerate(inputs)]
        ticket = Ticket(loaded, inputs, every, words, end=None, done=lambda ticket: None, stage=stage)
        missing = [number for number, key in enumerate(keys) if not self._give(ticket, number, key, digests)]
        if missing and (stage is not None or len(missing) == len(inputs)):
            # Stages are reported before the versions of the other answers are known: all are answered anew, or none.
            missing = list(range(len(inputs)))
            ticket = await submit(inputs, words=words, stage=stage)
            self._keep(ticket, keys)
        elif missing:
            missing_words = None if words is None else [words[number] for number in missing]
            answered = await submit([inputs[number] for number in missing], words=missing_words, stage=None)
            self._keep(answered, [keys[number] for number in missing])
            ticket.taken = answered.taken
            for place, number in enumerate(missing):
                ticket.results[number], ticket.outputs[number] = answered.results[place], answered.outputs[place]
        else:
            ticket.taken = ticket.begun
            if stage is not None:
                _stage(ticket, stage)
        ticket.cached = len(inputs) - len(missing)
        self.hits += ticket.cached
        self.misses += len(missing)
        return ticket

    def _digests(self, loaded: LoadedTasks) -> dict[str, bytes]:
        """By name, the digests of tasks that can be kept: of all that is in a record, arrays' digests among it."""
        known, digests = self._known
        if known() is not loaded:
            digests = {
                name: sha256(msgspec.json.encode(record)).digest()[:16]
                for name, record in loaded.records.items()
                if name in loaded.versions and record.arrays
            }
            digests[self._vectors] = VECTOR
            self._known = (ref(loaded), digests)
        return digests

    def _give(self, ticket: Ticket, number: int, key: bytes, digests: Mapping[str, bytes]) -> bool:
        """Gives the ticket its result if all of it is known; returns whether it is."""
        entry = self._entries.get(key)
        named = [name for name in ticket.tasks if name != self._vectors]
        if entry is None or (len(named) < len(ticket.tasks) and entry.vector is None):
            return False
        places = {digest: place for place, digest in enumerate(entry.tasks)}
        if not all(digests[name] in places for name in named):
            return False
        self._entries.move_to_end(key)
        kept: list[Any] = msgspec.msgpack.decode(entry.answers)
        answers = {name: kept[places[digests[name]]] for name in named}
        tokens, cut, windows, repaired = entry.read
        receipt = Receipt(passes=0, layers=0, tokens=tokens, cut=cut, windows=windows, repaired=repaired)
        ticket.results[number] = Result(
            answers={name: answer for name, answer in answers.items() if not isinstance(answer, str)},
            skipped={name: reason for name, reason in answers.items() if isinstance(reason, str)},
            receipt=receipt,
        )
        if len(named) < len(ticket.tasks) and entry.vector is not None:
            ticket.outputs[number][self._vectors] = entry.vector
        return True

    def _keep(self, ticket: Ticket, keys: Sequence[bytes]) -> None:
        """Stores the answers, next to those of other current tasks to the same inputs."""
        digests = self._digests(ticket.loaded)
        now = set(digests.values())
        for key, result, outputs in zip(keys, ticket.results, ticket.outputs, strict=True):
            if result is None or result.late or not result.receipt.tokens:
                continue
            before = self._entries.get(key)
            answers: dict[bytes, Any] = {}
            if before is not None:
                kept = zip(before.tasks, msgspec.msgpack.decode(before.answers), strict=True)
                answers = {digest: answer for digest, answer in kept if digest in now}
            for name, answer in chain(result.answers.items(), result.skipped.items()):
                answers[digests[name]] = answer
            vector = None if before is None else before.vector
            if self._vectors in outputs:
                vector = outputs[self._vectors].copy()  # of its own, not of the batch's array
                vector.flags.writeable = False
            order, receipt = tuple(answers), result.receipt
            entry = _Entry(
                tasks=self._orders.setdefault(order, order),
                answers=msgspec.msgpack.encode(list(answers.values())),
                vector=vector,
                read=(receipt.tokens, receipt.cut, receipt.windows, receipt.repaired),
            )
            self._put(key, entry)

    def _put(self, key: bytes, entry: _Entry) -> None:
        before = self._entries.pop(key, None)
        self.bytes += entry.size - (0 if before is None else before.size)
        self._entries[key] = entry
        while self.bytes > self.limit:
            _, oldest = self._entries.popitem(last=False)
            self.bytes -= oldest.size
            self.dropped += 1
        if len(self._orders) > ORDERS:
            self._orders.clear()


def _ways_of_reading(loaded: LoadedTasks, names: tuple[str, ...]) -> dict[InputType, str]:
    """By type of input, the ways in which these tasks read it."""
    asked, ways = loaded.asked(names), dict[InputType, set[str]]()
    for name, task in asked.tasks.items():
        for input_type in asked.reads[name]:
            words = "words" if asked.kinds[name].per_word else "whole"
            limit = loaded.limits.get(name, "")  # of a task that reads fewer tokens than the trunk
            ways.setdefault(input_type, set()).add(f"{task.pair} {task.long_texts} {task.ends} {words} {limit}")
    return {input_type: ", ".join(sorted(read)) for input_type, read in ways.items()}


_WAYS = FactOfTasks(_ways_of_reading)


def _digest(entry: AnyInput, words: np.ndarray | None, ways: Mapping[InputType, str]) -> bytes:
    """The digest of an input's type, texts and given words, and of the ways in which it is read."""
    input_type = input_type_of(entry)
    texts = [entry.text, entry.context, *entry.options] if isinstance(entry, Question) else texts_of(task_input(entry))
    parts = [ways.get(input_type, ""), input_type, *texts]
    digest = blake2b(digest_size=16)
    for part in parts:
        content = part.encode("utf-8", "surrogatepass")
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    if words is not None:
        digest.update(b"words")
        digest.update(np.ascontiguousarray(words, np.int64).tobytes())
    return digest.digest()


def _stage(ticket: Ticket, stage: Callable[[TaskResults], None]) -> None:
    """Tells what the ticket has by now."""
    for name in ticket.tasks:
        answers = {
            number: result.answers[name]
            for number, result in enumerate(ticket.results)
            if result is not None and name in result.answers
        }
        if answers:
            stage(TaskResults(task=name, answers=answers, layers_left=0))
