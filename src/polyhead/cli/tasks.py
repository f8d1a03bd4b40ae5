"""`polyhead tasks`, but for merge, agree and quantize, which have files of their own."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import click
import msgspec

from polyhead.bundle.lost_labels import check_replacement
from polyhead.bundle.manifest import Live
from polyhead.bundle.read import Bundle
from polyhead.bundle.task_archive import upload_bytes
from polyhead.certify import (
    BundleChange,
    Requester,
    Verification,
    add_from,
    checked,
    remove_from,
    roll_back,
    update_from,
)
from polyhead.certify.certificate import Ledger
from polyhead.cli.agree import command as agree
from polyhead.cli.bundle_lines import answers_changed, end, owner_rows, removed_lines, task_row
from polyhead.cli.command import VerbGroup, option, verb
from polyhead.cli.merge import command as merge
from polyhead.cli.options import Actor, Folder, RequiredFile, comma_names, keep_compiled
from polyhead.cli.output import Printer, counted, note
from polyhead.cli.quantize import command as quantize
from polyhead.errors import BundleError
from polyhead.files import replacing
from polyhead.tasks.task import Task


def _source_folder(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """The folder of FROM; raises click.BadParameter with the next step for a packed task and for FOLDER:TASK."""
    path, (folder, colon, names) = Path(value), value.rpartition(":")
    if path.is_file():
        do = f"if `polyhead tasks pack` wrote it, send it to a server: curl -T {shlex.quote(value)} URL/v1/tasks/NAME"
        raise click.BadParameter(f"{value} is a file; give the folder of a bundle; {do}", context, parameter)
    if colon and not path.exists() and Path(folder).is_dir():
        verb = f"polyhead tasks {context.info_name} {shlex.quote(context.params.get('bundle') or 'BUNDLE')}"
        do = f"{verb} {shlex.quote(folder)} {shlex.join(comma_names(names)) or 'NAMES'}"
        raise click.BadParameter(f"there is no folder {value}; give tasks after the folder: {do}", context, parameter)
    return value


_Source = Annotated[str, option(metavar="FROM", callback=_source_folder)]


@click.group("tasks", cls=VerbGroup)
def command() -> None:
    """List, add, update, remove, roll back, merge and verify the tasks of bundles; pack a task for a server.

    After every change, all other tasks answer their pinned probes (stored test inputs) again, in deterministic mode.
    They must give the same bits as before, else the change is undone. A certificate in the bundle records the result,
    with who made the change and when; `polyhead tasks certificate` puts it into words.
    """
    keep_compiled()


@verb("list", group=command)
def list_(bundle: Folder, *, printer: Printer) -> Any:
    """Show the tasks of BUNDLE, their versions and scores."""
    opened = Bundle.open(bundle)
    rows = {name: task_row(opened, name) for name in opened.tasks}
    if not rows:
        printer.line("no task yet: train some with `polyhead train`, or add some with `polyhead tasks add`")
    else:
        printer.lines(owner_rows(rows))
    groups = [sorted(group) for group in opened.groups()]
    printer.lines([f"can only change together: {', '.join(group)}" for group in groups])
    printer.lines(removed_lines(opened))
    shared = {"groups": groups, "families": {owner: line.version for owner, line in opened.families.items()}}
    return {"bundle": bundle, "trunk": opened.digest, "tasks": rows, **shared, "removed": opened.removed}


@verb("add", group=command)
def add(
    bundle: Folder,
    source: _Source,
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
    """Add tasks of the bundle FROM to BUNDLE, which has the same encoder; by default all tasks.

    Either all of them are added, with the families that they read, or none. Tasks of one prompt group are added
    together. If the command is killed, run it again.
    """
    theirs = Bundle.open(source)
    chosen = list(dict.fromkeys(names)) or list(theirs.lines)
    if not chosen:
        raise click.BadParameter(f"{source} has no task", param_hint="'FROM'")
    called = _pairs(new_names, chosen, "--as")
    change = add_from(Path(bundle), theirs, chosen, called=called, by=Requester(actor=actor))
    printer.lines([f"added {name} ({version})" for name, (_, version) in change.changed.items()])
    end(printer, bundle, change.certificate)


@verb("update", group=command)
def update(
    bundle: Folder,
    source: _Source,
    names: tuple[str, ...],
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
    of one prompt group must be updated together.
    """
    theirs, ours = Bundle.open(source), Bundle.open(bundle, verify=False)
    chosen = list(dict.fromkeys(names))
    from_name = _pairs(from_names, chosen, "--from-name")
    called = {from_name.get(name, name): name for name in chosen}
    if len(called) < len(chosen):
        raise click.BadParameter("a task of FROM can update one task", param_hint="'--from-name'")
    new = {name: theirs.record(other) for other, name in called.items() if other in theirs.lines and name in ours.lines}
    for name, record in new.items() if not allow_lost_labels else ():
        do = "update from a version that learned these labels too, or let them go with --allow-lost-labels"
        check_replacement(ours, name, record, do=do, where="what the new one learned from")
    change = update_from(ours.root, theirs, called, by=Requester(actor=actor))
    said = {name: f"updated {name}: {old} -> {version}" for name, (old, version) in change.changed.items()}
    _end_once(printer, ours, change, said)


