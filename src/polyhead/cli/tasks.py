"""`polyhead tasks`: list, add, update, remove, rollback, verify."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polyhead.cli.output import Printer, counted, in_bytes, json_option, table

if TYPE_CHECKING:
    from polyhead.bundle.models import Models
    from polyhead.bundle.read import Bundle
    from polyhead.engine.isolation import AnswerChange, Certificate, Verification

SHOWN = 10  # changed answers that are printed; JSON and certificate hold all
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
@click.option("--as", "new_name", metavar="NEW", help="Add the one task that is named under this name.")
@json_option
def add(bundle: str, source: str, names: tuple[str, ...], new_name: str | None, json_to: str | None) -> None:
    """Add tasks of the bundle FROM, which has the same trunk, to BUNDLE: those named, or all.

    All of them are added, or none.
    """
    from polyhead.bundle.merge import copy_tasks
    from polyhead.bundle.read import Bundle

    printer = Printer(json_to)
    theirs = Bundle.open(source)
    chosen = list(dict.fromkeys(names)) or list(theirs.tasks)
    if new_name is not None and len(chosen) != 1:
        raise click.BadParameter("it renames one task; name that task", param_hint="'--as'")
    if not chosen:
        raise click.BadParameter(f"{source} has no task", param_hint="'FROM'")

    def act() -> None:
        if new_name is not None:
            _taken(theirs, chosen[0], Path(bundle), new_name, replace=False)
        else:
            copy_tasks(theirs, chosen, Bundle.open(bundle, verify=False))

    certificate = _certified(bundle, "add", act, chosen if new_name is None else [new_name])
    for name, (_, version) in certificate.changed.items():
        printer.line(f"added {name} ({version})")
    _end(printer, bundle, certificate)


@command.command("update")
@click.argument("bundle", type=FOLDER)
@click.argument("source", type=FOLDER, metavar="FROM")
@click.argument("name")
@click.option("--from-name", metavar="OTHER", help="The task's name in FROM; by default the same.")
@json_option
def update(bundle: str, source: str, name: str, from_name: str | None, json_to: str | None) -> None:
    """Make NAME of the bundle FROM a new version of NAME in BUNDLE; the old one stays on disk.

    Its labels may be others. Prints which of the task's probes get another answer now; the certificate keeps them all.
    """
    from polyhead.bundle.read import Bundle

    printer, theirs, ours = Printer(json_to), Bundle.open(source), Bundle.open(bundle, verify=False)
    old = ours.version(name)  # UnknownTask where there is nothing to update
    before, after = _labels(ours, name), _known(theirs, from_name or name).task.labels
    certificate = _certified(
        bundle,
        "update",
        lambda: _taken(theirs, from_name or name, Path(bundle), name, replace=True),
        [name],
    )
    printer.line(f"updated {name}: {old} -> {certificate.after[name].version}")
    if before not in (None, after):
        printer.line(f"  labels were {', '.join(before or ())}; they are {', '.join(after)}")
    printer.lines(_answers_changed(certificate, name))
    _end(printer, bundle, certificate, labels={"before": before, "after": after})


@command.command("remove")
@click.argument("bundle", type=FOLDER)
@click.argument("names", nargs=-1, required=True)
@json_option
def remove(bundle: str, names: tuple[str, ...], json_to: str | None) -> None:
    """Remove tasks from BUNDLE, with all their versions; this cannot be undone."""
    from polyhead.bundle.models import model_names, remove_model
    from polyhead.bundle.write import unlist

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
        _end(printer, bundle, certificate)
    else:
        printer.json({"bundle": bundle, "removed": own})


@command.command("rollback")
@click.argument("bundle", type=FOLDER)
@click.argument("name")
@click.argument("version", required=False)
@json_option
def rollback(bundle: str, name: str, version: str | None, json_to: str | None) -> None:
    """Make another VERSION of NAME the live one: by default the version before the live one.

    The one that was live stays on disk, so `polyhead tasks rollback BUNDLE NAME v0002` goes forward again.
    """
    printer = Printer(json_to)
    certificate = _certified(bundle, "rollback", lambda: _roll_back(Path(bundle), name, version), [name])
    old, new = certificate.changed.get(name, (certificate.after[name].version,) * 2)
    printer.line(f"rolled back {name}: {old} -> {new}" if old != new else f"{new} of {name} is live already")
    printer.lines(_answers_changed(certificate, name))
    _end(printer, bundle, certificate)


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


def _taken(source: Bundle, old: str, root: Path, new: str, *, replace: bool) -> None:
    """Copies a task byte for byte, or writes it anew where its name, which its arrays' owner holds, changes."""
    from polyhead.bundle.manifest import renamed
    from polyhead.bundle.merge import copy_task
    from polyhead.bundle.read import Bundle

    target = Bundle.open(root, verify=False)  # the task that is there may be one that cannot be read
    if new == old:
        copy_task(source, old, target, replace=replace)
        return
    target.add_task(
        renamed(_known(source, old), new),
        source.part(old),
        scores=source.scores(old),
        probes=source.probes(old),
        card=source.card(old),
        replace=replace,
    )


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


