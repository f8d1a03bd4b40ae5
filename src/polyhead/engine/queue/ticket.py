"""One caller's inputs in a queue, and the parts of them that are read together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic

import numpy as np

from polyhead.engine.answers import Result
from polyhead.engine.inputs import AnyInput
from polyhead.engine.loaded import LoadedTasks
from polyhead.engine.request import TaskResults


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
        is_gone: Callable[[], bool] | None = None,
    ) -> None:
        self.loaded, self.inputs, self.tasks, self.words = loaded, inputs, tasks, words
        self.begun, self.end, self.stage, self._is_gone = monotonic(), end, stage, is_gone
        self._is_cancelled = False
        self.results: list[Result | None] = [None] * len(inputs)
        self.outputs: list[dict[str, np.ndarray]] = [{} for _ in inputs]  # of hidden tasks: raw, by name
        self.error: Exception | None = None
        self.taken: float | None = None  # when the first of its inputs was taken into a batch; None before
        self.cached = 0  # inputs that were answered without the queue
        self._done, self._left = done, len(inputs)

    def cancel(self) -> None:
        """Nobody waits any longer."""
        self._is_cancelled = True

    @property
    def is_cancelled(self) -> bool:
        """Whether nobody waits for it any longer."""
        if not self._is_cancelled and self._is_gone is not None and self._is_gone():
            self._is_cancelled = True
        return self._is_cancelled

    def is_late_at(self, moment: float) -> bool:
        """Whether its deadline has passed at `moment`, in seconds of the monotonic clock."""
        return self.end is not None and moment >= self.end

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
        """Tells the caller, once."""
        # A caller's function that keeps the ticket would else be a cycle, and keep tasks that are long replaced.
        done, self._done = self._done, _nobody
        done(self)


def _nobody(ticket: Ticket) -> None:
    pass


class TicketPart:
    """Some inputs of a ticket that are read in one batch."""

    def __init__(self, ticket: Ticket, numbers: Sequence[int], characters: Sequence[int]) -> None:
        self.ticket, self.numbers, self.characters = ticket, numbers, characters
