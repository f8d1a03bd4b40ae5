"""What decides each trained part, and which parts a bundle holds that were trained so already."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import msgspec

from polyhead.bundle.read import Bundle
from polyhead.project.tables import Choice
from polyhead.train.data.prepared import Prepared, rows_of
from polyhead.train.data.units import units_of

Fingerprint = dict[str, object]


def fingerprints_of(several: Sequence[Prepared], choice: Choice) -> dict[str, Fingerprint]:
    """What decides each trained part; for a branch that is one of several to choose from, the choice too.

    Under one budget a choice depends on all branches, so each names every other's own way of training.
    """
    prints = {p.task.name: p.fingerprint() for p in several}
    among = {p.task.name: tag(prints[p.task.name]) for p in several if p.strategy.is_allocated}
    settings: dict[str, object] = msgspec.to_builtins(choice)
    if choice.rule == "budget":
        settings["among"] = among
    for unit in units_of({p.task.name: p.strategy for p in several if p.strategy.is_live}):
        if len(unit) > 1:  # whoever else learns decides what each learns
            tags = {name: tag(prints[name]) for name in unit}
            for name in unit:
                prints[name]["among"] = tags
    for p in several:
        if p.strategy.is_undecided:
            prints[p.task.name]["allocation"] = settings
    return prints


def tag(fingerprint: Mapping[str, object]) -> str:
    """A short name for one exact way of training. How values are computed is left out: a trained task stays."""
    named = {name: value for name, value in fingerprint.items() if name != "numerics"}
    return hashlib.sha256(msgspec.json.encode(named, order="sorted")).hexdigest()[:16]


def untrained(bundle: Bundle, prints: Mapping[str, Fingerprint]) -> set[str]:
    """The tasks of which the bundle holds no part that was trained so."""
    trained = {name: record.trained_with.get("fingerprint") for name, record in bundle.tasks.items()}
    return {name for name, fingerprint in prints.items() if trained.get(name) != tag(fingerprint)}


def rescored(bundle: Bundle, prepared: Sequence[Prepared]) -> list[str]:
    """A line for each trained task whose test rows are others than those of its scores."""
    lines = []
    for p in prepared:
        record = bundle.tasks.get(p.task.name)
        known = record.trained_with.get("data") if record is not None else None
        if p.test is None or not isinstance(known, dict):
            continue
        if known.get("test") != rows_of([p.test])["test"]:
            lines.append(
                f"{p.task.name}: its test rows are others than those of its scores, which changes nothing that was "
                "trained; `polyhead evaluate` scores it on them"
            )
    return lines
