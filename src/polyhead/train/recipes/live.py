"""Prompts and adapters over a frozen trunk: tasks that read live states, alone or in units that learn together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath

import msgspec
import torch

from polyhead.bundle.families import FamilyDraft
from polyhead.plan import Path
from polyhead.project.recipes import ONE_TASK
from polyhead.project.strategies import Live
from polyhead.train.data.prepared import Prepared
from polyhead.train.heads.trained import Trained
from polyhead.train.loop.events import Events
from polyhead.train.recipes.course import JointCourse
from polyhead.train.recipes.paths import joint_paths
from polyhead.train.recipes.refine import scores_of
from polyhead.trunk.data import TrunkData


class LiveUnit(msgspec.Struct, frozen=True, kw_only=True):
    """A trained unit: each task as if it were alone, and the families that they read."""

    trained: dict[str, Trained]
    families: tuple[FamilyDraft, ...]


def is_live(prepared: Prepared) -> bool:
    """Whether the task's strategy changes what the trunk's layers read or compute, so that no kept state serves."""
    return isinstance(prepared.strategy, Live)


def live_paths(prepared: Sequence[Prepared], data: TrunkData) -> dict[str, Path]:
    """The path of every such task; all that a project declares are needed, as groups are made of them."""
    live = [p for p in prepared if is_live(p)]
    return joint_paths(live, data, ONE_TASK) if live else {}


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
