"""Prompts and adapters over a frozen trunk: tasks that read live states, alone or in units that learn together."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from polyhead.bundle.write import FamilyDraft
from polyhead.deep.extract import extractor_of
from polyhead.deep.recipes.course import JointCourse
from polyhead.deep.recipes.paths import joint_paths
from polyhead.deep.recipes.refine import split_outputs
from polyhead.plan import Path
from polyhead.project.recipes import ONE_TASK
from polyhead.train.data.prepared import Prepared
from polyhead.train.data.units import units_of
from polyhead.train.job import Trainer
from polyhead.train.record.draft import HeldRows, Trained
from polyhead.train.runs import SUFFIX


class LiveUnits(Trainer):
    """Trains tasks that read live states, unit by unit; the tasks of a unit are in the bundle all at once."""

    order = 2

    def paths(self) -> dict[str, list[Path]]:
        """The path of every task; all that the project declares are needed, as groups are made of them."""
        return {
            name: [path] for name, path in joint_paths(self.prepared, extractor_of(self.job).data, ONE_TASK).items()
        }

    def steps(self) -> list[tuple[str, ...]]:
        """The units with a task to train, whole."""
        units = units_of({p.task.name: p.strategy for p in self.prepared})
        return [unit for unit in units if not self.job.todo.isdisjoint(unit)]

    def train(self) -> None:
        """Trains unit by unit."""
        for names in self.steps():
            self._train([p for p in self.todo if p.task.name in names])

    def _train(self, unit: Sequence[Prepared]) -> None:
        """One task a step, each by its size; the epoch with the best mean of their validation scores is kept for all.

        Checkpoints go when the unit is in the bundle.
        """
        job, precision = self.job, extractor_of(self.job).precision
        folder = job.folder("live", unit[0])
        course = JointCourse(
            unit,
            {p.task.name: job.paths[p.task.name][0] for p in unit},
            extractor_of(job).data,
            ONE_TASK,
            training=unit[0].training,
            precision=precision,
            checkpoint=folder / f"unit{SUFFIX}",
            events=job.events,
            frozen=True,
        )
        learned = course.learn(", ".join(p.task.name for p in unit))
        served = course.module.served(getattr(torch, precision))
        trained = []
        for p in unit:
            outputs = split_outputs(course, p, served)
            part = Trained(
                path=learned.paths[p.task.name],
                arrays=learned.arrays[p.task.name],
                scores=p.scores(outputs),
                fitted=learned.fitted,
                tried={},
                held=HeldRows(examples=p.validation.examples, outputs=outputs["validation"]),
            )
            trained.append((p, part))
        families = [FamilyDraft(family=owner, arrays=arrays) for owner, arrays in learned.families.items()]
        job.commit(trained, families, checkpoints=folder)
