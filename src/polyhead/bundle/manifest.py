"""bundle.json, trunk.json and task.json as values, and reading each with its checks."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path as FilePath
from typing import Any

import msgspec

from polyhead.bundle.files import check_hash, read_inside
from polyhead.bundle.format import (
    BUNDLE,
    FORMAT,
    LARGEST_DEPTH,
    LARGEST_JSON,
    LARGEST_TEXT,
    MOST_NEEDS,
    MOST_TASKS,
    TOKENIZER,
    TRUNK,
    TRUNK_RECORD,
)
from polyhead.bundle.owners import TASK_OF, check_family, is_family, owner_named, place_of, record_file, titled
from polyhead.encoder.data import TextSettings, trunk_digest
from polyhead.encoder.decoder import Decoder
from polyhead.encoder.shape import Architecture
from polyhead.errors import (
    BadName,
    BundleError,
    ConfigError,
    CorruptFile,
    PolyheadError,
    UnknownFormat,
    WrongTrunk,
    summary_of,
)
from polyhead.plan import TRUNK as TRUNK_OWNER
from polyhead.plan import Head, Path, digest, owners_of, owners_of_node
from polyhead.plugins import packages_of, unregistered
from polyhead.tasks.calibration import Calibration
from polyhead.tasks.generation import GenerationRules
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.limits import MOST_VALUES
from polyhead.tasks.task import Task, check_name, owner_of
from polyhead.values import Value, ValueT, from_json

VERSION = re.compile(r"v\d{4,9}")  # the name of a version's folder


class Live(Value, omit_defaults=True):
    """The live version of a task, and the SHA-256 of its task.json."""

    version: str
    record: str
    pinned: bool = False  # a person went back to it from a newer one, so training does not replace it unasked
    owns_model: bool = False  # of an earlier version: its record is of an encoder-decoder, which is no longer read


class BundleFile(Value, omit_defaults=True):
    """bundle.json: the only file that ever changes."""

    format: int
    trunk: str  # digest
    tasks: dict[str, Live]
    families: dict[str, Live] = {}  # by owner; written where there are any
    removed: tuple[str, ...] = ()  # tasks that training made and a person removed; written where there are any

    @property
    def lines(self) -> dict[str, Live]:
        """The live version of everything that owns arrays, by owner."""
        return {owner_named(name): live for name, live in self.tasks.items()} | self.families

    def live(self, owner: str) -> Live | None:
        """The live version of one owner, without a look at the others; None of one that the bundle does not name."""
        name = owner.removeprefix(TASK_OF)
        return self.families.get(owner) if name == owner else self.tasks.get(name)

    def of(self, lines: Mapping[str, Live]) -> BundleFile:
        """The same with these live versions, by owner."""
        tasks = {name: lines[owner] for owner in lines if (name := owner.removeprefix(TASK_OF)) != owner}
        families = {owner: live for owner, live in lines.items() if is_family(owner)}
        removed = tuple(name for name in self.removed if name not in tasks)
        return msgspec.structs.replace(self, tasks=tasks, families=families, removed=removed)


class TrunkRecord(Value):
    """trunk.json: all of a trunk but its arrays and tokenizer, whose digests it holds."""

    name: str
    architecture: Architecture
    settings: TextSettings
    arrays: str  # digest of the arrays, `trunk.data.arrays_digest`
    weights: str  # SHA-256 of the file that holds them
    tokenizer: str  # SHA-256 of tokenizer.json


class TaskRecord(Value):
    """task.json: the task, its path to an answer, and the digests of all its parts.

    Pass `task`, `path`, `trunk` and `trained_with`; empty fields are filled in when the task is added,
    and the others are checked.
    """

    task: Task
    path: Path
    trunk: str  # digest of the trunk that the part was trained on
    prefix: str = ""  # digest of `path.stored()`: which kept features the part fits
    owner: str = ""  # of the arrays in part.safetensors
    arrays: str = ""  # their digest, `trunk.data.arrays_digest`
    files: dict[str, str] = {}  # SHA-256 of part.safetensors, scores.json and probes.jsonl
    trained_with: dict[str, Any] = {}  # for people and for `train`: seed, data, precision, versions
    needs: dict[str, str] = {}  # owner -> digest of its arrays: families and other tasks that the path reads
    calibration: Calibration | None = None  # what stands beside its answers, where it was calibrated
    plugins: dict[str, str] = {}  # packages that register its kind or codec, where Polyhead itself does not


def read_bundle_file(root: FilePath) -> BundleFile:
    """bundle.json, its format number looked at first, its names and digests checked."""
    path = root / BUNDLE
    if not root.is_dir() or not (path.is_file() or path.is_symlink()):
        raise BundleError(
            f"there is no bundle at {root}", do="give the folder that holds bundle.json, which `polyhead train` writes"
        )
    raw = read_inside(root, BUNDLE, limit=LARGEST_JSON)
    written = decoded(raw, _Numbered, path).format
    if written != FORMAT:
        raise UnknownFormat(
            f"{path} was written by another version of polyhead",
            got=f"format {written}",
            allowed=[f"format {FORMAT}"],
            do="install the version that wrote it, or write the bundle again",
        )
    content = decoded(raw, BundleFile, path)
    for owner in content.families:
        check_family(owner)
    check_lines(path, content.lines, content.removed)
    check_digest(path, content.trunk)
    return content


def check_lines(path: FilePath, lines: Mapping[str, Live], removed: Collection[str]) -> None:
    """Raises CorruptFile for live versions, by owner, that are too many or none, BadName for the name of a task."""
    count = len(lines) + len(removed)
    if count > MOST_TASKS:
        raise CorruptFile(
            f"{path} lists too many tasks",
            got=f"{count:,} live versions",
            allowed=f"at most {MOST_TASKS:,}",
            do="split the bundle",
            path=path,
        )
    for name in removed:
        check_name(name)
    for owner, live in lines.items():
        if not is_family(owner):
            check_name(owner.partition(":")[2])
        if not VERSION.fullmatch(live.version):
            raise CorruptFile(f"{path}: {titled(owner)} has no version", got=live.version, allowed="v0001 and up")
        check_digest(path, live.record)


def check_digest(path: FilePath, value: str) -> None:
    """Raises CorruptFile for a value that is not a SHA-256 in hex."""
    if not re.fullmatch(r"[0-9a-f]{64}", value):
        raise CorruptFile(f"{path} holds a value that is not a digest", got=value)


def read_record(root: FilePath, owner: str, live: Live, kind: type[ValueT]) -> tuple[ValueT, FilePath]:
    """The record of a version, task.json or family.json, of the SHA-256 that its line names; and its path."""
    place = (*place_of(owner), live.version, record_file(owner))
    raw, path = read_inside(root, *place, limit=LARGEST_JSON), root.joinpath(*place)
    check_hash(path, hashlib.sha256(raw).hexdigest(), live.record)
    return decoded(raw, kind, path), path


def read_tokenizer(root: FilePath, record: TrunkRecord) -> bytes:
    """tokenizer.json, checked against the record."""
    content = read_inside(root, TRUNK, TOKENIZER, limit=LARGEST_TEXT)
    check_hash(root / TRUNK / TOKENIZER, hashlib.sha256(content).hexdigest(), record.tokenizer)
    return content


def read_trunk_record(root: FilePath) -> TrunkRecord:
    """trunk.json, without a look at the arrays or the tokenizer."""
    path = root / TRUNK / TRUNK_RECORD
    record = decoded(read_inside(root, TRUNK, TRUNK_RECORD, limit=LARGEST_JSON), TrunkRecord, path)
    if record.architecture.layers > LARGEST_DEPTH:
        raise CorruptFile(
            f"{path} is hostile", got=f"{record.architecture.layers} layers", allowed=LARGEST_DEPTH, path=path
        )
    return record


def check_trunk(root: FilePath, record: TrunkRecord, tokenizer: bytes, expected: str) -> None:
    """Raises CorruptFile unless record and tokenizer give the digest that bundle.json names."""
    digest = trunk_digest(record.architecture, record.arrays, tokenizer, record.settings)
    if digest != expected:
        path = root / TRUNK / TRUNK_RECORD
        raise CorruptFile(
            f"{path} was changed since it was written",
            got=f"trunk digest {digest}",
            allowed=expected,
            do="restore the trunk folder",
            path=path,
        )


def read_task(root: FilePath, name: str, live: Live, *, trunk: str, shape: Architecture) -> TaskRecord:
    """The live task.json of a task, checked against bundle.json and the trunk."""
    if live.owns_model:
        raise UnknownFormat(
            f"task '{name}' of {root} owns an encoder-decoder, which this version does not read",
            got=f"version {live.version} of the task",
            allowed="tasks that read the bundle's encoder",
            do=f"run `polyhead tasks remove {root} {name}` with the version that wrote it, and train the task again",
        )
    record, path = read_record(root, owner_named(name), live, TaskRecord)
    if record.task.name != name:
        raise CorruptFile(f"{path} belongs to another task", got=record.task.name, allowed=name, path=path)
    try:
        check_fit(record, trunk=trunk, shape=shape)
    except BundleError:
        raise
    except PolyheadError as error:
        raise CorruptFile(f"{path} contradicts itself", got=error, do="restore the file", path=path) from None
    return record


def check_fit(record: TaskRecord, *, trunk: str, shape: Architecture) -> None:
    """Raises WrongTrunk for a part of another trunk, BundleError for a path that cannot be this task's."""
    name = record.task.name
    for read_trunk in (record.trunk, record.path.embed.trunk):
        if read_trunk != trunk:
            raise WrongTrunk(
                f"the part of task '{name}' was trained on another trunk",
                got=f"trunk {read_trunk}",
                allowed=f"trunk {trunk}",
                do="train the task on this bundle's trunk, or add it to the bundle of its own trunk",
            )
    if record.owner != owner_of(record.task):
        problem, allowed = f"the part of task '{name}' has another owner", owner_of(record.task)
        raise BundleError(problem, got=record.owner, allowed=allowed)
    if len(record.needs) > MOST_NEEDS:
        raise BundleError(f"task '{name}' needs too many arrays", got=len(record.needs), allowed=MOST_NEEDS)
    if sorted(record.needs) != (foreign := foreign_owners(record)):
        raise BundleError(
            f"the record of task '{name}' does not say which arrays of others it needs",
            got=sorted(record.needs),
            allowed=foreign,
        )
    deepest = max((n.stop for n in record.path.layers if n.weights == TRUNK_OWNER), default=0)
    if deepest > shape.layers or any(n.stop > LARGEST_DEPTH for n in record.path.layers):
        raise BundleError(
            f"the path of task '{name}' runs deeper than its trunk", got=f"layer {deepest}", allowed=shape.layers
        )
    if record.calibration is not None:
        record.calibration.check(record.task)
    check_head(record.task, record.path.head, shape)


