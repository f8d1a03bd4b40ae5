"""`polyhead tasks merge`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from polyhead.bundle.read import Bundle
from polyhead.certify.merged import MergeProof, MergeReport, MergeSource, merge_proven
from polyhead.cli.bundle_lines import trunk_lines
from polyhead.cli.command import option, verb
from polyhead.cli.options import Actor, Folder, Tokens, comma_names
from polyhead.cli.output import Printer, counted, in_bytes, indented, section, text_table
from polyhead.evaluate.report.tree import tree
from polyhead.plan import merge


@verb("merge")
def command(
    out: Folder = option(metavar="OUT"),
    bundles: tuple[str, ...] = option(metavar="BUNDLE[:TASKS]..."),
    *,
    tokens: Tokens = 32,
    actor: Actor,
    printer: Printer,
) -> Any:
    """Join BUNDLES that share an encoder into the new bundle OUT; what their tasks have in common then runs once.

    Each BUNDLE is a folder, or FOLDER:TASK,TASK for some of its tasks. The bundles stay as they are; their files are
    copied byte for byte. Before OUT gets its name, every task answers its pinned probes in OUT and in its own bundle,
    in deterministic mode. The outputs must be equal bit for bit; a certificate in OUT records this. Tasks of one
    prompt group must be merged together; families come with the tasks that read them.
    """
    sources = [_source(argument) for argument in bundles]
    report = merge_proven(out, sources, tokens=tokens, actor=actor, show=printer.show)
    merged = Bundle.open(out, verify=False)
    printer.lines(_shown(out, merged, report.tasks))
    if merged.tasks:
        printer.lines([*_drawn(merged), *_saved(report)])
    printer.lines(["", f"certificate: {Path(out) / 'certificates' / report.certificate.name}"])
    return report


def _source(argument: str) -> MergeSource:
    """A folder, or folder:task,task; a folder that is there may have a colon in its name."""
    folder, colon, names = argument.rpartition(":")
    if not colon or Path(argument).exists():
        return MergeSource(folder=argument, tasks=None)
    chosen = comma_names(names)
    if not folder or not chosen:
        raise click.BadParameter(f"'{argument}' names no task or no folder", param_hint="'BUNDLE[:TASKS]'")
    return MergeSource(folder=folder, tasks=chosen)


def _shown(out: str, merged: Bundle, proofs: Sequence[MergeProof]) -> list[str]:
    rows: list[list[object]] = [["task", "from", "tap", "own layers", "precision", "probes", "equal"]]
    for proof in proofs:
        equal = "every bit" if proof.probes else "not asked"
        rows.append([proof.task, proof.source, proof.tap, proof.layers, proof.precision, proof.probes, equal])
    sources = counted(len({proof.source for proof in proofs}), "bundle")
    lines = [
        f"bundle {out}: {counted(len(proofs), 'task')} of {sources}",
        *trunk_lines(merged),
        *section(
            "Proof: each task's answers to its probes, here and in the bundle it comes from", text_table(rows, left=2)
        ),
    ]
    return [*lines, *_notes(proofs)]


def _drawn(merged: Bundle) -> list[str]:
    plan = merge({name: record.path for name, record in merged.tasks.items()})
    return section("Plan: a line without a task name is computed once for all tasks below it", tree(plan))


def _notes(proofs: Sequence[MergeProof]) -> list[str]:
    """Notes below the table: several precisions, tasks without probes."""
    precisions, notes = sorted({proof.trained_in for proof in proofs}), []
    if len(precisions) > 1:
        notes.append(
            f"trained in different precisions ({', '.join(precisions)}), each proven in its own: "
            "say which one is to answer, `polyhead predict --precision`"
        )
    silent = [proof.task for proof in proofs if not proof.probes]
    if silent:
        notes.append(f"without probes, so equal by the bytes of their files alone: {', '.join(silent)}")
    return ["", *indented(notes)] if notes else []


def _saved(report: MergeReport) -> list[str]:
    apart, merged = report.separate, report.merged
    rows: list[list[object]] = [["", "apart", "merged", "saved"]]
    for name, before, after, written in (
        ("layers run", apart.layer_evaluations, merged.layer_evaluations, "{:,}".format),
        ("MFLOP", apart.flops, merged.flops, lambda flops: f"{flops / 1e6:,.2f}"),
        ("arrays", apart.bytes, merged.bytes, in_bytes),
    ):
        share = f"{100 * (1 - after / before):.1f} %" if before else "-"
        rows.append([name, written(before), written(after), share])
    return section(f"All tasks on one text of {counted(report.tokens, 'token')}", text_table(rows))
