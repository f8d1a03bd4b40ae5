"""Adding, replacing and rolling back the tasks of a bundle, with the families that they read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path as FilePath
from typing import Any

import msgspec
import numpy as np

from polyhead.bundle.files import check_hash, read_arrays, write_arrays, write_shared, writing_bundle
from polyhead.bundle.format import CARD, CODEC, FAMILY, PART, PROBES, SCORES, SEEN, TASK, TASKS
from polyhead.bundle.live_versions import ScoreNotes
from polyhead.bundle.manifest import (
    BundleFile,
    Live,
    TaskRecord,
    TrunkRecord,
    check_fit,
    foreign_owners,
    plugins_of,
    prefix_of,
    read_bundle_file,
    read_record,
    read_task,
    read_trunk_record,
)
from polyhead.bundle.owners import Owned, is_family, owner_named, place_of, tasks_text, titled
from polyhead.bundle.versions import (
    NewVersion,
    TakenNames,
    add_versions,
    check_known,
    live_owned,
    on_disk,
    replace_lines,
    version_on_disk,
    version_with,
    without_reader,
)
from polyhead.codecs.tables import table_bytes
from polyhead.encoder.data import arrays_digest, check_arrays
from polyhead.encoder.shape import Architecture
from polyhead.errors import BundleError, CorruptFile
from polyhead.files import sync_folder, write_file
from polyhead.plan import LEAST_READ
from polyhead.plan.cost import part_arrays
from polyhead.tasks.task import Task, owner_of
from polyhead.values import Value, to_json


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
    record, path = read_record(root, owner, live, FamilyRecord)
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


Arrays = Mapping[str, np.ndarray]


class OtherOwners:
    """Arrays of other owners that the tasks to add may read: added in the same call, else live."""

    def __init__(self, root: FilePath, bundle: BundleFile, added: Mapping[str, Arrays]) -> None:
        self._root, self._bundle, self._added = root, bundle, added
        self._digests = {owner: arrays_digest(arrays) for owner, arrays in added.items()}

    def digest(self, owner: str, *, of: str = "") -> str:
        """Digest of all arrays of an owner; raises BundleError if there are none, naming the task that needs them."""
        if owner not in self._digests:
            known = live_owned(self._root, self._bundle, owner)
            if known is None:
                raise BundleError(
                    f"task '{of}' needs the arrays of {titled(owner)}",
                    got="a damaged record" if self._bundle.live(owner) is not None else "none, neither given nor live",
                    do="add the tasks of a group and the families that they read in one call",
                )
            self._digests[owner] = known.arrays
        return self._digests[owner]

    def arrays(self, owner: str) -> Arrays:
        """All arrays of an owner whose digest is known."""
        if owner in self._added:
            return self._added[owner]
        return read_arrays(self._root, *place_of(owner), self._bundle.lines[owner].version, PART)


def completed(
    record: TaskRecord, arrays: Arrays, others: OtherOwners, *, trunk: str, shape: Architecture
) -> TaskRecord:
    """The record with its empty fields filled in; the others must agree, and the arrays must be the path's."""
    draft, name = record, record.task.name
    record = msgspec.structs.replace(record, owner=record.owner or owner_of(record.task), arrays=arrays_digest(arrays))
    record = msgspec.structs.replace(record, needs=dict.fromkeys(foreign_owners(record), ""))
    check_fit(record, trunk=trunk, shape=shape)
    needs = {owner: others.digest(owner, of=name) for owner in record.needs}
    check_arrays(arrays, part_arrays(record.path, shape, record.owner), owner=f"task '{name}'")
    for owner in needs:
        check_read(others.arrays(owner), record, owner, shape)
    record = msgspec.structs.replace(record, needs=needs)
    record = msgspec.structs.replace(record, prefix=prefix_of(record), plugins=plugins_of(record))
    for field in ("prefix", "arrays", "needs"):
        if getattr(draft, field) and getattr(draft, field) != getattr(record, field):
            raise BundleError(
                f"the record of task '{name}' has another digest of its {field}",
                got=getattr(draft, field),
                allowed=getattr(record, field),
                do="leave the field empty",
            )
    return record


