"""Prompts and adapters over a frozen trunk: tasks that read live states, alone or in units that learn together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath

import msgspec
import torch

from polyhead.bundle.write import FamilyDraft
from polyhead.plan import Path
from polyhead.project.recipes import ONE_TASK
from polyhead.train.data.prepared import Prepared
from polyhead.train.data.units import units_of
from polyhead.train.job import Trainer
from polyhead.train.loop.checkpoint import SUFFIX
from polyhead.train.loop.events import Events
from polyhead.train.recipes.course import JointCourse
from polyhead.train.recipes.paths import joint_paths
from polyhead.train.recipes.refine import scores_of
from polyhead.train.record.draft import Trained
from polyhead.trunk.data import TrunkData


class LiveUnit(msgspec.Struct, frozen=True, kw_only=True):
    """A trained unit: each task as if it were alone, and the families that they read."""

    trained: dict[str, Trained]
    families: tuple[FamilyDraft, ...]


class LiveUnits(Trainer):
    """Trains tasks that read live states, unit by unit; the tasks of a unit are in the bundle all at once."""

    order = 2

    def paths(self) -> dict[str, list[Path]]:
        """The path of every task; all that the project declares are needed, as groups are made of them."""
        return {name: [path] for name, path in joint_paths(self.prepared, self.job.extractor.data, ONE_TASK).items()}

    def steps(self) -> list[tuple[str, ...]]:
        """The units with a task to train, whole."""
        units = units_of({p.task.name: p.strategy for p in self.prepared})
        return [unit for unit in units if not self.job.todo.isdisjoint(unit)]

    def train(self) -> None:
        """Checkpoints of a unit go when it is in the bundle."""
        for names in self.steps():
            unit = [p for p in self.todo if p.task.name in names]
            folder = self.job.folder("live", unit[0])
            learned = train_unit(
                unit,
                {p.task.name: self.job.paths[p.task.name][0] for p in unit},
                self.job.extractor.data,
                precision=self.job.extractor.precision,
                checkpoint=folder / f"unit{SUFFIX}",
                events=self.job.events,
            )
            trained = [(p, learned.trained[p.task.name]) for p in unit]
            self.job.commit(trained, learned.families, checkpoints=folder)


def train_unit(
    unit: Sequence[Prepared],
    paths: Mapping[str, Path],
    data: TrunkData,
    *,
    precision: str,
    checkpoint: FilePath | None,
    events: Events,
) -> LiveUnit:
    """Trains the unit's tasks over the frozen trunk, one task a step, each by its size.

    The epoch with the best mean of their validation scores is kept for all of them (of a task alone, its best).
    """
    names = [p.task.name for p in unit]
    course = JointCourse(
        unit,
        {name: paths[name] for name in names},
        data,
        ONE_TASK,
        training=unit[0].training,
        precision=precision,
        checkpoint=checkpoint,
        events=events,
        frozen=True,
    )
    learned = course.learn(", ".join(names))
    served = course.module.served(getattr(torch, precision))
    trained = {
        p.task.name: Trained(
            path=learned.paths[p.task.name],
            arrays=learned.arrays[p.task.name],
            scores=scores_of(course, p, served),
            fitted=learned.fitted,
            tried={},
        )
        for p in unit
    }
    families = tuple(FamilyDraft(family=owner, arrays=arrays) for owner, arrays in learned.families.items())
    return LiveUnit(trained=trained, families=families)
