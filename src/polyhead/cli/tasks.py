"""`polyhead tasks`: list, add, update, remove, rollback, verify."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polyhead.cli.certificates import answers_changed, end
from polyhead.cli.output import Printer, counted, in_bytes, json_option, table

if TYPE_CHECKING:
    from polyhead.bundle.models import Models
    from polyhead.bundle.read import Bundle
    from polyhead.engine.isolation import Certificate, Verification

FOLDER = click.Path(file_okay=False)


@click.group("tasks")
def command() -> None:
    """List, add, update, remove and roll back the tasks of a bundle; prove that none disturbs another.

    Every change ends with a certificate in the bundle: all other tasks answer their pinned probes again, in
    deterministic mode, and must give the bits that they gave before. If one does not, the change is undone.
    """


@command.command("list")
@click.argument("bundle", type=FOLDER)
@json_option
def list_(bundle: str, json_to: str | None) -> None:
    """Show the tasks of BUNDLE, their versions and scores."""
    from polyhead.bundle.models import Models
    from polyhead.bundle.read import Bundle

    printer, opened, models = Printer(json_to), Bundle.open(bundle), Models(bundle)
    rows = {name: _row(opened, name) for name in opened.tasks}
    rows |= {name: _model_row(models, name) for name in models.lines}
    if not rows:
        printer.line("no task yet: train some with `polyhead train`, or add some with `polyhead tasks add`")
    else:
        printer.lines(_listed(rows))
    printer.json({"bundle": bundle, "trunk": opened.digest, "tasks": rows})


@command.command("add")
@click.argument("bundle", type=FOLDER)
@click.argument("source", type=FOLDER, metavar="FROM")
@click.argument("names", nargs=-1)
@click.option(
    "--as",
    "new_names",
    metavar="[NAME=]NEW",
    multiple=True,
    help="Add the task NAME under the name NEW; NAME may be left out where one is named.",
)
@json_option
def add(
    bundle: str, source: str, names: tuple[str, ...], new_names: tuple[str, ...], json_to: str | None
) -> None:
    """Add tasks of the bundle FROM, which has the same trunk, to BUNDLE: those named, or all.

    All of them are added, or none, with the families that they read. Tasks of one prompt group come together.
    """
    from polyhead.bundle.merge import copy_tasks
    from polyhead.bundle.read import Bundle

    printer = Printer(json_to)
    theirs = Bundle.open(source)
    chosen = list(dict.fromkeys(names)) or list(theirs.tasks)
    called = _pairs(new_names, chosen, "--as")
    if not chosen:
        raise click.BadParameter(f"{source} has no task", param_hint="'FROM'")
    certificate = _certified(
        bundle,
        "add",
        lambda: copy_tasks(theirs, chosen, Bundle.open(bundle, verify=False), called=called),
        [called.get(name, name) for name in chosen],
    )
    for name, (_, version) in certificate.changed.items():
        printer.line(f"added {name} ({version})")
    end(printer, bundle, certificate)


@command.command("update")
@click.argument("bundle", type=FOLDER)
@click.argument("source", type=FOLDER, metavar="FROM")
@click.argument("names", nargs=-1, required=True)
@click.option(
    "--from-name",
    "from_names",
    metavar="[NAME=]OTHER",
    multiple=True,
    help="What the task NAME is called in FROM; by default the same. NAME may be left out where one is named.",
)
@json_option
def update(
    bundle: str, source: str, names: tuple[str, ...], from_names: tuple[str, ...], json_to: str | None
) -> None:
    """Make NAMES of the bundle FROM new versions of NAMES in BUNDLE; the old ones stay on disk.

    Their labels may be others. Prints which of a task's probes get another answer now; the certificate keeps them all.
    Tasks of one prompt group are updated together.
    """
    from polyhead.bundle.merge import copy_tasks
    from polyhead.bundle.read import Bundle

    printer, theirs, ours = Printer(json_to), Bundle.open(source), Bundle.open(bundle, verify=False)
    chosen = list(dict.fromkeys(names))
    there = _pairs(from_names, chosen, "--from-name")
    called = {there.get(name, name): name for name in chosen}
    if len(called) < len(chosen):
        raise click.BadParameter("a task of FROM can update one task", param_hint="'--from-name'")
    old = {name: ours.version(name) for name in chosen}  # UnknownTask where there is nothing to update
    labels = {
        name: {"before": _labels(ours, name), "after": _known(theirs, other).task.labels}
        for other, name in called.items()
    }
    renamed = {other: name for other, name in called.items() if other != name}
    certificate = _certified(
        bundle,
        "update",
        lambda: copy_tasks(
            theirs, list(called), Bundle.open(bundle, verify=False), replace=True, called=renamed
        ),
        chosen,
    )
    for name in chosen:
        printer.line(f"updated {name}: {old[name]} -> {certificate.after[name].version}")
        printer.lines(_labels_changed(**labels[name]))
        printer.lines(answers_changed(certificate, name))
    facts = {"labels": labels[chosen[0]]} if len(chosen) == 1 else {}
    end(printer, bundle, certificate, **facts, tasks={name: {"labels": labels[name]} for name in chosen})


@command.command("remove")
@click.argument("bundle", type=FOLDER)
@click.argument("names", nargs=-1, required=True)
@json_option
def remove(bundle: str, names: tuple[str, ...], json_to: str | None) -> None:
    """Remove tasks from BUNDLE, with all their versions; this cannot be undone.

    Families that no other task reads go with them. Tasks of one prompt group are removed together.
    """
    from polyhead.bundle.models import model_names, remove_model
    from polyhead.bundle.remove import unlist

    printer, chosen = Printer(json_to), list(dict.fromkeys(names))
    own = [name for name in chosen if name in model_names(Path(bundle))]
    rest = [name for name in chosen if name not in own]
    certificate = None
    if rest:
        certificate = _certified(bundle, "remove", lambda: unlist(Path(bundle), rest), rest)
    for name in own:
        remove_model(bundle, name)
    for name in chosen:
        printer.line(f"removed {name}")
    if certificate is not None:
        end(printer, bundle, certificate)
    else:
        printer.json({"bundle": bundle, "removed": own})


@command.command("rollback")
@click.argument("bundle", type=FOLDER)
@click.argument("names", nargs=-1, required=True, metavar="NAMES... [VERSION]")
@json_option
def rollback(bundle: str, names: tuple[str, ...], json_to: str | None) -> None:
    """Make another VERSION of NAMES the live one: by default the version before the live one.

    The one that was live stays on disk, so `polyhead tasks rollback BUNDLE NAME v0002` goes forward again. Tasks of one
    prompt group go back together: VERSION is of the first, and the others get the versions that were made with it.
    """
    from polyhead.bundle.read import Bundle

    printer, version = Printer(json_to), None
    if len(names) > 1 and names[-1] not in Bundle.open(bundle, verify=False).lines:
        *names, version = names
    chosen = list(dict.fromkeys(names))
    certificate = _certified(bundle, "rollback", lambda: _roll_back(Path(bundle), chosen, version), chosen)
    for name in chosen:
        old, new = certificate.changed.get(name, (certificate.after[name].version,) * 2)
        printer.line(
            f"rolled back {name}: {old} -> {new}" if old != new else f"{new} of {name} is live already"
        )
        printer.lines(answers_changed(certificate, name))
    end(printer, bundle, certificate)


@command.command("verify")
@click.argument("bundle", type=FOLDER)
@json_option
def verify(bundle: str, json_to: str | None) -> None:
    """Hash every file of BUNDLE, ask all tasks their probes again, and compare with the certificates.

    Names each file that was touched, and each task that answers otherwise; then ends with exit code 1. If the last
    change has no certificate, since its process was killed, and all is equal, the certificate is written now.
    """
    from polyhead.engine.isolation import checked

    printer = Printer(json_to)
    found = checked(bundle)
    for finding in found.findings:
        printer.line(f"DIFFERS  {finding.file or finding.task or bundle}: {finding.what}")
    printer.lines(_verified(found))
    printer.json({"bundle": bundle, **_plain(found)})
    if found.findings:
        sys.exit(1)


def _certified(bundle: str, operation: Any, act: Any, changing: Sequence[str]) -> Certificate:
    from polyhead.engine.isolation import certified

    return certified(bundle, operation, act, changing=changing)


def _pairs(given: Sequence[str], names: Sequence[str], option: str) -> dict[str, str]:
    """NAME=OTHER of an option, by NAME; OTHER alone is of the one task that is named."""
    found = {}
    for one in given:
        name, _, other = one.rpartition("=")
        if not name and len(names) != 1:
            raise click.BadParameter(
                "it is about one task; name that task, or say NAME=...", param_hint=f"'{option}'"
            )
        if name and name not in names:
            raise click.BadParameter(
                f"'{name}' is not among the tasks that are named", param_hint=f"'{option}'"
            )
        found[name or names[0]] = other
    return found


def _known(bundle: Bundle, name: str) -> Any:
    from polyhead.errors import UnknownTask

    if name not in bundle.tasks:
        raise UnknownTask(f"{bundle.root} has no task '{name}'", got=name, allowed=sorted(bundle.tasks))
    return bundle.tasks[name]


def _labels(bundle: Bundle, name: str) -> tuple[str, ...] | None:
    """Those of a task's live version; None where it cannot be read, which an update mends."""
    from polyhead.errors import BundleError

    try:
        return bundle.view({name: bundle.lines[name]}).tasks[name].task.labels
    except BundleError:
        return None


