"""`polyhead tasks`: list, add, update, remove, rollback, verify, certificate, pack."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from polyhead.cli.bundle_lines import answers_changed, end, model_row, owner_rows, removed_lines, task_row
from polyhead.cli.certificate import certificate
from polyhead.cli.command import option, verb
from polyhead.cli.model_tasks import (
    other_sort,
    roll_back_models,
    rolled_back,
    tell_repeated,
    update_keys,
    update_models,
)
from polyhead.cli.options import Actor, Folder
from polyhead.cli.output import Printer, counted
from polyhead.cli.uploads import apply, pack

if TYPE_CHECKING:
    from polyhead.bundle.manifest import Live
    from polyhead.bundle.read import Bundle
    from polyhead.certify import Verification

FOLDER = click.Path(file_okay=False)


@click.group("tasks")
def command() -> None:
    """List, add, update, remove and roll back the tasks of a bundle; verify it; pack a task for a server.

    After every change, all other tasks answer their pinned probes (stored test inputs) again, in deterministic mode.
    They must give the same bits as before, else the change is undone. A certificate in the bundle records the result,
    with who made the change and when; `polyhead tasks certificate` puts it into words.
    Tasks that own their models need no certificate, since no other task reads their arrays.
    """


command.add_command(pack)
command.add_command(apply)
command.add_command(certificate)


@verb("list", group=command)
def list_(bundle: Folder, *, printer: Printer) -> Any:
    """Show the tasks of BUNDLE, their versions and scores."""
    from polyhead.bundle.models import Models
    from polyhead.bundle.read import Bundle

    opened, models = Bundle.open(bundle), Models(bundle)
    rows = {name: task_row(opened, name) for name in opened.tasks}
    rows |= {name: model_row(models, name) for name in models.lines}
    if not rows:
        printer.line("no task yet: train some with `polyhead train`, or add some with `polyhead tasks add`")
    else:
        printer.lines(owner_rows(rows))
    groups = [sorted(group) for group in opened.groups()]
    printer.lines([f"can only change together: {', '.join(group)}" for group in groups])
    printer.lines(removed_lines(opened, models))
    shared = {"groups": groups, "families": {owner: line.version for owner, line in opened.families.items()}}
    removed = [*opened.removed, *models.removed]
    return {"bundle": bundle, "trunk": opened.digest, "tasks": rows, **shared, "removed": removed}


@verb("add", group=command)
def add(
    bundle: Folder,
    source: Folder = option(metavar="FROM"),
    names: tuple[str, ...] = (),
    *,
    new_names: tuple[str, ...] = option(
        "Add the task NAME under the name NEW. NAME may be left out if only one task is added.",
        "--as",
        metavar="[NAME=]NEW",
    ),
    actor: Actor,
    printer: Printer,
) -> Any:
    """Add tasks of the bundle FROM to BUNDLE, which has the same trunk; by default all tasks.

    Either all of them are added, with the families that they read, or none. Tasks of one prompt group are added
    together. Tasks that own their models may come from a bundle with any trunk. If the command is killed, run it
    again.
    """
    from polyhead.bundle.merge import copy_tasks, models_added, taken_of
    from polyhead.bundle.models import Models
    from polyhead.bundle.read import Bundle
    from polyhead.certify import certified

    theirs, ours = Bundle.open(source), Bundle.open(bundle, verify=False)
    taken = taken_of(theirs, names or None)
    rest, own = list(taken.tasks.lines), list(taken.models.lines)
    called = _pairs(new_names, [*rest, *own], "--as")
    if not rest and not own:
        raise click.BadParameter(f"{source} has no task", param_hint="'FROM'")
    renamed = {name: other for name, other in called.items() if name in rest}
    certificate, changed = None, dict[str, tuple[str | None, str | None]]()
    owning = {name: called.get(name, name) for name in own}
    same = Models(ours.root).same_as(taken.models, owning) if rest else {}  # of an add that was killed
    missing = {name: new for name, new in owning.items() if new not in same}
    with models_added(taken.models, missing, ours.root) as models:
        if rest:
            certificate = certified(
                bundle,
                "add",
                lambda: copy_tasks(theirs, rest, Bundle.open(bundle, verify=False), called=renamed),
                changing=[called.get(name, name) for name in rest],
                actor=actor,
            )
            changed |= certificate.changed
    added = {name: (None, version) for name, version in models.items()}
    for name, (_, version) in {**changed, **added}.items():
        printer.line(f"added {name} ({version})")
    printer.lines([f"{name} ({version}) was there already, file for file" for name, version in same.items()])
    end(printer, bundle, certificate, models=added)


@verb("update", group=command)
def update(
    bundle: Folder,
    source: Folder = option(metavar="FROM"),
    names: tuple[str, ...] = option(),
    *,
    from_names: tuple[str, ...] = option(
        "Name of the task NAME in FROM, if it differs. NAME may be left out if only one task is updated.",
        "--from-name",
        metavar="[NAME=]OTHER",
    ),
    allow_lost_labels: bool = option("Update also where labels of a live version are no more."),
    actor: Actor,
    printer: Printer,
) -> Any:
    """Replace NAMES in BUNDLE by the tasks of the bundle FROM; the old versions stay on disk.

    There may be new labels. The command prints which probes get a new answer; the certificate holds all of them. Tasks
    of one prompt group must be updated together; tasks that own their models, in a separate call.
    """
    from polyhead.bundle.format import TASKS
    from polyhead.bundle.journal import finish
    from polyhead.bundle.lost import check_replacement
    from polyhead.bundle.merge import copy_tasks
    from polyhead.bundle.read import Bundle
    from polyhead.bundle.versions import next_version
    from polyhead.certify import certified_once

    theirs, ours = Bundle.open(source), Bundle.open(bundle, verify=False)
    chosen = list(dict.fromkeys(names))
    from_name = _pairs(from_names, chosen, "--from-name")
    called = {from_name.get(name, name): name for name in chosen}
    if len(called) < len(chosen):
        raise click.BadParameter("a task of FROM can update one task", param_hint="'--from-name'")
    if _own_models(ours, chosen, "updated"):
        return update_models(printer, ours, theirs, called)
    _ = [ours.version(name) for name in chosen]  # UnknownTask where there is nothing to update
    new = {name: _known(theirs, other, ours) for other, name in called.items()}
    for name, record in new.items() if not allow_lost_labels else ():
        do = "update from a version that learned these labels too, or let them go with --allow-lost-labels"
        check_replacement(ours, name, record, do=do, where="what the new one learned from")
    renamed = {other: name for other, name in called.items() if other != name}
    done = certified_once(
        bundle,
        "update",
        lambda _: copy_tasks(theirs, list(called), Bundle.open(bundle, verify=False), replace=True, called=renamed),
        arguments=update_keys(theirs.root, {other: (name, theirs.lines[other]) for other, name in called.items()}),
        wanted=lambda: {name: next_version(ours.root / TASKS / name) for name in chosen},
        changing=chosen,
        actor=actor,
    )
    certificate, old = done.certificate, done.begun.before
    labels = {name: {"before": _labels(ours, name, old[name]), "after": new[name].task.labels} for name in chosen}
    for name in chosen:
        printer.line(f"updated {name}: {old[name].version} -> {certificate.after[name].version}")
        printer.lines(_labels_changed(**labels[name]))
        printer.lines(answers_changed(certificate, name))
    facts = {"labels": labels[chosen[0]]} if len(chosen) == 1 else {}
    tell_repeated(printer, is_repeated=done.is_repeated)
    end(printer, bundle, certificate, **facts, tasks={name: {"labels": labels[name]} for name in chosen})
    return finish(ours.root, done.begun)


@verb("remove", group=command)
def remove(bundle: Folder, names: tuple[str, ...], *, actor: Actor, printer: Printer) -> Any:
    """Remove tasks from BUNDLE, with all their versions; this cannot be undone.

    Families that no other task reads are removed too. Tasks of one prompt group must be removed together. `polyhead
    train` does not train removed tasks again unless `--retrain` names them.
    """
    from polyhead.bundle.merge import taken_of
    from polyhead.bundle.models import remove_models
    from polyhead.bundle.read import Bundle
    from polyhead.bundle.remove import unlist
    from polyhead.certify import certified

    root = Path(bundle)
    taken = taken_of(Bundle.open(bundle, verify=False), names)
    rest, own, certificate = list(taken.tasks.lines), taken.models, None
    if rest:
        certificate = certified(bundle, "remove", lambda: unlist(root, rest), changing=rest, actor=actor)
    if own.lines:
        remove_models(root, list(own.lines))
    for name in dict.fromkeys(names):
        printer.line(f"removed {name}")
    end(printer, bundle, certificate, models={name: (own.version(name), None) for name in own.lines})


@verb("rollback", group=command)
def rollback(
    bundle: Folder, names: tuple[str, ...] = option(metavar="NAMES... [VERSION]"), *, actor: Actor, printer: Printer
) -> Any:
    """Go back to an earlier VERSION of NAMES; by default the one before the live version.

    The replaced version stays on disk, so `polyhead tasks rollback BUNDLE NAME v0002` goes forward again. Tasks of one
    prompt group must go back together: VERSION is that of the first, the others get the versions made with it. Tasks
    that own their models need a separate call. A version that is not the newest is pinned: `polyhead train` does not
    replace it unless `--retrain` names the task.
    """
    from polyhead.bundle.journal import finish
    from polyhead.bundle.models import model_names
    from polyhead.bundle.read import Bundle
    from polyhead.certify.rollback import roll_back

    ours, chosen = Bundle.open(bundle, verify=False), list(dict.fromkeys(names))
    version = None
    if len(chosen) > 1 and chosen[-1] not in [*ours.lines, *model_names(ours.root)]:
        version = chosen.pop()
    if _own_models(ours, chosen, "rolled back"):
        return roll_back_models(printer, ours, chosen, version)

    done = roll_back(ours.root, chosen, version, actor=actor)
    certificate = done.certificate
    for name in chosen:
        live = certificate.after[name].version
        printer.line(rolled_back(name, *certificate.changed.get(name, (live, live))))
        printer.lines(answers_changed(certificate, name))
    tell_repeated(printer, is_repeated=done.is_repeated)
    end(printer, bundle, certificate)
    return finish(ours.root, done.begun)


@verb("verify", group=command)
def verify_tasks(bundle: Folder, *, actor: Actor, printer: Printer) -> Any:
    """Check every file and every answer of BUNDLE against its certificates.

    Hashes all files and lets all tasks answer their probes again. Names each changed file and each task that answers
    differently, then ends with exit code 1. If nothing differs and the last change has no certificate, for example
    because its process was killed, one is written now.
    """
    from polyhead.certify import checked

    verification = checked(bundle, actor=actor)
    for finding in verification.findings:
        printer.line(f"DIFFERS  {finding.file or finding.task or bundle}: {finding.what}")
    printer.lines(_verified(verification))
    printer.json({"bundle": bundle, **msgspec.to_builtins(verification)})
    if verification.findings:
        sys.exit(1)


def _pairs(values: Sequence[str], names: Sequence[str], option: str) -> dict[str, str]:
    """OTHER by NAME, from values NAME=OTHER of an option; OTHER alone belongs to the only task that is named."""
    pairs = {}
    for value in values:
        name, _, other = value.rpartition("=")
        if not name and len(names) != 1:
            raise click.BadParameter("it is about one task; name that task, or say NAME=...", param_hint=f"'{option}'")
        if name and name not in names:
            raise click.BadParameter(
                f"'{name}' is not among the tasks that are named: {', '.join(names) or 'none is, so name it too'}",
                param_hint=f"'{option}'",
            )
        pairs[name or names[0]] = other
    return pairs


def _own_models(bundle: Bundle, names: Sequence[str], done: str) -> bool:
    """Whether these tasks own their models; raises click.BadParameter if only some of them do."""
    from polyhead.bundle.models import model_names

    own = [name for name in names if name in model_names(bundle.root)]
    if own and len(own) < len(names):
        raise click.BadParameter(
            f"tasks that own their models are {done} in a call of their own: {', '.join(own)}", param_hint="'NAMES'"
        )
    return bool(own)


def _known(bundle: Bundle, name: str, ours: Bundle) -> Any:
    from polyhead.bundle.models import model_names
    from polyhead.errors import UnknownTask

    if name in model_names(bundle.root):
        raise other_sort(bundle, ours, [name])
    if name not in bundle.tasks:
        raise UnknownTask(f"{bundle.root} has no task '{name}'", got=name, allowed=sorted(bundle.tasks))
    return bundle.tasks[name]


def _labels(bundle: Bundle, name: str, live: Live) -> tuple[str, ...] | None:
    """The labels of a task's version; None if it cannot be read, which an update mends."""
    from polyhead.errors import BundleError

    try:
        return bundle.view({name: live}).tasks[name].task.labels
    except BundleError:
        return None


def _labels_changed(before: tuple[str, ...] | None, after: tuple[str, ...]) -> list[str]:
    if before in (None, after):
        return []
    return [f"  labels were {', '.join(before or ())}; they are {', '.join(after)}"]


def _verified(verification: Verification) -> list[str]:
    lines = []
    if not verification.findings:
        lines.append("every file is as it was written")
    if verification.equal:
        tasks, probes = counted(len(verification.equal), "task"), counted(verification.probes, "probe")
        lines.append(f"{tasks}: the bits of the certificates on {probes}")
    if verification.unseen:
        lines.append(f"not seen by a certificate made under these numerics: {', '.join(verification.unseen)}")
    if verification.unproven:
        lines.append(f"without probes, so by their files alone: {', '.join(verification.unproven)}")
    if verification.uncertified:
        has_none = "the bundle had no certificate yet"
        lines.append("the last change had left no certificate" if verification.certificates else has_none)
    if verification.written:
        lines.append(f"certificate: certificates/{verification.written}")
    return lines