@verb("remove", group=command)
def remove(bundle: Folder, names: tuple[str, ...], *, actor: Actor, printer: Printer) -> Any:
    """Remove tasks from BUNDLE, with all their versions; this cannot be undone.

    Families that no other task reads are removed too. Tasks of one prompt group must be removed together. `polyhead
    train` does not train removed tasks again unless `--retrain` names them.
    """
    change = remove_from(Path(bundle), names, by=Requester(actor=actor))
    printer.lines([f"removed {name}" for name in dict.fromkeys(names)])
    end(printer, bundle, change.certificate)


@verb("rollback", group=command)
def rollback(
    bundle: Folder, names: tuple[str, ...] = option(metavar="NAMES... [VERSION]"), *, actor: Actor, printer: Printer
) -> Any:
    """Go back to an earlier VERSION of NAMES; by default the one before the live version.

    The replaced version stays on disk, so `polyhead tasks rollback BUNDLE NAME v0002` goes forward again. Tasks of one
    prompt group must go back together: VERSION is that of the first, the others get the versions made with it. A
    version that is not the newest is pinned: `polyhead train` does not replace it unless `--retrain` names the task.
    As in an update, a changed kind, changed labels, and probes that get another answer are printed.
    """
    ours, chosen = Bundle.open(bundle, verify=False), list(dict.fromkeys(names))
    version = None
    if len(chosen) > 1 and chosen[-1] not in ours.lines:
        version = chosen.pop()
    change = roll_back(ours.root, chosen, version, by=Requester(actor=actor))
    said = {
        name: f"rolled back {name}: {old} -> {new}" if old != new else f"{new} of {name} is live already"
        for name, (old, new) in change.changed.items()
    }
    _end_once(printer, ours, change, said)


@verb("verify", group=command)
def verify_tasks(bundle: Folder, *, actor: Actor, printer: Printer) -> Any:
    """Check every file and every answer of BUNDLE against its certificates.

    Hashes all files and lets all tasks answer their probes again. Names each changed file and each task that answers
    differently, then ends with exit code 1. If nothing differs and the last change has no certificate, for example
    because its process was killed, one is written now.
    """
    verification = checked(bundle, actor=actor)
    for finding in verification.findings:
        printer.line(f"DIFFERS  {finding.file or finding.task or bundle}: {finding.what}")
    printer.lines([*_next_steps(verification), *_verified(verification)])
    printer.json({"bundle": bundle, **msgspec.to_builtins(verification)})
    if verification.findings:
        sys.exit(1)


