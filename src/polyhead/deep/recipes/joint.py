"""Joint training of tasks: with their trunk, as a separate bundle, or in groups over a frozen one."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch

from polyhead.bundle.write import FamilyDraft
from polyhead.deep.nn.runtime import precision_of
from polyhead.deep.recipes.joint_loop import JointLoop, RecipeResult, split_outputs
from polyhead.deep.recipes.paths import fingerprint_of, joint_paths
from polyhead.deep.recipes.trained_trunk import TrainedTrunk, remove_checkpoint
from polyhead.errors import TrainError
from polyhead.plan import Path
from polyhead.project.recipes import ONE_TASK, Joint, Training
from polyhead.train.data.leaks import without_leaks
from polyhead.train.data.prepared import Prepared
from polyhead.train.data.task_groups import task_groups
from polyhead.train.events import Events
from polyhead.train.heads import selection_rule
from polyhead.train.job import Trainer, extractor_of
from polyhead.train.record.draft import HeldOutRows, Trained
from polyhead.train.record.lines import outlook
from polyhead.train.runs import SUFFIX, cache_folder
from polyhead.train.training import TrainingRun


class LearnsTogether(TrainedTrunk):
    """Trunk and tasks are trained together; with heads 'strip' only the trunk is kept.

    No text on which one of the tasks is evaluated is trained on, nor one of those that are `held` out. An interrupted
    run resumes where it was last saved, inside an epoch too.
    """

    def __init__(
        self, run: TrainingRun, recipe: Joint, prepared: Sequence[Prepared], *, held: Sequence[Prepared] = ()
    ) -> None:
        clean, leaks = without_leaks(prepared, others=held)
        super().__init__(run, clean, recipe, keeps_heads=recipe.heads == "keep")
        self.recipe = self.declared = recipe
        self.training, self.first_lines = joint_training(clean), leaks.lines()
        self.fingerprint = fingerprint_of(clean, recipe, self.data)
        self.checkpoint = cache_folder(run.cache, "joint") / f"{self.fingerprint}{SUFFIX}"

    def learn(self, events: Events) -> RecipeResult:
        """Runs one loop of all tasks."""
        place, recipe = self.run.place, self.recipe
        loop = JointLoop(
            self.prepared,
            joint_paths(self.prepared, self.data, recipe),
            self.data,
            recipe,
            training=self.training,
            precision=precision_of(self.training, place.device),
            checkpoint=self.checkpoint,
            events=events,
            place=place,
        )
        for line in joint_outlook(loop):
            events.line(line)
        return RecipeResult(learned=loop.learn(), training=self.training)

    def clean(self) -> None:
        """Removes the loop's checkpoint, and those of donors and probed heads."""
        remove_checkpoint(self.checkpoint)


def joint_training(prepared: Sequence[Prepared]) -> Training:
    """The common training numbers; raises TrainError if tasks have different ones."""
    settings = {msgspec.json.encode(p.training): p.training for p in prepared}
    if len(settings) > 1:
        raise TrainError(
            "tasks that are trained together have one set of training numbers",
            got=f"{len(settings)} sets",
            do="leave [tasks.training] out, and set the project's [training]",
        )
    return next(iter(settings.values()))


def joint_outlook(loop: JointLoop) -> list[str]:
    """Lines about the run before it starts."""
    paths = {name: [path] for name, path in loop.paths.items()}
    in_a_pass, prepared = loop.mixture.in_a_pass, list(loop.prepared.values())
    lines = outlook(prepared, paths, loop.data.architecture, kept=(), in_a_pass=in_a_pass)
    place, parallel = loop.place, loop.recipe.parallel
    by = [f"{place.world} processes ({parallel}), the first on {place.device}"] if place.world > 1 else []
    return [*lines, *loop.mixture.lines(), *by]


class LiveGroups(Trainer):
    """Trains tasks that read live states, group by group; the tasks of a group enter the bundle together."""

    order = 2

    def paths(self) -> dict[str, list[Path]]:
        """The path of every task; all tasks of the project are needed, since groups are made of them."""
        return {
            name: [path] for name, path in joint_paths(self.prepared, extractor_of(self.job).data, ONE_TASK).items()
        }

    def steps(self) -> list[tuple[str, ...]]:
        """Whole groups with a task to train."""
        groups = task_groups({p.task.name: p.strategy for p in self.prepared})
        return [group for group in groups if not self.job.todo.isdisjoint(group)]

    def train(self) -> None:
        """Trains group by group."""
        for names in self.steps():
            self._train([p for p in self.todo if p.task.name in names])

    def _train(self, group: Sequence[Prepared]) -> None:
        """One task per step, drawn by size; the epoch with the best mean of their validation scores is kept for all.

        Checkpoints are deleted when the group is in the bundle.
        """
        job, precision = self.job, extractor_of(self.job).precision
        folder = job.folder("live", group[0])
        loop = JointLoop(
            group,
            {p.task.name: job.paths[p.task.name][0] for p in group},
            extractor_of(job).data,
            ONE_TASK,
            training=group[0].training,
            precision=precision,
            checkpoint=folder / f"unit{SUFFIX}",
            events=job.events,
            frozen=True,
        )
        learned = loop.learn(", ".join(p.task.name for p in group))
        served = loop.module.served(getattr(torch, precision))
        trained = []
        for p in group:
            outputs = split_outputs(loop, p, served)
            decided = selection_rule.deciding(p, outputs["validation"])
            part = Trained(
                path=learned.paths[p.task.name],
                arrays=learned.arrays[p.task.name],
                scores=decided.scores(outputs),
                fitted=learned.fitted,
                tried={},
                held=HeldOutRows(examples=p.validation.examples, outputs=outputs["validation"]),
                task=decided.task,
            )
            trained.append((p, part))
        families = [FamilyDraft(family=owner, arrays=arrays) for owner, arrays in learned.families.items()]
        job.commit(trained, families, checkpoints=folder)
