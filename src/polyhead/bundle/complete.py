"""Completing the records of tasks to add: empty fields are filled in, and all arrays that they read are checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath

import msgspec
import numpy as np

from polyhead.bundle.families import FamilyDraft
from polyhead.bundle.format import PART
from polyhead.bundle.lines import live_owned
from polyhead.bundle.manifest import BundleFile, TaskRecord, check_fit, foreign_owners, prefix_of
from polyhead.bundle.owners import place_of, titled
from polyhead.bundle.tensors import read_arrays
from polyhead.cost import part_arrays
from polyhead.errors import BundleError
from polyhead.tasks.task import owner_of
from polyhead.trunk.data import arrays_digest, check_arrays
from polyhead.trunk.shape import Architecture

Arrays = Mapping[str, np.ndarray]


class OtherOwners:
    """Arrays of other owners that the tasks to add may read: added in the same call, else live."""

    def __init__(self, root: FilePath, bundle: BundleFile, given: Mapping[str, Arrays]) -> None:
        self._root, self._bundle, self._given = root, bundle, given
        self._digests = {owner: arrays_digest(arrays) for owner, arrays in given.items()}

    def digest(self, owner: str, *, of: str = "") -> str:
        """Of all arrays of an owner; raises BundleError, which names the task that needs them, where there are none."""
        if owner not in self._digests:
            known = live_owned(self._root, self._bundle, owner)
            if known is None:
                raise BundleError(
                    f"task '{of}' needs the arrays of {titled(owner)}",
                    got="a damaged record" if owner in self._bundle.lines else "none, neither given nor live",
                    do="add the tasks of a group and the families that they read in one call",
                )
            self._digests[owner] = known.arrays
        return self._digests[owner]

    def arrays(self, owner: str) -> Arrays:
        """All arrays of an owner whose digest is known."""
        if owner in self._given:
            return self._given[owner]
        return read_arrays(self._root, *place_of(owner), self._bundle.lines[owner].version, PART)


def completed(
    record: TaskRecord, arrays: Arrays, others: OtherOwners, *, trunk: str, shape: Architecture
) -> TaskRecord:
    """The record with its empty fields filled in; what was given must agree, and the arrays must be the path's."""
    given, name = record, record.task.name
    record = msgspec.structs.replace(record, owner=record.owner or owner_of(record.task), arrays=arrays_digest(arrays))
    record = msgspec.structs.replace(record, needs=dict.fromkeys(foreign_owners(record), ""))
    check_fit(record, trunk=trunk, shape=shape)
    needs = {owner: others.digest(owner, of=name) for owner in record.needs}
    check_arrays(arrays, part_arrays(record.path, shape, record.owner), owner=f"task '{name}'")
    for owner in needs:
        check_read(others.arrays(owner), record, owner, shape)
    record = msgspec.structs.replace(record, needs=needs)
    record = msgspec.structs.replace(record, prefix=prefix_of(record))
    for field in ("prefix", "arrays", "needs"):
        if getattr(given, field) and getattr(given, field) != getattr(record, field):
            raise BundleError(
                f"the record of task '{name}' has another digest of its {field}",
                got=getattr(given, field),
                allowed=getattr(record, field),
                do="leave the field empty",
            )
    return record


def check_read(arrays: Arrays, record: TaskRecord, owner: str, shape: Architecture) -> dict[str, np.ndarray]:
    """Those of another owner's arrays that the task reads; WeightsMismatch where one is missing or of another shape."""
    expected = part_arrays(record.path, shape, owner)
    read = {name: array for name, array in arrays.items() if name in expected}
    check_arrays(read, expected, owner=f"{titled(owner)}, as task '{record.task.name}' reads them")
    return read


def check_all_read(family: FamilyDraft, records: Sequence[TaskRecord], shape: Architecture) -> None:
    """Raises BundleError for a family that none of these tasks reads, WeightsMismatch for such an array."""
    if all(family.family not in record.needs for record in records):
        raise BundleError(f"no task that is added reads {titled(family.family)}", do="leave the family out")
    read: dict[str, tuple[int, ...]] = {}
    for record in records:
        read |= part_arrays(record.path, shape, family.family)
    check_arrays(family.arrays, read, owner=titled(family.family))
