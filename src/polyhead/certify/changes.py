"""Adding, updating, removing and rolling back tasks, for the command line, Python and the server.

Changes of tasks that read the trunk are proven. Tasks with their own models share no arrays, so there is nothing to
prove about them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path as FilePath

from polyhead.bundle.format import MODELS, TASKS
from polyhead.bundle.journal import StartedOperation, finish, start_operation
from polyhead.bundle.merge import copy_models, copy_tasks, models_added, taken_of
from polyhead.bundle.models import Models, model_names, remove_models, set_models
from polyhead.bundle.read import Bundle
from polyhead.bundle.remove import unlist
from polyhead.bundle.versions import made_with, next_version
from polyhead.bundle.write import set_versions
from polyhead.certify.certificate import Certificate, Ledger, Operation
from polyhead.certify.proof import Versions, certified, certified_once
from polyhead.certify.prover import Prover
from polyhead.errors import BundleError, ConfigError, PolyheadError, UnknownTask
from polyhead.values import Value


class BundleChange(Value):
    """The versions of tasks before and after a change; None if the task does not exist."""

    tasks: dict[str, Versions] = {}  # those that read the trunk
    models: dict[str, Versions] = {}  # those with their own models
    present: dict[str, str] = {}  # of an add: identical models that existed already
    certificate: Certificate | None = None  # None if only tasks with their own models changed
    started: StartedOperation | None = None  # of a command that acts once
    is_repeated: bool = False  # an interrupted run of the same command had done it

    @property
    def changed(self) -> dict[str, Versions]:
        """The versions of all tasks."""
        return self.tasks | self.models

    def reported(self, root: FilePath) -> None:
        """Marks the change as reported: the same command then acts again."""
        if self.started is not None:
            finish(root, self.started)


class Requester(Value, eq=False):
    """The person who requests a change, and the state that a process keeps between changes."""

    actor: str = ""
    prover: Prover | None = None
    check: Callable[[], None] = lambda: None  # raises, just before anything changes, if the requester no longer waits


def add_from(
    root: FilePath, source: Bundle, names: Sequence[str] | None = None, *, called: Mapping[str, str], by: Requester
) -> BundleChange:
    """Adds the live versions of tasks of another bundle, by default of all; `called` renames some of them.

    All of them are added or none. After a kill the same call adds what is missing.
    """
    taken = taken_of(source, names)
    rest, ours = list(taken.tasks.lines), Bundle.open(root, verify=False)
    owning = {name: called.get(name, name) for name in taken.models.lines}
    present = Models(root).same_as(taken.models, owning) if rest else {}
    missing = {name: new for name, new in owning.items() if new not in present}
    renamed = {name: called[name] for name in rest if name in called}

    def copy() -> None:
        by.check()
        copy_tasks(source, rest, ours, called=renamed)

    with models_added(taken.models, missing, root) as models:
        added: dict[str, Versions] = {name: (None, version) for name, version in models.items()}
        if not rest:
            return BundleChange(models=added, present=present)
        changing = [called.get(name, name) for name in rest]
        certificate = certified(root, "add", copy, changing=changing, actor=by.actor, prover=by.prover)
    return BundleChange(tasks=certificate.changed, models=added, present=present, certificate=certificate)


def update_from(root: FilePath, source: Bundle, called: Mapping[str, str], *, by: Requester) -> BundleChange:
    """Replaces tasks by those of another bundle; `called` maps names there to names here.

    An interrupted command whose change was made is not executed again when repeated.
    """
    ours, theirs = Bundle.open(root, verify=False), Models(source.root)
    names, owns = list(called.values()), _own_models(ours, list(called.values()), "updated")
    known = theirs.lines if owns else source.lines
    for other, name in called.items():
        if not owns:
            ours.version(name)  # UnknownTask if there is nothing to update
        if other in (source.lines if owns else theirs.lines):
            raise _other_sort(*((ours, source) if owns else (source, ours)), other)
        if other not in known:
            raise UnknownTask(f"{source.root} has no task '{other}'", got=other, allowed=sorted(known))
    renamed = {other: name for other, name in called.items() if other != name}
    section = MODELS if owns else TASKS

    def copy(_: Mapping[str, str]) -> None:
        by.check()
        if owns:
            copy_models(theirs, called, root, replace=True)
        else:
            copy_tasks(source, list(called), ours, replace=True, called=renamed)

    return _changed_once(
        root,
        "update",
        copy,
        arguments=[f"{other} {name} {known[other].record}" for other, name in called.items()],
        wanted=lambda: {name: next_version(root / section / name) for name in names},
        changing=names,
        owns=owns,
        by=by,
    )


def remove_from(root: FilePath, names: Sequence[str], *, by: Requester) -> BundleChange:
    """Removes tasks with all their versions, and families that no other task reads."""
    taken = taken_of(Bundle.open(root, verify=False), names)
    rest, own, certificate = list(taken.tasks.lines), taken.models, None
    models: dict[str, Versions] = {name: (own.version(name), None) for name in own.lines}

    def remove() -> None:
        by.check()
        unlist(root, rest)

    if rest:
        certificate = certified(root, "remove", remove, changing=rest, actor=by.actor, prover=by.prover)
    else:
        by.check()
    if models:
        remove_models(root, list(models))
    return BundleChange(tasks=certificate.changed if certificate else {}, models=models, certificate=certificate)


def roll_back(root: FilePath, names: Sequence[str], version: str | None = None, *, by: Requester) -> BundleChange:
    """Makes `version` of the first task live, by default the one before, and of the others those made with it.

    An interrupted command whose change was made is not executed again when repeated. Raises UnknownTask, BundleError if
    there is no such version, IsolationError.
    """
    owns = _own_models(Bundle.open(root, verify=False), names, "rolled back")

    def act(wanted: Mapping[str, str]) -> None:
        by.check()
        if owns:
            set_models(root, wanted)
            return
        records = Ledger(root).records()
        set_versions(root, wanted, records={name: records.get((name, made)) for name, made in wanted.items()})

    return _changed_once(
        root,
        "rollback",
        act,
        arguments=[*names, version or ""],
        wanted=lambda: _earlier(Models(root), names, version) if owns else made_with(root, names, version),
        changing=names,
        owns=owns,
        by=by,
    )


def _changed_once(
    root: FilePath,
    operation: Operation,
    act: Callable[[Mapping[str, str]], object],
    *,
    arguments: Sequence[str],
    wanted: Callable[[], Mapping[str, str]],
    changing: Sequence[str],
    owns: bool,
    by: Requester,
) -> BundleChange:
    certificate = None
    if not owns:
        once = certified_once(
            root,
            operation,
            act,
            arguments=arguments,
            wanted=wanted,
            changing=changing,
            actor=by.actor,
            prover=by.prover,
        )
        started, is_repeated, certificate = once.started, once.is_repeated, once.certificate
    else:
        lines = Models(root).lines
        started = start_operation(root, operation, arguments, lines=lines, wanted=wanted)
        is_repeated = started.is_done(lines)
        try:
            if not is_repeated:
                act(started.wanted)
        except Exception:
            with suppress(PolyheadError):
                finish(root, started)
            raise
    changed: dict[str, Versions] = {name: (started.before[name].version, new) for name, new in started.wanted.items()}
    return BundleChange(
        tasks={} if owns else changed,
        models=changed if owns else {},
        certificate=certificate,
        started=started,
        is_repeated=is_repeated,
    )


def _own_models(bundle: Bundle, names: Sequence[str], done: str) -> bool:
    """Whether these tasks have their own models; raises ConfigError if only some of them do."""
    models = set(model_names(bundle.root))
    own = [name for name in names if name in models]
    if own and len(own) < len(names):
        raise ConfigError(
            f"tasks that own their models are {done} in a separate call", got=own, do="name them in another call"
        )
    return bool(own)


def _other_sort(owner: Bundle, reader: Bundle, name: str) -> BundleError:
    return BundleError(
        f"a task of {owner.root} owns its model, and one of {reader.root} reads the trunk, so neither is a version of "
        "the other",
        got=name,
        do="add it under another name with `polyhead tasks add --as`, or remove the old one first",
    )


def _earlier(models: Models, names: Sequence[str], version: str | None) -> dict[str, str]:
    wanted = dict[str, str]()
    for name in names:
        versions, live = models.versions(name), models.version(name)
        earlier = versions[: versions.index(live)] if live in versions else []
        chosen = version if name == names[0] else None
        if chosen is None and not earlier:
            raise BundleError(f"task '{name}' has no version before {live}, the live one", allowed=versions)
        wanted[name] = chosen or earlier[-1]
    return wanted
