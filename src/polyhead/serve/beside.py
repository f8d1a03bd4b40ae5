"""Hidden tasks that are asked together with what a request asks: who wants some, and how they are taken out again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from polyhead.engine.answers import Result
from polyhead.engine.loaded import LoadedTasks
from polyhead.engine.queue import Ticket


class Beside(Protocol):
    """Asks hidden tasks together with others, unseen by callers."""

    def asked(self, tasks: Sequence[str], loaded: LoadedTasks) -> tuple[str, ...]:
        """The hidden tasks to ask beside these; none for most requests."""

    def take(self, ticket: Ticket, hidden: tuple[str, ...]) -> None:
        """Takes what they put out from a ticket's `outputs`; they themselves are taken out of it afterwards."""


class AskedBeside:
    """What everybody who asks beside a request wants of it."""

    def __init__(self, several: Sequence[Beside], tasks: Sequence[str], loaded: LoadedTasks) -> None:
        self._wishes = [(beside, beside.asked(tasks, loaded)) for beside in several]
        self.hidden = tuple(name for _, own in self._wishes for name in own)

    def take(self, ticket: Ticket) -> None:
        """Gives each what it asked, and takes every trace of the hidden tasks out of the ticket."""
        if not self.hidden:
            return
        for beside, own in self._wishes:
            if own:
                beside.take(ticket, own)
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
