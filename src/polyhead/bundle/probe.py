"""An input that is pinned with a task, as a line of probes.jsonl holds it."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.text.question import Given, Question


class Probe(msgspec.Struct, frozen=True):
    """What else a line may hold is not needed here."""

    text: tuple[str, ...]  # one text or a pair; with options a question, and its context where it has one
    words: tuple[tuple[int, int], ...] | None = None  # of a task that answers words: where they are
    options: tuple[str, ...] | None = None  # of a question

    @classmethod
    def of(cls, given: Given, words: np.ndarray | None = None) -> Probe:
        """The probe that asks this."""
        places = None if words is None else tuple((int(start), int(end)) for start, end in words)
        if not isinstance(given, Question):
            return cls(text=given, words=places)
        context = (given.context,) if given.context.strip() else ()
        return cls(text=(given.text, *context), words=places, options=given.options)

    @property
    def given(self) -> Given:
        """What a session is asked."""
        if self.options is not None:
            return Question(text=self.text[0], options=self.options, context="".join(self.text[1:]))
        return (self.text[0], self.text[1]) if len(self.text) == 2 else (self.text[0],)

    def line(self) -> dict[str, Any]:
        """The line, without what it does not need."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return {name: value for name, value in plain.items() if value is not None}

    def fits(self, task: Task) -> bool:
        """Whether the task can be asked this."""
        chooses, options = kind_of(task).per_option, self.options
        if chooses != (options is not None) or (options is not None and len(options) < 2):
            return False
        if len(self.text) not in ((1, 2) if chooses else (1,) if task.pair == "none" else (2,)):
            return False
        return all(text.strip() for text in (*self.text, *(options or ())))