def _labels_changed(before: tuple[str, ...] | None, after: tuple[str, ...]) -> list[str]:
    if before in (None, after):
        return []
    return [f"  labels were {', '.join(before or ())}; they are {', '.join(after)}"]


def _roll_back(root: Path, names: Sequence[str], version: str | None) -> None:
    from polyhead.bundle.lines import made_with
    from polyhead.bundle.write import set_versions
    from polyhead.engine.isolation.certificate import Ledger

    ledger, wanted = Ledger(root), made_with(root, names, version)
    set_versions(root, wanted, records={name: ledger.record_of(name, v) for name, v in wanted.items()})


def _row(bundle: Bundle, name: str) -> dict[str, Any]:
    from polyhead.plan import TRUNK

    record, (metric, score) = bundle.tasks[name], bundle.headline(name)
    own = [node for node in record.path.layers if node.weights != TRUNK]
    tap = max((node.stop for node in record.path.layers if node.weights == TRUNK), default=0)
    folder = bundle.root / "tasks" / name / bundle.version(name)
    return {
        "kind": record.task.kind,
        "labels": record.task.labels,
        "version": bundle.version(name),
        "versions": bundle.versions(name),
        "metric": metric,
        "score": score,
        "tap": tap,
        "own_layers": sum(node.stop - node.start for node in own),
        "bytes": sum(file.stat().st_size for file in folder.iterdir() if file.is_file()),
        "probes": len(bundle.probes(name)),
        "team": record.trained_with.get("team"),
    }


