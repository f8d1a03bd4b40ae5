"""The content of a certificate, and the chain of certificates in a bundle's folder `certificates/`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path as FilePath
from typing import Literal

import msgspec

from polyhead.bundle.files import check_no_links, hash_inside, read_inside
from polyhead.bundle.format import BUNDLE, CERTIFICATES, LARGEST_JSON
from polyhead.bundle.manifest import Live, decoded
from polyhead.engine.probes import ProbeAnswers
from polyhead.errors import BundleError, CorruptFile, PolyheadError
from polyhead.files import remove_leftovers, replace_file
from polyhead.progress import counted
from polyhead.tasks.agreement import AnswerChange
from polyhead.values import Value, to_json

Operation = Literal["add", "update", "remove", "rollback", "merge", "train", "import", "verify"]
NAME = re.compile(r"(?P<number>\d{4,9})-[a-z]+\.json")
# The limit for all changed answers in one certificate, each of their values counted as at least 16 bytes. Even with the
# other lines of MOST_TASKS tasks a certificate stays below LARGEST_JSON and below the limit of `decoded`.
MOST_BYTES_OF_ANSWERS, BYTES_OF_VALUE = 2**22, 16
INDENT = 6  # of an answer's lines in the file


class Certificate(Value):
    """The changes of one operation, and the tasks proven unchanged: those in `before` that have probes."""

    operation: Operation
    changed: dict[str, tuple[str | None, str | None]]  # task -> live version before, after
    numerics: dict[str, str]  # how the outputs were computed; bits are comparable under equal numerics only
    before: dict[str, ProbeAnswers]  # the tasks that the operation must not change
    after: dict[str, ProbeAnswers]  # all tasks
    unchanged: bool  # the bits of all tasks in `before` equal those in `after`
    answers_changed: dict[str, tuple[AnswerChange, ...]] = {}  # of a task with a new version
    answers_asked: dict[str, int] = {}  # numbers of probes: of the old version and the new
    bundle_before: str = ""  # SHA-256 of bundle.json
    bundle: str = ""  # the same after the operation
    number: int = 0
    previous: str = ""  # SHA-256 of the previous certificate's file
    sha256: str = ""  # of this file, with this field empty
    # Written only if known, since earlier readers do not know these keys.
    actor: str | msgspec.UnsetType = msgspec.UNSET  # the person who requested the operation
    at: str | msgspec.UnsetType = msgspec.UNSET  # when the certificate was written: ISO 8601 in UTC, to the second
    answers_left_out: dict[str, int] | msgspec.UnsetType = msgspec.UNSET  # of `answers_changed`, too large with them

    @property
    def unproven(self) -> tuple[str, ...]:
        """Tasks that must not change and were not asked, since they have no probes."""
        return tuple(name for name, answered in self.before.items() if not answered.probes)

    @property
    def probes(self) -> int:
        """Number of probes answered before and after with the same bits."""
        return sum(answered.probes for answered in self.before.values())

    @property
    def proven(self) -> tuple[str, ...]:
        """Tasks that must not change, and answered their probes with the same bits."""
        return tuple(name for name, answered in self.before.items() if answered.probes)

    def differing(self, name: str) -> int:
        """The number of probes that a task's new version answers differently, those left out included."""
        return len(self.answers_changed.get(name, ())) + (self.answers_left_out or {}).get(name, 0)

    @property
    def paragraph(self) -> str:
        """The content of the certificate as a self-contained paragraph."""
        return " ".join([f"{_when_and_who(self)} {_operation(self)}.", *_proof(self), *_answers(self)])

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.number:04d}-{self.operation}.json"


