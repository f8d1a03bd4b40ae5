"""Adding, updating, removing and rolling back tasks, for the command line, Python and the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path as FilePath

from polyhead.bundle.merge import copy_tasks, select_from
from polyhead.bundle.owners import owner_named
from polyhead.bundle.read import Bundle
from polyhead.bundle.remove import unlist
from polyhead.bundle.versions import made_with, next_version
from polyhead.bundle.write import set_versions
from polyhead.certify.certificate import Ledger
from polyhead.certify.proof import BundleChange, certified, certified_once
from polyhead.certify.prover import Prover
from polyhead.values import Value


class Requester(Value, eq=False):
    """The person who requests a change, and the state that a process keeps between changes."""

    actor: str = ""
    prover: Prover | None = None
    check: Callable[[], None] = lambda: None  # raises, just before anything changes, if the requester no longer waits


def add_from(
    root: FilePath, source: Bundle, names: Sequence[str] | None = None, *, called: Mapping[str, str], by: Requester
) -> BundleChange:
    """Adds the live versions of tasks of another bundle, by default of all; `called` renames some of them.

    All of them are added or none.
    """
    ours, chosen = Bundle.open(root, verify=False), list(select_from(source, names).lines)

    def copy() -> None:
        by.check()
        copy_tasks(source, chosen, ours, called={name: called[name] for name in chosen if name in called})

    changing = [called.get(name, name) for name in chosen]
    certificate = certified(root, "add", copy, changing=changing, actor=by.actor, prover=by.prover)
    return BundleChange(changed=certificate.changed, certificate=certificate)


def update_from(root: FilePath, source: Bundle, called: Mapping[str, str], *, by: Requester) -> BundleChange:
    """Replaces tasks by those of another bundle; `called` maps names there to names here.

    An interrupted command whose change was made is not executed again when repeated.
    """
    ours = Bundle.open(root, verify=False)
    for name in called.values():
        ours.version(name)  # UnknownTask if there is nothing to update
    theirs = select_from(source, list(called)).lines

    def copy(_: Mapping[str, str]) -> None:
        by.check()
        renamed = {other: name for other, name in called.items() if other != name}
        copy_tasks(source, list(called), ours, replace=True, called=renamed)

    return certified_once(
        root,
        "update",
        copy,
        arguments=[f"{other} {name} {theirs[other].record}" for other, name in called.items()],
        wanted=lambda: {name: next_version(root, owner_named(name)) for name in called.values()},
        changing=list(called.values()),
        actor=by.actor,
        prover=by.prover,
    )


def remove_from(root: FilePath, names: Sequence[str], *, by: Requester) -> BundleChange:
    """Removes tasks with all their versions, and families that no other task reads."""
    gone = list(select_from(Bundle.open(root, verify=False), names).lines)

    def remove() -> None:
        by.check()
        unlist(root, gone)

    certificate = certified(root, "remove", remove, changing=gone, actor=by.actor, prover=by.prover)
    return BundleChange(changed=certificate.changed, certificate=certificate)


def roll_back(root: FilePath, names: Sequence[str], version: str | None = None, *, by: Requester) -> BundleChange:
    """Makes `version` of the first task live, by default the one before, and of the others those made with it.

    An interrupted command whose change was made is not executed again when repeated. Raises UnknownTask, BundleError if
    there is no such version, IsolationError.
    """

    def act(wanted: Mapping[str, str]) -> None:
        by.check()
        records = Ledger(root).records()
        set_versions(root, wanted, records={name: records.get((name, new)) for name, new in wanted.items()})

    return certified_once(
        root,
        "rollback",
        act,
        arguments=[*names, version or ""],
        wanted=lambda: made_with(root, names, version),
        changing=names,
        actor=by.actor,
        prover=by.prover,
    )
