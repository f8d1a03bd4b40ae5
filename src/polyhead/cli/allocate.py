"""`polyhead allocate`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
import msgspec
from click.core import ParameterSource

from polyhead.cli.command import option, verb
from polyhead.cli.options import Figure, OptionalFolder, RequiredFile, Tokens
from polyhead.cli.output import Printer, counted, in_bytes, number, text_table
from polyhead.encoder.shape import Architecture
from polyhead.errors import ConfigError
from polyhead.plan.cost.allocate import (
    Allocation,
    AllocationOption,
    LayerPrice,
    OptionsFile,
    Unit,
    allocation_of,
    best_under,
    by_rule,
    frontier,
    greedy,
    price_of,
)
from polyhead.values import Value, from_json

if TYPE_CHECKING:
    from polyhead.evaluate.report.frontier import Baseline

BY_LAYERS = LayerPrice(shared=1, private=1, unit="layers")


class Prices(Value):
    """The price of a layer in each unit; FLOPs and bytes are known with the trunk's shape only."""

    layers: LayerPrice
    flops: LayerPrice | None = None
    bytes: LayerPrice | None = None


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
    bundle: OptionalFolder = option("Take the trunk's shape from this bundle.", metavar="DIRECTORY"),
    plot: Figure = option("Draw the frontier into FILE (.svg, .png or .pdf)."),
    printer: Printer,
) -> Any:
    """Choose how deep each task's branch is, by a rule or within one budget for all tasks.

    FILE is JSON: {"options": [{"task", "name", "tap", "layers", "score"}, ...], "trunk": {"layers",
    "width", "heads", "feed_forward", "vocabulary", ...}, "full": {task: score}}; trunk and full may be left out. A
    score is in points, from a split on which choices may be made.

    The cost is that of the trunk up to the deepest tap, once, plus every private layer; embeddings count in bytes.
    Poolers and heads are the same for all options and are left out.
    """
    if budget is not None and _is_given(click.get_current_context(), "c", "rule"):
        raise click.UsageError("give --budget, or --rule and --c: one of them chooses")
    within = _within(budget, unit)
    options_file = _read(options, bundle)
    prices = _prices(options_file.trunk, tokens)
    price = _price(prices, unit)
    points = frontier(options_file.options, price)
    if within is not None:
        chosen = best_under(options_file.options, within, price).chosen
    else:
        chosen = (greedy if rule == "greedy" else by_rule)(options_file.options, c)
    how = _how(rule, c, within, unit)
    allocation = allocation_of(chosen, price)
    printer.lines([how, "", *_task_lines(chosen, options_file, prices), "", *_totals(chosen, options_file, prices)])
    best = [point for point in points if point.cost <= allocation.cost][-1]
    if round(best.score, 9) > round(allocation.score, 9):
        printer.line(f"better   {best.score:.2f} would be the best within the same {_UNITS[unit]}")
    printer.lines(["", f"What no choice beats in {_UNITS[unit]} and score; * as chosen", ""])
    printer.lines(_frontier_lines(points, price, prices, allocation))
    if plot is not None:
        from polyhead.evaluate.report.frontier import plot_frontier

        plot_frontier(options_file.options, price, plot, baselines=_baselines(options_file, price))
        printer.lines(["", f"drawn into {plot}"])
    facts = {"how": how, "unit": unit, "chosen": chosen, "prices": prices}
    costs = {name: allocation_of(chosen, unit_price).cost for name, unit_price in _known(prices)}
    return {**facts, "costs": costs, "score": allocation.score, "frontier": points}


_UNITS = {"layers": "layers", "flops": "FLOPs", "bytes": "bytes"}


def _is_given(context: click.Context, *names: str) -> bool:
    return any(context.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in names)


def _within(budget: float | None, unit: Unit) -> int | None:
    """The budget as costs are counted; wrong if it is infinite, no number, or parts of a layer."""
    if budget is None:
        return None
    if not math.isfinite(budget) or (unit == "layers" and budget != int(budget)):
        kind = "a whole number of layers" if unit == "layers" else f"a number of {_UNITS[unit]}"
        raise click.BadParameter(f"{budget} is not {kind}", param_hint="'--budget'")
    return int(budget)


def _read(file: str, bundle: str | None) -> OptionsFile:
    """The file, its trunk replaced by the bundle's if there is one; raises ConfigError for a tap below the trunk."""
    content = from_json(Path(file).read_bytes(), OptionsFile, source=file)
    if bundle is not None:
        from polyhead.bundle.read import Bundle

        content = msgspec.structs.replace(content, trunk=Bundle.open(bundle).architecture)
    deepest = content.trunk.layers if content.trunk else None
    for choice in content.options:
        if deepest is not None and choice.tap > deepest:
            raise ConfigError(
                f"option '{choice.name}' of task '{choice.task}' reads deeper than the trunk",
                got=choice.tap,
                allowed=f"a tap of 0 to {deepest}",
            )
    return content


