"""Changes of a bundle, each with its proof or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path as FilePath
from typing import Any

import msgspec

from polyhead.bundle import remove
from polyhead.bundle.files import check_no_links, writing_bundle
from polyhead.bundle.format import CERTIFICATES
from polyhead.bundle.journal import StartedOperation, finish, start_operation
from polyhead.bundle.live_versions import Probe
from polyhead.bundle.manifest import BundleFile, Live, read_bundle_file
from polyhead.bundle.read import Bundle
from polyhead.bundle.versions import on_disk
from polyhead.certify.certificate import Certificate, Ledger, Operation, bundle_hash, versions_of
from polyhead.certify.prover import KEPT_BYTES, Prover
from polyhead.engine.compile.compiled import COMPILED
from polyhead.engine.probes import ProbeAnswers, ProbeRunner, changes, numerics_label, readable_probes
from polyhead.errors import BundleError, IsolationError, LockError, PolyheadError
from polyhead.files import make_folder
from polyhead.values import Value

Versions = tuple[str | None, str | None]  # before and after
Answers = Sequence[dict[str, Any] | None]


def certified(
    root: FilePath | str,
    operation: Operation,
    act: Callable[[], object],
    *,
    changing: Sequence[str],
    actor: str = "",
    prover: Prover | None = None,
) -> Certificate:
    """Runs `act` and proves and records that every task not in `changing` answers its probes with the same bits.

    All or nothing: if `act` fails, or a task not in `changing` has another live version or other bits after it,
    bundle.json is restored. Raises the error of `act`, or IsolationError that names the tasks. A second operation
    waits, for a minute at most. `act` must use the methods of Bundle for its changes. `actor`, the person who requested
    it, is recorded in the certificate. A process that makes several changes passes the same `prover`, and stores what
    that keeps when it likes.
    """
    root = FilePath(root)
    with locked(root, operation), _prover(prover) as used:
        remove.sweep_bundle(root)
        return _certified(_State.of(root, changing, used), operation, act, actor=actor)


class BundleChange(Value):
    """The versions of tasks before and after a change; None if the task does not exist."""

    changed: dict[str, Versions]
    certificate: Certificate
    started: StartedOperation | None = None  # of a command that acts once
    is_repeated: bool = False  # an interrupted run of the same command had done it

    def reported(self, root: FilePath) -> None:
        """Marks the change as reported: the same command then acts again."""
        if self.started is not None:
            finish(root, self.started)


def certified_once(
    root: FilePath | str,
    operation: Operation,
    act: Callable[[Mapping[str, str]], object],
    *,
    arguments: Sequence[str],
    wanted: Callable[[], Mapping[str, str]],
    changing: Sequence[str],
    actor: str = "",
    prover: Prover | None = None,
) -> BundleChange:
    """Like `certified` for an operation that makes `wanted` versions live, but at most once per command.

    If the same command was interrupted after the change, the change is proven now, and not repeated. `wanted` is called
    under the lock, and `act` with its result.
    """
    root = FilePath(root)
    with locked(root, operation), _prover(prover) as used:
        remove.sweep_bundle(root)
        lines = {name: line for name, line in read_bundle_file(root).tasks.items() if name in changing}
        started = start_operation(root, operation, arguments, lines=lines, wanted=wanted)
        is_repeated = started.is_done(lines)
        try:
            state = _State.of(root, changing, used)
            if is_repeated:
                certificate = _proven_since(state, started, operation, actor=actor)
            else:
                certificate = _certified(state, operation, lambda: act(started.wanted), actor=actor)
        except Exception:
            with suppress(PolyheadError):
                if not started.is_done(read_bundle_file(root).tasks):  # it was restored
                    finish(root, started)
            raise
    changed: dict[str, Versions] = {name: (started.before[name].version, new) for name, new in started.wanted.items()}
    return BundleChange(changed=changed, certificate=certificate, started=started, is_repeated=is_repeated)


@contextmanager
def _prover(shared: Prover | None) -> Iterator[Prover]:
    """`shared`, which a process uses for several changes; or a prover for this change, stored for later processes."""
    prover = shared or Prover(kept_bytes=KEPT_BYTES if COMPILED.path is not None else 0)
    yield prover
    if shared is None:
        prover.store()


def _proven_since(state: _State, started: StartedOperation, operation: Operation, *, actor: str) -> Certificate:
    """The certificate of an operation already done: the one it left, else a new one."""
    last = next(state.ledger.sound(), None)
    if last is not None and last.operation == operation and last.bundle == bundle_hash(state.root):
        return last
    return _certified(state.since(started.before), operation, lambda: None, actor=actor)


def _certified(state: _State, operation: Operation, act: Callable[[], object], *, actor: str) -> Certificate:
    before, asked_now = _before(state)
    try:
        act()
        certificate = _proven(state, before, asked_now, operation, actor=actor)
    except BaseException as error:
        _put_back(state, operation, error)
        raise
    with suppress(BundleError, LockError):  # files that cannot be deleted now are deleted by the next operation
        remove.sweep_bundle(state.root)
    return certificate


@contextmanager
def locked(root: FilePath, operation: str) -> Iterator[None]:
    """Holds the lock of whole operations; `writing` holds that of one write."""
    read_bundle_file(root)  # before a folder is created without a bundle
    failure = f"'{operation}' on {root} failed"
    check_no_links(root, CERTIFICATES)
    try:
        make_folder(root / CERTIFICATES, root=root)
    except OSError as error:
        raise BundleError(
            f"{failure}: there is no place for its certificate", got=error, do="check the folder's permissions"
        ) from None
    with writing_bundle(root / CERTIFICATES, failure):
        yield


class _State(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle before an operation, and the facts known about it."""

    root: FilePath
    bundle: Bundle
    others: Bundle  # the tasks that must not change
    content: BundleFile
    sha256: str  # of bundle.json
    versions: dict[str, list[str]]  # on disk, by owner
    ledger: Ledger
    numerics: dict[str, str]
    prover: Prover
    answering: ProbeRunner  # of the others, and the readable ones of those to be changed

    @classmethod
    def of(cls, root: FilePath, changing: Sequence[str], prover: Prover) -> _State:
        """The bundle in its current state. A task to be changed may be unreadable."""
        bundle = Bundle.open(root, verify=False)
        others = bundle.view({name: line for name, line in bundle.lines.items() if name not in changing})
        content = read_bundle_file(root)
        return cls(
            root=root,
            bundle=bundle,
            others=others,
            content=content,
            sha256=bundle_hash(root),
            versions={owner: on_disk(root, owner) for owner in content.lines},
            ledger=Ledger(root),
            numerics=numerics_label(),
            prover=prover,
            answering=prover.answering(_readable(bundle, others)),
        )

    def since(self, before: Mapping[str, Live]) -> _State:
        """For an operation already done, with these versions live before it."""
        bundle = self.bundle.view({**self.bundle.lines, **before})
        answering = self.prover.answering(_readable(bundle, self.others))
        return msgspec.structs.replace(self, bundle=bundle, answering=answering, sha256="")


