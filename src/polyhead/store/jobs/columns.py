"""Columns of a file: those read as inputs, and those that a job adds.

A job adds the answer of each task, its scores, and the reason for a missing answer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from polyhead.arguments import twice_in
from polyhead.data.columns import no_column
from polyhead.data.tables import Chunk, NewColumn, Survey, Word
from polyhead.engine.answers import Result
from polyhead.engine.familiar import KEY
from polyhead.engine.inputs import InputType, input_of, input_types_of
from polyhead.errors import BadValue, ConfigError, DataError, MissingColumn
from polyhead.store.jobs.answers import AddedCell, calibrated_cells
from polyhead.tasks.calibration import KEY as CALIBRATED
from polyhead.tasks.calibration import Calibration
from polyhead.tasks.kinds.base import listed
from polyhead.tasks.task import Task, kind_of
from polyhead.values import Value, few_digits

# Roles that belong together; without the first one there is no input.
FAMILIES = (("text", "text_b"), ("tokens",), ("question", "context", "choices"))
# Default columns of each role: the keys that `polyhead predict` reads in a JSON line.
NAMES: Mapping[str, tuple[str, ...]] = {
    "text": ("text", "text_a"),
    "text_b": ("text_b",),
    "tokens": ("tokens",),
    "question": ("question",),
    "context": ("context",),
    "choices": ("options", "choices"),
}
# Input types, each with its required and optional roles.
MAKE: tuple[tuple[InputType, tuple[set[str], set[str]]], ...] = (
    ("text", ({"text"}, set())),
    ("text", ({"tokens"}, set())),
    ("pair", ({"text", "text_b"}, set())),
    ("passage", ({"question", "context"}, set())),
    ("question", ({"question", "choices"}, {"context"})),
)
LISTS = ("tokens", "choices")  # roles of columns with lists; in a CSV cell they are JSON


class RowInput(Value, eq=False):
    """The input of one row."""

    input: Any  # polyhead.engine.inputs.AnyInput
    words: Any = None  # (words, 2) for an input given as tokens
    where: str = ""  # the file and the row


class Roles(Value):
    """The columns to read for each role; of several, the first that is not empty in a row."""

    columns: dict[str, tuple[str, ...]]

    @property
    def wanted(self) -> tuple[str, ...]:
        """Every column to read."""
        return tuple(dict.fromkeys(chain.from_iterable(self.columns.values())))

    @property
    def types(self) -> set[InputType]:
        """The types of input that rows may have."""
        return {input_type for input_type, (needed, _) in MAKE if needed <= set(self.columns)}

    def row_input(self, values: Mapping[str, object], *, where: str, from_cells: bool) -> RowInput:
        """The input of one row; raises BadValue with its place for values that give none."""
        values_by_role: dict[str, object] = {}
        for role, columns in self.columns.items():
            for column in columns:
                value = values.get(column)
                if value is None or (from_cells and value == ""):
                    continue
                values_by_role[role] = self._checked(role, column, value, where)
                break
        if not any(family[0] in values_by_role for family in FAMILIES):
            first = next(role for role in (family[0] for family in FAMILIES) if role in self.columns)
            column = self.columns[first][0]
            raise BadValue(f"{where}: column '{column}' is empty", do="give a text")
        parsed, words = input_of(values_by_role, where=where)
        return RowInput(input=parsed, words=words, where=where)

    def inputs(self, chunk: Chunk) -> list[RowInput | BadValue]:
        """The input of each row of a chunk, or the error of a row without one."""
        inputs: list[RowInput | BadValue] = []
        for row in chunk.rows(self.wanted):
            if isinstance(row, BadValue):
                inputs.append(row)
                continue
            where = f"{chunk.name} row {row.number}"
            try:
                inputs.append(self.row_input(row.values, where=where, from_cells=chunk.has_cells))
            except BadValue as error:
                inputs.append(error)
        return inputs

    def _checked(self, role: str, column: str, value: object, where: str) -> object:
        if role in LISTS:
            return listed(value, value) if isinstance(value, str) else value
        if not isinstance(value, str):
            raise BadValue(f"{where}: column '{column}' must hold a string", got=value, allowed="a string")
        return value


def roles_of(path: str, survey: Survey, named: Mapping[str, str]) -> Roles:
    """The roles of a file's columns: those `named`, else those recognized by their name.

    If a role is named, only the roles that belong with it are filled. Raises MissingColumn for a column that the file
    does not have, or if there is nothing to read; ConfigError for one named twice; DataError for unsuitable content.
    """
    if twice := twice_in(named.values()):
        allowed, do = list(survey.columns), "name another column for each"
        raise ConfigError(f"one column of {Path(path).name} is named twice", got=twice, allowed=allowed, do=do)
    for column in named.values():
        _check_there(path, survey, column)
    families = [family for family in FAMILIES if any(role in named for role in family)] or FAMILIES
    columns_by_role: dict[str, tuple[str, ...]] = {}
    for family in families:
        roles = {role: _columns(role, survey, named) for role in family}
        if family[0] not in named:  # such as a count of tokens next to a text: it was not requested
            roles[family[0]] = tuple(c for c in roles[family[0]] if _fits(family[0], survey.columns[c]))
        if roles[family[0]]:
            columns_by_role.update({role: columns for role, columns in roles.items() if columns})
        elif any(role in named for role in family):
            _check_there(path, survey, NAMES[family[0]][0])
    if not columns_by_role:
        for role in (family[0] for family in families):  # one that exists and cannot be read
            for column in _columns(role, survey, named):
                _check_word(path, role, column, survey.columns[column])
        raise MissingColumn(
            f"{Path(path).name} has no column that is read unless others are named",
            got=list(survey.columns),
            allowed=list(dict.fromkeys(chain.from_iterable(NAMES[family[0]] for family in FAMILIES))),
            do="name the column of the text: --text COLUMN",
            source=path,
        )
    for role, columns in columns_by_role.items():
        for column in columns:
            _check_word(path, role, column, survey.columns[column])
    return Roles(columns=columns_by_role)


def check_readable(path: str, roles: Roles, tasks: Mapping[str, Task], named: Collection[str]) -> None:
    """Raises ConfigError if no task reads the input of these columns, or one that includes a `named` role."""
    types = {input_type for task in tasks.values() for input_type in input_types_of(task)}
    used = {role for input_type, (needed, more) in MAKE if input_type in types for role in needed | more}
    idle = [role for role in named if role not in used]
    if roles.types & types and not idle:
        return
    problem = f"none of the tasks reads what the columns of {Path(path).name} make"
    if idle and roles.types & types:
        problem = f"none of the tasks reads {' or '.join('--' + role.replace('_', '-') for role in idle)}"
    raise ConfigError(
        problem,
        got=f"columns {', '.join(roles.wanted)}: {' or '.join(sorted(roles.types)) or 'no whole input'}",
        allowed=[f"{name} reads a {' or a '.join(input_types_of(task))}" for name, task in tasks.items()],
        do="name other columns or other tasks",
    )


def _columns(role: str, survey: Survey, named: Mapping[str, str]) -> tuple[str, ...]:
    if role in named:
        return (named[role],)
    free = (name for name in NAMES[role] if name not in named.values())
    return tuple(name for name in free if survey.columns.get(name, "null") != "null")


def _fits(role: str, word: Word) -> bool:
    return word in ("text", "mixed") or (word == "list" and role in LISTS)


def _check_there(path: str, survey: Survey, column: str) -> None:
    if column not in survey.columns:
        raise no_column(path, column, survey.columns)


def _check_word(path: str, role: str, column: str, word: Word) -> None:
    if _fits(role, word):
        return
    wanted = "lists of strings" if role in LISTS else "strings"
    raise DataError(
        f"column '{column}' of {Path(path).name} cannot be read as {role}",
        got=f"it holds values of type {word}",
        allowed=wanted,
        do=f"name a column that holds {wanted}: --{role.replace('_', '-')} COLUMN",
    )


ERROR = "error"


class Answers(Value):
    """Turns results into the cells of added columns."""

    tasks: dict[str, Task]
    prefix: str = ""
    scores: bool = False
    calibrations: dict[str, Calibration] = {}  # tasks with columns for calibrated answers
    told: dict[str, tuple[str, ...]] = {}  # what answers say of familiarity, by task

    @property
    def columns(self) -> tuple[NewColumn, ...]:
        """Columns of each task, then one for the reason of a missing answer."""
        columns: list[NewColumn] = []
        for name, task in self.tasks.items():
            kind = kind_of(task)
            columns.append(NewColumn(name=self.prefix + name, form=kind.cell))
            if self.scores and kind.score_cell is not None:
                fields, form = task.labels, kind.score_cell
                columns.append(NewColumn(name=f"{self.prefix}{name}.scores", form=form, fields=fields))
            columns += [
                NewColumn(name=self.prefix + name + cell.end, form=cell.form, fields=cell.fields)
                for cell in self._calibrated(name)
            ]
            columns += [
                NewColumn(name=f"{self.prefix}{name}.{key}", form="number" if key == KEY else "flag")
                for key in self.told.get(name, ())
            ]
        return (*columns, NewColumn(name=self.prefix + ERROR, form="text", sparse=True))

    def cells(self, result: Result | BadValue) -> list[object]:
        """The values of `columns` in one row."""
        if isinstance(result, BadValue):
            return [None] * (len(self.columns) - 1) + [why_none(result)]
        cells: list[object] = []
        for name, task in self.tasks.items():
            answer = result.answers.get(name)
            cells.append(None if answer is None else few_digits(kind_of(task).cell_of(answer)))
            if self.scores and kind_of(task).score_cell is not None:
                cells.append(None if answer is None else few_digits(answer["scores"]))
            choice = None if answer is None else answer[CALIBRATED] if name in self.calibrations else {}
            cells += [None if choice is None else few_digits(cell.read(choice)) for cell in self._calibrated(name)]
            cells += [None if answer is None else few_digits(answer.get(key)) for key in self.told.get(name, ())]
        return [*cells, why_none(result)]

    def _calibrated(self, name: str) -> tuple[AddedCell, ...]:
        calibration = self.calibrations.get(name)
        return () if calibration is None else calibrated_cells(self.tasks[name], calibration, scores=self.scores)


def why_none(result: Result | BadValue) -> str | None:
    """Why a row has no answer at all, by task where tasks differ, or the tasks that failed on it; None for others."""
    if isinstance(result, BadValue):
        return str(result)
    if result.failed:
        return "; ".join(f"{name}: {reason}" for name, reason in result.failed.items())
    if result.answers or not result.skipped:
        return None
    tasks: dict[str, list[str]] = {}  # by their reason
    for name, reason in result.skipped.items():
        tasks.setdefault(reason, []).append(name)
    return next(iter(tasks)) if len(tasks) == 1 else "; ".join(f"{', '.join(n)}: {why}" for why, n in tasks.items())


def kept_columns(path: str, survey: Survey, wanted: Sequence[str] | None, answers: Answers) -> tuple[str, ...]:
    """The columns of the file to write with the answers: those `wanted`, each possibly several with commas; None: all.

    Raises ConfigError for a column that the file does not have, and for two columns with one name.
    """
    columns, added = list(survey.columns), [column.name for column in answers.columns]
    names = columns if wanted is None else [name for argument in wanted for name in _named(argument, columns)]
    if unknown := [name for name in names if name not in columns]:
        problem = f"{Path(path).name} has no column {', '.join(map(repr, unknown))} to keep"
        do = "name its columns; one with a comma in its name has a --keep of its own"
        raise ConfigError(problem, allowed=columns, do=do)
    kept = tuple(dict.fromkeys(names))
    if twice := twice_in(added):
        raise ConfigError(
            "columns that are added would have the same names, which --prefix does not change",
            got=twice,
            do=f"name other tasks with --tasks{', or leave out --scores' if answers.scores else ''}",
        )
    if twice := twice_in((*kept, *added)):
        raise ConfigError(
            "columns of the file and columns that are added have the same names",
            got=twice,
            do=f"add --prefix {_free_prefix(kept, added)}, so that the added ones are called "
            f"{', '.join(_free_prefix(kept, added) + name for name in added[:3])}; or choose the columns to --keep",
        )
    return kept


def _free_prefix(kept: Collection[str], added: Sequence[str]) -> str:
    """A prefix that distinguishes the added columns from those of the file."""
    prefix = "answer_"
    while any(prefix + name in kept for name in added):
        prefix += "answer_"
    return prefix


def _named(argument: str, columns: Collection[str]) -> tuple[str, ...]:
    """The column of this name; if there is none, the names separated by commas."""
    names = tuple(name.strip() for name in argument.split(",") if name.strip())
    return (argument,) if argument in columns or not names else names