class Ledger:
    """The certificates of a bundle, newest first, each read on demand."""

    def __init__(self, root: FilePath) -> None:
        self.root = root
        check_no_links(root, CERTIFICATES)
        folder = root / CERTIFICATES
        names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
        certificates = [name for name in names if NAME.fullmatch(name)]
        self.files = sorted(certificates, key=lambda name: (number_of(name), name), reverse=True)

    def _read(self, file: str) -> tuple[bytes, Certificate]:
        raw = read_inside(self.root, CERTIFICATES, file, limit=LARGEST_JSON)
        return raw, read_certificate(raw, self.root / CERTIFICATES / file)

    def sound(self) -> Iterator[Certificate]:
        """Unchanged certificates, newest first."""
        expected: str | None = None
        for file in self.files:
            try:
                raw, certificate = self._read(file)
            except PolyheadError:
                expected = None  # the file's statement about the previous one is not trusted any more
                continue
            if expected in (None, hashlib.sha256(raw).hexdigest()):
                yield certificate
            expected = certificate.previous

    def chosen(self, number: int | None = None, *, every: bool = False) -> list[Certificate]:
        """The newest sound certificate, or that of a number, or all of them; raises BundleError where there is none."""
        sound = [certificate for certificate in self.sound() if number in (None, certificate.number)]
        if not sound:
            kind = "certificate" if number is None else f"sound certificate {number}"
            raise BundleError(
                f"the bundle has no {kind}: {self.root}",
                got=f"{len(self.files)} files in certificates/",
                allowed=self.files or None,
                do="`polyhead tasks verify` checks them, and writes one if the last change left none",
            )
        return sound if every else sound[:1]

    def find(
        self, lines: Mapping[str, Live], numerics: Mapping[str, str]
    ) -> dict[str, tuple[ProbeAnswers, Certificate]]:
        """For each task, the newest answers of exactly this version under these numerics, if any."""
        answers: dict[str, tuple[ProbeAnswers, Certificate]] = {}
        for certificate in self.sound():
            if len(answers) == len(lines):
                break
            if certificate.numerics != numerics:
                continue
            for name, line in lines.items():
                answered = certificate.after.get(name)
                if name not in answers and answered is not None and answered.is_of(line):
                    answers[name] = (answered, certificate)
        return answers

    def records(self) -> dict[tuple[str, str], str]:
        """The SHA-256 of the task.json of every version that was ever live, by task and version.

        A task that was removed, and another that has its name now, are two: only the versions of the latter count.
        """
        records, begun = dict[tuple[str, str], str](), set[str]()
        for certificate in self.sound():
            for name, answered in certificate.after.items():
                if name not in begun:
                    records.setdefault((name, answered.version), answered.record)
            begun |= {name for name, versions in certificate.changed.items() if None in versions}
        return records

    def problems(self) -> Iterator[tuple[str, str]]:
        """(file, problem), oldest first: edited, truncated or exchanged files, or missing predecessors."""
        last, digest = None, ""
        for file in reversed(self.files):
            expected = 1 if last is None else number_of(last) + 1
            if number_of(file) != expected:
                yield (file, f"the certificate before it should be number {number_of(file) - 1} and is not there")
                digest = ""
            try:
                raw, certificate = self._read(file)
            except PolyheadError as error:
                yield file, error.what
                last, digest = file, ""
                continue
            if last is not None and digest not in ("", certificate.previous):
                yield last, f"it is not the certificate that {file} was written after"
            last, digest = file, hashlib.sha256(raw).hexdigest()

    def write(self, certificate: Certificate) -> Certificate:
        """Writes the certificate as the next one, atomically; returns it as written.

        It gets its number and digests, and leaves out changed answers that would make it too large to be read.
        """
        last = self.files[0] if self.files else None
        previous = hash_inside(self.root, CERTIFICATES, last) if last else ""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        certificate = msgspec.structs.replace(
            _with_room(certificate), number=number_of(last) + 1 if last else 1, previous=previous, sha256="", at=now
        )
        certificate = msgspec.structs.replace(certificate, sha256=hashlib.sha256(to_json(certificate)).hexdigest())
        folder = self.root / CERTIFICATES
        remove_leftovers(folder)
        path = folder / certificate.name
        try:
            replace_file(path, to_json(certificate))
        except BaseException:
            path.unlink(missing_ok=True)  # its last flush failed: the requester is told that it does not exist
            raise
        self.files.insert(0, certificate.name)
        return certificate


def read_certificate(raw: bytes, path: FilePath) -> Certificate:
    """A certificate from its file; raises CorruptFile if any byte of it was changed."""
    certificate = decoded(raw, Certificate, path)
    empty = msgspec.structs.replace(certificate, sha256="")
    is_named = path.name == certificate.name and to_json(certificate) == raw
    if not is_named or certificate.sha256 != hashlib.sha256(to_json(empty)).hexdigest():
        raise CorruptFile(f"{path} was changed since it was written", do="restore the file from a copy", path=path)
    return certificate


def number_of(file: str) -> int:
    """The number in the name of a certificate's file."""
    return int(file.partition("-")[0])


def versions_of(
    names: Iterable[str], before: Mapping[str, Live | ProbeAnswers], after: Mapping[str, Live | ProbeAnswers]
) -> dict[str, tuple[str | None, str | None]]:
    """The versions of these tasks before and after; None if there is no such task."""
    return {
        name: (before[name].version if name in before else None, after[name].version if name in after else None)
        for name in names
    }