@verb("certificate", group=command)
def certificate(
    bundle: Folder,
    number: int | None = option(ge=1, default=None),
    *,
    every: bool = option("Show all certificates, the newest first.", "--all"),
    printer: Printer,
) -> Any:
    """Say in words what a certificate of BUNDLE proves.

    That is who changed what, when, and on how many probes the rest agreed.
    By default it is the newest one; NUMBER is that in a certificate's name. Certificates are made by every change, and
    by `polyhead tasks verify`, which also checks that they were not edited.
    """
    if every and number is not None:
        raise click.UsageError("--all and NUMBER contradict each other: give one of them")
    Bundle.open(bundle, verify=False)
    ledger = Ledger(Path(bundle))
    chosen = ledger.chosen(number, every=every)
    for place, proof in enumerate(chosen):
        printer.lines(["", proof.paragraph] if place else [proof.paragraph])
        printer.line(f"(certificates/{proof.name})")
    if every and (bad := len(ledger.files) - len(chosen)):
        note(f"{counted(bad, 'certificate')} cannot be trusted; see `polyhead tasks verify`")
    shown = [{"file": proof.name, "paragraph": proof.paragraph, "certificate": proof} for proof in chosen]
    return {"bundle": bundle, "certificates": shown}


@verb("pack", group=command)
def pack(
    bundle: Folder,
    name: str,
    *,
    output: RequiredFile = option("The tar to write; an old one is replaced.", "-o", "--output", required=True),
    printer: Printer,
) -> Any:
    """Write the live version of NAME in BUNDLE to one file, which a server takes as an upload.

    Send it with PUT /v1/tasks/NAME to a server that allows changes, or with PUT /v1/tasks/NAME/shadow to try it first.
    """
    opened = Bundle.open(bundle, verify=False)
    opened.part(name)  # hashed: a damaged one is not sent
    size = 0
    with replacing(Path(output)) as file:
        for chunk in upload_bytes(opened, name):
            size += file.write(chunk)
    version = opened.version(name)
    printer.line(f"packed {name} ({version}) into {output}: {counted(size, 'byte')}")
    return {"bundle": bundle, "task": name, "version": version, "file": output, "bytes": size}


command.add_command(merge)
command.add_command(agree)
command.add_command(quantize)


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


def _end_once(printer: Printer, ours: Bundle, change: BundleChange, said: Mapping[str, str]) -> None:
    """Prints the line of each task, with its kind and labels where they changed, and its probes that did.

    `ours` may be the bundle before the change or, of a command that is repeated, after it.
    """
    now, told = Bundle.open(ours.root, verify=False), dict[str, dict[str, Any]]()
    for name, line in said.items():
        printer.line(line)
        if change.started is None:
            continue
        before, after = _task_at(ours, name, change.started.before[name]), now.tasks[name].task
        if before is not None and before.kind != after.kind:
            printer.line(f"  kind was {before.kind}; it is {after.kind}")
        if before is not None and before.labels != after.labels:
            was, those = (", ".join(task.labels) or "none" for task in (before, after))
            printer.line(f"  labels were {was}; they are {those}")
        told[name] = {
            fact: {"before": getattr(before, fact, None), "after": getattr(after, fact)} for fact in ("labels", "kind")
        }
        printer.lines(answers_changed(change.certificate, name))
    if change.is_repeated:
        printer.line("this command had done that when it was stopped, so it was not done again")
    facts = next(iter(told.values())) if len(told) == 1 else {}
    end(printer, str(ours.root), change.certificate, **facts, **({"tasks": told} if told else {}))
    change.reported(ours.root)


def _task_at(bundle: Bundle, name: str, live: Live) -> Task | None:
    """The task in a version; None if it cannot be read, which an update mends."""
    try:
        return bundle.view({name: live}).tasks[name].task
    except BundleError:
        return None


def _next_steps(verification: Verification) -> list[str]:
    """Advice for damaged files, and for tasks that answer otherwise though their files are intact."""
    are_files = [finding.file is not None or finding.task is None for finding in verification.findings]
    of_files = "restore what is named above from a copy of the bundle, or make the bundle again"
    of_answers = (
        "verify a task with intact files under the libraries of its certificate; if it differs there, train again"
    )
    return [of_files] * any(are_files) + [of_answers] * (not all(are_files))


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
        lines.append(f"not asked, so by their files alone: {', '.join(verification.unproven)}")
    if verification.uncertified:
        has_none = "the bundle had no certificate yet"
        lines.append("the last change had left no certificate" if verification.certificates else has_none)
    if verification.written:
        lines.append(f"certificate: certificates/{verification.written}")
    return lines
