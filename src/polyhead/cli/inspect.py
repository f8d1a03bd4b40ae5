"""`polyhead inspect`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from polyhead.cli.agree import agreement_lines
from polyhead.cli.listing import removed_lines, shown_version
from polyhead.cli.options import tokens_option
from polyhead.cli.output import Printer, counted, in_bytes, json_option, table
from polyhead.cli.quantize import change_lines

if TYPE_CHECKING:
    from polyhead.bundle.models import Models
    from polyhead.bundle.read import Bundle
    from polyhead.cost import Cost
    from polyhead.engine.pinned import Agreements
    from polyhead.engine.quantize.files import Calibration, Measurement


@click.command("inspect")
@click.argument("bundle", type=click.Path(file_okay=False))
@click.option("--task", metavar="NAME", help="Show the card of this task instead.")
@tokens_option
@click.option("--verify", is_flag=True, help="Also hash every file; a changed file is an error that names it.")
@json_option
def command(bundle: str, task: str | None, tokens: int, verify: bool, json_to: str | None) -> None:
    """Show the plan of BUNDLE as a tree, its tasks with their scores, and what each costs.

    Costs are counted from shapes: a multiplication and an addition are two floating-point operations (FLOP), and
    attention poolers are counted folded, as they are served.
    """
    from polyhead.bundle.models import Models
    from polyhead.bundle.read import Bundle
    from polyhead.engine.pinned import read_agreements
    from polyhead.engine.quantize.files import read_calibration

    printer = Printer(json_to)
    opened, models = Bundle.open(bundle), Models(bundle)
    if verify:
        opened.verify()
    if task is not None and task in models.lines:
        printer.lines(models.card(task).rstrip().split("\n"))
        printer.json(_of_model(models, task))
        return
    if task is not None:
        printer.lines(opened.card(task).rstrip().split("\n"))
        printer.json(_of_task(opened, task))
        return
    printer.lines([f"bundle {bundle}", *_facts(opened)])
    if verify:
        printer.line("  verified  every file is as it was written")
    if not opened.tasks and not models.lines:
        printer.lines(["", "no task yet: train some with `polyhead train`"])
    if opened.tasks:
        printer.lines(_shown(opened, tokens))
    measured, calibration = read_agreements(opened), read_calibration(opened)
    for agreements in measured:
        printer.lines(["", _titled(agreements), "", *(f"  {line}" for line in agreement_lines(agreements.agreements))])
    if calibration is not None:
        for change in calibration.measurements:
            shown = change_lines(change.of(opened))
            printer.lines(["", _scaled(calibration, change), "", *(f"  {line}" for line in shown)])
    if models.lines:
        printer.lines(["", "Models of their own: they share nothing with the trunk", ""])
        printer.lines([f"  {line}" for line in table(_models(models), left=3)])
    printer.lines([line for removed in removed_lines(opened, models) for line in ("", removed)])
    found = {name: _of_model(models, name) for name in models.lines}
    more = {"models": found, "agreements": measured, "calibration": calibration}
    printer.json(_as_json(opened, tokens, verify) | {key: value for key, value in more.items() if value})


def _titled(agreements: Agreements) -> str:
    how = agreements.numerics
    scales = f", scales {how.calibration[:16]}" if how.calibration else ""
    bits = f", weights of {how.weight_bits} bits" if how.weight_bits else ""
    return f"Agreement of {how.backend} {how.version} in {how.precision}{scales}{bits} with answers as trained"


def _scaled(calibration: Calibration, measurement: Measurement) -> str:
    texts, how = (
        counted(calibration.texts, "text"),
        f"{measurement.backend} with weights of {measurement.weight_bits} bits",
    )
    return f"int8: scales from {texts}; {how} against float32"


def _facts(bundle: Bundle) -> list[str]:
    shape = bundle.architecture
    return [
        f"  trunk     {bundle.trunk_name}: {counted(shape.layers, 'layer')} of width {shape.width}",
        f"  digest    {bundle.digest[:16]}",
        f"  tasks     {len(bundle.tasks)}",
    ]


def _shown(bundle: Bundle, tokens: int) -> list[str]:
    from polyhead.report.tree import tree
    from polyhead.tasks.kinds import kind_of

    plan, total, added = _costs(bundle, tokens)
    lines = ["", "Plan: a line without a task name is computed once for all tasks below it", ""]
    lines += [f"  {line}" for line in tree(plan)]
    lines += ["", "Tasks", ""]
    lines += [f"  {line}" for line in table(_scores(bundle, added), left=3)]
    if bundle.families:
        lines += [
            "",
            "Families: arrays that tasks share; where one task alone reads them, they count as its own above",
            "",
        ]
        lines += [f"  {line}" for line in table(_families(bundle, total), left=2)]
    lines += ["", f"Work for one text of {counted(tokens, 'token')}", ""]
    lines += [f"  {line}".rstrip() for line in _work(total, added, tokens)]
    if any(kind_of(record.task).per_option for record in bundle.tasks.values()):
        lines.append("  a question with options is one such text for each of them")
    return lines


def _scores(bundle: Bundle, added: dict[str, Cost]) -> list[list[object]]:
    rows: list[list[object]] = [["task", "kind", "metric", "score", "split", "labels", "parameters", "size", "version"]]
    for name, record in bundle.tasks.items():
        metric, score, split = _headline(bundle, name)
        own = added[name]
        rows.append(
            [name, record.task.kind, metric, "-" if score is None else f"{score:.4f}", split or "-"]
            + [
                len(record.task.labels) or "-",
                f"{own.parameters:,}",
                in_bytes(own.bytes),
                shown_version(bundle.version(name), bundle.lines[name].pinned),
            ]
        )
    return rows


def _families(bundle: Bundle, total: Cost) -> list[list[object]]:
    rows: list[list[object]] = [["owner", "read by", "parameters", "size", "version"]]
    for owner, facts in _family_facts(bundle, total).items():
        sizes = [f"{facts['parameters']:,}", in_bytes(facts["bytes"])]
        rows.append([owner, ", ".join(facts["tasks"]), *sizes, facts["version"]])
    return rows


def _family_facts(bundle: Bundle, total: Cost) -> dict[str, dict[str, Any]]:
    """Of every family: how large its arrays are, and which tasks read them."""
    from polyhead.cost.total import FLOAT_BYTES

    sizes = dict.fromkeys(bundle.families, 0) | {cost.owner: cost.parameters for cost in total.owners}
    return {
        owner: {
            "version": live.version,
            "tasks": [name for name, record in bundle.tasks.items() if owner in record.needs],
            "parameters": sizes[owner],
            "bytes": FLOAT_BYTES * sizes[owner],
        }
        for owner, live in bundle.families.items()
    }


def _work(total: Cost, added: dict[str, Cost], tokens: int) -> list[str]:
    shared = total.flops - sum(cost.flops for cost in added.values())
    rows: list[list[object]] = [["", "MFLOP", "of the shared pass"]]
    for name, flops in [
        ("shared pass", shared),
        *((f"+ {name}", cost.flops) for name, cost in added.items()),
        ("all tasks", total.flops),
    ]:
        rows.append([name, f"{flops / 1e6:,.2f}", f"{100 * flops / shared:.2f} %" if shared else "-"])
    layers = counted(total.layer_evaluations, "layer")
    kept = in_bytes(total.stored_bytes)
    return [*table(rows), "", f"{layers} run for all tasks; a store keeps {kept} of a text of {tokens} tokens"]


def _costs(bundle: Bundle, tokens: int) -> tuple[Any, Cost, dict[str, Cost]]:
    from polyhead import cost
    from polyhead.plan import merge

    shape = bundle.architecture
    plan = merge({name: record.path for name, record in bundle.tasks.items()})
    added = cost.added_each(plan, list(bundle.tasks), shape, tokens, folded=True) if bundle.tasks else {}
    return plan, cost.cost_of(plan, shape, tokens, folded=True), added


def _models(models: Models) -> list[list[object]]:
    rows: list[list[object]] = [["task", "kind", "metric", "score", "size", "version"]]
    for name, live in models.lines.items():
        metric, score = models.headline(name)
        shown = "-" if score is None else f"{score:.4f}"
        kind = models.record(name).task.kind
        version = shown_version(live.version, live.pinned)
        rows.append([name, kind, metric, shown, in_bytes(models.size(name)), version])
    return rows


def _of_model(models: Models, name: str) -> dict[str, Any]:
    record = models.record(name)
    return {
        "task": record.task,
        "version": models.lines[name].version,
        "pinned": models.lines[name].pinned,
        "model": {"name": record.name, "digest": record.model, "settings": record.settings},
        "scores": models.scores(name),
        "trained_with": record.trained_with,
        "card": models.card(name),
    }


def _headline(bundle: Bundle, name: str) -> tuple[str, float | None, str | None]:
    """The task's metric, its score on the test split, or else the validation split, and which it was."""
    metric, score = bundle.headline(name)
    splits = bundle.split_scores(name)
    measured = [split for split, scores in splits.items() if metric in scores]
    return metric, score, "test" if "test" in measured else measured[-1] if measured else None