def foreign_owners(record: TaskRecord) -> list[str]:
    """The owners whose arrays the task reads, without the trunk and itself.

    Raises BundleError unless they are families, and other tasks of which it reads the prompt.
    """
    permitted, path = {TRUNK_OWNER, owner_of(record.task)}, record.path
    foreign = sorted(set(owners_of(path)) - permitted)
    beyond = {owner for node in path.nodes[1:] for owner in owners_of_node(node)}
    wrong = [o for o in foreign if not is_family(o) and (o in beyond or not o.startswith(TASK_OF))]
    if wrong:
        raise BundleError(
            f"task '{record.task.name}' reads arrays that are not its own",
            got=wrong,
            allowed=[*sorted(permitted), "families", "prompts of other tasks"],
            do="give the task a part of its own, or its tasks a family",
        )
    for owner in foreign:
        if is_family(owner):
            check_family(owner)
        else:
            check_name(owner.removeprefix(TASK_OF))
    return foreign


def prefix_of(record: TaskRecord) -> str:
    """The digest of the value that a store keeps for this task."""
    stored, known = record.path.stored(), {record.owner: record.arrays, **record.needs}
    return digest(stored, {owner: known[owner] for owner in owners_of(stored) if owner != TRUNK_OWNER})


def renamed(record: TaskRecord, owners: Mapping[str, str]) -> TaskRecord:
    """The same task with renamed owners (old -> new) in its name, path, needs and prefix."""
    owner = owners.get(record.owner, record.owner)
    task = msgspec.structs.replace(record.task, name=owner.removeprefix(TASK_OF))
    path = Path(nodes=tuple(_owned(node, owners) for node in record.path.nodes))
    needs = {owners.get(other, other): needed for other, needed in record.needs.items()}
    moved = msgspec.structs.replace(record, task=task, path=path, owner=owner, needs=needs)
    return msgspec.structs.replace(moved, prefix=prefix_of(moved))