def _prices(shape: Architecture | None, tokens: int) -> Prices:
    if shape is None:
        return Prices(layers=BY_LAYERS)
    layers, size = price_of("layers", shape), price_of("bytes", shape)
    return Prices(layers=layers, flops=price_of("flops", shape, tokens), bytes=size)


def _price(prices: Prices, unit: Unit) -> LayerPrice:
    price: LayerPrice | None = getattr(prices, unit)
    if price is None:
        raise ConfigError(
            f"{_UNITS[unit]} are counted from the trunk's shape, and the options do not say it",
            do="add 'trunk' to the file, or give --bundle",
        )
    return price


def _known(prices: Prices) -> list[tuple[str, LayerPrice]]:
    by_unit = {unit: getattr(prices, unit) for unit in _UNITS}
    return [(unit, price) for unit, price in by_unit.items() if price is not None]


def _how(rule: str, c: float, budget: int | None, unit: Unit) -> str:
    if budget is not None:
        return f"The best mean score within {_cost(budget, unit)}"
    if rule == "greedy":
        return f"Of each task: add layers while each step gains {c:g} points a layer"
    return f"Of each task: the largest score - {c:g} x layers"


def _cost(cost: int, unit: str) -> str:
    if unit == "flops":
        return f"{cost / 1e6:,.1f} MFLOP"
    return in_bytes(cost) if unit == "bytes" else counted(cost, "layer")


def _task_lines(chosen: dict[str, AllocationOption], options_file: OptionsFile, prices: Prices) -> list[str]:
    """One row a task: its option, and what its private layers alone cost."""
    names = [name for name, _ in _known(prices) if name != "layers"]
    rows: list[list[object]] = [["task", "option", "tap", "layers", "score"]]
    rows[0] += [*(["full"] if options_file.full else []), *(_TITLES[name] for name in names)]
    for task, choice in chosen.items():
        full = options_file.full.get(task)
        cells: list[object] = [task, choice.name, choice.tap, choice.layers, f"{choice.score:.2f}"]
        cells += [number(full, ".2f")] if options_file.full else []
        costs = {name: price.private * choice.layers for name, price in _known(prices)}
        rows.append([*cells, *(_cost(costs[name], name) for name in names)])
    return text_table(rows, left=2)


_TITLES = {"flops": "private FLOPs", "bytes": "private bytes"}


def _totals(chosen: dict[str, AllocationOption], options_file: OptionsFile, prices: Prices) -> list[str]:
    allocation = allocation_of(chosen, prices.layers)
    private = allocation.layers - allocation.depth
    lines = [f"layers   {allocation.layers}: {allocation.depth} of the trunk and {private} private"]
    if options_file.trunk is not None:
        whole = len(chosen) * options_file.trunk.layers
        lines[0] += f", {100 * allocation.layers / whole:.1f} % of {whole} for one whole encoder a task"
    lines.append(f"score    {allocation.score:.2f}, the mean of {counted(len(chosen), 'task')}")
    against = _full(options_file)
    if against is not None:
        lines[-1] += f", {100 * allocation.score / against:.2f} % of full fine-tuning's {against:.2f}"
    for name, price in _known(prices)[1:]:
        lines.append(f"{_UNITS[name]:7s}  {_cost(allocation_of(chosen, price).cost, name)}")
    return lines


def _frontier_lines(points: Sequence[Allocation], price: LayerPrice, prices: Prices, chosen: Allocation) -> list[str]:
    others = [name for name, _ in _known(prices) if name != price.unit]
    rows: list[list[object]] = [["", price.unit, *others, "depth", "score", "tap+layers of each task"]]
    for point in points:
        # An allocation that costs and scores the same is as good, though it may be another.
        is_chosen = (point.cost, round(point.score, 9)) == (chosen.cost, round(chosen.score, 9))
        costs = {name: allocation_of(point.chosen, unit_price).cost for name, unit_price in _known(prices)}
        shown = [_cost(costs[name], name).removesuffix(" layers") for name in (price.unit, *others)]
        private = " ".join(f"{choice.tap}+{choice.layers}" for choice in point.chosen.values())
        rows.append(["*" if is_chosen else "", *shown, point.depth, f"{point.score:.2f}", private])
    return text_table(rows)


def _full(options_file: OptionsFile) -> float | None:
    """The mean score of full fine-tuning, if the file has it for every task."""
    tasks = dict.fromkeys(choice.task for choice in options_file.options)
    if not options_file.full or not set(tasks) <= set(options_file.full):
        return None
    return sum(options_file.full[task] for task in tasks) / len(tasks)


def _baselines(options_file: OptionsFile, price: LayerPrice) -> list[Baseline]:
    from polyhead.evaluate.report.frontier import separate_models

    if _full(options_file) is None:
        return []
    tasks = dict.fromkeys(choice.task for choice in options_file.options)
    layers = options_file.trunk.layers if options_file.trunk else max(o.tap + o.layers for o in options_file.options)
    return [
        separate_models(
            "full fine-tuning of one encoder a task", [options_file.full[t] for t in tasks], price, layers=layers
        )
    ]