def _of_task(bundle: Bundle, name: str) -> dict[str, Any]:
    record = bundle.tasks[name]
    return {
        "task": record.task,
        "version": bundle.version(name),
        "pinned": bundle.lines[name].pinned,
        "versions": bundle.versions(name),
        "path": record.path,
        "scores": bundle.scores(name),
        "trained_with": record.trained_with,
        "card": bundle.card(name),
    }


def _as_json(bundle: Bundle, tokens: int, verified: bool) -> dict[str, Any]:
    facts = {
        "bundle": str(bundle.root),
        "trunk": {"name": bundle.trunk_name, "digest": bundle.digest, "architecture": bundle.architecture},
        "verified": verified,
        "tokens": tokens,
    }
    if not bundle.tasks:
        return {**facts, "tasks": {}}
    plan, total, added = _costs(bundle, tokens)
    tasks: dict[str, dict[str, Any]] = {}
    for name, record in bundle.tasks.items():
        metric, score, split = _headline(bundle, name)
        tasks[name] = {
            "kind": record.task.kind,
            "labels": record.task.labels,
            "version": bundle.version(name),
            "pinned": bundle.lines[name].pinned,
        }
        tasks[name] |= {"metric": metric, "score": score, "split": split, "added": added[name]}
    return {**facts, "tasks": tasks, "families": _family_facts(bundle, total), "plan": plan, "total": total}
