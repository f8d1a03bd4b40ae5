"""Prompts and adapters over a frozen trunk: tasks that read live states, alone or in units that learn together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath

import msgspec
import torch

from polyhead.bundle.families import FamilyDraft
from polyhead.errors import ConfigError, TrainError
from polyhead.plan import Path
from polyhead.recipe import ONE_TASK
from polyhead.strategy import InLayer, OnTop, Prompted, Strategy
from polyhead.train.events import Events
from polyhead.train.joint import JointCourse
from polyhead.train.joint_paths import joint_paths
from polyhead.train.prepare import Prepared
from polyhead.train.refine import scores_of
from polyhead.train.task_run import Trained
from polyhead.trunk_data import TrunkData


class LiveUnit(msgspec.Struct, frozen=True, kw_only=True):
    """A trained unit: each task as if it were alone, and the families that they read."""

    trained: dict[str, Trained]
    families: tuple[FamilyDraft, ...]


def is_live(prepared: Prepared) -> bool:
    """Whether the task's strategy changes what the trunk's layers read or compute, so that no kept state serves."""
    return isinstance(prepared.strategy, Prompted | InLayer | OnTop)


def live_paths(prepared: Sequence[Prepared], data: TrunkData) -> dict[str, Path]:
    """The path of every such task; all that a project declares are needed, as groups are made of them."""
    live = [p for p in prepared if is_live(p)]
    return joint_paths(live, data, ONE_TASK) if live else {}


def bonds_of(strategy: Strategy) -> set[str]:
    """What tasks of this strategy read together with others: a prompt group, a shared pooler, shared adapters."""
    match strategy:
        case Prompted(isolated=False):
            return {f"prompts {strategy.group}"}
        case InLayer():
            shared = any(one.share != "nothing" for one in strategy.adapters)
            return ({"adapters"} if shared else set()) | (
                {"pooler"} if strategy.pooler == "shared" else set()
            )
        case OnTop(pooler="shared"):
            return {"pooler"}
    return set()


def units_of(strategies: Mapping[str, Strategy]) -> list[tuple[str, ...]]:
    """Tasks that stand or fall together, in order; most stand alone."""
    units: list[tuple[set[str], list[str]]] = []
    for name, strategy in strategies.items():
        bonds = bonds_of(strategy)
        met = [unit for unit in units if unit[0] & bonds]
        joined = (bonds.union(*(unit[0] for unit in met)), [one for unit in met for one in unit[1]] + [name])
        units = [unit for unit in units if unit not in met] + [joined]
    order = list(strategies)
    return sorted(
        (tuple(sorted(names, key=order.index)) for _, names in units), key=lambda u: order.index(u[0])
    )


def check_whole(strategies: Mapping[str, Strategy], only: Sequence[str]) -> None:
    """Raises ConfigError where some tasks of a unit are to be trained and others not."""
    for names in units_of(strategies):
        left = [name for name in names if name not in only]
        if 0 < len(left) < len(names):
            raise ConfigError(
                "tasks that read each other's arrays are trained together",
                got=f"tasks {[name for name in names if name in only]}, without {left}",
                do="ask for all of them, or leave --tasks out",
            )


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
    numbers = {msgspec.json.encode(p.training) for p in unit}
    if len(numbers) > 1:
        raise TrainError(
            "tasks that read each other's arrays have one set of training numbers",
            got=f"{len(numbers)} sets for {names}",
            do="leave [tasks.training] out of them, and set the project's [training]",
        )
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
