"""The choice of one option per task: by a price per layer, or the best within one budget for all tasks.

A task's options are its students and its undistilled branches: each reads the trunk at a tap and runs private
layers above it. Together they cost the trunk up to the deepest tap among them, once, and the private layers of
each; poolers and heads are equal for all options of a task and are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Literal, NamedTuple

import msgspec

from polyhead.arguments import twice_in
from polyhead.encoder.shape import Architecture
from polyhead.errors import ConfigError
from polyhead.plan import Embed, Layers, Path, merge
from polyhead.plan.cost import cost_of
from polyhead.values import Value, from_json

Unit = Literal["layers", "flops", "bytes"]
UNIT_NAMES: dict[Unit, str] = {"layers": "layers", "flops": "FLOPs", "bytes": "bytes"}
SCALE = 10**9  # scores are added as whole billionths of a point, so that no order of adding changes a tie


class AllocationOption(Value):
    """One way to run a task: `layers` private layers above the trunk's first `tap`, and its score."""

    task: str
    name: str  # unique in the task
    tap: int
    layers: int
    score: float  # metric points, 0 to 100

    def __post_init__(self) -> None:
        where = f"option '{self.name}' of task '{self.task}'"
        for name in ("tap", "layers"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{where} cannot have this {name}", got=getattr(self, name), allowed="0 or more")
        if not math.isfinite(self.score):
            raise ConfigError(f"{where} needs a score", got=self.score, allowed="metric points, 0 to 100")


class LayerPrice(Value):
    """Cost of one shared trunk layer, of one private layer, and the fixed base."""

    shared: int
    private: int
    unit: str
    base: int = 0

    def __post_init__(self) -> None:
        if self.private < 1 or self.shared < 0 or self.base < 0:
            raise ConfigError(
                "layers cannot have this price",
                got=f"private {self.private}, shared {self.shared}, base {self.base}",
                allowed="private 1 or more, shared and base 0 or more",
            )


class OptionsFile(Value):
    """The file that training writes next to a bundle of branches, for `polyhead allocate`."""

    options: tuple[AllocationOption, ...]
    trunk: Architecture | None = None
    full: dict[str, float] = {}  # task -> score of full fine-tuning, in points

    @classmethod
    def read(cls, file: str, trunk: Architecture | None = None) -> OptionsFile:
        """The file, its trunk replaced by this one if it is given; raises ConfigError for a tap below the trunk."""
        content = from_json(FilePath(file).read_bytes(), cls, source=file)
        content = content if trunk is None else msgspec.structs.replace(content, trunk=trunk)
        for choice in content.options:
            if content.trunk is not None and choice.tap > content.trunk.layers:
                raise ConfigError(
                    f"option '{choice.name}' of task '{choice.task}' reads deeper than the trunk",
                    got=choice.tap,
                    allowed=f"a tap of 0 to {content.trunk.layers}",
                )
        return content

    @property
    def full_scores(self) -> list[float]:
        """The scores of full fine-tuning, if the file has them for every task; else none."""
        tasks = dict.fromkeys(choice.task for choice in self.options)
        return [self.full[task] for task in tasks] if set(tasks) <= set(self.full) else []


class Allocation(Value):
    """One option per task, and their total cost: `base + D shared + sum(l) private`, D the deepest tap."""

    chosen: dict[str, AllocationOption]
    cost: int
    score: float  # mean over the tasks
    layers: int  # evaluated on one text: D + sum(l)

    @property
    def depth(self) -> int:
        """D: how many trunk layers the chosen options need."""
        return max(option.tap for option in self.chosen.values())


def by_rule(options: Sequence[AllocationOption], c: float) -> dict[str, AllocationOption]:
    """For each task, the option with the largest `score - c layers` (Wei et al. 2021); ties: more layers.

    This gives all 24 depths that the paper prints for c = 1, 2, 3; its wording is `greedy`. Each task is considered
    alone, so the trunk's depth does not count; `best_under` counts it.
    """
    price = _exact(_checked_rate(c))
    return {
        task: max(candidates, key=lambda o: (_exact(o.score) - price * o.layers, o.layers, -o.tap))
        for task, candidates in _by_task(options).items()
    }


def greedy(options: Sequence[AllocationOption], c: float) -> dict[str, AllocationOption]:
    """The paper's wording: for each task, add layers as long as the next step gains at least c per layer.

    It stops before a dip: a losing step hides all later ones, which `by_rule` does consider.
    """
    price = _exact(_checked_rate(c))
    chosen = {}
    for task, candidates in _by_task(options).items():
        # One option per depth: the best, among equals the one with the shallower tap.
        steps = {o.layers: o for o in sorted(candidates, key=lambda o: (_exact(o.score), -o.tap))}
        first, *later = (steps[layers] for layers in sorted(steps))
        for option in later:
            if _exact(option.score) - _exact(first.score) < price * (option.layers - first.layers):
                break
            first = option
        chosen[task] = first
    return chosen


def price_of(unit: Unit, shape: Architecture, tokens: int = 32) -> LayerPrice:
    """The cost of layers on one text of `tokens` tokens: evaluations, FLOPs or bytes (float32).

    The base is the cost of the embeddings: nothing in layers; in bytes, their arrays; in FLOPs, their projection if
    they are narrower than the trunk.
    """
    embed = Embed(trunk="any")
    base = _counted(unit, Path(nodes=(embed,)), shape, tokens)
    if not shape.layers:  # a table of word vectors: no path has a layer to pay for
        return LayerPrice(shared=0, private=1, base=base, unit=unit)
    shared, private = (
        _counted(unit, Path(nodes=(embed, Layers(start=0, stop=1, weights=owner))), shape, tokens) - base
        for owner in ("trunk", "task:any")
    )
    return LayerPrice(shared=shared, private=private, base=base, unit=unit)


def allocation_of(chosen: Mapping[str, AllocationOption], price: LayerPrice) -> Allocation:
    """Cost and score of a choice; raises ConfigError for an empty one."""
    if not chosen:
        raise ConfigError("there is no option to choose from", do="give at least one for a task")
    depth = max(option.tap for option in chosen.values())
    layers = sum(option.layers for option in chosen.values())
    return Allocation(
        chosen=dict(chosen),
        cost=price.base + depth * price.shared + layers * price.private,
        score=sum(_exact(option.score) for option in chosen.values()) / (SCALE * len(chosen)),
        layers=depth + layers,
    )


def best_under(options: Sequence[AllocationOption], budget: int, price: LayerPrice) -> Allocation:
    """The choice with the highest mean score whose cost is within `budget`, exact; among equals the cheapest.

    Raises ConfigError, with the cheapest choice's cost, if not even that is within the budget.
    """
    allocations = frontier(options, price)
    within = [allocation for allocation in allocations if allocation.cost <= budget]
    if not within:
        raise ConfigError(
            "no choice of options is within the budget",
            got=f"{budget:,} ({price.unit})",
            allowed=f"{allocations[0].cost:,} or more",
            do="raise it, or leave out a task",
        )
    return within[-1]


def frontier(options: Sequence[AllocationOption], price: LayerPrice) -> tuple[Allocation, ...]:
    """Every choice that no other beats in cost and score, by cost, exact; each scores higher than those before it.

    For each possible depth of the trunk, the options with taps up to that depth are combined task by task; of choices
    with equally many private layers only the best is kept. Among equals: the shallower trunk, then the options listed
    first.
    """
    tasks = _by_task(options)
    points = []
    for depth in sorted({option.tap for option in options}):
        for point in _within(tasks.values(), depth):
            points.append((price.base + depth * price.shared + point.layers * price.private, depth, point))
    points.sort(key=lambda priced: (priced[0], -priced[2].score, priced[1], priced[2].chosen))
    kept: list[Allocation] = []
    best: int | None = None
    for _, _, point in points:
        if best is None or point.score > best:
            best = point.score
            chosen = {task: tasks[task][index] for task, index in zip(tasks, point.chosen, strict=True)}
            kept.append(allocation_of(chosen, price))
    return tuple(kept)


class LayerPrices(Value):
    """The price of a layer in each unit; FLOPs and bytes are known with the trunk's shape only."""

    layers: LayerPrice
    flops: LayerPrice | None = None
    bytes: LayerPrice | None = None

    @property
    def known(self) -> dict[Unit, LayerPrice]:
        """The known ones."""
        prices: dict[Unit, LayerPrice | None] = {"layers": self.layers, "flops": self.flops, "bytes": self.bytes}
        return {unit: price for unit, price in prices.items() if price is not None}

    def costs(self, chosen: Mapping[str, AllocationOption]) -> dict[Unit, int]:
        """The cost of a choice in each unit."""
        return {unit: allocation_of(chosen, price).cost for unit, price in self.known.items()}


class AllocationReport(Value):
    """A choice, its cost, and the choices that no other beats in both the wanted unit and score."""

    how: str
    unit: Unit
    chosen: dict[str, AllocationOption]
    prices: LayerPrices
    costs: dict[Unit, int]
    score: float
    frontier: tuple[Allocation, ...]

    @property
    def price(self) -> LayerPrice:
        """The price in the report's unit."""
        return self.prices.known[self.unit]


def allocate(
    content: OptionsFile,
    *,
    rule: Literal["marginal", "greedy"],
    c: float,
    budget: int | None,
    unit: Unit,
    tokens: int,
    how: str = "",
) -> AllocationReport:
    """The choice by a rule, or the best within a budget; `how` describes which of them.

    Raises ConfigError for a unit that needs an unknown shape of the trunk, and for a budget below every choice.
    """
    prices = LayerPrices(layers=LayerPrice(shared=1, private=1, unit="layers"))
    if (shape := content.trunk) is not None:
        flops, size = price_of("flops", shape, tokens), price_of("bytes", shape)
        prices = LayerPrices(layers=price_of("layers", shape), flops=flops, bytes=size)
    if unit not in prices.known:
        raise ConfigError(
            f"{UNIT_NAMES[unit]} are counted from the trunk's shape, and the options do not say it",
            do="add 'trunk' to the file, or give --bundle",
        )
    options, price = content.options, prices.known[unit]
    points = frontier(options, price)
    if budget is not None:
        chosen = best_under(options, budget, price).chosen
    else:
        chosen = (greedy if rule == "greedy" else by_rule)(options, c)
    costs, score = prices.costs(chosen), allocation_of(chosen, price).score
    return AllocationReport(how=how, unit=unit, chosen=chosen, prices=prices, costs=costs, score=score, frontier=points)


class _Point(NamedTuple):
    """Options of the first tasks, by their index in each task."""

    layers: int
    score: int
    chosen: tuple[int, ...]


def _within(tasks: Iterable[Sequence[AllocationOption]], depth: int) -> list[_Point]:
    """Over options with taps up to `depth`: the best for each number of private layers, unless fewer layers equal it.

    Empty if a task has no such option.
    """
    points = [_Point(0, 0, ())]
    for options in tasks:
        best: dict[int, _Point] = {}
        for point in points:
            for index, option in enumerate(options):
                if option.tap > depth:
                    continue
                new = _Point(point.layers + option.layers, point.score + _exact(option.score), (*point.chosen, index))
                old = best.get(new.layers)
                if old is None or (-new.score, new.chosen) < (-old.score, old.chosen):
                    best[new.layers] = new
        points = []
        for layers in sorted(best):
            if not points or best[layers].score > points[-1].score:
                points.append(best[layers])
    return points


def _by_task(options: Sequence[AllocationOption]) -> dict[str, list[AllocationOption]]:
    by_task: dict[str, list[AllocationOption]] = {}
    for option in options:
        by_task.setdefault(option.task, []).append(option)
    if not by_task:
        raise ConfigError("there is no option to choose from", do="give at least one for a task")
    for task, named in by_task.items():
        twice = sorted(twice_in(option.name for option in named))
        if twice:
            raise ConfigError(f"task '{task}' has several options of one name", got=twice, do="rename one")
    return by_task


def _exact(score: float) -> int:
    return round(score * SCALE)


def _checked_rate(c: float) -> float:
    if not math.isfinite(c) or c < 0:
        raise ConfigError("c is a price in points for each layer", got=c, allowed="0 or more")
    return c


def _counted(unit: Unit, path: Path, shape: Architecture, tokens: int) -> int:
    cost = cost_of(merge({"any": path}), shape, tokens)
    return {"layers": cost.layer_evaluations, "flops": cost.flops, "bytes": cost.bytes}[unit]
