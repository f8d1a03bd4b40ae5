"""`polyhead merge`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polyhead.cli.bundle_lines import trunk_lines
from polyhead.cli.command import option, verb
from polyhead.cli.options import Actor, Folder, Tokens
from polyhead.cli.output import Printer, counted, in_bytes, indented, section, text_table
from polyhead.values import Value

if TYPE_CHECKING:
    from polyhead.bundle.merge import ChosenTasks
    from polyhead.bundle.read import Bundle
    from polyhead.certify import Certificate
    from polyhead.plan import Path as TaskPath


class MergeSource(Value):
    """A bundle to merge, as it was named, and which of its tasks; None: all."""

    folder: str
    tasks: tuple[str, ...] | None


class MergeProof(Value):
    """A task whose outputs on its probes are the same bits in its own bundle and in the merged one."""

    task: str
    source: str
    version: str  # there
    tap: int | None = None  # layers of the trunk that it reads; None: it owns its model
    layers: int | None = None  # of its own, if it reads the trunk
    precision: str = "float32"  # in which it was proven here
    trained_in: str = "float32"
    probes: int = 0  # 0: it has none, or owns its model, so its files are the same, and nothing was asked


class MergeTotals(Value):
    """The cost of answering one text, and the size of the arrays that this takes."""

    layer_evaluations: int = 0
    flops: int = 0
    bytes: int = 0


@verb("merge")
def command(
    out: Folder = option(metavar="OUT"),
    bundles: tuple[str, ...] = option(metavar="BUNDLE[:TASKS]..."),
    *,
    tokens: Tokens = 32,
    actor: Actor,
    printer: Printer,
) -> Any:
    """Join BUNDLES that share a trunk into the new bundle OUT; what their tasks have in common then runs once.

    Each BUNDLE is a folder, or FOLDER:TASK,TASK for some of its tasks. The bundles stay as they are; their files are
    copied byte for byte. Before OUT gets its name, every task answers its pinned probes in OUT and in its own bundle,
    in deterministic mode. The outputs must be equal bit for bit; a certificate in OUT records this. Tasks of one
    prompt group must be merged together; families come with the tasks that read them. Tasks that own their models are
    copied as files; a bundle with such tasks only may have any trunk.
    """
    from polyhead.bundle.merge import merge_bundles, taken_of
    from polyhead.bundle.read import Bundle
    from polyhead.certify.merged import certify_merged

    sources = [_source(argument) for argument in bundles]
    # Not verified here, so that a task that does not fit the common trunk is refused with both sides named.
    opened = [Bundle.open(source.folder, verify=False) for source in sources]
    chosen = {place: source.tasks for place, source in enumerate(sources) if source.tasks is not None}
    taken: list[ChosenTasks] = []
    certificates: list[Certificate] = []

    def prove(merged: Bundle) -> None:
        taken.extend(taken_of(bundle, source.tasks) for source, bundle in zip(sources, opened, strict=True))
        sources_taken = [source.tasks for source in taken]
        certificates.append(certify_merged(merged, sources_taken, show=printer.show, actor=actor))

    merged = merge_bundles(out, opened, tasks=chosen, prove=prove)
    (certificate,) = certificates
    proofs = _proofs(merged, sources, taken, certificate)
    apart = [_totals(source.tasks, tokens) for source in taken]
    # Bundles that are served apart, each with a merged plan of its own.
    before = MergeTotals(
        **{name: sum(getattr(totals, name) for totals in apart) for name in MergeTotals.__struct_fields__}
    )
    after = _totals(merged, tokens)
    printer.lines(_shown(out, merged, proofs))
    if merged.lines:
        printer.lines([*_drawn(merged), *_saved(before, after, tokens)])
    printer.lines(["", f"certificate: {Path(out) / 'certificates' / certificate.name}"])
    totals = {"tokens": tokens, "separate": before, "merged": after}
    facts = {"bundle": str(merged.root), "trunk": merged.digest, "tasks": proofs}
    return facts | totals | {"certificate": certificate}


def _source(argument: str) -> MergeSource:
    """A folder, or folder:task,task; a folder that is there may have a colon in its name."""
    folder, colon, names = argument.rpartition(":")
    if not colon or Path(argument).exists():
        return MergeSource(folder=argument, tasks=None)
    chosen = tuple(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    if not folder or not chosen:
        raise click.BadParameter(f"'{argument}' names no task or no folder", param_hint="'BUNDLE[:TASKS]'")
    return MergeSource(folder=folder, tasks=chosen)


def _proofs(
    merged: Bundle, sources: Sequence[MergeSource], taken: Sequence[ChosenTasks], certificate: Certificate
) -> list[MergeProof]:
    from polyhead.engine.probes import backend_here, precision_here, recorded_precision

    proofs, backend = [], backend_here()
    for source, choice in zip(sources, taken, strict=True):
        for name, line in choice.tasks.lines.items():
            record = merged.tasks[name]
            tap = _tap(record.path)
            proofs.append(
                MergeProof(
                    task=name,
                    source=source.folder,
                    version=line.version,
                    tap=tap,
                    layers=sum(node.stop - node.start for node in record.path.layers) - tap,
                    precision=precision_here(record, backend),
                    trained_in=recorded_precision(record),
                    probes=certificate.after[name].probes,
                )
            )
        for name, line in choice.models.lines.items():
            proofs.append(MergeProof(task=name, source=source.folder, version=line.version))
    return proofs


def _tap(path: TaskPath) -> int:
    from polyhead.plan import TRUNK

    return max((node.stop for node in path.layers if node.weights == TRUNK), default=0)


def _totals(bundle: Bundle, tokens: int) -> MergeTotals:
    from polyhead.plan import merge
    from polyhead.plan.cost import cost_of

    if not bundle.lines:
        return MergeTotals()
    plan = merge({name: record.path for name, record in bundle.tasks.items()})
    total = cost_of(plan, bundle.architecture, tokens, folded=True)
    return MergeTotals(layer_evaluations=total.layer_evaluations, flops=total.flops, bytes=total.bytes)


def _shown(out: str, merged: Bundle, proofs: Sequence[MergeProof]) -> list[str]:
    rows: list[list[object]] = [["task", "from", "tap", "own layers", "precision", "probes", "equal"]]
    for proof in proofs:
        equal = "every file" if proof.tap is None else "every bit" if proof.probes else "not asked"
        depths = ["-" if depth is None else depth for depth in (proof.tap, proof.layers)]
        rows.append([proof.task, proof.source, *depths, proof.precision, proof.probes, equal])
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
    from polyhead.evaluate.report.tree import tree
    from polyhead.plan import merge

    plan = merge({name: record.path for name, record in merged.tasks.items()})
    return section("Plan: a line without a task name is computed once for all tasks below it", tree(plan))


def _notes(proofs: Sequence[MergeProof]) -> list[str]:
    """Notes below the table: several precisions, tasks without probes, models."""
    precisions, notes = sorted({proof.trained_in for proof in proofs if proof.tap is not None}), []
    if len(precisions) > 1:
        notes.append(
            f"trained in different precisions ({', '.join(precisions)}), each proven in its own: "
            "say which one is to answer, `polyhead predict --precision`"
        )
    silent = [proof.task for proof in proofs if proof.tap is not None and not proof.probes]
    if silent:
        notes.append(f"without probes, so equal by the bytes of their files alone: {', '.join(silent)}")
    owners = [proof.task for proof in proofs if proof.tap is None]
    if owners:
        notes.append(f"own their models, which are equal by the bytes of their files: {', '.join(owners)}")
    return ["", *indented(notes)] if notes else []


def _saved(before: MergeTotals, after: MergeTotals, tokens: int) -> list[str]:
    rows: list[list[object]] = [["", "apart", "merged", "saved"]]
    for name, apart, merged, written in (
        ("layers run", before.layer_evaluations, after.layer_evaluations, "{:,}".format),
        ("MFLOP", before.flops, after.flops, lambda flops: f"{flops / 1e6:,.2f}"),
        ("arrays", before.bytes, after.bytes, in_bytes),
    ):
        share = f"{100 * (1 - merged / apart):.1f} %" if apart else "-"
        rows.append([name, written(apart), written(merged), share])
    return section(f"All tasks on one text of {counted(tokens, 'token')}", text_table(rows))
