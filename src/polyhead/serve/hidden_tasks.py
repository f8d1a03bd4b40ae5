"""Hidden tasks that a request is answered with as well: who asks for them, and how the caller sees none of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from polyhead.engine.answers import Result
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
        self.hidden = tuple(name for _, own in self._asked for name in own)

    def take(self, ticket: Ticket) -> None:
        """Lets each asker read its tasks, and removes every trace of hidden tasks from the ticket."""
        if not self.hidden:
            return
        for asker, own in self._asked:
            if own:
                asker.take(ticket, own)
        hidden = frozenset(self.hidden)
        ticket.tasks = tuple(name for name in ticket.tasks if name not in hidden)
        for number, result in enumerate(ticket.results):
            for name in hidden:
                ticket.outputs[number].pop(name, None)
            if result is not None and not hidden.isdisjoint((*result.failed, *result.skipped, *result.late)):
                ticket.results[number] = _without(result, hidden)


def _without(result: Result, hidden: frozenset[str]) -> Result:
    """The result without a word of these tasks."""
    return msgspec.structs.replace(
        result,
        failed={name: reason for name, reason in result.failed.items() if name not in hidden},
        skipped={name: reason for name, reason in result.skipped.items() if name not in hidden},
        late=tuple(name for name in result.late if name not in hidden),
    )
