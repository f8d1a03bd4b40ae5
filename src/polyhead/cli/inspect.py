"""`polyhead inspect`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from polyhead.cli.agree import agreement_lines
from polyhead.cli.bundle_lines import removed_lines, shown_version, trunk_lines
from polyhead.cli.command import option, verb
from polyhead.cli.options import Folder, Tokens
from polyhead.cli.output import Printer, counted, in_bytes, number, section, text_table
from polyhead.cli.quantize import change_lines
from polyhead.values import Value

if TYPE_CHECKING:
    from polyhead.bundle.manifest import TaskRecord
    from polyhead.bundle.models import ModelRecord, Models
    from polyhead.bundle.read import Bundle
    from polyhead.encoder.shape import Architecture
    from polyhead.engine.probes import Numerics
    from polyhead.plan.cost import Cost


@verb("inspect")
def command(
    bundle: Folder,
    *,
    task: str | None = option("Show the card of this task instead.", metavar="NAME"),
    tokens: Tokens = 32,
    verify: bool = option("Also hash every file; a changed file is an error that names it."),
    printer: Printer,
) -> Any:
    """Show the plan of BUNDLE as a tree, its tasks with their scores, and what each costs.

    Costs are counted from shapes: a multiplication and an addition are two floating-point operations (FLOP), and
    attention poolers are counted folded, as they are served.
    """
    from polyhead.bundle.models import Models
    from polyhead.bundle.read import Bundle
    from polyhead.engine.probes import read_agreements
    from polyhead.engine.scale_files import read_calibration

    opened, models = Bundle.open(bundle), Models(bundle)
    if verify:
        opened.verify()
    if task is not None:
        owner = models if task in models.lines else opened
        printer.lines(owner.card(task).rstrip().split("\n"))
        printer.json(_of_model(models, task) if task in models.lines else _of_task(opened, task))
        return None
    costs = _costs(opened, tokens) if opened.tasks else None
    agreements, calibration = read_agreements(opened), read_calibration(opened)
    printer.lines([f"bundle {bundle}", *trunk_lines(opened), f"  tasks     {len(opened.tasks)}"])
    if verify:
        printer.line("  verified  every file is as it was written")
    if not opened.tasks and not models.lines:
        printer.lines(["", "no task yet: train some with `polyhead train`"])
    if costs is not None:
        printer.lines(_shown(opened, costs, tokens))
    for measured in agreements:
        printer.lines(section(_title(measured.numerics), agreement_lines(measured.agreements)))
    if calibration is not None:
        for change in calibration.measurements:
            how = f"{change.backend} with weights of {change.weight_bits} bits"
            title = f"int8: scales from {counted(calibration.texts, 'text')}; {how} against float32"
            printer.lines(section(title, change_lines(change.of(opened))))
    if models.lines:
        title = "Models of their own: they share nothing with the trunk"
        printer.lines(section(title, text_table(_model_rows(models), left=3)))
    printer.lines([line for removed in removed_lines(opened, models) for line in ("", removed)])
    own = {name: _of_model(models, name) for name in models.lines}
    more = {"models": own, "agreements": agreements, "calibration": calibration}
    facts = _as_json(opened, costs, tokens, verified=verify)
    return facts | {key: value for key, value in more.items() if value}


class _Costs(Value, eq=False):
    """The plan of a bundle's tasks, and what it costs on one text."""

    plan: Any  # polyhead.plan.Plan
    total: Any  # polyhead.plan.cost.Cost
    added: dict[str, Any]  # Cost by task: what it adds to the others


def _costs(bundle: Bundle, tokens: int) -> _Costs:
    from polyhead.plan import cost, merge

    shape = bundle.architecture
    plan = merge({name: record.path for name, record in bundle.tasks.items()})
    added = cost.added_each(plan, list(bundle.tasks), shape, tokens, folded=True) if bundle.tasks else {}
    return _Costs(plan=plan, total=cost.cost_of(plan, shape, tokens, folded=True), added=added)


def _title(how: Numerics) -> str:
    scales = f", scales {how.calibration[:16]}" if how.calibration else ""
    bits = f", weights of {how.weight_bits} bits" if how.weight_bits else ""
    return f"Agreement of {how.backend} {how.version} in {how.precision}{scales}{bits} with answers as trained"


def _shown(bundle: Bundle, costs: _Costs, tokens: int) -> list[str]:
    from polyhead.evaluate.report.tree import tree
    from polyhead.tasks.kinds import kind_of

    lines = section("Plan: a line without a task name is computed once for all tasks below it", tree(costs.plan))
    lines += section("Tasks", text_table(_task_rows(bundle, costs.added), left=3))
    if bundle.families:
        title = "Families: arrays that tasks share; where one task alone reads them, they count as its own above"
        lines += section(title, text_table(_family_rows(bundle, costs.total), left=2))
    lines += section(f"Work for one text of {counted(tokens, 'token')}", _work(costs, bundle.architecture, tokens))
    if any(kind_of(record.task).per_option for record in bundle.tasks.values()):
        lines.append("  a question with options is one such text for each of them")
    return lines


