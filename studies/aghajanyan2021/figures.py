"""The study of joint training, drawn: gains by task, by number of sets, by training size, and by way of mixing."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyhead.errors import DataError
from studies.aghajanyan2021.sets import NESTED
from studies.aghajanyan2021.study import BEST, PLAIN, Row, gains, gaps, mean_by_seed, nested, scores, sizes_of, tasks_of
from studies.shared.drawing import sheet
from studies.shared.rows import BySeed, Split, over_seeds

_BLUE, _GREY = "#2f6db3", "#b8c4d6"
# What names of mixes alone do not say.
_MIXES = {
    "batch": "batch-homogeneous",
    "dataset": "one set after another",
    "unscaled": "heterogeneous,\nlosses as they are",
}


def plot_gains(rows: Sequence[Row], path: Path | str, *, mix: str = BEST, split: Split = "test") -> None:
    """A bar a task, and their mean: what frozen heads gain; a line marks what full fine-tuning gains."""
    gain, gap = gains(rows, mix, split=split), gaps(rows, split=split)
    bars: dict[str, BySeed] = {task: gain[task] for task in tasks_of(rows) if task in gain}
    _check(bars, f"gains of {mix}")
    bars["mean"] = mean_by_seed(rows, gain)
    full = {**gap, "mean": mean_by_seed(rows, gap)}
    figure, axes = sheet(1.2 + 0.85 * len(bars), 4.2)
    _bars(axes, {name: points for name, points in bars.items() if points})
    places = [(i, full[name]) for i, name in enumerate(n for n in bars if bars[n]) if full.get(name)]
    label = f"full fine-tuning of the plain trunk, {_seeds(points for _, points in places)}"
    for number, (place, points) in enumerate(places):
        height = statistics.mean(points.values())
        ends = [place - 0.42, place + 0.42]
        axes.plot(ends, [height, height], color="black", label=None if number else label)
    axes.set(ylabel=_above(split), title=f"{_legend(mix)}, {_seeds(bars[task] for task in gain)}")
    if places:
        figure.legend(loc="outside lower center", fontsize="small", frameon=False)
    figure.savefig(path, dpi=150)


def plot_nested(rows: Sequence[Row], path: Path | str, *, split: Split = "test") -> None:
    """Mean gain by number of sets, with its deviation over seeds, and each task's mean gain."""
    points_by_count = nested(rows, split=split)
    if len(points_by_count) < 2:
        raise DataError("a curve over numbers of sets needs a trunk that learned", do="run the study further")
    figure, axes = sheet(6.5, 4.2)
    ends: dict[str, tuple[int, float]] = {}
    for task in tasks_of(rows):
        line = {n: gains(rows, f"sets-{n}", split=split).get(task) for n in NESTED}
        known = {0: 0.0, **{n: statistics.mean(points.values()) for n, points in line.items() if points}}
        axes.plot(list(known), list(known.values()), color=_GREY, linewidth=1)
        ends[task] = max(known), known[max(known)]
    means = {n: over_seeds(points) for n, points in points_by_count.items()}
    known_means = {n: spread for n, spread in means.items() if spread is not None}
    deviations = [spread.deviation or float("nan") for spread in known_means.values()]
    axes.errorbar(
        list(known_means),
        [spread.mean for spread in known_means.values()],
        yerr=None if np.isnan(deviations).all() else deviations,
        fmt="o-",
        color=_BLUE,
        capsize=3,
        label=f"mean of {len(ends)} tasks, {_seeds(points for n, points in points_by_count.items() if n)}",
    )
    axes.set(xlabel="sets that the trunk learned from", ylabel=_above(split))
    axes.set_xticks(list(known_means))
    axes.axhline(0, color="black", linewidth=0.6)
    axes.legend(fontsize="small", frameon=False)
    _name(axes, ends)
    figure.savefig(path, dpi=150)


def plot_heat(rows: Sequence[Row], path: Path | str, *, mix: str = BEST, split: Split = "test") -> None:
    """Tasks by training rows: score over the plain trunk, over the mix's, and the gain."""
    sizes, tasks = sizes_of(rows, mix), tasks_of(rows)
    if not sizes:
        raise DataError(f"a heat map compares heads over {mix} and over the plain trunk", do="run the study further")
    figure, panels = sheet(10.5, 1.4 + 0.32 * len(tasks), columns=3)
    shown = {
        "plain trunk": [scores(rows, PLAIN, size=size, split=split) for size in sizes],
        _legend(mix): [scores(rows, mix, size=size, split=split) for size in sizes],
        "gain": [gains(rows, mix, size=size, split=split) for size in sizes],
    }
    for panel, (title, columns) in zip(panels, shown.items(), strict=True):
        cells = np.array([[_mean(column.get(task)) for column in columns] for task in tasks])
        _heat(panel, cells, signed=title == "gain")
        panel.set(title=title)
        panel.set_xticks(range(len(sizes)), [str(size) for size in sizes])
        panel.set_yticks(range(len(tasks)), tasks if panel is panels[0] else [""] * len(tasks))
    points = [points_of_task for column in shown["gain"] for points_of_task in column.values()]
    figure.supxlabel(f"training rows of the held-out task; {split} points, mean of {_seeds(points)}", fontsize="medium")
    figure.savefig(path, dpi=150)