def _owned(value: Any, owners: Mapping[str, str]) -> Any:
    """The value with its owners changed wherever a field names them: nodes, their prompts, their deltas."""
    if isinstance(value, msgspec.Struct):
        fields = {name: _owned(getattr(value, name), owners) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **fields)
    if isinstance(value, tuple):
        return tuple(_owned(item, owners) for item in value)
    return owners.get(value, value) if isinstance(value, str) else value


def decoded(raw: bytes, kind: type[ValueT], path: FilePath) -> ValueT:
    """Bytes of a JSON file as a value; raises CorruptFile that names the file, BadName for a task's name."""
    try:
        if (count := sum(map(raw.count, (b",", b"[", b"{")))) > MOST_VALUES:
            raise ConfigError("it holds too many values", got=f"{count:,}", allowed=f"{MOST_VALUES:,}")
        return from_json(raw, kind, source=str(path))
    except BadName:
        raise
    except (PolyheadError, RecursionError, UnicodeDecodeError, ValueError) as error:
        if missing := unregistered(error, BundleError, path, _plugins_in(raw)):
            raise missing from None
        raise CorruptFile(
            f"{path} cannot be understood",
            got=summary_of(error).removeprefix(f"{path}").lstrip(":, ") if isinstance(error, PolyheadError) else error,
            do="restore the file",
            path=path,
        ) from None


