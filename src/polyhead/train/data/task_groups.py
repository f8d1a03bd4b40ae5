"""Groups of tasks that read each other's arrays, so that they are trained and written together, or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from polyhead.bundle.owners import is_family, owner_named, task_names
from polyhead.bundle.read import Bundle
from polyhead.bundle.versions import TakenNames
from polyhead.errors import BundleError, ConfigError, TrainError
from polyhead.plan import TRUNK, Path, owners_of
from polyhead.project.strategies import Strategy
from polyhead.project.strategies.prompted import shared_prompt
from polyhead.project.tables import Project, strategy_of
from polyhead.train.data.leaks import without_leaks
from polyhead.train.data.prepared import Prepared
from polyhead.train.events import Events


def task_groups(strategies: Mapping[str, Strategy]) -> list[tuple[str, ...]]:
    """Tasks that can only change together, in order; most groups are a single task."""
    groups: list[tuple[set[str], list[str]]] = []  # shared arrays, names of tasks
    for name, strategy in strategies.items():
        bonds = set(strategy.bonds())
        met = [group for group in groups if group[0] & bonds]
        joined = (bonds.union(*(group[0] for group in met)), [member for group in met for member in group[1]] + [name])
        groups = [group for group in groups if group not in met] + [joined]
    order = list(strategies)
    return sorted(
        (tuple(sorted(names, key=order.index)) for _, names in groups), key=lambda group: order.index(group[0])
    )


def check_whole_groups(strategies: Mapping[str, Strategy], only: Sequence[str]) -> None:
    """Raises ConfigError if only some tasks of a group are to be trained."""
    for names in task_groups(strategies):
        missing = [name for name in names if name not in only]
        if 0 < len(missing) < len(names):
            raise ConfigError(
                "tasks that read each other's arrays are trained together",
                got=f"tasks {[name for name in names if name in only]}, without {missing}",
                do="ask for all of them, or leave --tasks out",
            )


def check_budget(project: Project, only: Sequence[str]) -> None:
    """Raises ConfigError if one budget covers all branches and only some of them would be trained."""
    missing = [
        entry.name for entry in project.tasks if entry.name not in only and strategy_of(project, entry).is_allocated
    ]
    if project.allocation.rule == "budget" and missing:
        raise ConfigError(
            "the project's [allocation] has one budget for all branches, so all are trained together",
            got=f"tasks {list(only)}, without {missing}",
            do="leave --tasks out; what is trained already is not trained again",
        )


def prepare_groups(prepared: Sequence[Prepared], events: Events) -> list[Prepared]:
    """The tasks, without training rows that contain a text of an evaluation split of another task in the group.

    The shared arrays of a group learn from all of its tasks. Raises TrainError if their training numbers differ.
    """
    by_name = {p.task.name: p for p in prepared}
    for names in task_groups({name: p.strategy for name, p in by_name.items()}):
        numbers = {msgspec.json.encode(by_name[name].training) for name in names}
        if len(numbers) > 1:
            raise TrainError(
                "tasks that read each other's arrays have one set of training numbers",
                got=f"{len(numbers)} sets for {list(names)}",
                do="leave [tasks.training] out of them, and set the project's [training]",
            )
        if len(names) > 1:
            clean, report = without_leaks([by_name[name] for name in names])
            by_name |= {p.task.name: p for p in clean}
            for line in report.lines() if report.leaks else ():
                events.line(line)
    return [by_name[p.task.name] for p in prepared]


def check_readers(bundle: Bundle, changes: Sequence[Sequence[str]], paths: Mapping[str, Path]) -> None:
    """Raises BundleError if a run would replace arrays that other tasks of the bundle, which it does not train, read.

    Each of `changes` is written in one step, in this order. `paths` are those of live tasks: only these read other
    owners' arrays. Raises BadName for a name that differs from one in the bundle only in case.
    """
    needs = {name: set(record.needs) for name, record in bundle.tasks.items()}
    for names in changes:
        owners = {owner_named(name) for name in names}
        new = {name: set(owners_of(paths[name])) - {TRUNK, owner_named(name)} for name in names if name in paths}
        written = owners | {owner for read in new.values() for owner in read if is_family(owner)}
        known = {owner for name, read in needs.items() for owner in (owner_named(name), *read)} | written
        taken = TakenNames(known - written)
        for owner in sorted(written):
            taken.add(owner, replace=True)
        losing = {name: read & written for name, read in needs.items() if name not in names and read & written}
        if losing:
            raise _clash(bundle, names, losing)
        needs.update({name: new.get(name, set()) for name in names})


def _clash(bundle: Bundle, names: Sequence[str], losing: Mapping[str, set[str]]) -> BundleError:
    """The error; `losing` are the remaining tasks, each with the owners that it would lose."""
    owners = sorted(set[str]().union(*losing.values()))
    gone = sorted(set(losing).union(*(group for group in bundle.groups() if not group.isdisjoint(losing))))
    again = ",".join(name for name in names if name in gone)
    ways = [
        "name another bundle in the project file",
        f"`polyhead tasks remove {bundle.root} {' '.join(gone)}` first"
        + (f", then train with --retrain {again}" if again else ""),
    ]
    if task_names(owners):
        ways.insert(0, "keep the prompt group's tasks together in the project file")
    elif all(owner.startswith(shared_prompt("")) for owner in owners):
        ways.insert(0, "give strategy.group another name")
    return BundleError(
        f"training {', '.join(names)} would replace arrays that other tasks of the bundle {bundle.root.name} read",
        got=[
            f"{'the prompt of ' if task_names([owner]) else ''}{owner}, which {name} reads"
            for name, read in losing.items()
            for owner in sorted(read)
        ],
        do="; or ".join(ways),
        tasks=tuple(gone),
    )
