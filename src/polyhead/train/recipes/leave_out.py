"""`polyhead train` with the recipe `leave_out`: trunks that never saw a task, frozen under that task's new part."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path as FilePath

import msgspec

from polyhead.bundle.read import Bundle
from polyhead.config import Value
from polyhead.progress import duration
from polyhead.project.recipes import Frozen, LeaveOut, Round, TrunkOnly
from polyhead.project.tables import JOINT_TRAINING, Project, TrunkChoice
from polyhead.tasks.kinds import kind_of
from polyhead.train.data.leaks import without_leaks
from polyhead.train.data.prepare import prepare
from polyhead.train.data.prepared import Prepared
from polyhead.train.data.units import prepared_units
from polyhead.train.loop.checkpoint import cache_folder
from polyhead.train.loop.devices import Place
from polyhead.train.loop.events import Events
from polyhead.train.recipes.joint import fingerprint_of, train_together
from polyhead.train.recipes.learned import check_bundles, check_tasks, known_bundle, load_any_trunk
from polyhead.train.recipes.paths import joint_paths
from polyhead.train.run import train_project
from polyhead.trunk.data import TrunkData


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

    A round's bundle is `<project.bundle>/<name>`. With `only`, the rounds of these tasks alone. No row on which a task
    of the round is evaluated is among those that its trunk learned from. What can be known to fail does so before any
    training.
    """
    began, events, recipe = time.monotonic(), events or Events(), project.recipe
    assert isinstance(recipe, LeaveOut)
    root = (folder / project.bundle).resolve()
    cache = cache or root.with_name(root.name + "-cache")
    check_bundles(root)
    names = [entry.name for entry in project.tasks]
    check_tasks(only, names)
    rounds = [one for one in recipe.rounds(names) if not only or not set(only).isdisjoint(one.tasks)]
    events.line(f"{len(rounds)} trunks, each with a bundle in {project.bundle}:")
    for one in rounds:
        events.line(f"  {one.name}: learns from {len(one.learned)} tasks, then frozen for {_listed(one.tasks)}")
    data, done = load_any_trunk(project, folder), []
    prepared = {p.task.name: p for p in prepare(project, folder)}
    todo = [_Round(project, recipe, one, prepared, folder) for one in rounds]
    for stage in todo:
        stage.check(data)
    for number, stage in enumerate(todo, 1):
        events.line(f"{number} of {len(rounds)}: {stage.name}")
        done.append(stage.run(cache_folder(cache, stage.name), events.within(stage.name), place))
    for line in _table(project, done):
        events.line(line)
    seconds = time.monotonic() - began
    events.line(f"{len(rounds)} trunks in {duration(seconds)}")
    return LeaveOutOutcome(rounds=tuple(done), seconds=seconds)


class _Round:
    """A round as two projects over one bundle: of the tasks that teach the trunk, and of those that stand on it.

    All rounds read the same split of the files, so that what one task holds out none of them learns.
    """

    def __init__(
        self, project: Project, recipe: LeaveOut, one: Round, prepared: Mapping[str, Prepared], folder: FilePath
    ) -> None:
        self.name, self._one, self._folder = one.name, one, folder
        bundle, entries = f"{project.bundle}/{one.name}", {entry.name: entry for entry in project.tasks}
        seed = (project.training or JOINT_TRAINING).seed
        training = recipe.training or msgspec.structs.replace(JOINT_TRAINING, seed=seed)
        self._learns = msgspec.structs.replace(
            project,
            tasks=tuple(msgspec.structs.replace(entries[name], training=None) for name in one.learned),
            bundle=bundle,
            training=training,
            recipe=recipe.learn_in(one),
        )
        self._stands = msgspec.structs.replace(
            project,
            tasks=tuple(entries[name] for name in one.tasks),
            bundle=bundle,
            trunk=TrunkChoice(name=f"./{bundle}" if bundle.startswith("~") else bundle),
            recipe=Frozen(),
        )
        self._teaching = [msgspec.structs.replace(prepared[name], training=training) for name in one.learned]
        self._held = [prepared[name] for name in one.tasks]

    def check(self, data: TrunkData) -> None:
        """Raises what running it would, as far as that is known before any training."""
        recipe = self._learns.recipe
        assert isinstance(recipe, TrunkOnly)
        joint_paths(self._teaching, data, recipe)
        clean, _ = without_leaks(self._teaching, others=self._held)
        known_bundle((self._folder / self._learns.bundle).resolve(), fingerprint_of(clean, recipe, data))
        prepared_units(self._held, Events())

    def run(self, cache: FilePath, events: Events, place: Place | None) -> LeftOut:
        """Both stages; what is there of them is kept."""
        folder, taught, held = self._folder, self._teaching, self._held
        learned = train_together(
            self._learns, folder=folder, cache=cache, events=events, place=place, given=taught, held=held
        )
        train_project(self._stands, folder=folder, cache=cache, events=events, given=held)
        bundle = Bundle.open(learned.bundle)
        return LeftOut(
            name=self.name,
            bundle=learned.bundle,
            trunk=learned.trunk,
            learned_from=self._one.learned,
            # A task may have been removed since.
            scores={task: bundle.split_scores(task) for task in self._one.tasks if task in bundle.lines},
        )


def _table(project: Project, rounds: list[LeftOut]) -> list[str]:
    """A line a task: how well it does over a trunk that learned without it."""
    tasks = {entry.name: entry.task() for entry in project.tasks}
    wide = max(len(name) for round_ in rounds for name in (round_.name, *round_.scores))
    lines = [f"{'task':{wide}s}  {'trunk':{wide}s}  {'metric':10s}  validation    test"]
    for round_ in rounds:
        for name, splits in round_.scores.items():
            metric = kind_of(tasks[name]).default_metric(tasks[name])
            shown = [f"{splits[s][metric]:.4f}" if s in splits else "–" for s in ("validation", "test")]
            lines.append(f"{name:{wide}s}  {round_.name:{wide}s}  {metric:10s}  {shown[0]:>10s}  {shown[1]:>6s}")
    return lines


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) if len(names) < 6 else f"{len(names)} tasks"
