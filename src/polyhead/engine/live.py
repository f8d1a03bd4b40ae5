"""Tasks that can be answered, as they are at one moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from polyhead import cost
from polyhead.architecture import Architecture
from polyhead.bundle.manifest import TaskRecord
from polyhead.engine.backends.base import LoadedTask
from polyhead.engine.summaries import Summaries
from polyhead.errors import BadValue, UnknownTask
from polyhead.plan import Plan, merge


class Loaded(msgspec.Struct, frozen=True):
    """A task that reads the trunk: what it is, and its arrays."""

    record: TaskRecord
    task: LoadedTask


class Live:
    """The tasks of one moment and their plans; a change makes another, so that a call sees one of them throughout."""

    def __init__(self, loaded: Mapping[str, Loaded], summaries: Summaries, shape: Architecture) -> None:
        self.loaded, self.summaries, self.shape = dict(loaded), summaries, shape
        self.records = {name: one.record for name, one in loaded.items()}
        # Every task that can be asked: those that read the trunk, then those that own their models.
        self.tasks = {name: record.task for name, record in self.records.items()} | summaries.tasks
        self._plans: dict[tuple[str, ...], Plan] = {}
        self._layers: dict[tuple[str, ...], int] = {}
        self._flops: dict[tuple[tuple[str, ...], int], dict[str, int]] = {}

    def asked(self, tasks: Iterable[str] | None) -> tuple[str, ...]:
        """The tasks that a call with this argument answers, each once; None asks for all. Raises UnknownTask."""
        if isinstance(tasks, str):
            raise BadValue(
                "tasks are asked by a list of names, and one string was given",
                got=tasks,
                do=f"ask for [{tasks!r}]",
            )
        known = self.tasks
        names = tuple(dict.fromkeys(tasks)) if tasks is not None else tuple(known)
        unknown = [name for name in names if name not in known]
        if unknown:
            raise UnknownTask(
                f"the bundle has no task {', '.join(map(repr, unknown))}",
                allowed=sorted(known),
                do="ask for tasks that `polyhead inspect` lists",
            )
        return names

    def plan(self, tasks: Iterable[str]) -> Plan:
        """The merged plan of these tasks."""
        key = tuple(tasks)
        if key not in self._plans:
            self._plans[key] = merge({name: self.records[name].path for name in key})
        return self._plans[key]

    def layers(self, tasks: tuple[str, ...]) -> int:
        """Layers that one pass of these tasks runs."""
        if tasks not in self._layers:
            self._layers[tasks] = cost.layer_evaluations(self.plan(tasks))
        return self._layers[tasks]

    def flops(self, tasks: tuple[str, ...], tokens: int) -> dict[str, int]:
        """What each of the tasks adds alone to a pass of so many tokens, and what several add together."""
        if (tasks, tokens) not in self._flops:
            found = cost.flops_by_sharers(self.plan(tasks), self.shape, tokens, folded=True) if tasks else {}
            named = {
                names[0] if len(names) == 1 else f"shared: {', '.join(names)}": flops
                for names, flops in found.items()
            }
            self._flops[tasks, tokens] = dict.fromkeys(tasks, 0) | named
        return self._flops[tasks, tokens]