def bundle_hash(root: FilePath) -> str:
    """SHA-256 of bundle.json."""
    return hashlib.sha256(read_inside(root, BUNDLE, limit=LARGEST_JSON)).hexdigest()


def _with_room(certificate: Certificate) -> Certificate:
    """The certificate with as many changed answers as it has room for; tasks with few leave their share to others."""
    changed, room = certificate.answers_changed, MOST_BYTES_OF_ANSWERS
    sizes = {name: list(map(_size, changes)) for name, changes in changed.items()}
    kept, left_out = dict(changed), dict[str, int]()
    for place, name in enumerate(sorted(sizes, key=lambda name: sum(sizes[name]))):
        share, fitting = room // (len(sizes) - place), list[AnswerChange]()
        for change, size in zip(changed[name], sizes[name], strict=True):
            if size <= share:
                fitting.append(change)
                share, room = share - size, room - size
        kept[name] = tuple(fitting)
        if len(fitting) < len(changed[name]):
            left_out[name] = len(changed[name]) - len(fitting)
    return msgspec.structs.replace(certificate, answers_changed=kept, answers_left_out=left_out or msgspec.UNSET)


def _size(change: AnswerChange) -> int:
    """The bytes that a changed answer takes of the room."""
    raw = to_json(change)
    size = len(raw) + INDENT * raw.count(b"\n")
    return max(size, BYTES_OF_VALUE * (1 + sum(map(raw.count, (b",", b"[", b"{")))))


_DONE: Mapping[Operation, str] = {
    "add": "added",
    "update": "updated",
    "remove": "removed",
    "rollback": "set the live version of",
    "merge": "merged bundles into this one, which got",
    "train": "trained",
    "import": "imported",
    "verify": "verified the bundle",
}
_NAMED = 10  # maximum tasks named in a paragraph


def _when_and_who(certificate: Certificate) -> str:
    when = "At a time that was not recorded,"
    if certificate.at:
        when = f"On {certificate.at[:10]} at {certificate.at[11:16]} UTC,"
    return f"{when} {certificate.actor or 'somebody who was not named'}"


def _operation(certificate: Certificate) -> str:
    done, changed = _DONE[certificate.operation], [_change(*item) for item in certificate.changed.items()]
    tasks = f"{'task' if len(changed) == 1 else 'tasks'} {_listed(changed)}"
    if certificate.operation != "verify":
        return f"{done} {tasks}" if changed else f"{done} no task"
    return f"{done}; since the certificate before, {tasks} had changed without one" if changed else done


def _change(name: str, versions: tuple[str | None, str | None]) -> str:
    old, new = versions
    if old is None:
        return f"'{name}' (new, version {new})"
    return f"'{name}' (it was {old})" if new is None else f"'{name}' (version {old} before, {new} now)"


def _proof(certificate: Certificate) -> list[str]:
    """The proof about the tasks that must not change."""
    proven, unproven = len(certificate.proven), certificate.unproven
    tasks = counted(proven, "task")
    probes = counted(certificate.probes, "probe")
    means = "probes are inputs that are stored with a task to test it"
    sentences = ["There was no other task whose answers could have been compared."]
    if proven and certificate.operation == "verify":
        sentences = [f"{tasks} answered {probes} again as in earlier certificates, bit for bit ({means})."]
    elif proven and certificate.operation == "merge":
        sentences = [f"{tasks} answered {probes} here as in the bundles that they come from, bit for bit ({means})."]
    elif proven:
        sentences = [
            f"The change touched nothing else: {tasks} answered {probes} before and after it with the same bits "
            f"({means})."
        ]
    if unproven:
        sentences.append(f"Not asked, so compared by their files alone: {_listed(map(repr, unproven))}.")
    return sentences


def _answers(certificate: Certificate) -> list[str]:
    return [
        f"'{name}' now answers {certificate.differing(name):,} of {certificate.answers_asked.get(name, 0):,} probes "
        f"differently{_left_out(certificate, name)}."
        for name in list(certificate.answers_changed)[:_NAMED]
    ]


def _left_out(certificate: Certificate, name: str) -> str:
    left_out = (certificate.answers_left_out or {}).get(name, 0)
    return f" ({counted(left_out, 'answer')} are left out: the certificate would be too large)" if left_out else ""


def _listed(words: Iterable[str]) -> str:
    every = [*words]
    more = f", and {len(every) - _NAMED:,} more" if len(every) > _NAMED else ""
    return ", ".join(every[:_NAMED]) + more
