"""Families on disk: arrays that several tasks read, in folders of versions as those of tasks are."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path as FilePath

import numpy as np

from polyhead.bundle.files import check_hash, read_inside
from polyhead.bundle.format import FAMILY, LARGEST_JSON, PART
from polyhead.bundle.manifest import Live, decoded
from polyhead.bundle.owners import place_of
from polyhead.bundle.tensors import write_arrays
from polyhead.config import Value, to_json
from polyhead.errors import CorruptFile
from polyhead.files import sync_folder, write_file
from polyhead.trunk.data import arrays_digest


class FamilyRecord(Value):
    """family.json: whose arrays these are, and their digests. How they were trained, the tasks that read them say."""

    family: str  # the owner, family:<name>
    trunk: str  # digest of the trunk that the arrays were trained on
    arrays: str  # digest of the arrays, `trunk.data.arrays_digest`
    part: str  # SHA-256 of the file that holds them


class FamilyDraft(Value, eq=False):
    """A family as it is to be written, together with the tasks that read it."""

    family: str
    arrays: Mapping[str, np.ndarray]


def read_family(root: FilePath, owner: str, live: Live, *, trunk: str) -> FamilyRecord:
    """The family.json of a version, checked against bundle.json and the trunk."""
    place = (*place_of(owner), live.version)
    raw, path = read_inside(root, *place, FAMILY, limit=LARGEST_JSON), root.joinpath(*place, FAMILY)
    check_hash(path, hashlib.sha256(raw).hexdigest(), live.record)
    record = decoded(raw, FamilyRecord, path)
    if (record.family, record.trunk) != (owner, trunk):
        raise CorruptFile(
            f"{path} belongs to another family or trunk",
            got=f"{record.family} of trunk {record.trunk}",
            allowed=f"{owner} of trunk {trunk}",
            path=path,
        )
    return record


def write_family(draft: FamilyDraft, trunk: str, folder: FilePath) -> str:
    """Writes the files of one version; the SHA-256 of its family.json, which is written last."""
    folder.mkdir()
    part = write_arrays(folder / PART, draft.arrays)
    record = FamilyRecord(family=draft.family, trunk=trunk, arrays=arrays_digest(draft.arrays), part=part)
    hashed = write_file(folder / FAMILY, [to_json(record)])
    sync_folder(folder)
    return hashed
