"""The content of a certificate, and the chain of certificates in a bundle's folder `certificates/`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path as FilePath
from typing import Literal

import msgspec

from polyhead.bundle.files import check_no_links, read_inside
from polyhead.bundle.format import BUNDLE, CERTIFICATES, LARGEST_JSON
from polyhead.bundle.manifest import Live, decoded
from polyhead.config import Value, to_json
from polyhead.engine.pinned import AnswerChange, Answered
from polyhead.errors import CorruptFile, PolyheadError
from polyhead.files import remove_leftovers, replace_file

Operation = Literal["add", "update", "remove", "rollback", "merge", "train", "import", "verify"]
NAME = re.compile(r"(?P<number>\d{4,9})-[a-z]+\.json")


class Certificate(Value):
    """What one operation changed, and which tasks were proven unchanged: those in `before` that have probes."""

    operation: Operation
    changed: dict[str, tuple[str | None, str | None]]  # task -> live version before, after
    numerics: dict[str, str]  # how the outputs were computed; bits are equal under equal numerics only
    before: dict[str, Answered]  # the tasks that the operation had to leave alone
    after: dict[str, Answered]  # all tasks
    unchanged: bool  # the bits of all tasks in `before` are those in `after`
    answers_changed: dict[str, tuple[AnswerChange, ...]] = {}  # of a task with a new version
    answers_asked: dict[str, int] = {}  # of how many probes those are: of the old version and the new
    bundle_before: str = ""  # SHA-256 of bundle.json
    bundle: str = ""  # the same after the operation
    number: int = 0
    previous: str = ""  # SHA-256 of the file of the certificate before this one
    sha256: str = ""  # of this file, with this field empty
    # Who asked for the operation; written where it was said, since readers of before know no such key.
    actor: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def unproven(self) -> tuple[str, ...]:
        """Tasks that had to be left alone and have no probes: their files are the same, nothing was asked."""
        return tuple(name for name, answered in self.before.items() if not answered.probes)

    @property
    def probes(self) -> int:
        """Probes that were answered before and after with the same bits."""
        return sum(answered.probes for answered in self.before.values())

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.number:04d}-{self.operation}.json"


class Ledger:
    """The certificates of a bundle, newest first, each read when it is asked for."""

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
                expected = None  # what the file says of the one before it counts no longer
                continue
            if expected in (None, hashlib.sha256(raw).hexdigest()):
                yield certificate
            expected = certificate.previous

    def find(self, lines: Mapping[str, Live], numerics: Mapping[str, str]) -> dict[str, tuple[Answered, Certificate]]:
        """For each task the newest answers of exactly this version under these numerics, where there are any."""
        answers: dict[str, tuple[Answered, Certificate]] = {}
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

    def record_of(self, name: str, version: str) -> str | None:
        """The SHA-256 of the task.json of a version that was live once; None if no certificate saw it."""
        for certificate in self.sound():
            answered = certificate.after.get(name)
            if answered is not None and answered.version == version:
                return answered.record
        return None

    def problems(self) -> Iterator[tuple[str, str]]:
        """(file, what is wrong with it), oldest first: edited, cut short, exchanged, or its forerunners missing."""
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
        """Writes the certificate as the next one, atomically; gives it back with its number and digests."""
        last = self.files[0] if self.files else None
        previous = ""
        if last is not None:
            raw = read_inside(self.root, CERTIFICATES, last, limit=LARGEST_JSON)
            previous = hashlib.sha256(raw).hexdigest()
        certificate = msgspec.structs.replace(
            certificate, number=number_of(last) + 1 if last else 1, previous=previous, sha256=""
        )
        certificate = msgspec.structs.replace(certificate, sha256=hashlib.sha256(to_json(certificate)).hexdigest())
        folder = self.root / CERTIFICATES
        remove_leftovers(folder, root=self.root)
        path = folder / certificate.name
        try:
            replace_file(path, to_json(certificate), root=self.root)
        except BaseException:
            path.unlink(missing_ok=True)  # its last flush failed: who asked for it is told that it is not there
            raise
        self.files.insert(0, certificate.name)
        return certificate


def read_certificate(raw: bytes, path: FilePath) -> Certificate:
    """A certificate from its file; CorruptFile if one byte of it is not as it was written."""
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
    names: Iterable[str], before: Mapping[str, Live | Answered], after: Mapping[str, Live | Answered]
) -> dict[str, tuple[str | None, str | None]]:
    """The versions of these tasks before and after; None where there is no such task."""
    return {
        name: (before[name].version if name in before else None, after[name].version if name in after else None)
        for name in names
    }


def bundle_hash(root: FilePath) -> str:
    """SHA-256 of bundle.json."""
    return hashlib.sha256(read_inside(root, BUNDLE, limit=LARGEST_JSON)).hexdigest()