def _readable(bundle: Bundle, others: Bundle) -> Bundle:
    """The bundle without unreadable tasks among these others."""
    lines = dict(others.lines)
    for name in bundle.lines.keys() - lines.keys():
        with suppress(BundleError):
            bundle.part(name)
            bundle.others(name)
            lines[name] = bundle.lines[name]
    return bundle.view({name: lines[name] for name in bundle.lines if name in lines})


def _before(state: _State) -> tuple[dict[str, ProbeAnswers], set[str]]:
    """Answers of the other tasks, from a certificate of exactly this version or computed now, and which were."""
    lines = state.others.lines
    known = {name: answered for name, (answered, _) in state.ledger.find(lines, state.numerics).items()}
    answered_now = state.answering.answered([name for name in lines if name not in known])
    return {name: (answered_now if name in answered_now else known)[name] for name in lines}, set(answered_now)


def _proven(
    state: _State, before: dict[str, ProbeAnswers], asked_now: set[str], operation: Operation, *, actor: str
) -> Certificate:
    """The written certificate of the change from `state` to the current files; raises IsolationError without proof."""
    try:
        now = Bundle.open(state.root)
        _check_lines(before, now.lines, operation)
        changed = _changed(state.bundle.lines, now.lines)
        old = _old_answers(state.answering, now, changed)
        answering = state.prover.following(state.answering, now)
        after = answering.answered(now.tasks)
        if any(before[name] != after[name] for name in before) and answering.forget():
            state.answering.forget()
            after = answering.answered(now.tasks)  # kept states decide nothing against a certificate
        before = _checked(state, before, after, asked_now, operation)
        compared = {name: changes(p, answers, answering.answers(name, p)) for name, (p, answers) in old.items()}
        state.prover.keep(answering)
    except IsolationError:
        raise
    except PolyheadError as error:
        raise IsolationError(
            f"'{operation}' cannot be proven to leave other tasks alone, so the bundle was put back",
            got=error.what,
            do=error.do,
        ) from error
    return state.ledger.write(
        Certificate(
            operation=operation,
            changed=changed,
            numerics=state.numerics,
            before=before,
            after=after,
            unchanged=True,
            answers_changed=compared,
            answers_asked={name: len(probes) for name, (probes, _) in old.items()},
            bundle_before=state.sha256,
            bundle=bundle_hash(state.root),
            actor=actor or msgspec.UNSET,
        )
    )