def _plugins_in(raw: bytes) -> object:
    """The plugins that a decodable task.json names."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError, AttributeError):
        return msgspec.json.decode(raw).get("plugins")
    return None


def plugins_of(record: TaskRecord) -> dict[str, str]:
    """The packages that register parts that a task needs, other than Polyhead's."""
    kind, codec = record.task.kind, record.path.pool.codec
    return packages_of({f"kind '{kind}'": kind_of(record.task), f"codec '{codec.name}'": codec.format})


class _Numbered(msgspec.Struct):
    """The one field that every format has."""

    format: int


def check_head(task: Task, head: Head, shape: Architecture) -> None:
    """Raises BundleError for a head of another kind or width, ConfigError for rules that a decoder cannot follow.

    A task that generates, and no other, has a decoder and rules of generation.
    """
    kind, decoder, rules = kind_of(task), head.decoder, task.generation
    width = shape.vocabulary if kind.generates else kind.width(task)
    if (head.kind, head.width) != (task.kind, width):
        raise BundleError(
            f"the head of task '{task.name}' does not answer it",
            got=f"{head.kind} with {head.width} outputs",
            allowed=f"{task.kind} with {width} outputs",
        )
    if kind.generates and isinstance(decoder, Decoder) and isinstance(rules, GenerationRules):
        rules.check(vocabulary=shape.vocabulary, most_tokens=decoder.most_tokens, task=task.name)
    elif kind.generates or isinstance(decoder, Decoder):
        raise BundleError(
            f"task '{task.name}' of kind '{task.kind}' does not fit its head",
            got=f"decoder {decoder}, generation {rules}",
            allowed="both for a kind that generates, neither for any other",
        )
