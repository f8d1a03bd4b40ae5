"""Verification: a repeated proof that a bundle's files and answers are those of its certificates."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path as FilePath

import msgspec

from polyhead.bundle.files import hash_inside
from polyhead.bundle.format import CERTIFICATES, FAMILIES, FAMILY, TASK, TASKS
from polyhead.bundle.manifest import Live
from polyhead.bundle.owners import owner_at, owner_named, place_of
from polyhead.bundle.read import Bundle
from polyhead.bundle.versions import families_on_disk, on_disk
from polyhead.certify.certificate import Certificate, Ledger, bundle_hash, versions_of
from polyhead.certify.proof import locked
from polyhead.engine.probes import ProbeAnswers, ProbeRunner, numerics_label
from polyhead.errors import BackendError, PolyheadError
from polyhead.values import Value


class Discrepancy(Value):
    """A difference from the written or proven state; without an owner it is about the trunk or the whole bundle."""

    what: str
    file: str | None = None  # inside the bundle
    task: str | None = None
    family: str | None = None  # owner


class Verification(Value):
    """The result of a repeated proof. Without findings nothing differs."""

    findings: tuple[Discrepancy, ...]
    tasks: int
    certificates: int  # number of existing certificates
    equal: dict[str, str]  # task -> the certificate whose bits it reproduced
    probes: int  # of those tasks
    unproven: tuple[str, ...]  # tasks without probes
    unseen: tuple[str, ...]  # tasks with probes, but without a certificate of this version under these numerics
    uncertified: bool  # whether the last operation on the bundle had left no certificate
    written: str | None  # the certificate written for that reason


def verify(root: FilePath | str) -> list[Discrepancy]:
    """All differences from the written or proven state: the findings of `checked`."""
    return list(checked(root).findings)


def checked(root: FilePath | str, *, actor: str = "") -> Verification:
    """Hashes every file of the bundle, then lets every task answer its probes and compares with its certificates.

    If the last operation left no certificate (its process was killed, or it was made without one) and nothing differs,
    one is written now, with `actor` as its requester. Raises BundleError if there is no bundle, and for a task whose
    kind or codec no installed package registers: its files may be intact.
    """
    root = FilePath(root)
    Bundle.open(root, verify=False)
    is_writable = os.access(root, os.W_OK)
    with locked(root, "verify") if is_writable else nullcontext():
        bundle, ledger = Bundle.open(root, verify=False), Ledger(root)
        damages = list(bundle.touched())
        for error in damages:
            if hasattr(error, "unregistered"):
                raise error
        touched = [_finding(root, error) for error in damages]
        old = [_finding(root, error) for error in (*_old_versions(bundle, ledger), *_old_families(bundle))]
        edited = [Discrepancy(what=w, file=f"{CERTIFICATES}/{file}") for file, w in ledger.problems()]
        proof = _Proof.of(bundle, ledger, touched)
        findings = tuple(dict.fromkeys((*touched, *old, *edited, *proof.differing())))
        last = next(ledger.sound(), None)
        is_uncertified = last is None or last.bundle != bundle_hash(root)
        written, count = None, len(ledger.files)
        if is_writable and not findings and (is_uncertified or proof.unseen):
            written = ledger.write(proof.certificate(last, actor)).name
    return Verification(
        findings=findings,
        tasks=len(bundle.lines),
        certificates=count,
        equal={name: proof.known[name][1].name for name in proof.equal},
        probes=sum(proof.now[name].probes for name in proof.equal),
        unproven=tuple(name for name, answered in proof.now.items() if not answered.probes),
        unseen=proof.unseen,
        uncertified=is_uncertified,
        written=written,
    )


class _Proof(msgspec.Struct, frozen=True, kw_only=True):
    """Answers of the tasks with intact files, and the statements of the certificates."""

    bundle: Bundle
    numerics: dict[str, str]
    known: dict[str, tuple[ProbeAnswers, Certificate]]
    now: dict[str, ProbeAnswers]
    refused: dict[str, BackendError]  # tasks with answers that are not finite

    @classmethod
    def of(cls, bundle: Bundle, ledger: Ledger, touched: Sequence[Discrepancy]) -> _Proof:
        """Computes the answers; none if the trunk was changed, and none that reads arrays of a changed owner."""
        label, damaged = numerics_label(), {f.family if f.task is None else owner_named(f.task) for f in touched}
        lines = {
            name: line
            for name, line in bundle.lines.items()
            if damaged.isdisjoint({None, owner_named(name)})
            and damaged.isdisjoint(bundle.view({name: line}).tasks[name].needs)
        }
        now, refused = _answered(bundle, lines)
        known = ledger.find({name: line for name, line in lines.items() if name in now}, label)
        return cls(bundle=bundle, numerics=label, known=known, now=now, refused=refused)

    @property
    def equal(self) -> list[str]:
        """Tasks that reproduced the bits of a certificate."""
        return [n for n, answered in self.now.items() if answered.probes and self._saw(n) == answered]

    @property
    def unseen(self) -> tuple[str, ...]:
        """Tasks without a certificate of this version under these numerics."""
        return tuple(n for n, answered in self.now.items() if answered.probes and n not in self.known)

    def differing(self) -> list[Discrepancy]:
        return [Discrepancy(what=error.what, task=name) for name, error in self.refused.items()] + [
            Discrepancy(
                what=f"task '{name}' answers its probes otherwise than {self.known[name][1].name} says, though no file "
                "of it was touched: what computes has changed",
                task=name,
            )
            for name, answered in self.now.items()
            if self._saw(name) not in (None, answered)
        ]

    def certificate(self, last: Certificate | None, actor: str) -> Certificate:
        """The certificate of the operations after the certificate `last`."""
        old, lines = last.after if last is not None else {}, self.bundle.lines
        changed = [n for n in {**old, **lines} if n not in old or n not in lines or not old[n].is_of(lines[n])]
        return Certificate(
            operation="verify",
            changed=versions_of(changed, old, lines),
            numerics=self.numerics,
            before={name: answered for name, (answered, _) in self.known.items()},
            after=self.now,
            unchanged=True,
            bundle_before=last.bundle if last is not None else "",
            bundle=bundle_hash(self.bundle.root),
            actor=actor or msgspec.UNSET,
        )

    def _saw(self, name: str) -> ProbeAnswers | None:
        return self.known[name][0] if name in self.known else None


def _answered(bundle: Bundle, lines: Mapping[str, Live]) -> tuple[dict[str, ProbeAnswers], dict[str, BackendError]]:
    """The answers of each task, or the error of one without finite numbers."""
    lines_left, refused = dict(lines), dict[str, BackendError]()
    while True:
        try:
            return ProbeRunner(bundle.view(lines_left)).answered(lines_left), refused
        except BackendError as error:
            name = str(error.facts.get("task"))
            if lines_left.pop(name, None) is None:
                raise
            refused[name] = error


def _old_versions(bundle: Bundle, ledger: Ledger) -> Iterator[PolyheadError]:
    """Damage in versions for rollback: each file is compared with task.json, and task.json with a certificate."""
    records = ledger.records()
    for name, live in bundle.lines.items():
        for version in bundle.versions(name):
            if version == live.version:
                continue
            try:
                record = records.get((name, version)) or hash_inside(bundle.root, TASKS, name, version, TASK)
            except PolyheadError as error:
                yield error
                continue
            old = msgspec.structs.replace(live, version=version, record=record)
            yield from bundle.view({name: old}).touched_tasks()


def _old_families(bundle: Bundle) -> Iterator[PolyheadError]:
    """Damage in versions of families that are not live: each file is compared with family.json."""
    for owner in families_on_disk(bundle.root):
        live = bundle.families.get(owner)
        for version in on_disk(bundle.root, owner):
            if live is not None and version == live.version:
                continue
            try:
                record = hash_inside(bundle.root, *place_of(owner), version, FAMILY)
            except PolyheadError as error:
                yield error
                continue
            yield from bundle.touched_family(owner, Live(version=version, record=record))


def _finding(root: FilePath, error: PolyheadError) -> Discrepancy:
    """The error as a finding, with its file and its task or family; without these it is about the trunk."""
    path = error.facts.get("path")
    inside = str(FilePath(str(path)).relative_to(root)) if path is not None else None
    parts = FilePath(inside).parts if inside is not None else ()
    return Discrepancy(
        what=error.what,
        file=inside,
        task=parts[1] if len(parts) > 1 and parts[0] == TASKS else None,
        family=owner_at(*parts[:2]) if len(parts) > 1 and parts[0] == FAMILIES else None,
    )
