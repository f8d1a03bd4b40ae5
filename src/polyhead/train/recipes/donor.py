"""Donors: prompts and poolers that each task learned alone over the frozen trunk, now or in a run before this one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np

from polyhead.bundle.format import BUNDLE
from polyhead.bundle.read import Bundle
from polyhead.errors import ConfigError
from polyhead.project.strategies import Prompted
from polyhead.project.tables import Project, strategy_of
from polyhead.train.data.prepared import Donor, Prepared

PARTS = {"prompt.weight": "init", "head.hidden": "pooler_init"}
"""What is taken from a donor, by the beginning of its arrays' names, and the field of the strategy that asks for it."""


def asked_of_donors(strategy: Prompted, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Those of a donor's arrays that the strategy starts from."""
    wanted = tuple(start for start, field in PARTS.items() if getattr(strategy, field) == "donors")
    return {name: value for name, value in arrays.items() if wanted and name.startswith(wanted)}


def alone(prepared: Prepared) -> Prepared:
    """The task as its donor is trained: an input of its own, a random start, the donor's epochs and rate."""
    strategy = prepared.strategy
    assert isinstance(strategy, Prompted)
    return msgspec.structs.replace(
        prepared,
        strategy=msgspec.structs.replace(
            strategy.without_donors(),
            init="random",
            shared=0,
            stop_gradient=True,  # there is no other prompt
            group=strategy.group if strategy.isolated else prepared.task.name,
        ),
        training=msgspec.structs.replace(
            prepared.training, epochs=strategy.donor_epochs, least_updates=0, learning_rate=strategy.donor_learning_rate
        ),
        donor=None,
    )


def kept_donors(project: Project, folder: Path) -> dict[str, Donor]:
    """What the project's tasks take from its bundle of donors, by task; empty where each run trains its own.

    Raises ConfigError where there is no such bundle, where a task has no donor in it, or one that was made otherwise.
    """
    strategies = {entry.name: strategy_of(project, entry) for entry in project.tasks}
    wanted = {name: one for name, one in strategies.items() if isinstance(one, Prompted) and one.from_donors}
    if project.donors is None or not wanted:
        return {}
    place = (folder / os.path.expanduser(project.donors)).resolve()
    if place == (folder / project.bundle).resolve():
        raise ConfigError(
            "'donors' and 'bundle' are one folder: tasks would replace what they start from",
            got=place,
            do="give the bundle another name",
        )
    if not (place / BUNDLE).is_file():
        raise ConfigError(
            "'donors' names no bundle",
            got=place,
            allowed="the folder of a bundle that a project with recipe 'donors' made, relative to the project file",
            do="train that project first, or leave 'donors' out: each run then trains its own",
        )
    bundle = Bundle.open(place)
    if missing := sorted(set(wanted) - set(bundle.tasks)):
        raise ConfigError(
            f"tasks have no donor in the bundle {place.name}",
            got=missing,
            allowed=sorted(bundle.tasks),
            do="add them to the project that makes the donors, and train it again",
        )
    return {name: _donor(bundle, name, strategy) for name, strategy in wanted.items()}


def _donor(bundle: Bundle, name: str, strategy: Prompted) -> Donor:
    _check_alike(bundle, name, strategy)
    record = bundle.tasks[name]
    data = record.trained_with["data"]
    return Donor(
        arrays=asked_of_donors(strategy, bundle.part(name)),
        trunk=bundle.digest,
        held_out={split: rows["sha256"] for split, rows in data.items() if split != "train"},
    )


def _check_alike(bundle: Bundle, name: str, strategy: Prompted) -> None:
    """Raises ConfigError for a task that is no donor as the strategy has them."""
    record, width = bundle.tasks[name], bundle.architecture.width
    there = record.trained_with.get("strategy", {})
    prompts = record.path.embed.prompts
    if there.get("kind") != "prompted" or len(prompts) != 1:
        raise ConfigError(
            f"task '{name}' of the bundle {bundle.root.name} is no donor",
            got=f"strategy '{there.get('kind', 'not said')}', {len(prompts)} prompts in its input",
            allowed="strategy 'prompted', alone in its input",
            do="name a bundle that recipe 'donors' made",
        )
    training = record.trained_with["training"]
    pairs = {
        "rows": (strategy.rows, there["rows"]),
        "hidden": (strategy.hidden or width, there["hidden"] or width),
        "isolated": (strategy.isolated, there["isolated"]),
        "shift": (strategy.shift, there["shift"]),
        "donor_epochs": (strategy.donor_epochs, training["epochs"]),
        "donor_learning_rate": (strategy.donor_learning_rate, training["learning_rate"]),
    }
    differing = {field: pair for field, pair in pairs.items() if pair[0] != pair[1]}
    if differing:
        told = ", ".join(f"{field} = {here} (donor: {its})" for field, (here, its) in differing.items())
        raise ConfigError(
            f"task '{name}' would start from a donor that was trained otherwise (bundle {bundle.root.name})",
            got=told,
            do="say the same of both, or train the donors anew",
        )
