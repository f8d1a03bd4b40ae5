"""Hidden tasks that a request is answered with as well: who asks for them, and how the caller sees none of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np

from polyhead.engine.answers import Result
from polyhead.engine.familiar import NoneBelow, none_below, with_familiar
from polyhead.engine.loaded import LoadedTasks
from polyhead.engine.tickets import Ticket


class HiddenTasks(Protocol):
    """Adds hidden tasks to requests, and reads what they put out; callers see none of it."""

    def asked(self, tasks: Sequence[str], loaded: LoadedTasks) -> tuple[str, ...]:
        """The hidden tasks that are added to a request for these tasks; none for most requests."""

    def take(self, ticket: Ticket, hidden: tuple[str, ...]) -> None:
        """Reads what they put out from the ticket's `outputs`, from which they are removed afterwards."""


class AddedTasks:
    """The hidden tasks that are added to one request, by who asked for them."""

    def __init__(self, askers: Sequence[HiddenTasks], tasks: Sequence[str], loaded: LoadedTasks) -> None:
        self._asked = [(asker, asker.asked(tasks, loaded)) for asker in askers]
        self.hidden = tuple(name for _, names in self._asked for name in names)

    def take(self, ticket: Ticket) -> None:
        """Lets each asker read its tasks, and removes every trace of hidden tasks from the ticket."""
        if not self.hidden:
            return
        for asker, names in self._asked:
            if names:
                asker.take(ticket, names)
        forget_hidden(ticket, frozenset(self.hidden))


def forget_hidden(ticket: Ticket, hidden: frozenset[str]) -> None:
    """Removes every trace of these hidden tasks from an answered ticket."""
    ticket.tasks = tuple(name for name in ticket.tasks if name not in hidden)
    for number, result in enumerate(ticket.results):
        for name in hidden:
            ticket.outputs[number].pop(name, None)
        if result is not None and not hidden.isdisjoint((*result.failed, *result.skipped, *result.late)):
            ticket.results[number] = _without(result, hidden)


def tell_familiar(ticket: Ticket, vectors: str, *, familiar: bool, below: NoneBelow) -> None:
    """Adds to the answers of an answered ticket how familiar its texts are, from their mean vectors in `outputs`.

    Without `familiar`, only the answers of tasks with a limit get it.
    """
    loaded, numbers = ticket.loaded, [number for number, outputs in enumerate(ticket.outputs) if vectors in outputs]
    limits = {name: none_below(loaded.tasks[name], below) for name in ticket.tasks if name in loaded.known and numbers}
    known = {name: loaded.known[name].rows for name, limit in limits.items() if familiar or limit}
    read = np.array([np.reshape(ticket.outputs[number][vectors], -1) for number in numbers])
    shares = {name: rows.familiar(read) for name, rows in known.items() if rows is not None}
    for place, number in enumerate(numbers):
        result = ticket.results[number]
        if result is None:
            continue
        answers = dict(result.answers)
        for name in shares.keys() & answers.keys():
            share = shares[name][place : place + 1]
            (answers[name],) = with_familiar(loaded.tasks[name], [answers[name]], share, limits[name])
        ticket.results[number] = msgspec.structs.replace(result, answers=answers)


def _without(result: Result, hidden: frozenset[str]) -> Result:
    """The result without a word of these tasks."""
    return msgspec.structs.replace(
        result,
        failed={name: reason for name, reason in result.failed.items() if name not in hidden},
        skipped={name: reason for name, reason in result.skipped.items() if name not in hidden},
        late=tuple(name for name in result.late if name not in hidden),
    )
