"""What follows from the tasks of a moment alone, found once for each set of them that is asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from polyhead.engine.loaded import LoadedTasks

SETS = 256  # of tasks that are remembered of one moment
Fact = TypeVar("Fact")


class FactOfTasks(Generic[Fact]):
    """A function of a moment and names of its tasks that remembers what it gave, which is not to be changed.

    It keeps no moment: what was found is forgotten with the last call that has these tasks.
    """

    def __init__(self, find: Callable[[LoadedTasks, tuple[str, ...]], Fact]) -> None:
        self._find = find
        self._known: WeakKeyDictionary[LoadedTasks, dict[tuple[str, ...], Fact]] = WeakKeyDictionary()

    def __call__(self, loaded: LoadedTasks, tasks: Sequence[str]) -> Fact:
        """The fact; `tasks` are names of the moment's."""
        own, names = self._known.setdefault(loaded, {}), tuple(tasks)
        if names not in own:
            if len(own) >= SETS:
                own.clear()
            own[names] = self._find(loaded, names)
        return own[names]
