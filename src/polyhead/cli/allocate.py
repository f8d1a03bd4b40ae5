"""`polyhead allocate`."""

from __future__ import annotations

import math
from typing import Any, Literal

import click

from polyhead.bundle.read import Bundle
from polyhead.cli.command import option, verb
from polyhead.cli.options import Figure, OptionalFolder, RequiredFile, Tokens, is_typed
from polyhead.cli.output import Printer, counted, in_bytes, number, text_table
from polyhead.evaluate.report.frontier import Baseline, plot_frontier, separate_models
from polyhead.plan.cost.allocate import UNIT_NAMES, AllocationReport, OptionsFile, Unit, allocate, allocation_of


@verb("allocate")
def command(
    options: RequiredFile = option(type=click.Path(exists=True, dir_okay=False)),
    *,
    rule: Literal["marginal", "greedy"] = option(
        "marginal: for each task the largest score - c x layers; greedy: add layers while each step gains c a layer.",
        "marginal",
    ),
    c: float = option("Price of a layer, in points of score.", 1.0, ge=0),
    budget: float | None = option("Instead of a rule: find the best choice with at most this total cost.", ge=0),
    unit: Literal["layers", "flops", "bytes"] = option(
        "Unit of the budget and the frontier: layers or FLOPs for one text, or bytes of weights (float32).", "layers"
    ),
    tokens: Tokens = 32,
    bundle: OptionalFolder = option("Take the encoder's shape from this bundle.", metavar="DIRECTORY"),
    plot: Figure = option("Draw the frontier into FILE (.svg, .png or .pdf)."),
    printer: Printer,
) -> Any:
    """Choose how deep each task's branch is, by a rule or within one budget for all tasks.

    FILE is JSON: {"options": [{"task", "name", "tap", "layers", "score"}, ...], "trunk": {"layers",
    "width", "heads", "feed_forward", "vocabulary", ...}, "full": {task: score}}; trunk and full may be left out. A
    score is in points, from a split on which choices may be made.

    The cost is that of the encoder up to the deepest tap, once, plus every private layer; embeddings count in bytes.
    Poolers and heads are the same for all options and are left out.
    """
    if budget is not None and is_typed("c", "rule"):
        raise click.UsageError("give --budget, or --rule and --c: one of them chooses")
    within, shape = _within(budget, unit), None
    if bundle is not None:
        shape = Bundle.open(bundle).architecture
    content = OptionsFile.read(options, shape)
    how = _how(rule, c, within, unit)
    report = allocate(content, rule=rule, c=c, budget=within, unit=unit, tokens=tokens, how=how)
    printer.lines([how, "", *_task_lines(report, content), "", *_totals(report, content)])
    best = [point for point in report.frontier if point.cost <= report.costs[unit]][-1]
    if round(best.score, 9) > round(report.score, 9):
        printer.line(f"better   {best.score:.2f} would be the best within the same {UNIT_NAMES[unit]}")
    printer.lines(["", f"What no choice beats in {UNIT_NAMES[unit]} and score; * as chosen", ""])
    printer.lines(_frontier_lines(report))
    if plot is not None:
        plot_frontier(content.options, report.price, plot, baselines=_baselines(report, content))
        printer.lines(["", f"drawn into {plot}"])
    return report


def _within(budget: float | None, unit: Unit) -> int | None:
    """The budget as costs are counted; wrong if it is infinite, no number, or parts of a layer."""
    if budget is None:
        return None
    if not math.isfinite(budget) or (unit == "layers" and budget != int(budget)):
        kind = "a whole number of layers" if unit == "layers" else f"a number of {UNIT_NAMES[unit]}"
        raise click.BadParameter(f"{budget} is not {kind}", param_hint="'--budget'")
    return int(budget)


def _how(rule: str, c: float, budget: int | None, unit: Unit) -> str:
    if budget is not None:
        return f"The best mean score within {_cost(budget, unit)}"
    if rule == "greedy":
        return f"Of each task: add layers while each step gains {c:g} points a layer"
    return f"Of each task: the largest score - {c:g} x layers"


def _cost(cost: int, unit: Unit) -> str:
    if unit == "flops":
        return f"{cost / 1e6:,.1f} MFLOP"
    return in_bytes(cost) if unit == "bytes" else counted(cost, "layer")


def _task_lines(report: AllocationReport, content: OptionsFile) -> list[str]:
    """One row a task: its option, and what its private layers alone cost."""
    prices = {unit: price for unit, price in report.prices.known.items() if unit != "layers"}
    head = ["task", "option", "tap", "layers", "score", *(["full"] if content.full else [])]
    rows: list[list[object]] = [[*head, *(f"private {UNIT_NAMES[unit]}" for unit in prices)]]
    for task, choice in report.chosen.items():
        full = [number(content.full.get(task), ".2f")] if content.full else []
        costs = [_cost(price.private * choice.layers, unit) for unit, price in prices.items()]
        rows.append([task, choice.name, choice.tap, choice.layers, f"{choice.score:.2f}", *full, *costs])
    return text_table(rows, left=2)


def _totals(report: AllocationReport, content: OptionsFile) -> list[str]:
    allocation, full = allocation_of(report.chosen, report.prices.layers), content.full_scores
    private = allocation.layers - allocation.depth
    lines = [f"layers   {allocation.layers}: {allocation.depth} of the encoder and {private} private"]
    if content.trunk is not None:
        whole = len(report.chosen) * content.trunk.layers
        lines[0] += f", {100 * allocation.layers / whole:.1f} % of {whole} for one whole encoder a task"
    lines.append(f"score    {allocation.score:.2f}, the mean of {counted(len(report.chosen), 'task')}")
    if full:
        against = sum(full) / len(full)
        lines[-1] += f", {100 * allocation.score / against:.2f} % of full fine-tuning's {against:.2f}"
    costs = {unit: cost for unit, cost in report.costs.items() if unit != "layers"}
    return lines + [f"{UNIT_NAMES[unit]:7s}  {_cost(cost, unit)}" for unit, cost in costs.items()]


def _frontier_lines(report: AllocationReport) -> list[str]:
    units = [report.unit, *(unit for unit in report.prices.known if unit != report.unit)]
    rows: list[list[object]] = [["", *units, "depth", "score", "tap+layers of each task"]]
    for point in report.frontier:
        # An allocation that costs and scores the same is as good, though it may be another.
        is_chosen = (point.cost, round(point.score, 9)) == (report.costs[report.unit], round(report.score, 9))
        costs = report.prices.costs(point.chosen)
        shown = [_cost(costs[unit], unit).removesuffix(" layers") for unit in units]
        private = " ".join(f"{choice.tap}+{choice.layers}" for choice in point.chosen.values())
        rows.append(["*" if is_chosen else "", *shown, point.depth, f"{point.score:.2f}", private])
    return text_table(rows)


def _baselines(report: AllocationReport, content: OptionsFile) -> list[Baseline]:
    full, trunk = content.full_scores, content.trunk
    layers = trunk.layers if trunk else max(choice.tap + choice.layers for choice in content.options)
    name = "full fine-tuning of one encoder a task"
    return [separate_models(name, full, report.price, layers=layers)] if full else []
