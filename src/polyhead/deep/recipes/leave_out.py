"""The recipe `leave_out`: trunks trained without a task, frozen under that task's new part."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

import msgspec

from polyhead.bundle.read import Bundle
from polyhead.deep.recipes.joint import LearnsTogether
from polyhead.progress import counted
from polyhead.project.recipes import Frozen, LeaveOut, Round
from polyhead.project.tables import JOINT_TRAINING, TrunkChoice
from polyhead.tasks.kinds import kind_of
from polyhead.train.data.encoder import load_any_trunk
from polyhead.train.data.prepared import Prepared
from polyhead.train.job import FrozenTrunk
from polyhead.train.training import Bundles, BundleTraining, TrainingResult, TrainingRun


def leaving_out(run: TrainingRun, recipe: LeaveOut) -> Bundles:
    """Each round trains a trunk without some tasks, then those tasks' parts over it; both resume where they stopped.

    A round's bundle is `<project.bundle>/<name>`; for a selection of tasks, only the rounds that leave one of them out.
    All rounds read the same split of the files, so that no round trains on rows that a task holds out.
    """
    rounds = recipe.rounds([entry.name for entry in run.project.tasks])
    rounds = tuple(r for r in rounds if not run.only or not set(run.only).isdisjoint(r.tasks))
    prepared = {p.task.name: p for p in run.prepared}
    lines = [f"{counted(len(rounds), 'trunk')}, each with a bundle in {run.project.bundle}:"]
    for r in rounds:
        tasks = ", ".join(r.tasks) if len(r.tasks) < 6 else f"{len(r.tasks)} tasks"
        lines.append(f"  {r.name}: learns from {counted(len(r.learned), 'task')}, then frozen for {tasks}")
    trainings = {r.name: LeftOut(run.part(r.name), recipe, r, prepared) for r in rounds}
    return Bundles(run, trainings, lines, partial(_left_out_table, prepared))


def _left_out_table(prepared: Mapping[str, Prepared], outcomes: Mapping[str, TrainingResult]) -> list[str]:
    """One line per task: its score over a trunk that was trained without it."""
    wide = max(len(name) for trunk, outcome in outcomes.items() for name in (trunk, *outcome.scores))
    lines = [f"{'task':{wide}s}  {'trunk':{wide}s}  {'metric':10s}  validation    test"]
    for trunk, outcome in outcomes.items():
        for name, splits in outcome.scores.items():
            metric = kind_of(prepared[name].task).default_metric(prepared[name].task)
            shown = [f"{splits[s][metric]:.4f}" if metric in splits.get(s, {}) else "–" for s in ("validation", "test")]
            lines.append(f"{name:{wide}s}  {trunk:{wide}s}  {metric:10s}  {shown[0]:>10s}  {shown[1]:>6s}")
    return [*lines, f"{len(outcomes)} trunks"]


class LeftOut(BundleTraining):
    """A round as two stages of one bundle: the tasks that train the trunk, and those over it.

    No row on which a task of the round is evaluated is among the training rows of its trunk: few rows are not held out
    in folds either, since the trunk learned from those that another task trains on.
    """

    def __init__(self, run: TrainingRun, recipe: LeaveOut, left_out: Round, prepared: Mapping[str, Prepared]) -> None:
        self.run, self._round = run, left_out
        project, entries = run.project, {entry.name: entry for entry in run.project.tasks}
        seed = (project.training or JOINT_TRAINING).seed
        training = recipe.training or msgspec.structs.replace(JOINT_TRAINING, seed=seed)
        taught = [msgspec.structs.replace(prepared[name], training=training) for name in left_out.learned]
        left = [prepared[name] for name in left_out.tasks]
        self._held = [msgspec.structs.replace(p, whole=None) if p.folded else p for p in left]
        self._learns = LearnsTogether(self.run, recipe.learn_in(left_out), taught, held=self._held)
        self._project = msgspec.structs.replace(
            project,
            tasks=tuple(entries[name] for name in left_out.tasks),
            trunk=TrunkChoice(name=f"./{project.bundle}" if project.bundle.startswith("~") else project.bundle),
            recipe=Frozen(),
        )

    def check(self) -> None:
        """Checks both stages."""
        self._learns.check()
        FrozenTrunk(self.run, self._held).check()

    def train(self) -> TrainingResult:
        """Trains both stages."""
        began, learned = time.monotonic(), self._learns.train()
        load = partial(load_any_trunk, self._project, self.run.folder)
        run = msgspec.structs.replace(self.run, project=self._project, load=load)
        outcome = FrozenTrunk(run, self._held).train()
        bundle = Bundle.open(self.run.root)
        for name in outcome.kept:
            if folds := bundle.scores(name).get("folds"):
                self.run.events.line(
                    f"{name}: its scores are those of rows held out in {folds} folds, from which its trunk may have "
                    "learned; another bundle name trains anew"
                )
        return msgspec.structs.replace(
            outcome,
            trunk=learned.trunk,
            learned_from=learned.learned_from,
            taught=self._round.learned,
            # A task may have been removed since.
            scores={task: bundle.split_scores(task) for task in self._round.tasks if task in bundle.lines},
            seconds=time.monotonic() - began,
        )
