"""Donors: prompts and poolers that each task learned alone over the frozen trunk, now or in a run before this one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from polyhead.bundle.format import BUNDLE
from polyhead.bundle.read import Bundle
from polyhead.errors import ConfigError
from polyhead.project import Project, strategy_of
from polyhead.strategy import Prompted
from polyhead.trunk_data import arrays_digest

if TYPE_CHECKING:
    from polyhead.train.prepare import Prepared  # which itself reads donors

PARTS = {"prompt.weight": "init", "head.hidden": "pooler_init"}
"""What is taken from a donor, by the beginning of its arrays' names, and the field of the strategy that asks for it."""


class Donor(msgspec.Struct, frozen=True, kw_only=True):
    """What a task takes from a part of its name in a bundle of donors, and the digest of the trunk below it."""

    arrays: dict[
        str, np.ndarray
    ]  # prompt.weight (rows, width), head.hidden.weight (hidden, width) and its bias
    trunk: str

    @property
    def digest(self) -> str:
        """Of the arrays alone."""
        return arrays_digest(self.arrays)


def asked_of_donors(strategy: Prompted, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Those of a donor's arrays that the strategy starts from."""
    wanted = tuple(start for start, field in PARTS.items() if getattr(strategy, field) == "donors")
    return {name: value for name, value in arrays.items() if wanted and name.startswith(wanted)}


def alone(prepared: Prepared) -> Prepared:
    """The task as its donor is trained: an input of its own, a random start, the donor's epochs and rate."""
    strategy = prepared.strategy
    assert isinstance(strategy, Prompted)
    group = strategy.group if strategy.isolated else prepared.task.name
    return msgspec.structs.replace(
        prepared,
        strategy=msgspec.structs.replace(strategy.without_donors(), init="random", shared=0, group=group),
        training=msgspec.structs.replace(
            prepared.training, epochs=strategy.donor_epochs, learning_rate=strategy.donor_learning_rate
        ),
        donor=None,
    )


def kept_donors(project: Project, folder: Path) -> dict[str, Donor]:
    """What the project's tasks take from its bundle of donors, by task; empty where each run trains its own.

    Raises ConfigError where there is no such bundle, where a task has no donor in it, or one of another shape.
    """
    if project.donors is None:
        return {}
    place = folder / os.path.expanduser(project.donors)
    if not (place / BUNDLE).is_file():
        raise ConfigError(
            "'donors' names no bundle",
            got=project.donors,
            allowed="the folder of a bundle that a project with recipe 'donors' made",
            do="train that project first, or leave 'donors' out: each run then trains its own",
        )
    bundle = Bundle.open(place)
    strategies = {entry.name: strategy_of(project, entry) for entry in project.tasks}
    wanted = {
        name: strategy
        for name, strategy in strategies.items()
        if isinstance(strategy, Prompted) and strategy.from_donors
    }
    if missing := sorted(set(wanted) - set(bundle.tasks)):
        raise ConfigError(
            f"tasks have no donor in the bundle '{project.donors}'",
            got=missing,
            allowed=sorted(bundle.tasks),
            do="add them to the project that makes the donors, and train it again: those that are there are kept",
        )
    return {name: _donor(bundle, name, strategy) for name, strategy in wanted.items()}


def _donor(bundle: Bundle, name: str, strategy: Prompted) -> Donor:
    there = bundle.part(name)
    arrays = asked_of_donors(strategy, there)
    for array, field, size in (
        ("prompt.weight", "rows", strategy.rows),
        ("head.hidden.weight", "hidden", strategy.hidden or bundle.architecture.width),
    ):
        given = there[array].shape[0] if array in there else 0
        if given != size and (array in arrays or not given):
            raise ConfigError(
                f"task '{name}' cannot start from its donor in the bundle {bundle.root.name}",
                got=f"strategy.{field} = {size}, of the donor {given or 'none'}",
                do=f"give both the same {field}, or train the donor again",
            )
    return Donor(arrays=arrays, trunk=bundle.digest)
