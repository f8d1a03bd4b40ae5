"""Learned trunks: where one comes from, and how the next training starts from it."""

from __future__ import annotations

import os
from pathlib import Path as FilePath

import msgspec

from polyhead.bundle.files import read_inside
from polyhead.bundle.format import BUNDLE, LARGEST_JSON, LINEAGE, TRUNK
from polyhead.bundle.read import Bundle
from polyhead.config import Value, from_json, to_json
from polyhead.files import replace_file
from polyhead.nn.load import load_trunk
from polyhead.project.tables import Project
from polyhead.trunk.data import TrunkData


class Lineage(Value):
    """Where a learned trunk comes from."""

    trunk: str  # digest of the learned one
    learned_from: dict[str, str]  # name and digest of the trunk that training started from
    recipe: dict[str, object]
    training: dict[str, object]
    tasks: dict[str, dict[str, object]]  # each with its kind, rows and the SHA-256 of its training data
    epochs: int  # that were trained; the best by validation was kept
    best_epoch: int
    validation: dict[str, dict[str, float]]
    fingerprint: str  # equal ones need no second training
    polyhead: str
    scores: dict[str, dict[str, dict[str, float]]] = {}  # task -> split -> metric -> value, as the bundle answered
    processes: int | None = None  # that shared the training: their number decides the order of sums, and so the bits
    numerics: dict[str, str] = {}  # how they computed; these three are empty where they were not yet written down
    search: dict[str, object] = {}  # of fine-tuning: every candidate that was tried, and the chosen one


def write_lineage(root: FilePath, lineage: Lineage) -> None:
    """Writes it beside the trunk of the bundle at `root`."""
    replace_file(root / TRUNK / LINEAGE, to_json(lineage), root=root)


def lineage_of(root: FilePath) -> Lineage | None:
    """The lineage of a bundle's trunk; None for one that was not learned here."""
    if not os.path.lexists(root / TRUNK / LINEAGE):
        return None
    raw = read_inside(root, TRUNK, LINEAGE, limit=LARGEST_JSON)
    return from_json(raw, Lineage, source=str(root / TRUNK / LINEAGE))


def load_any_trunk(project: Project, folder: FilePath) -> TrunkData:
    """The project's trunk: that of a bundle where `trunk.name` is one's folder, else as `load_trunk` finds it."""
    place, limit = project.trunk.place(folder), project.trunk.max_tokens
    if not (FilePath(place) / BUNDLE).is_file():
        return msgspec.structs.replace(load_trunk(place, max_tokens=limit), name=project.trunk.name)
    data = Bundle.open(place).trunk()
    settings = data.settings
    if limit is not None:
        settings = msgspec.structs.replace(settings, max_tokens=limit)
    return msgspec.structs.replace(data, name=project.trunk.name, settings=settings)
