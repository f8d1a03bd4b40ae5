"""`polyhead allocate`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from click.core import ParameterSource

from polyhead.cli.output import Printer, counted, in_bytes, json_option, table
from polyhead.cli.plots import check_drawable, plot_option
from polyhead.config import Value, from_json
from polyhead.cost.allocate import (
    Allocation,
    Option,
    OptionsFile,
    Price,
    Unit,
    allocation_of,
    best_under,
    by_rule,
    frontier,
    greedy,
    price_of,
)
from polyhead.errors import ConfigError
from polyhead.trunk.shape import Architecture

if TYPE_CHECKING:
    from polyhead.report.frontier import Baseline

BY_LAYERS = Price(shared=1, private=1, unit="layers")


class Prices(Value):
    """A layer in each unit that is known; FLOPs and bytes need the trunk's shape."""

    layers: Price
    flops: Price | None
    bytes: Price | None


@click.command("allocate")
@click.argument("options", metavar="FILE", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--rule",
    type=click.Choice(["marginal", "greedy"]),
    default="marginal",
    show_default=True,
    help="marginal: of each task the largest score - c x layers; greedy: add layers while each step gains c a layer.",
)
@click.option("--c", "c", type=click.FloatRange(0), default=1.0, show_default=True, help="Points that a layer costs.")
@click.option("--budget", type=click.FloatRange(0), help="Instead of a rule: the best within this cost of all tasks.")
@click.option(
    "--unit",
    type=click.Choice(["layers", "flops", "bytes"]),
    default="layers",
    show_default=True,
    help="Of the budget and the frontier: layers or FLOPs run on one text, or bytes of weights (float32).",
)
@click.option(
    "--tokens",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    help="Length of the text that FLOPs are for, special tokens included.",
)
@click.option(
    "--bundle", type=click.Path(file_okay=False), metavar="DIRECTORY", help="Take the trunk's shape from this bundle."
)
@plot_option("Draw the frontier into FILE (.svg, .png or .pdf).")
@json_option
@click.pass_context
def command(
    context: click.Context,
    options: str,
    rule: str,
    c: float,
    budget: float | None,
    unit: Unit,
    tokens: int,
    bundle: str | None,
    plot: str | None,
    json_to: str | None,
) -> None:
    """Choose for each task how deep its branch is, by a rule or under one budget for all tasks.

    FILE is JSON: {"options": [{"task", "name", "tap", "layers", "score"}, ...], "trunk": {"layers",
    "width", "heads", "feed_forward", "vocabulary", ...}, "full": {task: score}}; trunk and full may be left out. A
    score is in points, from a split on which choices may be made.

    A cost is that of the trunk up to the deepest tap, once, and of every private layer; embeddings count in bytes.
    Poolers and heads are equal for all options and are left out.
    """
    printer = Printer(json_to)
    check_drawable(plot)
    if budget is not None and _is_given(context, "c", "rule"):
        raise click.UsageError("give --budget, or --rule and --c: one of them chooses")
    within = _within(budget, unit)
    given = _read(options, bundle)
    prices = _prices(given.trunk, tokens)
    price = _price(prices, unit)
    points = frontier(given.options, price)
    if within is not None:
        chosen = best_under(given.options, within, price).chosen
    else:
        chosen = (greedy if rule == "greedy" else by_rule)(given.options, c)
    how = _how(rule, c, within, unit)
    found = allocation_of(chosen, price)
    printer.lines([how, "", *_task_lines(chosen, given, prices), "", *_totals(chosen, given, prices)])
    best = [point for point in points if point.cost <= found.cost][-1]
    if round(best.score, 9) > round(found.score, 9):
        printer.line(f"better   {best.score:.2f} would be the best within the same {_UNITS[unit]}")
    printer.lines(["", f"What no choice beats in {_UNITS[unit]} and score; * as chosen", ""])
    printer.lines(_frontier_lines(points, price, prices, found))
    if plot is not None:
        from polyhead.report.frontier import plot_frontier

        plot_frontier(given.options, price, plot, baselines=_baselines(given, price))
        printer.lines(["", f"drawn into {plot}"])
    facts = {"how": how, "unit": unit, "chosen": chosen, "prices": prices}
    costs = {name: allocation_of(chosen, one).cost for name, one in _known(prices)}
    printer.json({**facts, "costs": costs, "score": found.score, "frontier": points})


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
    given = from_json(Path(file).read_bytes(), OptionsFile, source=file)
    if bundle is not None:
        from polyhead.bundle.read import Bundle

        given = msgspec.structs.replace(given, trunk=Bundle.open(bundle).architecture)
    deepest = given.trunk.layers if given.trunk else None
    for option in given.options:
        if deepest is not None and option.tap > deepest:
            raise ConfigError(
                f"option '{option.name}' of task '{option.task}' reads deeper than the trunk",
                got=option.tap,
                allowed=f"a tap of 0 to {deepest}",
            )
    return given


