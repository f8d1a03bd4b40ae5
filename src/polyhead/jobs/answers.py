"""The columns that a job adds to its rows: the answer of each task, its scores, and the reason for a missing one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from polyhead.config import Value
from polyhead.engine.session import Result
from polyhead.errors import BadValue
from polyhead.tasks.task import Answer, Task

CellForm = Literal["text", "number", "texts", "places", "shares", "numbers", "json"]
"""Type of an added column: `places` are indices, `shares` a number for each of `AddedColumn.fields`."""

ERROR = "error"


class AddedColumn(Value):
    """An added column."""

    name: str
    form: CellForm
    fields: tuple[str, ...] = ()
    sparse: bool = False  # null is left out in formats that allow it


SHOWN: Mapping[str, tuple[CellForm, Callable[[Answer], object]]] = {
    "single_label": ("text", lambda answer: answer["label"]),
    "multi_label": ("texts", lambda answer: answer["labels"]),
    "regression": ("number", lambda answer: answer["value"]),
    "multiple_choice": ("places", lambda answer: answer["ranked"]),
    "span": ("json", lambda answer: answer),
    "tagging": ("json", lambda answer: answer["spans" if "spans" in answer else "words"]),
    "summarization": ("text", lambda answer: answer["summary"]),
}
# Kinds with scores in a column of their own; spans and words hold theirs.
SCORED: Mapping[str, CellForm] = {"single_label": "shares", "multi_label": "shares", "multiple_choice": "numbers"}


class Answers(Value):
    """How results become cells."""

    tasks: dict[str, Task]
    prefix: str = ""
    scores: bool = False

    @property
    def columns(self) -> tuple[AddedColumn, ...]:
        """The columns of each task, then the column of errors."""
        added: list[AddedColumn] = []
        for name, task in self.tasks.items():
            added.append(AddedColumn(name=self.prefix + name, form=SHOWN[task.kind][0]))
            if self._has_scores(task):
                form = SCORED[task.kind]
                added.append(AddedColumn(name=f"{self.prefix}{name}.scores", form=form, fields=task.labels))
        return (*added, AddedColumn(name=self.prefix + ERROR, form="text", sparse=True))

    def cells(self, result: Result | BadValue) -> list[object]:
        """One row's values of `columns`."""
        if isinstance(result, BadValue):
            return [None] * (len(self.columns) - 1) + [why_none(result)]
        cells: list[object] = []
        for name, task in self.tasks.items():
            answer = result.answers.get(name)
            cells.append(None if answer is None else SHOWN[task.kind][1](answer))
            if self._has_scores(task):
                cells.append(None if answer is None else answer["scores"])
        return [*cells, why_none(result)]

    def _has_scores(self, task: Task) -> bool:
        return self.scores and task.kind in SCORED


def why_none(result: Result | BadValue) -> str | None:
    """Why a row has no answer at all, or which tasks failed on it; None for any other row."""
    if isinstance(result, BadValue):
        return str(result)
    if result.failed:
        return "; ".join(f"{name}: {reason}" for name, reason in result.failed.items())
    return None if result.answers else next(iter(result.skipped.values()), None)
