"""`polyhead inspect`."""

from __future__ import annotations

from typing import Any

import click
import msgspec
from msgspec import UNSET

from polyhead.bundle.read import Bundle
from polyhead.cli.agree import agreement_lines
from polyhead.cli.bundle_lines import removed_lines, shown_version, trunk_lines
from polyhead.cli.command import option, verb
from polyhead.cli.options import Tokens
from polyhead.cli.output import Printer, counted, in_bytes, number, section, text_table
from polyhead.cli.quantize import change_lines
from polyhead.cli.scan import are_checkpoints, show_scan
from polyhead.engine.overview import BundleOverview, overview
from polyhead.engine.probes import Numerics, read_agreements
from polyhead.engine.scale_files import read_calibration
from polyhead.evaluate.report.tree import tree
from polyhead.tasks.kinds import KINDS


@verb("inspect")
def command(
    folders: tuple[str, ...] = option(type=click.Path(file_okay=False), metavar="BUNDLE | CHECKPOINT..."),
    *,
    task: str | None = option("Show the card of this task instead.", metavar="NAME"),
    tokens: Tokens = 32,
    verify: bool = option("Also hash every file; a changed file is an error that names it."),
    base: str | None = option(
        "Of checkpoints: also compare with this encoder, and merge over it: a name, a folder or a hub id.",
        metavar="NAME",
    ),
    printer: Printer,
) -> Any:
    """Show the plan of BUNDLE as a tree, its tasks with their scores, and what each costs.

    Costs are counted from shapes: a multiplication and an addition are two floating-point operations (FLOP), and
    attention poolers are counted folded, as they are served.

    Of CHECKPOINTs, folders that `save_pretrained` of transformers wrote, it shows which layers they share, and what
    merging them would save. Two share a prefix if tokenizer, embeddings and the first layers are equal bit for bit, as
    they are when fine-tuning froze them. With --base it shows which differ from it by matrices of low rank (at most
    an eighth of their smaller side). Of a LoRA folder of PEFT it shows what `import` would make of it.
    """
    if base is not None or are_checkpoints(folders):
        if task is not None or verify:
            raise click.UsageError(
                "--task and --verify are for one bundle; --base and several folders, for checkpoints."
            )
        return show_scan(folders, base, tokens, printer)
    (bundle,) = folders
    opened = Bundle.open(bundle)
    if verify:
        opened.verify()
    if task is not None:
        printer.lines(opened.card(task).rstrip().split("\n"))
        printer.json(_of_task(opened, task))
        return None
    seen = overview(opened, tokens, verified=verify)
    agreements, calibration = read_agreements(opened), read_calibration(opened)
    printer.lines([f"bundle {bundle}", *trunk_lines(opened), f"  tasks     {len(opened.tasks)}"])
    if verify:
        printer.line("  verified  every file is as it was written")
    if not opened.tasks:
        printer.lines(["", "no task yet: train some with `polyhead train`"])
    if seen.tasks:
        printer.lines(_shown(seen))
    for measured in agreements:
        printer.lines(section(_title(measured.numerics), agreement_lines(measured.agreements)))
    if calibration is not None:
        for change in calibration.measurements:
            how = f"{change.backend} with weights of {change.weight_bits} bits"
            title = f"int8: scales from {counted(calibration.texts, 'text')}; {how} against float32"
            printer.lines(section(title, change_lines(change.of(opened))))
    printer.lines([line for removed in removed_lines(opened) for line in ("", removed)])
    facts = {key: value for key, value in msgspec.structs.asdict(seen).items() if value is not UNSET}
    more = {"agreements": agreements, "calibration": calibration}
    return facts | {key: value for key, value in more.items() if value}


def _title(how: Numerics) -> str:
    scales = f", scales {how.calibration[:16]}" if how.calibration else ""
    bits = f", weights of {how.weight_bits} bits" if how.weight_bits else ""
    return f"Agreement of {how.backend} {how.version} in {how.precision}{scales}{bits} with answers as trained"


def _shown(seen: BundleOverview) -> list[str]:
    assert seen.plan and seen.families is not UNSET
    rows: list[list[object]] = [["task", "kind", "metric", "score", "split", "labels", "parameters", "size", "version"]]
    for name, task in seen.tasks.items():
        cells = [name, task.kind, task.metric, number(task.score), task.split or "-", len(task.labels) or "-"]
        rows.append([*cells, f"{task.added.parameters:,}", in_bytes(task.added.bytes), shown_version(task)])
    lines = section("Plan: a line without a task name is computed once for all tasks below it", tree(seen.plan))
    lines += section("Tasks", text_table(rows, left=3))
    if seen.families:
        rows = [["owner", "read by", "parameters", "size", "version"]]
        for owner, family in seen.families.items():
            sizes = [f"{family.parameters:,}", in_bytes(family.bytes)]
            rows.append([owner, ", ".join(family.tasks), *sizes, family.version])
        title = "Families: arrays that tasks share; where one task alone reads them, they count as its own above"
        lines += section(title, text_table(rows, left=2))
    lines += section(f"Work for one text of {counted(seen.tokens, 'token')}", _work(seen))
    if any(KINDS.named(task.kind).per_option for task in seen.tasks.values()):
        lines.append("  a question with options is one such text for each of them")
    return lines


def _work(seen: BundleOverview) -> list[str]:
    assert seen.total and seen.together is not UNSET
    total = seen.total
    together = {f"+ {', '.join(each.tasks)} together": each.flops for each in seen.together}
    tasks = {f"+ {name}": task.added.flops for name, task in seen.tasks.items()}
    shared = total.flops - sum(tasks.values()) - sum(together.values())
    rows: list[list[object]] = [["", "MFLOP", "of the shared pass"]]
    for name, flops in {"shared pass": shared, **together, **tasks, "all tasks": total.flops}.items():
        rows.append([name, f"{flops / 1e6:,.2f}", f"{100 * flops / shared:.2f} %" if shared else "-"])
    layers, kept = counted(total.layer_evaluations, "layer"), in_bytes(total.stored_bytes)
    of = counted(seen.tokens, "token")
    return [*text_table(rows), "", f"{layers} run for all tasks; a store keeps {kept} of a text of {of}"]


def _of_task(bundle: Bundle, name: str) -> dict[str, Any]:
    record, line = bundle.record(name), bundle.lines[name]
    return {
        "task": record.task,
        "version": line.version,
        "pinned": line.pinned,
        "trained_with": record.trained_with,
        "card": bundle.card(name),
        "versions": bundle.versions(name),
        "path": record.path,
        "scores": bundle.scores(name),
    }
