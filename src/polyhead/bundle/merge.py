"""Joining bundles that share a trunk: every file is copied byte for byte, nothing is decoded and written again.

A task's version is copied under the next free number of its new bundle: numbers count the versions of one bundle, and
the older ones of the bundle it comes from stay there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path as FilePath

import msgspec

from polyhead.arguments import twice_in
from polyhead.bundle.atomic import check_absent, new_bundle_at
from polyhead.bundle.files import check_hash, open_inside, read_inside, write_shared, writing_bundle
from polyhead.bundle.format import (
    CARD,
    CODEC,
    FAMILY,
    FORMAT,
    LARGEST_TEXT,
    LINEAGE,
    PART,
    PROBES,
    SCORES,
    SEEN,
    TASK,
    TASKS,
    TOKENIZER,
    TRUNK,
    TRUNK_RECORD,
    WEIGHTS,
)
from polyhead.bundle.manifest import BundleFile, TaskRecord, TrunkRecord, read_bundle_file, read_trunk_record, renamed
from polyhead.bundle.owners import Owned, is_family, new_names, owner_named, place_of, task_names, tasks_text
from polyhead.bundle.read import Bundle
from polyhead.bundle.versions import NewVersion, TakenNames, add_versions, live_owned, replace_lines
from polyhead.errors import BadName, BundleError, CorruptFile, UnknownTask, WrongTrunk
from polyhead.files import sync_folder, write_file
from polyhead.values import to_json

CHUNK = 2**20  # bytes copied at a time
ITSELF = "name another bundle, or give each task another name with --as"
CLASH = (
    "rename one of them with `polyhead tasks add --as`, replace it with `polyhead tasks update`, or choose which tasks "
    "to take"
)


def merge_bundles(
    root: FilePath | str,
    sources: Sequence[Bundle],
    *,
    tasks: Mapping[int, Sequence[str]] | None = None,
    prove: Callable[[Bundle], None] | None = None,
) -> Bundle:
    """A new bundle at `root` with the sources' trunk and the live versions of their tasks, in order.

    `tasks` chooses those of a source by its place; a source that is not named there gives all it has. `prove` is
    called with the whole bundle before it gets its name, and may refuse it by raising. All or nothing, also under a
    kill or a full disk: `root`, which must be absent or empty, becomes a whole bundle in one step. Raises WrongTrunk,
    BadName or another BundleError that names both sides.
    """
    root = FilePath(root).resolve()
    _check_sources(root, sources)
    chosen = _chosen(sources, tasks or {})
    _check_trunks(chosen)
    _check_all(chosen, chosen[0])
    with new_bundle_at(root) as unnamed:
        _write(unnamed, chosen)
        if prove is not None:
            prove(Bundle.open(unnamed))
    return Bundle.open(root)


def select_from(source: Bundle, names: Sequence[str] | None = None) -> Bundle:
    """A view of the tasks of these names, or of all; raises UnknownTask for an unknown name."""
    lines = source.lines
    wanted = dict.fromkeys(lines if names is None else names)
    unknown = [name for name in wanted if name not in lines]
    if unknown:
        raise UnknownTask(f"{source.root} has no such task", got=unknown, allowed=sorted(lines))
    return source.view({name: lines[name] for name in wanted})


def copy_tasks(
    source: Bundle,
    names: Sequence[str],
    target: Bundle,
    *,
    replace: bool = False,
    called: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Copies tasks' live versions to a bundle of the same trunk, byte for byte, and makes all live there in one step.

    `called` gives some of them other names; their task.json,
    and those of tasks that read their arrays, are written anew. Families that the tasks read come with them, under
    another name where theirs is taken by other arrays. Gives the new versions' names, by task. All or nothing, also
    under a kill. Raises BadName for a name that is taken and not to be replaced, WrongTrunk for another trunk,
    CorruptFile for a file that is not as it was written, BundleError for some of the tasks that can only change
    together, without the others.
    """
    root = target.root
    if source.root.resolve() == root.resolve() and set(names) - set(called or {}):
        raise BundleError(f"{root} cannot give {tasks_text(names)} to itself under one name", do=ITSELF)
    chosen = select_from(source, names)
    _check_trunks([target, source])
    taken = _fitting(chosen, target)
    owners = {owner_named(name): owner_named((called or {}).get(name, name)) for name in taken.lines}
    with writing_bundle(root, f"{tasks_text(names)} cannot be copied to {root}"):
        bundle = read_bundle_file(root)
        _check_names(owners, source, root, bundle, replace=replace)
        owned = {owner: live_owned(root, bundle, owner) for owner in bundle.lines}
        versions = add_versions(root, bundle, _copies(taken, owners, owned))
    return {name: versions[owner_named(name)] for name in task_names(owners.values())}


