"""The columns that a job adds to its rows: the answer of each task, its scores, and the reason for a missing one."""

from __future__ import annotations

from polyhead.config import Value
from polyhead.engine.session import Result
from polyhead.errors import BadValue
from polyhead.tasks.task import CellForm, Task, kind_of

ERROR = "error"


class AddedColumn(Value):
    """An added column; of form `shares` it holds a number for each of `fields`."""

    name: str
    form: CellForm
    fields: tuple[str, ...] = ()
    sparse: bool = False  # null is left out in formats that allow it


class Answers(Value):
    """How results become cells."""

    tasks: dict[str, Task]
    prefix: str = ""
    scores: bool = False

    @property
    def columns(self) -> tuple[AddedColumn, ...]:
        """Those of each task, then the reason why a row has no answer."""
        columns: list[AddedColumn] = []
        for name, task in self.tasks.items():
            kind = kind_of(task)
            columns.append(AddedColumn(name=self.prefix + name, form=kind.cell))
            if self.scores and kind.score_cell is not None:
                fields, form = task.labels, kind.score_cell
                columns.append(AddedColumn(name=f"{self.prefix}{name}.scores", form=form, fields=fields))
        return (*columns, AddedColumn(name=self.prefix + ERROR, form="text", sparse=True))

    def cells(self, result: Result | BadValue) -> list[object]:
        """One row's values of `columns`."""
        if isinstance(result, BadValue):
            return [None] * (len(self.columns) - 1) + [why_none(result)]
        cells: list[object] = []
        for name, task in self.tasks.items():
            answer = result.answers.get(name)
            cells.append(None if answer is None else kind_of(task).cell_of(answer))
            if self.scores and kind_of(task).score_cell is not None:
                cells.append(None if answer is None else answer["scores"])
        return [*cells, why_none(result)]


def why_none(result: Result | BadValue) -> str | None:
    """Why a row has no answer at all, or which tasks failed on it; None for any other row."""
    if isinstance(result, BadValue):
        return str(result)
    if result.failed:
        return "; ".join(f"{name}: {reason}" for name, reason in result.failed.items())
    return None if result.answers else next(iter(result.skipped.values()), None)
