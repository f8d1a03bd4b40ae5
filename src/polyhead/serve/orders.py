"""One certified change of a bundle for an admin, and the messages to the process that makes it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path as FilePath
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from polyhead.bundle.lost_labels import check_replacement
from polyhead.bundle.manifest import TaskRecord, renamed
from polyhead.bundle.owners import is_family
from polyhead.bundle.read import Bundle
from polyhead.certify import (
    BundleChange,
    Certificate,
    Prover,
    Requester,
    add_from,
    checked,
    remove_from,
    roll_back,
    update_from,
)
from polyhead.certify.certificate import Ledger, bundle_hash
from polyhead.errors import BundleError, PolyheadError, UnknownTask
from polyhead.serve.http import ErrorBody, HttpError, body_of, fact_in_json, replaced, status_of
from polyhead.values import Value

NICENESS = 15  # of the process that makes a change: answers come first
AUTOGROUP = FilePath("/proc/self/autogroup")


ChangeOperation = Literal["put", "remove", "rollback", "prepare"]


class Order(Value):
    """A requested change; the operation `prepare` makes the process ready for the next one."""

    operation: ChangeOperation
    root: str  # the bundle
    name: str  # the task; "" to prepare
    source: str = ""  # put: the folder of the staged upload, a bundle of one task
    version: str | None = None  # rollback: None is the one before the live one
    actor: str = ""
    allow_lost_labels: bool = False  # put: whether labels of the live version may have no row in the new one


class ChangeSettings(Value):
    """Settings of the process of changes, sent before its first order."""

    alive: int | None = None  # the pipe that ends with the server
    processors: tuple[int, ...] = ()  # that it may use, where a server's worker keeps to some of them
    compiled: str | None = None  # the folder for compiled graphs


class AnswersChanged(Value):
    """Answers of a task's old and new version to the probes of both."""

    probes: int
    changed: int


class CertificateSummary(Value):
    """A summary of a certificate; the whole is in the bundle."""

    file: str
    number: int
    operation: str
    actor: str
    at: str  # UTC; "" of a certificate that does not say it
    paragraph: str  # all of it in words
    unchanged: bool
    proven: tuple[str, ...]  # tasks that answered their probes with the same bits
    probes: int  # of those
    unproven: tuple[str, ...]  # tasks without probes: their files are the same
    answers: dict[str, AnswersChanged]  # of tasks with a new version

    @classmethod
    def of(cls, certificate: Certificate) -> CertificateSummary:
        """The short form."""
        return cls(
            file=certificate.name,
            number=certificate.number,
            operation=certificate.operation,
            actor=certificate.actor or "",
            at=certificate.at or "",
            paragraph=certificate.paragraph,
            unchanged=certificate.unchanged,
            proven=certificate.proven,
            probes=certificate.probes,
            unproven=certificate.unproven,
            answers={
                name: AnswersChanged(probes=certificate.answers_asked.get(name, 0), changed=certificate.differing(name))
                for name in certificate.answers_changed
            },
        )


class ChangeResult(Value):
    """The result of an order."""

    task: str
    before: str | None  # the live version; None where there was no such task
    after: str | None
    is_changed: bool
    certificate: CertificateSummary | None = None  # None where nothing changed, and none was left
    kind: tuple[str, str] | msgspec.UnsetType = msgspec.UNSET  # before and after, where they differ
    labels: tuple[tuple[str, ...], tuple[str, ...]] | msgspec.UnsetType = msgspec.UNSET  # the same
    note: str | msgspec.UnsetType = msgspec.UNSET


class ChangeReply(Value):
    """The output of the process of a change: a result or an error."""

    outcome: ChangeResult | None = None
    error: ErrorBody | None = None
    status: int = 500


def perform(order: Order, prover: Prover, check: Callable[[], None]) -> ChangeResult:
    """Makes the change with its proof, or raises and leaves the bundle as it was.

    `check` is called just before anything is changed, and raises if no caller waits any longer. Raises UnknownTask,
    IsolationError, BundleError for labels that would be lost, and the errors of `certify.certified`.
    """
    root, name = FilePath(order.root), order.name
    by = Requester(actor=order.actor, prover=prover, check=check)
    if order.operation == "prepare":
        prover.prepare(Bundle.open(root, verify=False))
        return ChangeResult(task=name, before=None, after=None, is_changed=False)
    if order.operation == "put":
        return _put(order, root, by)
    ours = Bundle.open(root, verify=False)
    before = ours.version(name)
    if order.operation == "remove":
        return _done(name, ours, remove_from(root, [name], by=by))
    if order.version == before:
        return ChangeResult(task=name, before=before, after=before, is_changed=False)
    change = roll_back(root, [name], order.version, by=by)
    change.reported(root)
    return _done(name, ours, change)


