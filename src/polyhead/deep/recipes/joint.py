"""The joint recipe: a trunk that learns with its tasks becomes a bundle of its own."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from polyhead.deep.loop.numerics import precision_of
from polyhead.deep.recipes.course import JointCourse
from polyhead.deep.recipes.learned import LearnedTrunk, RecipeResult, remove_checkpoint
from polyhead.deep.recipes.paths import fingerprint_of, joint_paths
from polyhead.errors import TrainError
from polyhead.project.recipes import Joint, Training
from polyhead.train.data.leaks import without_leaks
from polyhead.train.data.prepared import Prepared
from polyhead.train.events import Events
from polyhead.train.record.lines import outlook
from polyhead.train.runs import SUFFIX, cache_folder
from polyhead.train.training import TrainingRun


class LearnsTogether(LearnedTrunk):
    """Trunk and tasks learn together; with heads 'strip' the trunk alone is kept.

    No text on which one of the tasks is evaluated is trained on, nor one of those that are `held` out. A run that was
    stopped goes on after its last epoch.
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
        """One course of all tasks."""
        place, recipe = self.run.place, self.recipe
        course = JointCourse(
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
        for line in joint_outlook(course):
            events.line(line)
        return RecipeResult(result=course.learn(), training=self.training)

    def clean(self) -> None:
        """Removes the course's checkpoint, and those of donors and probed heads."""
        remove_checkpoint(self.checkpoint)


def joint_training(prepared: Sequence[Prepared]) -> Training:
    """The one set of training numbers; raises TrainError where tasks have different ones."""
    settings = {msgspec.json.encode(p.training): p.training for p in prepared}
    if len(settings) > 1:
        raise TrainError(
            "tasks that are trained together have one set of training numbers",
            got=f"{len(settings)} sets",
            do="leave [tasks.training] out, and set the project's [training]",
        )
    return next(iter(settings.values()))


def joint_outlook(course: JointCourse) -> list[str]:
    """Lines about the run before it starts."""
    paths = {name: [path] for name, path in course.paths.items()}
    in_a_pass, prepared = course.mixture.in_a_pass, list(course.prepared.values())
    lines = outlook(prepared, paths, course.data.architecture, kept=(), in_a_pass=in_a_pass)
    place, parallel = course.place, course.recipe.parallel
    by = [f"{place.world} processes ({parallel}), the first on {place.device}"] if place.world > 1 else []
    return [*lines, *course.mixture.lines(), *by]
