"""Which columns of a file are read, and the input that each row makes of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from polyhead.config import Value
from polyhead.engine.inputs import InputType, input_of, input_types_of
from polyhead.errors import BadValue, ConfigError, DataError, MissingColumn
from polyhead.jobs.survey import Survey, Word
from polyhead.tasks.columns import no_column
from polyhead.tasks.kinds.base import listed
from polyhead.tasks.task import Task

# Roles that go together; without the first one there is no input.
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
# Input types, each with the roles that it needs and the roles that it may also have.
MAKE: tuple[tuple[InputType, tuple[set[str], set[str]]], ...] = (
    ("text", ({"text"}, set())),
    ("text", ({"tokens"}, set())),
    ("pair", ({"text", "text_b"}, set())),
    ("passage", ({"question", "context"}, set())),
    ("question", ({"question", "choices"}, {"context"})),
)
LISTS = ("tokens", "choices")  # roles of columns that hold lists; in a CSV cell they are JSON


class Ask(Value, eq=False):
    """The input of one row."""

    input: Any  # polyhead.engine.inputs.AnyInput
    words: Any = None  # (words, 2) of an input given as tokens


class Roles(Value):
    """The columns to read for each role; of several, the first that is not empty in a row."""

    columns: dict[str, tuple[str, ...]]

    @property
    def wanted(self) -> tuple[str, ...]:
        """Every column to read."""
        return tuple(dict.fromkeys(chain.from_iterable(self.columns.values())))

    @property
    def forms(self) -> set[InputType]:
        """The forms of input that rows may have."""
        roles = set(self.columns)
        return {form for form, (needed, _) in MAKE if needed <= roles}

    def ask(self, values: Mapping[str, object], *, where: str, from_cells: bool) -> Ask:
        """The input of one row; raises BadValue with its place for values that make none."""
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
        row_input, words = input_of(values_by_role, where=where)
        return Ask(input=row_input, words=words)

    def _checked(self, role: str, column: str, value: object, where: str) -> object:
        if role in LISTS:
            return listed(value, value) if isinstance(value, str) else value
        if not isinstance(value, str):
            raise BadValue(f"{where}: column '{column}' must hold a string", got=value, allowed="a string")
        return value


def roles_of(path: str, survey: Survey, named: Mapping[str, str]) -> Roles:
    """The roles of a file's columns: those `named`, else those that have a role by their name.

    Where a role is named, only the roles that go with it are filled. Raises MissingColumn for a column that the file
    has not, or where there is nothing to read; DataError for one that cannot hold what it should.
    """
    for column in named.values():
        _check_there(path, survey, column)
    families = [family for family in FAMILIES if any(role in named for role in family)] or FAMILIES
    columns_by_role: dict[str, tuple[str, ...]] = {}
    for family in families:
        roles = {role: _columns(role, survey, named) for role in family}
        if family[0] not in named:  # such as a count of tokens beside a text: nobody asked for it
            roles[family[0]] = tuple(c for c in roles[family[0]] if _fits(family[0], survey.columns[c]))
        if roles[family[0]]:
            columns_by_role.update({role: columns for role, columns in roles.items() if columns})
        elif any(role in named for role in family):
            _check_there(path, survey, NAMES[family[0]][0])
    if not columns_by_role:
        for role in (family[0] for family in families):  # one that is there and cannot be read
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


def check_fit(path: str, roles: Roles, tasks: Mapping[str, Task], named: Collection[str]) -> None:
    """Raises ConfigError where none of the tasks reads what the columns make, or what a `named` role is part of."""
    read = {form for task in tasks.values() for form in input_types_of(task)}
    idle = [role for role in named if not any(role in needed | more and form in read for form, (needed, more) in MAKE)]
    if roles.forms & read and not idle:
        return
    what = f"none of the tasks reads what the columns of {Path(path).name} make"
    if idle and roles.forms & read:
        what = f"none of the tasks reads {' or '.join('--' + role.replace('_', '-') for role in idle)}"
    raise ConfigError(
        what,
        got=f"columns {', '.join(roles.wanted)}: {' or '.join(sorted(roles.forms)) or 'no whole input'}",
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
    if column in survey.columns:
        return
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