def _check_names(
    owners: Mapping[str, str], source: Bundle, root: FilePath, bundle: BundleFile, *, replace: bool
) -> None:
    """Raises BadName unless tasks may have these new names (owner in the source -> owner here)."""
    taken = TakenNames(bundle.lines)
    for old, owner in owners.items():
        (name,) = task_names([owner])
        for other in bundle.tasks if old == owner else ():
            if other != name or not replace:
                _check_apart(name, source.root, other, root)
        taken.add(owner, replace=replace)


def _check_sources(root: FilePath, sources: Sequence[Bundle]) -> None:
    if not sources:
        raise BundleError("there is nothing to merge", do="name at least one bundle")
    places = [source.root.resolve() for source in sources]
    for place in places:
        if root.is_relative_to(place):
            raise BundleError(
                f"the merged bundle cannot be written to {root}",
                got=f"{place}, which is to be merged",
                do="name a new folder for it",
            )
    for place in twice_in(places):
        raise BundleError(f"{place} is to be merged twice", do="name it once, with all its tasks")
    check_absent(root)


def _check_trunks(sources: Sequence[Bundle]) -> None:
    first = sources[0]
    for other in sources[1:]:
        if other.digest != first.digest:
            raise WrongTrunk(
                f"{first.root} and {other.root} stand on different trunks: "
                f"{trunk_difference(read_trunk_record(first.root), read_trunk_record(other.root))}",
                got=_described(other),
                allowed=_described(first),
                do="train the tasks of one on the trunk of the other, with the same max_tokens",
            )


def trunk_difference(first: TrunkRecord, other: TrunkRecord) -> str:
    """In what two trunks differ, in words."""
    if first.architecture != other.architecture:
        return "their shapes differ"
    if first.settings != other.settings:
        return f"max_tokens is {first.settings.max_tokens} and {other.settings.max_tokens}"
    return "their weights differ" if first.arrays != other.arrays else "their tokenizers differ"


def _described(bundle: Bundle) -> str:
    shape = bundle.architecture
    return f"trunk {bundle.digest} ({bundle.trunk_name}, {shape.layers} layers of width {shape.width})"


def _chosen(sources: Sequence[Bundle], tasks: Mapping[int, Sequence[str]]) -> list[Bundle]:
    """The tasks that are copied from each source."""
    beyond = sorted(set(tasks) - set(range(len(sources))))
    if beyond:
        raise BundleError("tasks are chosen of a bundle that is not there", got=beyond)
    choices = [select_from(source, tasks.get(place)) for place, source in enumerate(sources)]
    if not any(choice.lines for choice in choices):
        raise BundleError(
            "there is nothing to merge: no task", got=[str(s.root) for s in sources], do="train some first"
        )
    return choices


def _check_all(chosen: Sequence[Bundle], trunk: Bundle) -> None:
    """Raises BadName for two names that would be one folder on a system that ignores case, or an unfit task's error."""
    roots: dict[str, FilePath] = {}
    for choice in chosen:
        _fitting(choice, trunk)
        for name in choice.lines:
            for other, root in roots.items():
                _check_apart(name, choice.root, other, root)
            roots[name] = choice.root


def _fitting(taken: Bundle, trunk: Bundle) -> Bundle:
    """The bundle, its tasks read and so checked; the error of one that does not fit the trunk names both sides."""
    try:
        _ = taken.tasks
    except CorruptFile:
        raise
    except BundleError as error:
        raise error.at(f"{taken.root} cannot be merged over the trunk of {trunk.root}") from None
    return taken


def _check_apart(name: str, source: FilePath, other: str, target: FilePath) -> None:
    if name == other:
        raise BadName(f"both {target} and {source} have a task '{name}'", got=name, do=CLASH)
    if name.casefold() == other.casefold():
        raise BadName(
            f"task '{other}' of {target} and task '{name}' of {source} differ in case alone", got=name, do=CLASH
        )


def _write(root: FilePath, chosen: Sequence[Bundle]) -> None:
    root.mkdir()
    _copy_trunk(chosen, root / TRUNK)
    new: dict[str, NewVersion] = {}
    for choice in chosen:
        owners = {owner: owner for owner in map(owner_named, choice.lines)}
        new |= _copies(choice, owners, {owner: known.owned for owner, known in new.items()})
    with writing_bundle(root, f"{root} cannot be written"):
        empty = BundleFile(format=FORMAT, trunk=chosen[0].digest, tasks={})
        replace_lines(root, empty, {})
        add_versions(root, empty, new)


