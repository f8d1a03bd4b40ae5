"""`polyhead train` with the recipe `leave_out`: trunks that never saw a task, frozen under that task's new part."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path as FilePath

import msgspec

from polyhead.bundle.read import Bundle
from polyhead.config import Value
from polyhead.progress import duration
from polyhead.project import JOINT_TRAINING, Project, TrunkChoice
from polyhead.recipe import Frozen, LeaveOut, Round
from polyhead.tasks.kinds import kind_of
from polyhead.train.devices import Place
from polyhead.train.events import Events
from polyhead.train.joint_paths import joint_paths
from polyhead.train.joint_run import train_together
from polyhead.train.lineage import load_any_trunk
from polyhead.train.prepare import prepare
from polyhead.train.run import train_project


class LeftOut(Value):
    """One round: a trunk, and what stands on it."""

    name: str
    bundle: str
    trunk: str  # digest
    learned_from: tuple[str, ...]  # tasks
    scores: dict[str, dict[str, dict[str, float]]]  # task that was left out -> split -> metric -> value


class LeaveOutOutcome(Value):
    """What a run of `train` with the recipe `leave_out` did."""

    rounds: tuple[LeftOut, ...]
    seconds: float


def train_leave_out(
    project: Project,
    *,
    folder: FilePath,
    cache: FilePath | None = None,
    events: Events | None = None,
    place: Place | None = None,
    only: tuple[str, ...] = (),
) -> LeaveOutOutcome:
    """Each round learns a trunk without some tasks, then those tasks' parts over it; both go on where they stopped.

    A round's bundle is `<project.bundle>/<name>`. With `only`, the rounds of these tasks alone. No text on which a task
    of the round is evaluated is among those that its trunk learned from.
    """
    began, events, recipe = time.monotonic(), events or Events(), project.recipe
    assert isinstance(recipe, LeaveOut)
    root = (folder / project.bundle).resolve()
    cache = cache or root.with_name(root.name + "-cache")
    rounds = recipe.rounds([entry.name for entry in project.tasks])
    rounds = tuple(one for one in rounds if not only or not set(only).isdisjoint(one.tasks))
    events.line(f"{len(rounds)} trunks, each with a bundle in {project.bundle}:")
    for one in rounds:
        events.line(
            f"  {one.name}: learns from {len(one.learned)} tasks, then frozen for {_listed(one.tasks)}"
        )
    _check(project, recipe, rounds, folder)
    found = []
    for number, one in enumerate(rounds, 1):
        events.line(f"{number} of {len(rounds)}: {one.name}")
        found.append(_round(project, recipe, one, folder, cache / one.name, events, place))
    for line in _table(project, found):
        events.line(line)
    seconds = time.monotonic() - began
    events.line(f"{len(rounds)} trunks in {duration(seconds)}")
    return LeaveOutOutcome(rounds=tuple(found), seconds=seconds)


def _check(project: Project, recipe: LeaveOut, rounds: Sequence[Round], folder: FilePath) -> None:
    """Raises what the last round would, before the first one is trained."""
    entries = tuple(msgspec.structs.replace(entry, training=None) for entry in project.tasks)
    together = msgspec.structs.replace(project, tasks=entries, training=None, recipe=recipe.learn)
    prepared, data = prepare(together, folder), load_any_trunk(project, folder)
    for one in rounds:
        joint_paths([p for p in prepared if p.task.name in one.learned], data, recipe.learn)


def _round(
    project: Project,
    recipe: LeaveOut,
    one: Round,
    folder: FilePath,
    cache: FilePath,
    events: Events,
    place: Place | None,
) -> LeftOut:
    learns, stands = projects_of(project, recipe, one)
    held = prepare(stands, folder)
    learned = train_together(learns, folder=folder, cache=cache, events=events, place=place, held=held)
    train_project(stands, folder=folder, cache=cache, events=events)
    bundle = Bundle.open(learned.bundle)
    return LeftOut(
        name=one.name,
        bundle=learned.bundle,
        trunk=learned.trunk,
        learned_from=one.learned,
        scores={task: bundle.scores(task)["splits"] for task in one.tasks},
    )


def projects_of(project: Project, recipe: LeaveOut, one: Round) -> tuple[Project, Project]:
    """A round as two projects over one bundle: of the tasks that teach the trunk, and of those that stand on it."""
    bundle = f"{project.bundle}/{one.name}"
    entries = {entry.name: entry for entry in project.tasks}
    taught = tuple(msgspec.structs.replace(entries[name], training=None) for name in one.learned)
    learns = msgspec.structs.replace(
        project,
        tasks=taught,
        bundle=bundle,
        training=recipe.training or JOINT_TRAINING,
        recipe=msgspec.structs.replace(recipe.learn, heads="strip"),
    )
    stands = msgspec.structs.replace(
        project,
        tasks=tuple(entries[name] for name in one.tasks),
        bundle=bundle,
        trunk=TrunkChoice(name=bundle),
        recipe=Frozen(),
    )
    return learns, stands


def _table(project: Project, found: list[LeftOut]) -> list[str]:
    """A line a task: how well it does over a trunk that learned without it."""
    tasks = {entry.name: entry.task() for entry in project.tasks}
    wide = max(len(name) for one in found for name in (one.name, *one.scores))
    lines = [f"{'task':{wide}s}  {'trunk':{wide}s}  {'metric':10s}  validation    test"]
    for one in found:
        for name, splits in one.scores.items():
            metric = kind_of(tasks[name]).default_metric(tasks[name])
            shown = [f"{splits[s][metric]:.4f}" if s in splits else "–" for s in ("validation", "test")]
            lines.append(f"{name:{wide}s}  {one.name:{wide}s}  {metric:10s}  {shown[0]:>10s}  {shown[1]:>6s}")
    return lines


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) if len(names) < 6 else f"{len(names)} tasks"
