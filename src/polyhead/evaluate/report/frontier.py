"""A plot of the frontier of score against cost, with the rule's choices at several prices of a layer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from polyhead.errors import MissingExtra
from polyhead.plan.cost.allocate import Allocation, AllocationOption, LayerPrice, allocation_of, by_rule, frontier
from polyhead.values import Value

RATES = (0.5, 1.0, 2.0, 3.0)
_SCALES = {
    "layers": (1.0, "layers run on one text, all tasks"),
    "flops": (1e9, "GFLOP for one text, all tasks"),
    "bytes": (1e6, "MB of weights, all tasks"),
}


class Baseline(Value):
    """A mean score over the tasks, for comparison, and its cost in the price's unit."""

    name: str
    score: float
    cost: int


def separate_models(name: str, scores: Sequence[float], price: LayerPrice, *, layers: int) -> Baseline:
    """One model with this many layers for each task, nothing shared."""
    return Baseline(
        name=name, score=sum(scores) / len(scores), cost=len(scores) * (price.base + layers * price.private)
    )


def plot_frontier(
    options: Sequence[AllocationOption],
    price: LayerPrice,
    path: Path | str,
    *,
    rates: Sequence[float] = RATES,
    offered: Sequence[AllocationOption] | None = None,
    baselines: Sequence[Baseline] = (),
) -> None:
    """Draws the frontier of `options`, the rule's choices and baselines into `path` (.svg, .png or .pdf).

    The rule chooses among `offered` (default: all of them) at each of `rates`. Raises MissingExtra without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "plots", "drawing the frontier") from None
    scale, label = _SCALES.get(price.unit, (1.0, price.unit))
    best = frontier(options, price)
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    costs, scores = [a.cost / scale for a in best], [a.score for a in best]
    axes.step(costs, scores, where="post", color="#2f6db3", zorder=2)
    axes.plot(costs, scores, "o", color="#2f6db3", markersize=4, label="best for the cost, exact", zorder=3)
    chosen = _by_choice(options if offered is None else offered, price, rates)
    for index, (allocation, names) in enumerate(chosen):
        axes.plot(
            allocation.cost / scale,
            allocation.score,
            "D",
            color="#d1581b",
            markersize=7,
            label="score - c layers, each task alone" if not index else None,
            zorder=4,
        )
        axes.annotate(
            f"c = {names}",
            (allocation.cost / scale, allocation.score),
            xytext=(14, -10 - 15 * index),  # stacked: neighbours may differ by one layer only
            textcoords="offset points",
            arrowprops={"arrowstyle": "-", "color": "grey", "linewidth": 0.6},
            va="top",
            fontsize="small",
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
            zorder=3,
        )
    for baseline, mark in zip(baselines, "s^v<>" * len(baselines), strict=False):
        axes.axhline(baseline.score, linestyle=":", color="grey", zorder=1)
        axes.plot(baseline.cost / scale, baseline.score, mark, color="black", label=baseline.name, zorder=4)
    axes.set(xlabel=label, ylabel="mean score of the tasks, points")
    axes.margins(x=0.06, y=0.08)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", loc="lower right")
    figure.savefig(path, dpi=150)


def _by_choice(
    options: Sequence[AllocationOption], price: LayerPrice, rates: Sequence[float]
) -> list[tuple[Allocation, str]]:
    """The choices of the rule, each once, with the prices that lead to it."""
    choices: dict[int, tuple[Allocation, list[str]]] = {}
    for rate in sorted(rates):
        allocation = allocation_of(by_rule(options, rate), price)
        choices.setdefault(allocation.cost, (allocation, []))[1].append(f"{rate:g}")
    return [(allocation, ", ".join(names)) for allocation, names in choices.values()]
