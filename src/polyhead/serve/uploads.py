"""Uploads of tasks: a tar of one version's files, each member checked before it is written.

An upload is written as it comes into a private folder beside the bundle, which becomes a bundle of that one task: what
the bundle itself gets is copied from there by the change that is certified. The folder goes at the end.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import re
import secrets
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath
from typing import BinaryIO, Self

import msgspec

from polyhead.bundle.files import read_inside
from polyhead.bundle.format import (
    BUNDLE,
    CARD,
    FAMILIES,
    FAMILY,
    FORMAT,
    LARGEST_CARD,
    LARGEST_JSON,
    LOCK,
    PART,
    PROBES,
    TASK,
    TASKS,
    TRUNK,
    TRUNK_RECORD,
)
from polyhead.bundle.live_versions import Probe
from polyhead.bundle.manifest import BundleFile, Live, TaskRecord, decoded, read_bundle_file, read_trunk_record
from polyhead.bundle.merge import trunk_difference
from polyhead.bundle.owners import check_family, owner_at
from polyhead.bundle.read import Bundle
from polyhead.bundle.row_profile import stored_profile
from polyhead.bundle.task_archive import BLOCK, FAMILY_LIMITS, LIMITS, NEEDED, check_alone
from polyhead.errors import BundleError, CorruptFile, LockError, WrongTrunk
from polyhead.files import held
from polyhead.serve.http import HttpError
from polyhead.tasks.task import Task, check_name
from polyhead.text.prefix import LONGEST_TEXT
from polyhead.values import Value, to_json

VERSION = "v0001"  # of the task in the staged bundle
PREFIX = ".upload-"
SPOOL = "upload.tar"  # in the private folder, until its members are written
AT_ONCE = 2**20  # bytes
MOST_FAMILIES = 16
_FAMILY_MEMBER = re.compile(rf"{FAMILIES}/([A-Za-z0-9+._-]{{1,200}})/({FAMILY}|{PART})".replace(".json", r"\.json"))
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_ALLOWED = f"{', '.join(LIMITS)}, {TRUNK_RECORD}, {FAMILIES}/<name>/{FAMILY} and {FAMILIES}/<name>/{PART}"
_PACK = "make the upload with `polyhead tasks pack`"


def member_place(member: str, task: str) -> tuple[tuple[str, ...], int]:
    """The path in the task's bundle for a member of an upload, and its maximum size in bytes.

    Raises HttpError 422 for a name that is not among those of a version's files.
    """
    if member == TRUNK_RECORD:
        return (TRUNK, TRUNK_RECORD), LARGEST_JSON
    if member in LIMITS:
        return (TASKS, task, VERSION, member), LIMITS[member]
    match = _FAMILY_MEMBER.fullmatch(member)
    if match is None:
        raise refused("the upload holds a file that is none of a task's", got=repr(member), allowed=_ALLOWED)
    folder, file = match.groups()
    check_family(owner_at(FAMILIES, folder))
    return (FAMILIES, folder, VERSION, file), FAMILY_LIMITS[file]


def refused(problem: str, *, status: int = 422, do: str = _PACK, **facts: object) -> HttpError:
    """The error of an upload that is not taken."""
    return HttpError(status, problem, do=do, **facts)


class PlainFile(tarfile.TarInfo):
    """A member of an upload; a header of anything but a plain file is refused before more of the tar is read."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Reads a header; raises HttpError 422."""
        member = super().frombuf(buf, encoding, errors)
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
            allowed = "plain files: no links or folders"
            raise refused("the upload holds what is no plain file", got=repr(member.name), allowed=allowed)
        if member.size < 0:
            raise refused("the upload is no tar", got="a negative size")
        return member