def _task_rows(bundle: Bundle, added: dict[str, Cost]) -> list[list[object]]:
    rows: list[list[object]] = [["task", "kind", "metric", "score", "split", "labels", "parameters", "size", "version"]]
    for name, record in bundle.tasks.items():
        metric, score, split = _headline(bundle, name)
        cells = [name, record.task.kind, metric, number(score), split or "-", len(record.task.labels) or "-"]
        sizes = [f"{added[name].parameters:,}", in_bytes(added[name].bytes)]
        rows.append([*cells, *sizes, shown_version(bundle.lines[name])])
    return rows


def _family_rows(bundle: Bundle, total: Cost) -> list[list[object]]:
    rows: list[list[object]] = [["owner", "read by", "parameters", "size", "version"]]
    for owner, facts in _family_facts(bundle, total).items():
        sizes = [f"{facts['parameters']:,}", in_bytes(facts["bytes"])]
        rows.append([owner, ", ".join(facts["tasks"]), *sizes, facts["version"]])
    return rows


def _family_facts(bundle: Bundle, total: Cost) -> dict[str, dict[str, Any]]:
    """By family: the size of its arrays, and the tasks that read them."""
    from polyhead.plan.cost.total import FLOAT_BYTES

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


def _work(costs: _Costs, shape: Architecture, tokens: int) -> list[str]:
    from polyhead.plan.cost import shared_flops

    total = costs.total
    together = {f"+ {', '.join(names)} together": of for names, of in shared_flops(costs.plan, shape, tokens).items()}
    tasks = {f"+ {name}": cost.flops for name, cost in costs.added.items()}
    shared = total.flops - sum(tasks.values()) - sum(together.values())
    rows: list[list[object]] = [["", "MFLOP", "of the shared pass"]]
    for name, flops in {"shared pass": shared, **together, **tasks, "all tasks": total.flops}.items():
        rows.append([name, f"{flops / 1e6:,.2f}", f"{100 * flops / shared:.2f} %" if shared else "-"])
    layers, kept = counted(total.layer_evaluations, "layer"), in_bytes(total.stored_bytes)
    return [
        *text_table(rows),
        "",
        f"{layers} run for all tasks; a store keeps {kept} of a text of {counted(tokens, 'token')}",
    ]


def _model_rows(models: Models) -> list[list[object]]:
    rows: list[list[object]] = [["task", "kind", "metric", "score", "size", "version"]]
    for name, live in models.lines.items():
        metric, score = models.headline(name)
        kind, size = models.record(name).task.kind, in_bytes(models.size(name))
        rows.append([name, kind, metric, number(score), size, shown_version(live)])
    return rows


def _of_model(models: Models, name: str) -> dict[str, Any]:
    record = models.record(name)
    model = {"name": record.name, "digest": record.model, "settings": record.settings}
    return _of_version(models, name, record) | {"model": model, "scores": models.scores(name)}


def _of_task(bundle: Bundle, name: str) -> dict[str, Any]:
    record = bundle.tasks[name]
    more = {"versions": bundle.versions(name), "path": record.path, "scores": bundle.scores(name)}
    return _of_version(bundle, name, record) | more


def _of_version(bundle: Bundle | Models, name: str, record: TaskRecord | ModelRecord) -> dict[str, Any]:
    live = {"version": bundle.lines[name].version, "pinned": bundle.lines[name].pinned}
    return {"task": record.task, **live, "trained_with": record.trained_with, "card": bundle.card(name)}


def _headline(bundle: Bundle, name: str) -> tuple[str, float | None, str | None]:
    """The task's metric, its score on the test split, or else the validation split, and which it was."""
    metric, score = bundle.headline(name)
    splits = bundle.split_scores(name)
    measured = [split for split, scores in splits.items() if metric in scores]
    return metric, score, "test" if "test" in measured else measured[-1] if measured else None


def _as_json(bundle: Bundle, costs: _Costs | None, tokens: int, *, verified: bool) -> dict[str, Any]:
    from polyhead.plan.cost import shared_flops

    trunk = {"name": bundle.trunk_name, "digest": bundle.digest, "architecture": bundle.architecture}
    facts = {"bundle": str(bundle.root), "trunk": trunk, "verified": verified, "tokens": tokens}
    if costs is None:
        return {**facts, "tasks": {}}
    tasks: dict[str, dict[str, Any]] = {}
    for name, record in bundle.tasks.items():
        metric, score, split = _headline(bundle, name)
        live = {"version": bundle.version(name), "pinned": bundle.lines[name].pinned}
        scores = {"metric": metric, "score": score, "split": split, "added": costs.added[name]}
        tasks[name] = {"kind": record.task.kind, "labels": record.task.labels, **live, **scores}
    families = _family_facts(bundle, costs.total)
    flops = shared_flops(costs.plan, bundle.architecture, tokens)
    together = [{"tasks": names, "flops": shared} for names, shared in flops.items()]
    of_all = {"together": together, "plan": costs.plan, "total": costs.total}
    return {**facts, "tasks": tasks, "families": families, **of_all}