def _prices(shape: Architecture | None, tokens: int) -> Prices:
    if shape is None:
        return Prices(layers=BY_LAYERS, flops=None, bytes=None)
    return Prices(
        layers=price_of("layers", shape), flops=price_of("flops", shape, tokens), bytes=price_of("bytes", shape)
    )


def _price(prices: Prices, unit: Unit) -> Price:
    found: Price | None = getattr(prices, unit)
    if found is None:
        raise ConfigError(
            f"{_UNITS[unit]} are counted from the trunk's shape, and the options do not say it",
            do="add 'trunk' to the file, or give --bundle",
        )
    return found


def _known(prices: Prices) -> list[tuple[str, Price]]:
    found = {"layers": prices.layers, "flops": prices.flops, "bytes": prices.bytes}
    return [(name, price) for name, price in found.items() if price is not None]


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


def _task_lines(chosen: dict[str, Option], given: OptionsFile, prices: Prices) -> list[str]:
    """One row a task: its option, and what its private layers alone cost."""
    names = [name for name, _ in _known(prices) if name != "layers"]
    rows: list[list[object]] = [["task", "option", "tap", "layers", "score"]]
    rows[0] += [*(["full"] if given.full else []), *(_TITLES[name] for name in names)]
    for task, option in chosen.items():
        full = given.full.get(task)
        cells: list[object] = [task, option.name, option.tap, option.layers, f"{option.score:.2f}"]
        cells += ["-" if full is None else f"{full:.2f}"] if given.full else []
        costs = {name: price.private * option.layers for name, price in _known(prices)}
        rows.append([*cells, *(_cost(costs[name], name) for name in names)])
    return table(rows, left=2)


_TITLES = {"flops": "private FLOPs", "bytes": "private bytes"}


def _totals(chosen: dict[str, Option], given: OptionsFile, prices: Prices) -> list[str]:
    found = allocation_of(chosen, prices.layers)
    private = found.layers - found.depth
    lines = [f"layers   {found.layers}: {found.depth} of the trunk and {private} private"]
    if given.trunk is not None:
        whole = len(chosen) * given.trunk.layers
        lines[0] += f", {100 * found.layers / whole:.1f} % of {whole} for one whole encoder a task"
    lines.append(f"score    {found.score:.2f}, the mean of {counted(len(chosen), 'task')}")
    against = _full(given)
    if against is not None:
        lines[-1] += f", {100 * found.score / against:.2f} % of full fine-tuning's {against:.2f}"
    for name, price in _known(prices)[1:]:
        lines.append(f"{_UNITS[name]:7s}  {_cost(allocation_of(chosen, price).cost, name)}")
    return lines


def _frontier_lines(points: Sequence[Allocation], price: Price, prices: Prices, chosen: Allocation) -> list[str]:
    others = [name for name, _ in _known(prices) if name != price.unit]
    rows: list[list[object]] = [["", price.unit, *others, "depth", "score", "tap+layers of each task"]]
    for point in points:
        # An allocation that costs and scores the same is as good, though it may be another.
        is_chosen = (point.cost, round(point.score, 9)) == (chosen.cost, round(chosen.score, 9))
        costs = {name: allocation_of(point.chosen, one).cost for name, one in _known(prices)}
        shown = [_cost(costs[name], name).removesuffix(" layers") for name in (price.unit, *others)]
        private = " ".join(f"{option.tap}+{option.layers}" for option in point.chosen.values())
        rows.append(["*" if is_chosen else "", *shown, point.depth, f"{point.score:.2f}", private])
    return table(rows)


def _full(given: OptionsFile) -> float | None:
    """The mean score of full fine-tuning, if the file has it for every task."""
    tasks = dict.fromkeys(option.task for option in given.options)
    if not given.full or not set(tasks) <= set(given.full):
        return None
    return sum(given.full[task] for task in tasks) / len(tasks)


def _baselines(given: OptionsFile, price: Price) -> list[Baseline]:
    from polyhead.report.frontier import apart

    if _full(given) is None:
        return []
    tasks = dict.fromkeys(option.task for option in given.options)
    layers = given.trunk.layers if given.trunk else max(o.tap + o.layers for o in given.options)
    return [apart("full fine-tuning of one encoder a task", [given.full[t] for t in tasks], price, layers=layers)]