class Receiver:
    """Takes the bytes of a tar as they come, and writes its members below a folder once all are there.

    Plain files alone, each once, of the names that a version has, within their sizes. Every error is an HttpError.
    """

    def __init__(self, folder: FilePath, task: str, *, most: int) -> None:
        """`most` bytes in all."""
        self._folder, self._task, self._most, self._read = folder, task, most, 0
        self._file: BinaryIO = open(folder / SPOOL, "xb+")  # noqa: SIM115 - closed by `close`
        self.members: set[str] = set()

    def feed(self, data: bytes) -> None:
        """Takes more of it."""
        self._read += len(data)
        if self._read > self._most:
            raise refused("the upload is too large", status=413, got=f"over {self._read:,} bytes", allowed=self._most)
        self._file.write(data)

    def end(self) -> None:
        """Writes the members after the last byte; raises HttpError if the tar or a file of a version is incomplete."""
        self._file.seek(0)
        if self._file.read(2) == b"\x1f\x8b":
            raise refused("the upload is compressed", status=415, allowed="a plain tar")
        self._file.seek(0)
        cut_short = refused("the upload was cut short", got=f"{self._read:,} bytes, and no end of a tar")
        try:
            with tarfile.open(fileobj=self._file, mode="r:", tarinfo=PlainFile) as tar:
                for member in tar:
                    self._take(tar, member)
                self._file.seek(tar.offset)
        except tarfile.TarError as error:
            if self.members or self._read < BLOCK:
                raise cut_short from None
            raise refused("the upload is no tar", got=str(error)) from None
        block = self._file.read(BLOCK)
        if len(block) < BLOCK:
            raise cut_short
        if any(block):
            raise refused("the upload is no tar", got="a header that cannot be read")
        while block:
            if any(block):
                raise refused("the upload goes on after its end")
            block = self._file.read(AT_ONCE)
        families = {name.rpartition("/")[0] for name in self.members if "/" in name}
        needed = [*NEEDED, *(f"{folder}/{file}" for folder in sorted(families) for file in (FAMILY, PART))]
        if lacking := [name for name in needed if name not in self.members]:
            problem = f"the upload lacks {', '.join(lacking)}"
            raise refused(problem, got=sorted(self.members), allowed=needed)

    def close(self) -> None:
        """Removes received data that was not written."""
        self._file.close()
        (self._folder / SPOOL).unlink(missing_ok=True)

    def _take(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        name, size = member.name, member.size
        place, most = member_place(name, self._task)
        if name in self.members:
            raise refused("the upload holds a file twice", got=name)
        if size > (allowed := min(most, self._most)):
            raise refused(f"{name} is too large", status=413, got=f"{size:,} bytes", allowed=f"{allowed:,}")
        self.members.add(name)
        if len({each.split("/")[1] for each in self.members if "/" in each}) > MOST_FAMILIES:
            raise refused("the upload holds too many families", allowed=MOST_FAMILIES)
        path = self._folder.joinpath(*place)
        path.parent.mkdir(parents=True, exist_ok=True)
        content = tar.extractfile(member)
        assert content is not None  # of a plain file
        with content, open(path, "xb") as file:
            shutil.copyfileobj(content, file, AT_ONCE)


class StagedTask(Value):
    """An upload that was checked: a bundle of one task, on the trunk of the bundle it is meant for."""

    root: str  # its folder
    name: str
    record: TaskRecord
    sha256: str  # of task.json


class Staging:
    """A private folder next to a bundle, with an unguessable name, used by this process until `close`."""

    def __init__(self, bundle: FilePath) -> None:
        """Raises HttpError 507 where none can be made."""
        self._held = contextlib.ExitStack()
        bundle = bundle.resolve()
        self.root = bundle.with_name(f"{PREFIX}{secrets.token_hex(16)}")
        try:
            self.root.mkdir(mode=0o700)
            busy = BundleError("the folder of an upload is in use")
            self._held.enter_context(held(self.root / LOCK, patience=0.0, busy=busy))
        except OSError as error:
            shutil.rmtree(self.root, ignore_errors=True)
            raise HttpError(
                507,
                "there is no place for an upload beside the bundle",
                got=error.strerror,
                do="let the server write to the folder that holds the bundle's folder",
            ) from None

    def close(self) -> None:
        """Removes it; blocks while files are deleted."""
        shutil.rmtree(self.root, ignore_errors=True)
        self._held.close()


def sweep_uploads(bundle: FilePath) -> None:
    """Removes folders that killed servers left next to a bundle, except those in use."""
    with contextlib.suppress(OSError):
        for folder in _left_beside(bundle.resolve()):
            busy = BundleError("in use")
            with contextlib.suppress(OSError, BundleError, LockError), held(folder / LOCK, patience=0.0, busy=busy):
                shutil.rmtree(folder, ignore_errors=True)


def _left_beside(bundle: FilePath) -> Iterator[FilePath]:
    for folder in bundle.parent.iterdir():
        is_ours = re.fullmatch(rf"{re.escape(PREFIX)}[0-9a-f]{{32}}", folder.name)
        if is_ours and folder.is_dir() and not folder.is_symlink() and (folder / LOCK).is_file():
            yield folder


def staged(folder: FilePath, name: str, target: FilePath) -> StagedTask:
    """Makes a bundle of one task from the files below a folder, over the target's trunk, and checks all of it.

    Raises WrongTrunk that names both trunks, and another PolyheadError for what is not as its task.json says, does not
    fit the trunk or the task's labels, or is no finite number.
    """
    check_name(name)
    raw = read_inside(folder, TASKS, name, VERSION, TASK, limit=LARGEST_JSON)
    record = decoded(raw, TaskRecord, folder / TASKS / name / VERSION / TASK)
    if record.task.name != name:
        raise BundleError(
            "the upload holds another task than its address names", got=record.task.name, allowed=name, do=_PACK
        )
    trunk = read_bundle_file(target).trunk
    if record.trunk != trunk:
        why = ""
        if (folder / TRUNK / TRUNK_RECORD).exists():  # an upload may leave it out
            why = f": {trunk_difference(read_trunk_record(target), read_trunk_record(folder))}"
        raise WrongTrunk(
            f"task '{name}' was trained on another trunk than this bundle has{why}",
            got=f"trunk {record.trunk}",
            allowed=f"trunk {trunk}",
            do="train the task on this bundle's trunk, with its max_tokens",
        )
    check_alone(record)
    (folder / TRUNK).mkdir(exist_ok=True)
    (folder / TRUNK / TRUNK_RECORD).write_bytes(read_inside(target, TRUNK, TRUNK_RECORD, limit=LARGEST_JSON))
    sha256 = hashlib.sha256(raw).hexdigest()
    families = {owner_at(FAMILIES, each.name): _live(folder, each.name) for each in _folders(folder / FAMILIES)}
    content = BundleFile(
        format=FORMAT, trunk=trunk, tasks={name: Live(version=VERSION, record=sha256)}, families=families
    )
    (folder / BUNDLE).write_bytes(to_json(content))
    _check(Bundle.open(folder, verify=False), name)
    return StagedTask(root=str(folder), name=name, record=record, sha256=sha256)


def _check(upload: Bundle, name: str) -> None:
    """Raises the first error of a file."""
    for error in upload.touched_tasks():
        raise error
    unread = sorted(set(upload.families) - set(upload.record(name).needs))
    if unread:
        raise BundleError("the upload holds families that the task does not read", got=unread, do="leave them out")
    for owner, live in upload.families.items():
        for error in upload.touched_family(owner, live):
            raise error
    upload.others(name)
    upload.headline(name)
    upload.scores(name)
    stored_profile(upload, name)
    place, task = (TASKS, name, VERSION), upload.record(name).task
    card = read_inside(upload.root, *place, CARD, limit=LARGEST_CARD)
    if not reads_as_text(card):
        raise CorruptFile(f"{CARD} is no text", allowed="Markdown in UTF-8", do=_PACK)
    for number, line in enumerate(upload.probes(name), 1):
        _check_probe(number, line, task)


def _check_probe(number: int, line: Mapping[str, object], task: Task) -> None:
    """Raises CorruptFile for what the task cannot be asked."""
    try:
        probe = msgspec.convert(line, Probe)
        texts = (*probe.text, *(probe.options or ()))
        is_short = max(map(len, texts), default=0) <= LONGEST_TEXT
        ends = [0, *itertools.chain.from_iterable(probe.words or ()), len(probe.text[-1]) if probe.text else 0]
        if (
            is_short
            and probe.fits(task)
            and ends == sorted(ends)
            and all(start < end for start, end in probe.words or ())
        ):
            return
        got: object = f"{len(probe.text)} texts, {len(probe.options or ())} options, {len(probe.words or ())} words"
    except msgspec.ValidationError as error:
        got = error
    raise CorruptFile(
        f"line {number} of {PROBES} is no probe of task '{task.name}'",
        got=got,
        allowed="an input that the task answers, and words in their order inside of its last text",
        do=_PACK,
    )


def reads_as_text(raw: bytes) -> bool:
    """Whether it is text: UTF-8, and no control characters but the ends of lines and tabs."""
    try:
        return not _CONTROLS.search(raw.decode())
    except UnicodeDecodeError:
        return False


def _live(folder: FilePath, family: str) -> Live:
    raw = read_inside(folder, FAMILIES, family, VERSION, FAMILY, limit=LARGEST_JSON)
    return Live(version=VERSION, record=hashlib.sha256(raw).hexdigest())


def _folders(folder: FilePath) -> list[FilePath]:
    return sorted(folder.iterdir()) if folder.is_dir() else []