def _done(name: str, ours: Bundle, change: BundleChange) -> ChangeResult:
    """The result of a change; `ours` is the bundle before it."""
    certificate, now = CertificateSummary.of(change.certificate), Bundle.open(ours.root, verify=False)
    before, after = (bundle.version(name) if name in bundle.lines else None for bundle in (ours, now))
    differing = dict[str, Any]()
    with contextlib.suppress(PolyheadError):  # a damaged version is replaced, and says nothing
        was, task = (bundle.record(name).task for bundle in (ours, now))
        pairs = {fact: (getattr(was, fact), getattr(task, fact)) for fact in ("kind", "labels")}
        differing = {fact: pair for fact, pair in pairs.items() if pair[0] != pair[1]}
    return ChangeResult(task=name, before=before, after=after, is_changed=True, certificate=certificate, **differing)


def _put(order: Order, root: FilePath, by: Requester) -> ChangeResult:
    name = order.name
    theirs, ours = Bundle.open(order.source, verify=False), Bundle.open(root, verify=False)
    live = ours.lines.get(name)
    if live is None:
        return _done(name, ours, add_from(root, theirs, [name], called={}, by=by))
    if _is_same(theirs.tasks[name], ours, name):
        now = _certified_now(root)
        return ChangeResult(task=name, before=live.version, after=live.version, is_changed=False, certificate=now)
    if not order.allow_lost_labels:
        do = "send a version that learned these labels too, or say allow_lost_labels=true to let them go"
        check_replacement(ours, name, theirs.tasks[name], do=do, where="what the upload learned from")
    change = update_from(root, theirs, {name: name}, by=by)
    change.reported(root)
    return _done(name, ours, change)


def _is_same(theirs: TaskRecord, ours: Bundle, name: str) -> bool:
    """Whether the live version is the given one, whatever names its families have. A card makes no difference."""
    try:
        live = ours.record(name)
    except PolyheadError:
        return False  # a damaged version is replaced
    families = {digest: owner for owner, digest in live.needs.items() if is_family(owner)}
    called = {owner: families.get(digest, owner) for owner, digest in theirs.needs.items() if is_family(owner)}
    return theirs == live or renamed(theirs, called) == live


def _certified_now(root: FilePath) -> CertificateSummary | None:
    """The certificate of the bundle as it is; where the last change left none, one that is written now."""
    last = next(Ledger(root).sound(), None)
    if last is None or last.bundle != bundle_hash(root):
        checked(root)
        last = next(Ledger(root).sound(), None)
    return None if last is None else CertificateSummary.of(last)


def change_reply(raw: bytes, prover: Prover, check: Callable[[], None] = lambda: None) -> bytes:
    """The `ChangeReply` to an order, both as JSON; `check` is that of `perform`."""
    order = msgspec.json.decode(raw, type=Order)
    places = {order.root: "the bundle"} | ({order.source: "the upload"} if order.source else {})
    try:
        return msgspec.json.encode(ChangeReply(outcome=perform(order, prover, check)))
    except PolyheadError as error:
        return msgspec.json.encode(ChangeReply(error=body_of(error, places), status=status_of_change(error)))


def status_of_change(error: PolyheadError) -> int:
    """The HTTP status of an error of a change."""
    if isinstance(error, UnknownTask) or not isinstance(error, BundleError):
        return status_of(error)
    return 409  # the bundle stands otherwise than the change needs it


def lower_priority() -> None:
    """Gives this process the lowest priority.

    Linux shares the processor between sessions before it looks at the niceness of their processes ("autogroups"), so
    that of this process's session is set as well, where it leads one.
    """
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    with contextlib.suppress(OSError, AttributeError):  # not on every system
        if os.getsid(0) == os.getpid():
            AUTOGROUP.write_text(str(NICENESS))


def as_http(body: ErrorBody, status: int, places: Mapping[str, str] = MappingProxyType({})) -> HttpError:
    """An error with a status, from its four facts; `places` are paths of this machine and their public names."""

    def cleaned(words: str) -> str:
        return replaced(words, places)

    error = HttpError(status, cleaned(body.message))
    error.named, error.do = body.type, None if body.do is None else cleaned(body.do)
    error.got, error.allowed = (fact_in_json(fact, cleaned) for fact in (body.got, body.allowed))
    return error
