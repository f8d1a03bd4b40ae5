"""A bundle, open for reading: a snapshot of bundle.json, and the files that it names, read on demand."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path as FilePath
from typing import Any, Self

import msgspec
import numpy as np

from polyhead.arguments import typed
from polyhead.bundle import write
from polyhead.bundle.files import check_hash, hash_inside, read_arrays, read_inside, release
from polyhead.bundle.format import (
    CODEC,
    LARGEST_TEXT,
    PART,
    PROBES,
    SCORES,
    SEEN,
    TASK,
    TASKS,
    TOKENIZER,
    TRUNK,
    WEIGHTS,
)
from polyhead.bundle.live_versions import LiveVersions
from polyhead.bundle.manifest import (
    BundleFile,
    Live,
    TaskRecord,
    TrunkRecord,
    check_trunk,
    read_bundle_file,
    read_task,
    read_tokenizer,
    read_trunk_record,
)
from polyhead.bundle.owners import connected, is_family, owner_named, place_of, task_names, titled
from polyhead.bundle.remove import remove_tasks
from polyhead.bundle.versions import check_known
from polyhead.bundle.write import FamilyRecord, check_read, read_family
from polyhead.codecs.tables import is_known, take_table
from polyhead.encoder.data import HashedArrays, TrunkData, TrunkFacts, arrays_digest, check_arrays
from polyhead.encoder.shape import Architecture
from polyhead.errors import CorruptFile, PolyheadError, UnknownTask, WeightsMismatch
from polyhead.lazy import lazy
from polyhead.plan.cost import part_arrays
from polyhead.text.tokenizer_file import check_ids


class Bundle(LiveVersions):
    """A trunk and its tasks. What changes on disk after `open` is seen by opening again."""

    def __init__(self, root: FilePath, content: BundleFile, whole: BundleFile | None = None) -> None:
        self.root, self._content = root, content
        self._whole = whole or content  # of a view: with the owners that it does not show
        self._records: dict[str, TaskRecord] = {}
        self._families: dict[str, FamilyRecord] = {}
        self._foreign: dict[str, dict[str, np.ndarray]] = {}

    @classmethod
    @typed
    def open(cls, root: FilePath | str, *, verify: bool = True) -> Self:
        """The bundle in this folder.

        `verify` hashes every small file (all task.json, trunk.json, tokenizer.json) at once, and checks that every
        task finds the arrays of others that it was made with; without it each is checked when first read. Arrays
        are always hashed when read. Raises BundleError, or one of its kinds.
        """
        root = FilePath(root)
        bundle = cls(root, read_bundle_file(root))
        if verify:
            bundle._read_small_files()
        return bundle

    @property
    def digest(self) -> str:
        """The trunk's digest."""
        return self._content.trunk

    @property
    def trunk_name(self) -> str:
        """The origin of the trunk, in words."""
        return self._record.name

    @property
    def architecture(self) -> Architecture:
        """The trunk's shape, known without reading its arrays."""
        return self._record.architecture

    @lazy
    def tasks(self) -> Mapping[str, TaskRecord]:
        """The live version of every task, by name."""
        return {name: self._record_of(name) for name in self._content.tasks}

    @property
    def lines(self) -> Mapping[str, Live]:
        """The live version of every task and the SHA-256 of its task.json, as bundle.json says."""
        return self._content.tasks

    @property
    def families(self) -> Mapping[str, Live]:
        """The live version of every family and the SHA-256 of its family.json, by owner."""
        return self._content.families

    @property
    def removed(self) -> tuple[str, ...]:
        """Tasks that training made and a person removed since; training leaves them unless asked by their names."""
        return self._content.removed

    def groups(self) -> list[frozenset[str]]:
        """Tasks that can only change together, since one reads the prompt of another; a task alone is in none."""
        prompts = [
            (owner_named(name), owner)
            for name, record in self.tasks.items()
            for owner in record.needs
            if not is_family(owner)
        ]
        return [frozenset(task_names(owners)) for owners in connected(prompts)]

    def record(self, name: str) -> TaskRecord:
        """The live task.json of a task."""
        self._live(name)
        return self._record_of(name)

    def trunk(self) -> TrunkData:
        """The trunk with its arrays, memory-mapped; hashed at the first call (0.1 s for 90 MB).

        They are to be read: a session on them drops what was written into them.
        """
        return self._trunk

    def trunk_facts(self) -> TrunkFacts:
        """The trunk without its arrays, which are not read."""
        record = self._record
        return TrunkFacts(
            name=record.name,
            architecture=record.architecture,
            tokenizer=self.tokenizer,
            settings=record.settings,
            digest=self.digest,
        )

    def part(self, name: str) -> dict[str, np.ndarray]:
        """The arrays that a task owns, memory-mapped, hashed and checked against the task's path."""
        record, path = self.record(name), self.root.joinpath(*self._place(name), PART)
        arrays = self._arrays(self._place(name), record.arrays)
        try:
            check_arrays(arrays, part_arrays(record.path, self.architecture, record.owner), owner=f"task '{name}'")
        except PolyheadError as error:
            raise CorruptFile(
                f"{path} does not fit its task.json", got=error, do="restore the folder", path=path
            ) from None
        return arrays

    def others(self, name: str) -> dict[str, dict[str, np.ndarray]]:
        """The arrays that a task reads of owners other than itself and the trunk, memory-mapped, hashed and checked.

        Raises CorruptFile if they are not those that the task was made with.
        """
        self._check_needs(name)
        record, arrays = self.record(name), dict[str, dict[str, np.ndarray]]()
        for owner in record.needs:
            try:
                arrays[owner] = check_read(self._arrays_of(owner), record, owner, self.architecture)
            except WeightsMismatch as error:
                path = self.root.joinpath(*self._place(name), TASK)
                raise CorruptFile(
                    f"{path} does not fit the arrays that it needs", got=error, do="restore the folder", path=path
                ) from None
        return arrays

    def seen(self, name: str) -> bytes | None:
        """The summary of the rows that a task was validated on, read by `bundle.row_profile`; None if it has none."""
        return self.read_file(name, SEEN) if SEEN in self.record(name).files else None

    def family(self, owner: str) -> FamilyRecord:
        """The live record of a family."""
        if not isinstance(owner, str) or owner not in self._whole.families:
            raise UnknownTask("the bundle has no such family", got=owner, allowed=sorted(self._whole.families))
        if owner not in self._families:
            live = self._whole.families[owner]
            self._families[owner] = read_family(self.root, owner, live, trunk=self.digest)
        return self._families[owner]

    def verify(self) -> None:
        """Hashes every live file; raises CorruptFile that names one changed since it was written."""
        for error in self.touched():
            raise error

    def touched(self) -> Iterator[PolyheadError]:
        """Hashes every live file; an error for each that is not as it was written, the trunk's files first."""
        yield from _errors(
            itertools.chain(
                [self._check_trunk_files, self.trunk],
                *(self._family_checks(owner, live) for owner, live in self.families.items()),
                self._task_checks(),
                (partial(self.view({name: line}).others, name) for name, line in self.lines.items()),
            )
        )

    def touched_family(self, owner: str, live: Live) -> Iterator[PolyheadError]:
        """The same for the files of one version of a family."""
        yield from _errors(self._family_checks(owner, live))

    def touched_tasks(self) -> Iterator[PolyheadError]:
        """The same for the files of the tasks only."""
        yield from _errors(self._task_checks())

    def view(self, lines: Mapping[str, Live]) -> Self:
        """The same trunk, loaded once for both, with these lines of bundle.json: fewer tasks, or other versions."""
        whole = self._whole
        if any(whole.tasks.get(name) != live for name, live in lines.items()):
            whole = msgspec.structs.replace(whole, tasks={**whole.tasks, **lines})
        view = type(self)(self.root, msgspec.structs.replace(self._content, tasks=dict(lines)), whole)
        loaded = ("_record", "_trunk", "tokenizer")
        view.__dict__.update({key: self.__dict__[key] for key in loaded if key in self.__dict__})
        same = (name for name in self._records if whole.tasks.get(name) == self._whole.tasks.get(name))
        view._records.update({name: self._records[name] for name in same})
        return view

    @typed
    def add_task(
        self,
        record: TaskRecord,
        arrays: Mapping[str, np.ndarray],
        *,
        scores: Mapping[str, Any],
        probes: Sequence[Mapping[str, Any]],
        card: str,
        replace: bool = False,
    ) -> str:
        """Writes a task as a new version, makes it live, and gives the version's name.

        All or nothing, also under a kill or a full disk. Raises BadName for a name that is taken and not to
        be replaced, WrongTrunk for a part of another trunk, WeightsMismatch for arrays that are not the
        path's.
        """
        draft = write.Draft(record=record, arrays=arrays, scores=scores, probes=probes, card=card)
        return write.add_tasks(self.root, [draft], replace=replace)[record.task.name]

    @typed
    def remove_task(self, name: str) -> None:
        """Removes a task and all its versions; no other task is touched."""
        remove_tasks(self.root, [name])

    @typed
    def set_version(self, name: str, version: str) -> None:
        """Rolls a task back (or forward) to a version that is still on disk; one before the newest is pinned."""
        write.set_versions(self.root, {name: version})

    def _read_small_files(self) -> None:
        for name in ("tokenizer", "tasks"):
            getattr(self, name)
        for owner in self.families:
            self.family(owner)
        for name in self.tasks:
            self._check_needs(name)

    def _check_needs(self, name: str) -> None:
        """Raises CorruptFile unless the live owners have the arrays that the task was made with."""
        for owner, digest in self.record(name).needs.items():
            present = self._digest_of(owner)
            if present != digest:
                path = self.root.joinpath(*self._place(name), TASK)
                raise CorruptFile(
                    f"task '{name}' of {self.root} needs other arrays of {titled(owner)} than the bundle holds",
                    got=f"arrays {present or 'of nobody'}",
                    allowed=f"arrays {digest}",
                    do="restore the bundle from a copy, or add the task again with all that change with it",
                    path=path,
                )

    def _family_checks(self, owner: str, live: Live) -> Iterator[Callable[[], object]]:
        families = {**self._whole.families, owner: live}
        view = type(self)(self.root, msgspec.structs.replace(self._content, tasks={}, families=families))
        place = (*place_of(owner), live.version)
        yield partial(view.family, owner)
        yield lambda: check_hash(
            self.root.joinpath(*place, PART), hash_inside(self.root, *place, PART), view.family(owner).part
        )
        yield partial(view._arrays_of, owner)

    def _task_checks(self) -> Iterator[Callable[[], object]]:
        for name, line in self.lines.items():
            view = self.view({name: line})
            yield partial(getattr, view, "tasks")
            yield partial(view._check_names, name)
            yield from (partial(view._hashed, name, file) for file in (PART, SCORES, PROBES))
            yield partial(view._check_codec, name)
            yield partial(view.seen, name)
            yield partial(view.part, name)

    def _check_trunk_files(self) -> None:
        for file, expected in ((WEIGHTS, self._record.weights), (TOKENIZER, self._record.tokenizer)):
            check_hash(self.root / TRUNK / file, hash_inside(self.root, TRUNK, file), expected)

    def _check_names(self, name: str) -> None:
        record = self.record(name)
        for file in record.files:
            if file not in (allowed := [PART, SCORES, PROBES, CODEC, SEEN]):
                raise CorruptFile(f"task.json of '{name}' names a foreign file", got=file, allowed=allowed)

    @lazy
    def _record(self) -> TrunkRecord:
        return read_trunk_record(self.root)

    @lazy
    def tokenizer(self) -> bytes:
        """The trunk's tokenizer file; with trunk.json it must give the trunk's digest."""
        content = read_tokenizer(self.root, self._record)
        check_trunk(self.root, self._record, content, self.digest)
        return content

    @lazy
    def _trunk(self) -> TrunkData:
        record, tokenizer = self._record, self.tokenizer
        arrays = read_arrays(self.root, TRUNK, WEIGHTS)
        check_hash(self.root / TRUNK / WEIGHTS, arrays_digest(arrays), record.arrays)
        try:
            check_ids(tokenizer, record.architecture.vocabulary, owner="the trunk")
            data = TrunkData(
                name=record.name,
                architecture=record.architecture,
                arrays=arrays,
                tokenizer=tokenizer,
                settings=record.settings,
                hashed=HashedArrays(arrays, record.arrays),
            )
        except PolyheadError as error:
            raise CorruptFile(f"the trunk of {self.root} contradicts itself", got=error) from None
        release(arrays.values())  # all were read to be checked
        return data

    def _record_of(self, name: str) -> TaskRecord:
        """The record of a task, also of one that a view does not show."""
        if name not in self._records:
            live, shape = self._whole.tasks[name], self.architecture
            record = read_task(self.root, name, live, trunk=self.digest, shape=shape)
            place, table = (TASKS, name, live.version, CODEC), record.path.pool.codec.arrays
            if not is_known(table):  # the arrays that the task's path names, for all that run it
                take_table(read_inside(self.root, *place, limit=LARGEST_TEXT), table, self.root.joinpath(*place))
            self._records[name] = record
        return self._records[name]

    def _check_codec(self, name: str) -> None:
        if CODEC in self.record(name).files:
            self._hashed(name, CODEC)

    def _digest_of(self, owner: str) -> str:
        """Digest of the arrays of a task or a family; "" where there is none of this name."""
        if self._whole.live(owner) is None:
            return ""
        return (self.family(owner) if is_family(owner) else self._record_of(*task_names([owner]))).arrays

    def _arrays_of(self, owner: str) -> dict[str, np.ndarray]:
        """All arrays of a task or a family, read and hashed once."""
        if owner not in self._foreign:
            live = self._whole.live(owner)
            assert live is not None  # `_check_needs` has looked
            self._foreign[owner] = self._arrays((*place_of(owner), live.version), self._digest_of(owner))
        return self._foreign[owner]

    def _arrays(self, place: tuple[str, str, str], digest: str) -> dict[str, np.ndarray]:
        arrays = read_arrays(self.root, *place, PART)
        check_hash(self.root.joinpath(*place, PART), arrays_digest(arrays), digest)
        return arrays

    def _live(self, name: str) -> Live:
        check_known(self._content, name)
        return self._content.tasks[name]


def _errors(checks: Iterable[Callable[[], object]]) -> Iterator[PolyheadError]:
    seen = set()
    for check in checks:
        try:
            check()
        except PolyheadError as error:
            if str(error) not in seen:  # a trunk.json that cannot be read stops every task
                seen.add(str(error))
                yield error