def _model_row(models: Models, name: str) -> dict[str, Any]:
    """Of a task that owns its model: all of its layers are its own."""
    record, (metric, score) = models.record(name), models.headline(name)
    version = models.lines[name].version
    return {
        "kind": record.task.kind,
        "labels": record.task.labels,
        "version": version,
        "versions": [version],
        "metric": metric,
        "score": score,
        "tap": None,
        "own_layers": None,
        "bytes": models.size(name),
        "probes": len(models.probes(name)),
        "team": None,
    }


def _listed(tasks: dict[str, dict[str, Any]]) -> list[str]:
    heading: list[object] = [
        "task",
        "kind",
        "metric",
        "live",
        "versions",
        "labels",
        "score",
        "tap",
        "own layers",
        "size",
    ]
    has_team = any(row["team"] for row in tasks.values())
    rows = [heading + (["team"] if has_team else [])]
    for name, row in tasks.items():
        score = "-" if row["score"] is None else f"{row['score']:.4f}"
        cells: list[object] = [name, row["kind"], row["metric"], row["version"], len(row["versions"])]
        depths = ["-" if row[key] is None else row[key] for key in ("tap", "own_layers")]
        cells += [len(row["labels"]) or "-", score, *depths, in_bytes(row["bytes"])]
        rows.append(cells + ([row["team"] or "-"] if has_team else []))
    return table(rows, left=4)


def _verified(found: Verification) -> list[str]:
    lines = []
    if not found.findings:
        lines.append("every file is as it was written")
    if found.equal:
        lines.append(
            f"{counted(len(found.equal), 'task')}: the bits of the certificates on {counted(found.probes, 'probe')}"
        )
    if found.unseen:
        lines.append(f"not seen by a certificate made under these numerics: {', '.join(found.unseen)}")
    if found.unproven:
        lines.append(f"without probes, so by their files alone: {', '.join(found.unproven)}")
    if found.uncertified:
        has_none = "the bundle had no certificate yet"
        lines.append("the last change had left no certificate" if found.certificates else has_none)
    if found.written:
        lines.append(f"certificate: certificates/{found.written}")
    return lines


def _plain(found: Verification) -> dict[str, Any]:
    import msgspec

    return dict(msgspec.to_builtins(found))
