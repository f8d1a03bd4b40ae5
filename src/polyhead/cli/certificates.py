"""What a certificate says to people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyhead.cli.output import Printer, counted

if TYPE_CHECKING:
    from polyhead.certify import AnswerChange, Certificate

SHOWN = 10  # changed answers that are printed; JSON and certificate hold all


def answers_changed(certificate: Certificate, name: str) -> list[str]:
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
    parts = []
    for value in answer.values():
        several = value if isinstance(value, list) else [value]
        parts += [f"{item:.4g}" if isinstance(item, float) else str(item) for item in several]
    return ", ".join(parts) or "(none)"


def end(printer: Printer, bundle: str, certificate: Certificate | None, **facts: object) -> None:
    """What the certificate says, for people and as JSON; there is none where only tasks with own models changed."""
    facts = {"models": {}, **facts}
    if certificate is None:
        printer.line("no task that reads the trunk was touched, so there was nothing to prove")
        printer.json({"bundle": bundle, "certificate": None, **facts})
        return
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