def check_room(record: TaskRecord, trunk: TrunkRecord) -> None:
    """Raises BundleError if shifted prompts leave a text fewer tokens than LEAST_READ, and than the trunk reads."""
    positions, rows = trunk.architecture.max_tokens, record.path.embed.shifted
    most = positions - min(LEAST_READ, trunk.settings.max_tokens)
    if rows > most:
        raise BundleError(
            f"the prompts of task '{record.task.name}' leave too little room for a text, which they shift",
            got=f"{rows} prompt rows, of {positions} positions",
            allowed=f"{most} rows",
            do="train it with fewer prompt rows, or with strategy.shift = false",
        )


def check_read(arrays: Arrays, record: TaskRecord, owner: str, shape: Architecture) -> dict[str, np.ndarray]:
    """The arrays of another owner that the task reads; WeightsMismatch if one is missing or of another shape."""
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


class Draft(Value, eq=False):
    """A task to write; see `Bundle.add_task`."""

    record: TaskRecord
    arrays: Mapping[str, np.ndarray]
    scores: Mapping[str, Any]
    probes: Sequence[Mapping[str, Any]]
    card: str
    seen: bytes | None = None  # the summary of its rows, where it is kept
    pinned: bool = False  # as in bundle.json: a person went back to this version, or to the one that it calibrates

    @property
    def task(self) -> Task:
        """The task as the version declares it."""
        return self.record.task

    def write_version(self, folder: FilePath) -> str:
        """Writes all files of one version into a new folder; the SHA-256 of its task.json, which is written last.

        Raises BundleError for notes that JSON cannot hold or that could not be read again.
        """
        name, table = self.task.name, self.record.path.pool.codec.arrays
        try:
            scores, probes = to_json(self.scores), b"".join(msgspec.json.encode(probe) + b"\n" for probe in self.probes)
            msgspec.json.decode(scores, type=ScoreNotes)  # a number that is not finite is null in JSON
            card = self.card.encode()
            folder.mkdir()
            hashes = {PART: write_arrays(folder / PART, self.arrays)}
            if table:  # which is named by what it holds and never changes: several versions may share it
                hashes[CODEC] = write_shared(folder / CODEC, table_bytes(table))
            if self.seen is not None:
                hashes[SEEN] = write_file(folder / SEEN, [self.seen])
            hashes[SCORES] = write_file(folder / SCORES, [scores])
            hashes[PROBES] = write_file(folder / PROBES, [probes])
            write_file(folder / CARD, [card])  # people may edit the card, so it has no hash
            digest = write_file(folder / TASK, [to_json(msgspec.structs.replace(self.record, files=hashes))])
        except (TypeError, UnicodeEncodeError) as error:
            raise BundleError(
                f"task '{name}' holds something that JSON cannot hold", got=error, do="give plain values"
            ) from None
        except msgspec.ValidationError as error:
            do = "leave out what was not measured"
            raise BundleError(
                f"task '{name}' has scores that could not be read again", got=error, allowed="finite numbers", do=do
            ) from None
        sync_folder(folder)
        return digest


def add_tasks(
    root: FilePath, drafts: Sequence[Draft], *, families: Sequence[FamilyDraft] = (), replace: bool = False
) -> dict[str, str]:
    """Writes a new version of each task and makes all live in one step, so that a kill leaves none or all of them.

    `families` are those that the tasks read and the bundle does not hold yet, or holds with other arrays. Returns the
    versions' names by task. Raises as `Bundle.add_task` does, and BundleError if another task would lose arrays that
    it reads.
    """
    names = [draft.task.name for draft in drafts]
    with writing_bundle(root, f"{tasks_text(names)} cannot be added to {root}"):
        bundle = read_bundle_file(root)
        versions = add_versions(root, bundle, _to_write(root, bundle, drafts, families, replace=replace))
    return {name: versions[owner_named(name)] for name in names}


