"""Tasks that can be answered, as they are at one moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial

import msgspec

from polyhead import cost
from polyhead.bundle.manifest import TaskRecord
from polyhead.engine.backends.base import LoadedTask
from polyhead.errors import BadValue, UnknownTask
from polyhead.plan import Path, Plan, merge
from polyhead.seq2seq.answer import SummaryTasks
from polyhead.trunk.shape import Architecture

PLANS = 64  # plans that are remembered, and of so many sets of tasks their layers
FLOPS = 2048  # passes of which the FLOPs are remembered: by their tasks and tokens


class LoadedTaskRecord(msgspec.Struct, frozen=True):
    """A task that reads the trunk: what it is, and its arrays."""

    record: TaskRecord
    task: LoadedTask


class LoadedTasks:
    """The tasks of one moment and their plans; a change makes another, so that a call sees one of them throughout."""

    def __init__(self, loaded: Mapping[str, LoadedTaskRecord], summaries: SummaryTasks, shape: Architecture) -> None:
        self.loaded, self.summaries, self.shape = dict(loaded), summaries, shape
        self.records = {name: one.record for name, one in loaded.items()}
        # Every task that can be asked: those that read the trunk, then those that own their models.
        self.tasks = {name: record.task for name, record in self.records.items()} | summaries.tasks
        self._place = {name: place for place, name in enumerate(self.records)}
        paths = {name: record.path for name, record in self.records.items()}
        # They do not hold `self`, so that arrays of tasks that were replaced go with the last call that has them.
        self._plan = lru_cache(maxsize=PLANS)(partial(_merged, paths))
        self._layers = lru_cache(maxsize=PLANS)(partial(_layers, self._plan))
        self._flops = lru_cache(maxsize=FLOPS)(partial(_flops, self._plan, shape))

    def asked(self, tasks: Iterable[str] | None) -> tuple[str, ...]:
        """The tasks that a call with this argument answers, each once; None asks for all. Raises UnknownTask."""
        if isinstance(tasks, str):
            raise BadValue(
                "tasks are asked by a list of names, and one string was given", got=tasks, do=f"ask for [{tasks!r}]"
            )
        known = self.tasks
        names = tuple(dict.fromkeys(_names(tasks))) if tasks is not None else tuple(known)
        unknown = [name for name in names if name not in known]
        if unknown:
            raise UnknownTask(
                f"the bundle has no task {', '.join(map(repr, unknown))}", got=unknown, allowed=sorted(known)
            )
        return names

    def plan(self, tasks: Iterable[str]) -> Plan:
        """The merged plan of these tasks, which gives their outputs in this order."""
        return self._plan(tuple(tasks))

    def layers(self, tasks: tuple[str, ...]) -> int:
        """Layers that one pass of these tasks runs, in whatever order they are asked."""
        return self._layers(self._in_order(tasks))

    def flops(self, tasks: tuple[str, ...], tokens: int) -> dict[str, int]:
        """What each of the tasks adds alone to a pass of so many tokens, and what several add together.

        Tasks stand in the order of the session's, in whatever order they are asked.
        """
        return self._flops(self._in_order(tasks), tokens)

    def _in_order(self, tasks: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(sorted(tasks, key=self._place.__getitem__))


def _names(tasks: Iterable[str]) -> list[str]:
    """The names; raises BadValue for what is no list of them."""
    is_list = isinstance(tasks, Iterable) and not isinstance(tasks, bytes)
    values: list[object] = list(tasks) if is_list else [tasks]
    names = [name for name in values if isinstance(name, str)]
    if len(names) < len(values):
        raise BadValue(
            "tasks are asked by a list of their names",
            got=", ".join(repr(one) for one in values if not isinstance(one, str)),
            allowed="strings in a list, or None for all tasks",
            do="ask for names that `polyhead inspect` lists",
        )
    return names


def _merged(paths: Mapping[str, Path], tasks: tuple[str, ...]) -> Plan:
    return merge({name: paths[name] for name in tasks})


def _layers(plan: Callable[[tuple[str, ...]], Plan], tasks: tuple[str, ...]) -> int:
    return cost.layer_evaluations(plan(tasks))


def _flops(
    plan: Callable[[tuple[str, ...]], Plan], shape: Architecture, tasks: tuple[str, ...], tokens: int
) -> dict[str, int]:
    shares = cost.flops_by_sharers(plan(tasks), shape, tokens, folded=True) if tasks else {}
    named = {names[0] if len(names) == 1 else f"shared: {', '.join(names)}": flops for names, flops in shares.items()}
    return dict.fromkeys(tasks, 0) | named