def _roll_back(root: Path, name: str, version: str | None) -> None:
    from polyhead.bundle.read import Bundle
    from polyhead.bundle.write import set_version
    from polyhead.engine.isolation.certificate import Ledger
    from polyhead.errors import BundleError

    bundle = Bundle.open(root, verify=False)
    on_disk = bundle.versions(name)
    earlier = on_disk[: on_disk.index(bundle.version(name))]
    if version is None and not earlier:
        raise BundleError(
            f"task '{name}' has no version before {bundle.version(name)}, the live one", allowed=on_disk
        )
    wanted = version or earlier[-1]
    set_version(root, name, wanted, record=Ledger(root).record_of(name, wanted))


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


def _answers_changed(certificate: Certificate, name: str) -> list[str]:
    """How many of the probes get another answer, and the first of them."""
    if name not in certificate.changed:
        return []
    if name not in certificate.answers_changed:
        return ["  the old version cannot be read, so its answers are not compared"]
    changed, asked = certificate.answers_changed[name], certificate.answers_asked[name]
    lines = [f"  {counted(len(changed), 'answer')} changed, of {counted(asked, 'probe')} of both versions"]
    lines += [f"    {_said(change)}" for change in changed[:SHOWN]]
    if len(changed) > SHOWN:
        lines.append(f"    and {len(changed) - SHOWN:,} more: see answers_changed in {_file(certificate)}")
    return lines


def _said(change: AnswerChange) -> str:
    return f"{_short(change.before)} -> {_short(change.after)}  {change.text}"


def _short(answer: dict[str, Any] | None) -> str:
    """What people call the answer: a label, labels, a number, or labelled texts."""
    if answer is None:
        return "(not read)"
    if set(answer) == {"spans"}:
        return ", ".join(f"{span['label']} '{span['text']}'" for span in answer["spans"]) or "(none)"
    if set(answer) == {"words"}:
        return " ".join(str(word["label"]) for word in answer["words"]) or "(none)"
    said = []
    for value in answer.values():
        several = value if isinstance(value, list) else [value]
        said += [f"{one:.4g}" if isinstance(one, float) else str(one) for one in several]
    return ", ".join(said) or "(none)"


def _end(printer: Printer, bundle: str, certificate: Certificate, **facts: object) -> None:
    """What the certificate says, for people and as JSON."""
    others = [name for name, answered in certificate.before.items() if answered.probes]
    if others:
        printer.line(
            f"{counted(len(others), 'other task')}: the same bits on {counted(certificate.probes, 'probe')} as before"
        )
    else:
        printer.line("no other task has probes, so there was nothing to prove")
    if certificate.unproven:
        printer.line(f"without probes, so by their files alone: {', '.join(certificate.unproven)}")
    printer.line(f"certificate: {Path(bundle) / _file(certificate)}")
    printer.json({"bundle": bundle, "certificate": certificate, **facts})


def _file(certificate: Certificate) -> str:
    return f"certificates/{certificate.name}"


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