def _check_lines(before: Mapping[str, ProbeAnswers], lines: Mapping[str, Live], operation: str) -> None:
    """Checks that bundle.json names the same versions of the other tasks, including those without probes."""
    reasons = {name: "is gone" for name in before if name not in lines}
    for name, line in lines.items():
        if name in before and not before[name].is_of(line):
            reasons[name] = f"has version {line.version} live, not {before[name].version} as it was"
    if reasons:
        raise _refused(operation, reasons)


def _checked(
    state: _State,
    before: dict[str, ProbeAnswers],
    after: Mapping[str, ProbeAnswers],
    asked_now: set[str],
    operation: str,
) -> dict[str, ProbeAnswers]:
    """Returns `before`, which must equal `after`.

    If the earlier answers come from a certificate, and a program of that time may have computed differently, they are
    computed again first with the earlier versions.
    """
    differing = [name for name in before if before[name] != after[name]]
    again = state.answering.answered([name for name in differing if name not in asked_now])
    differing = [name for name in differing if again.get(name) != after[name]]
    if differing:
        raise _refused(operation, dict.fromkeys(differing, "answers its probes otherwise"))
    return before | again


def _refused(operation: str, reasons: Mapping[str, str]) -> IsolationError:
    return IsolationError(
        f"'{operation}' changed tasks that it had to leave alone, so the bundle was put back",
        got=[f"{name} {reason}" for name, reason in reasons.items()],
        allowed="the same live version and the same bits on every probe",
        do="run `polyhead tasks verify`; if it finds no file that was touched, report it",
        tasks=tuple(reasons),
    )


def _changed(before: Mapping[str, Live], after: Mapping[str, Live]) -> dict[str, Versions]:
    return versions_of([n for n in {**before, **after} if before.get(n) != after.get(n)], before, after)


def _old_answers(
    answering: ProbeRunner, now: Bundle, changed: Mapping[str, Versions]
) -> dict[str, tuple[list[Probe], Answers]]:
    """For each task with a new version whose old one is readable: the probes of both, and the old one's answers."""
    answers = dict[str, tuple[list[Probe], Answers]]()
    for name, (old, new) in changed.items():
        if old is not None and new is not None and name in answering.bundle.tasks:
            with suppress(BundleError):
                probes = list(dict.fromkeys([*readable_probes(answering.bundle, name), *readable_probes(now, name)]))
                answers[name] = probes, answering.answers(name, probes)
    return answers


def _put_back(state: _State, operation: str, error: BaseException) -> None:
    """Restores bundle.json and removes the versions that the operation added; reports if that is not possible."""
    try:
        now = read_bundle_file(state.root)
    except BundleError:
        now = state.content  # the file is unreadable: all of it is restored
    try:
        lost = remove.put_back(state.root, state.content, now, state.versions)
    except (BundleError, LockError) as refused:
        raise IsolationError(
            f"'{operation}' failed, and bundle.json could not be put back: what was changed is live, without proof",
            got=refused.got,
            do="make room or give access, then run `polyhead tasks verify`",
            tasks=tuple(_changed(state.bundle.lines, now.tasks)),
        ) from error
    if lost:
        raise IsolationError(
            f"'{operation}' deleted versions that were live, so the bundle cannot be put back wholly",
            got=lost,
            do="restore these tasks from a copy of the bundle",
            tasks=lost,
        ) from error
    with suppress(BundleError, LockError):
        remove.sweep_bundle(state.root)