def _copies(source: Bundle, owners: Mapping[str, str], target: Mapping[str, Owned | None]) -> dict[str, NewVersion]:
    """Copies of the source's tasks and the families they read, by the owners' new names, into `target`."""
    records = source.tasks
    needed = {o: d for record in records.values() for o, d in record.needs.items() if is_family(o)}
    still_needed = {need for o, facts in target.items() if o not in owners.values() and facts for need in facts.needs}
    families = {o: facts.arrays if facts else "" for o, facts in target.items() if is_family(o)}
    names = {**owners, **new_names(needed, families, free=set(families) - still_needed)}
    others = {old: new for old, new in names.items() if old != new}
    versions = {}
    for family, digest in needed.items():
        if families.get(names[family]) != digest:
            copy = partial(_copy_family, source, family, names[family])
            versions[names[family]] = NewVersion(owned=Owned(arrays=digest), write=copy)
    for name, record in records.items():
        moved, owner = record, names[owner_named(name)]
        if others.keys() & {record.owner, *record.needs}:
            moved = renamed(record, others)
        owned = Owned(arrays=moved.arrays, needs=moved.needs)
        versions[owner] = NewVersion(owned=owned, write=partial(_copy_version, source, name, moved))
    return versions


def _copy_trunk(sources: Sequence[Bundle], folder: FilePath) -> None:
    """Copies the first bundle's trunk, and the first lineage that any of them has: one trunk has one origin."""
    source = sources[0]
    source.trunk()  # its arrays are those of its digest, which the file's hash alone does not say
    record = read_trunk_record(source.root)
    folder.mkdir()
    _copy(source.root, (TRUNK, WEIGHTS), folder, record.weights)
    _copy(source.root, (TRUNK, TOKENIZER), folder, record.tokenizer)
    _copy(source.root, (TRUNK, TRUNK_RECORD), folder, None)  # hashed when the new bundle is opened
    learned = next((bundle.root for bundle in sources if os.path.lexists(bundle.root / TRUNK / LINEAGE)), None)
    if learned is not None:
        _copy(learned, (TRUNK, LINEAGE), folder, None)  # no digest covers it
    sync_folder(folder)


def _copy_version(source: Bundle, name: str, record: TaskRecord, folder: FilePath) -> str:
    """Copies all files of a task's live version into a new folder; returns the SHA-256 of its task.json, the last file.

    `record` is the task's, or says otherwise what owners are called.
    """
    source.part(name)
    source.others(name)
    place = (TASKS, name, source.version(name))
    folder.mkdir()
    for file in (PART, SCORES, PROBES, *(file for file in (SEEN,) if file in record.files)):
        _copy(source.root, (*place, file), folder, record.files.get(file, ""))
    if os.path.lexists(source.root.joinpath(*place, CARD)):
        _copy(source.root, (*place, CARD), folder, None)  # people may edit a card
    if CODEC in record.files:
        content = read_inside(source.root, *place, CODEC, limit=LARGEST_TEXT)
        check_hash(source.root.joinpath(*place, CODEC), write_shared(folder / CODEC, content), record.files[CODEC])
    if record == source.tasks[name]:
        hashed = _copy(source.root, (*place, TASK), folder, source.lines[name].record)
    else:
        hashed = write_file(folder / TASK, [to_json(record)])
    sync_folder(folder)
    return hashed


def _copy_family(source: Bundle, family: str, called: str, folder: FilePath) -> str:
    """Copies a family's live version, its arrays byte for byte; returns the SHA-256 of its family.json."""
    record, place = source.family(family), (*place_of(family), source.families[family].version)
    folder.mkdir()
    _copy(source.root, (*place, PART), folder, record.part)
    hashed = write_file(folder / FAMILY, [to_json(msgspec.structs.replace(record, family=called))])
    sync_folder(folder)
    return hashed


def _copy(root: FilePath, names: tuple[str, ...], folder: FilePath, expected: str | None) -> str:
    """Copies a file; returns its SHA-256, in hex. Raises CorruptFile, with the source, if it is another."""
    with open_inside(root, *names) as file:
        digest = write_file(folder / names[-1], iter(lambda: file.read(CHUNK), b""))
    if expected is not None:
        check_hash(root.joinpath(*names), digest, expected)
    return digest
