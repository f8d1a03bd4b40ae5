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
from polyhead.project.tables import Project, strategy_of
from polyhead.strategies import Strategy
from polyhead.train.data.prepared import Donor, Prepared


def asked_of_donors(strategy: Strategy, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Those of a donor's arrays that the strategy starts from."""
    wanted = strategy.donor_arrays()
    return {name: value for name, value in arrays.items() if wanted and name.startswith(wanted)}


def alone(prepared: Prepared) -> Prepared:
    """The task as its donor is trained, alone over the frozen trunk."""
    donor = prepared.strategy.donor(prepared.task.name, prepared.training)
    assert donor is not None
    return msgspec.structs.replace(prepared, strategy=donor[0], training=donor[1], donor=None)


def kept_donors(project: Project, folder: Path) -> dict[str, Donor]:
    """What the project's tasks take from its bundle of donors, by task; empty where each run trains its own.

    Raises ConfigError where there is no such bundle, where a task has no donor in it, or one that was made otherwise.
    """
    strategies = {entry.name: strategy_of(project, entry) for entry in project.tasks}
    wanted = {name: strategy for name, strategy in strategies.items() if strategy.donor_arrays()}
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


def _donor(bundle: Bundle, name: str, strategy: Strategy) -> Donor:
    _check_alike(bundle, name, strategy)
    record = bundle.tasks[name]
    data = record.trained_with["data"]
    return Donor(
        arrays=asked_of_donors(strategy, bundle.part(name)),
        trunk=bundle.digest,
        held_out={split: rows["sha256"] for split, rows in data.items() if split != "train"},
    )


def _check_alike(bundle: Bundle, name: str, strategy: Strategy) -> None:
    """Raises ConfigError for a task that is no donor as the strategy has them."""
    record, width = bundle.tasks[name], bundle.architecture.width
    settings = record.trained_with.get("strategy", {})
    prompts = record.path.embed.prompts
    if settings.get("kind") != strategy.kind or len(prompts) != 1:
        raise ConfigError(
            f"task '{name}' of the bundle {bundle.root.name} is no donor",
            got=f"strategy '{settings.get('kind', 'unknown')}', {len(prompts)} prompts in its input",
            allowed=f"strategy '{strategy.kind}', alone in its input",
            do="name a bundle that recipe 'donors' made",
        )
    training = record.trained_with["training"]
    donor = {**settings, "donor_epochs": training["epochs"], "donor_learning_rate": training["learning_rate"]}
    pairs = {field: (getattr(strategy, field), donor[field]) for field in strategy.donor_fields}
    pairs["hidden"] = (pairs["hidden"][0] or width, pairs["hidden"][1] or width)
    differing = {field: pair for field, pair in pairs.items() if pair[0] != pair[1]}
    if differing:
        settings_shown = ", ".join(f"{field} = {own} (donor: {its})" for field, (own, its) in differing.items())
        raise ConfigError(
            f"task '{name}' would start from a donor that was trained otherwise (bundle {bundle.root.name})",
            got=settings_shown,
            do="say the same of both, or train the donors anew",
        )