def plot_mixes(rows: Sequence[Row], names: Sequence[str], path: Path | str, *, split: Split = "test") -> None:
    """Mean gain of each of these ways of mixing, with its deviation over seeds and each seed as a point."""
    gain_by_mix = {name: mean_by_seed(rows, gains(rows, name, split=split)) for name in names}
    there = {name: points for name, points in gain_by_mix.items() if points}
    _check(there, f"gains of {', '.join(names)}")
    figure, axes = sheet(1.6 + 1.2 * len(there), 3.8)
    _bars(axes, {_MIXES.get(name, name): points for name, points in there.items()})
    axes.set(ylabel=f"mean {_above(split)}", title=_seeds(there.values()))
    figure.savefig(path, dpi=150)


def _bars(axes: Any, bars: Mapping[str, BySeed]) -> None:
    for place, (name, points) in enumerate(bars.items()):
        values = list(points.values())
        deviation = statistics.stdev(values) if len(values) > 1 else None
        colour = _GREY if name == "mean" else _BLUE
        axes.bar(place, statistics.mean(values), width=0.7, yerr=deviation, color=colour, capsize=3)
        axes.plot([place] * len(values), values, "o", color="black", markersize=2.5, zorder=3)
    axes.set_xticks(range(len(bars)), list(bars), rotation=25, ha="right")
    axes.axhline(0, color="black", linewidth=0.6)
    axes.grid(axis="y", alpha=0.3)


def _name(axes: Any, ends: Mapping[str, tuple[int, float]]) -> None:
    """The lines' names to the right of the axes, each beside its line's end, or as near as the others leave room."""
    low, high = axes.get_ylim()
    names = sorted(ends, key=lambda name: ends[name][1])
    heights = _apart([ends[name][1] for name in names], least=0.045 * (high - low))
    for name, height in zip(names, heights, strict=True):
        axes.annotate(
            name,
            ends[name],
            xytext=(1.03, height),
            textcoords=axes.get_yaxis_transform(),
            fontsize="x-small",
            color="grey",
            va="center",
            arrowprops={"arrowstyle": "-", "color": _GREY, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 0},
        )


def _apart(places: Sequence[float], *, least: float) -> list[float]:
    """Rising places, moved as little as may be (in squares) until neighbours are `least` apart."""
    groups: list[list[float]] = []  # of neighbours that touch, all less what those below them take
    for number, place in enumerate(places):
        groups.append([place - number * least])
        while len(groups) > 1 and statistics.mean(groups[-2]) > statistics.mean(groups[-1]):
            above = groups.pop()
            groups[-1].extend(above)
    moved = [statistics.mean(group) for group in groups for _ in group]
    return [place + number * least for number, place in enumerate(moved)]


def _heat(panel: Any, cells: np.ndarray, *, signed: bool) -> None:
    known = cells[~np.isnan(cells)]
    top = float(np.abs(known).max(initial=1.0))
    low, high = (-top, top) if signed else (float(known.min(initial=0.0)), float(known.max(initial=1.0)))
    panel.imshow(cells, aspect="auto", cmap="RdBu" if signed else "Blues", vmin=low, vmax=high)
    for (row, column), value in np.ndenumerate(cells):
        if not np.isnan(value):
            dark = abs(value) > 0.7 * top if signed else value > low + 0.6 * (high - low)
            value_text = f"{value:+.1f}" if signed else f"{value:.1f}"
            colour = "white" if dark else "black"
            panel.text(column, row, value_text, ha="center", va="center", fontsize="x-small", color=colour)


def _check(there: Mapping[str, BySeed], what: str) -> None:
    if not there:
        raise DataError(f"there are no {what} to draw", do="run the study further")


def _mean(points: BySeed | None) -> float:
    return statistics.mean(points.values()) if points else float("nan")


def _above(split: Split) -> str:
    return f"{split} points\nabove the plain frozen trunk"


def _seeds(several: Iterable[BySeed]) -> str:
    """How many seeds these have: one number, or from which to which."""
    counts = sorted({len(points) for points in several if points}) or [0]
    count = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
    return f"{count} seed{'s' if counts[-1] != 1 else ''}"


def _legend(mix: str) -> str:
    return f"trunk that learned from {mix.removeprefix('sets-')} sets" if mix.startswith("sets-") else mix
