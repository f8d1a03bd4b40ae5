"""The tasks that read each type of input, and how they read it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from polyhead.engine.inputs import InputType, input_types_of
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task


class TypeReaders(NamedTuple):
    """The tasks that read one type of input, and how."""

    tasks: tuple[str, ...] = ()  # all others than `separate`
    separate: tuple[str, ...] = ()  # those that read pairs as two texts
    windowed: tuple[str, ...] = ()  # those of `tasks` that read long texts in windows
    per_word: bool = False  # whether any of `tasks` answers each word
    ends: bool = False  # whether any of `tasks` reads the last token of each word too
    # Tasks, none of them above, that do so in a pass of their own: others of `tasks` read words at the first token.
    to_last: TypeReaders | None = None


class Readers(NamedTuple):
    """The tasks that read each type of input: all together, and apart by the most tokens of a text that they read."""

    together: Mapping[InputType, TypeReaders]
    by_limit: Mapping[int | None, Mapping[InputType, TypeReaders]]  # None: as many as the trunk


def readers_by_type(tasks: Mapping[str, Task], limits: Mapping[str, int] = MappingProxyType({})) -> Readers:
    """The tasks that read each type of input; `limits` holds the tokens of a task that reads fewer than the trunk."""
    by_limit: dict[int | None, dict[str, Task]] = {}
    for name, task in tasks.items():
        by_limit.setdefault(limits.get(name), {})[name] = task
    return Readers(_readers(tasks), {limit: _readers(its_tasks) for limit, its_tasks in by_limit.items()})


def _readers(tasks: Mapping[str, Task]) -> dict[InputType, TypeReaders]:
    by_type: dict[InputType, dict[str, Task]] = {}
    for name, task in tasks.items():
        for input_type in input_types_of(task):
            by_type.setdefault(input_type, {})[name] = task
    readers: dict[InputType, TypeReaders] = {}
    for input_type, type_tasks in by_type.items():
        whole = {name: task for name, task in type_tasks.items() if task.pair != "separate"}
        first = {name: task for name, task in whole.items() if task.ends != "last"}
        together = first if any(kind_of(task).per_word for task in first.values()) else whole
        to_last = {name: task for name, task in whole.items() if name not in together}
        readers[input_type] = _type_readers(together)._replace(
            separate=tuple(name for name in type_tasks if name not in whole),
            to_last=_type_readers(to_last) if to_last else None,
        )
    return readers


def _type_readers(tasks: Mapping[str, Task]) -> TypeReaders:
    return TypeReaders(
        tasks=tuple(tasks),
        windowed=tuple(name for name, task in tasks.items() if task.long_texts == "windows"),
        per_word=any(kind_of(task).per_word for task in tasks.values()),
        ends=any(task.ends == "last" for task in tasks.values()),
    )