def set_versions(root: FilePath, wanted: Mapping[str, str], *, records: Mapping[str, str | None] | None = None) -> None:
    """Makes versions on disk, by task, the live ones in one step, with the families that they were made with.

    A version that is not the newest of its task is pinned: training leaves it until it is asked by the task's name.
    `records` gives the SHA-256 that a version's task.json must have, by task, where a certificate noted it. Raises
    BundleError for a version that does not exist, or does not fit what stays live.
    """
    with writing_bundle(root, f"other versions of {tasks_text(list(wanted))} cannot be made live in {root}"):
        bundle = read_bundle_file(root)
        shape = read_trunk_record(root).architecture
        new: dict[str, tuple[Live, Owned]] = {}
        for name, version in wanted.items():
            check_known(bundle, name)
            live = version_on_disk(root, name, version, bundle.tasks[name])
            check_hash(root / TASKS / name / version / TASK, live.record, (records or {}).get(name) or live.record)
            record = read_task(root, name, live, trunk=bundle.trunk, shape=shape)
            new[owner_named(name)] = live, Owned(arrays=record.arrays, needs=record.needs)
        for _, owned in list(new.values()):
            new |= _families_of(root, bundle, owned)
        gone = without_reader(root, bundle, {owner: owned for owner, (_, owned) in new.items()})
        lines = {**bundle.lines, **{owner: live for owner, (live, _) in new.items()}}
        replace_lines(root, bundle, {owner: live for owner, live in lines.items() if owner not in gone})


def _to_write(
    root: FilePath, bundle: BundleFile, drafts: Sequence[Draft], families: Sequence[FamilyDraft], *, replace: bool
) -> dict[str, NewVersion]:
    """The arrays to write, by owner, families first; families that are live with the same arrays are left out."""
    trunk = read_trunk_record(root)
    shape = trunk.architecture
    versions, taken = dict[str, NewVersion](), TakenNames(bundle.lines)
    added = {owner_of(draft.task): draft.arrays for draft in drafts}
    others = OtherOwners(root, bundle, added | {family.family: family.arrays for family in families})
    records = [completed(draft.record, draft.arrays, others, trunk=bundle.trunk, shape=shape) for draft in drafts]
    for record in records:
        check_room(record, trunk)
    for family in families:
        owned = Owned(arrays=others.digest(family.family))
        if owned != live_owned(root, bundle, family.family):
            taken.add(family.family, replace=replace)
            check_all_read(family, records, shape)
            versions[family.family] = NewVersion(owned=owned, write=partial(write_family, family, bundle.trunk))
    for draft, record in zip(drafts, records, strict=True):
        taken.add(record.owner, replace=replace)
        owned = Owned(arrays=record.arrays, needs=record.needs)
        complete = msgspec.structs.replace(draft, record=record)
        versions[record.owner] = NewVersion(owned=owned, write=complete.write_version, pinned=draft.pinned)
    return versions


def _families_of(root: FilePath, bundle: BundleFile, owned: Owned) -> dict[str, tuple[Live, Owned]]:
    """The versions of families that a task was made with, where other versions are live."""
    lines = {}
    for owner, digest in owned.needs.items():
        wanted = Owned(arrays=digest)
        if is_family(owner) and live_owned(root, bundle, owner) != wanted:
            live = version_with(root, owner, digest)
            if live is None:
                raise BundleError(
                    f"the version needs arrays of {titled(owner)} that are no longer on disk",
                    got=f"versions {on_disk(root, owner)}",
                    allowed=f"arrays {digest}",
                    do="choose another version",
                )
            lines[owner] = live, wanted
    return lines
