"""Lines about a bundle: its encoder, its tasks, their versions, and what a certificate says of a change."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from polyhead.bundle.format import LINEAGE
from polyhead.bundle.format import TRUNK as TRUNK_FOLDER
from polyhead.bundle.manifest import Live
from polyhead.bundle.read import Bundle
from polyhead.certify import Certificate
from polyhead.cli.output import Printer, counted, in_bytes, number, text_table
from polyhead.engine.overview import TaskOverview
from polyhead.plan import TRUNK
from polyhead.project.strategies.branch import tap_of

SHOWN = 10  # changed answers that are printed; JSON and certificate hold all


def task_row(bundle: Bundle, name: str) -> dict[str, Any]:
    """The row of a task."""
    record, (metric, score) = bundle.record(name), bundle.headline(name)
    own_layers = sum(node.stop - node.start for node in record.path.layers if node.weights != TRUNK)
    return {
        "kind": record.task.kind,
        "labels": record.task.labels,
        "version": bundle.version(name),
        "pinned": bundle.lines[name].pinned,
        "versions": bundle.versions(name),
        "metric": metric,
        "score": score,
        "tap": tap_of(record.path),
        "own_layers": own_layers,
        "bytes": version_bytes(bundle, name),
        "probes": len(bundle.probes(name)),
        "team": record.trained_with.get("team"),
    }


def version_bytes(bundle: Bundle, name: str) -> int:
    """The size of the files of a task's live version."""
    folder = bundle.root / "tasks" / name / bundle.version(name)
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())


def trunk_lines(bundle: Bundle) -> list[str]:
    """The lines about a bundle's trunk."""
    shape, is_learned = bundle.architecture, os.path.lexists(bundle.root / TRUNK_FOLDER / LINEAGE)
    name = f"learned from {bundle.trunk_name}" if is_learned else bundle.trunk_name
    return [
        f"  encoder   {name}: {counted(shape.layers, 'layer')} of width {shape.width}",
        f"  digest    {bundle.digest[:16]}",
    ]


def shown_version(live: Live | TaskOverview) -> str:
    """`v0001`, or `v0001 (pinned)` if a person went back to it."""
    return f"{live.version} (pinned)" if live.pinned else live.version


def removed_lines(bundle: Bundle) -> list[str]:
    """A line where tasks that training made were removed since."""
    return [f"removed, so that `train` leaves them: {', '.join(bundle.removed)}"] if bundle.removed else []


def owner_rows(tasks: dict[str, dict[str, Any]]) -> list[str]:
    """The rows as a table."""
    has_team = any(row["team"] for row in tasks.values())
    rows: list[list[object]] = [["task", "kind", "metric", "live", "versions", "labels", "score"]]
    rows[0] += ["tap", "own layers", "size", *(["team"] if has_team else [])]
    for name, row in tasks.items():
        live = f"{row['version']} (pinned)" if row["pinned"] else row["version"]
        cells: list[object] = [name, row["kind"], row["metric"], live, len(row["versions"])]
        depths = ["-" if row[key] is None else row[key] for key in ("tap", "own_layers")]
        cells += [len(row["labels"]) or "-", number(row["score"]), *depths, in_bytes(row["bytes"])]
        rows.append(cells + ([row["team"] or "-"] if has_team else []))
    return text_table(rows, left=4)


def answers_changed(certificate: Certificate, name: str) -> list[str]:
    """How many probes get another answer, and the first of these."""
    compared = name in certificate.answers_changed
    if name not in certificate.changed or not (compared or certificate.after[name].probes):
        return []
    if not compared:
        return ["  the old version cannot be read, so its answers are not compared"]
    changed, requested = certificate.answers_changed[name], certificate.answers_asked[name]
    differing = certificate.differing(name)
    lines = [f"  {counted(differing, 'answer')} changed, of {counted(requested, 'probe')} of both versions"]
    for change in changed[:SHOWN]:
        lines.append(f"    {_short(change.before)} -> {_short(change.after)}  {' | '.join(change.texts or ())}")
    if len(changed) > SHOWN:
        lines.append(f"    and {len(changed) - SHOWN:,} more: see answers_changed in {_file(certificate)}")
    if len(changed) < differing:
        lines.append(f"    and {differing - len(changed):,} that are not kept: the certificate has no room for them")
    return lines


def _short(answer: dict[str, Any] | None) -> str:
    """The answer in few words: a label, labels, a number, or labelled texts."""
    if answer is None:
        return "(not read)"
    if set(answer) == {"spans"}:
        return ", ".join(f"{span['label']} '{span['text']}'" for span in answer["spans"]) or "(none)"
    if set(answer) == {"words"}:
        return " ".join(str(word["label"]) for word in answer["words"]) or "(none)"
    parts = []
    for value in answer.values():
        values = value if isinstance(value, list) else [value]
        parts += [f"{item:.4g}" if isinstance(item, float) else str(item) for item in values]
    return ", ".join(parts) or "(none)"


def end(printer: Printer, bundle: str, certificate: Certificate, **facts: object) -> None:
    """Prints the certificate, as lines and as JSON."""
    others = [name for name, answered in certificate.before.items() if answered.probes]
    if others:
        printer.line(
            f"{counted(len(others), 'other task')}: the same bits on {counted(certificate.probes, 'probe')} as before"
        )
    else:
        printer.line("no other task has probes, so there was nothing to prove")
    if certificate.unproven:
        printer.line(f"not asked, so by their files alone: {', '.join(certificate.unproven)}")
    printer.line(f"certificate: {Path(bundle) / _file(certificate)}")
    printer.json({"bundle": bundle, "certificate": certificate, **facts})


def _file(certificate: Certificate) -> str:
    return f"certificates/{certificate.name}"
