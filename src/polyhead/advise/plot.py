"""A plot of quality against cost: a point for each way, with a line through those that no cheaper one equals."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from polyhead.advise.compare import AT, Compared, WayComparison
from polyhead.errors import MissingExtra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

COLOURS = ("#2f6db3", "#d1581b", "#3a8f5c", "#8f4fa8", "#b08a1e", "#555555", "#c2387f")
MARKS = "osD^vP*"
FAR = (4, -9, 26, -31)
# Positions of a name, in points from its mark: alignment, right, up. The first are the best, and the last so far away
# that a line joins them to the mark.
PLACES = (
    *(("left", 6, up) for up in (4, -9, 15, -20)),
    *(("right", -6, up) for up in (4, -9, 15, -20)),
    *(("left", 22, up) for up in FAR),
)


def plot_svg(comparison: WayComparison, path: Path | str | None = None) -> str:
    """The plot as SVG text, drawn into `path` (.svg, .png or .pdf) too; raises MissingExtra without matplotlib."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "plots", "drawing quality against cost") from None
    points = [way for way in comparison.ways if way.costs is not None]
    figure = Figure(figsize=(9, 5.4), layout="constrained")
    axes = figure.subplots()
    best = sorted((p for p in points if p.on_frontier), key=lambda p: p.gflop)
    axes.step([p.gflop for p in best], [p.quality for p in best], where="post", color="#999999", zorder=1)
    for number, group in enumerate(dict.fromkeys(p.group for p in points)):
        group_points = [p for p in points if p.group == group]
        axes.errorbar(
            [p.gflop for p in group_points],
            [p.quality for p in group_points],
            yerr=[p.spread for p in group_points],
            fmt=MARKS[number % len(MARKS)],
            color=COLOURS[number % len(COLOURS)],
            markersize=6,
            elinewidth=0.8,
            capsize=2,
            label=group,
            zorder=3,
        )
    axes.set_xscale("log")
    axes.set(xlabel=f"GFLOP for one text, {AT} tasks", ylabel="points, mean over the tasks", title=comparison.project)
    axes.margins(x=0.12, y=0.1)
    few_ticks(axes)
    axes.grid(alpha=0.3, which="both")
    if points:
        figure.legend(fontsize="small", loc="outside right upper")
    figure.draw_without_rendering()  # names are placed after the layout has placed the marks
    name_points(figure, axes, points)
    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "polyhead"}):  # equal drawings have equal bytes
        figure.savefig(text, format="svg", metadata={"Date": None})
    if path is not None:
        figure.savefig(path, dpi=150)
    return text.getvalue()


def few_ticks(axes: Axes) -> None:
    """Plain numbers below the axis of cost, so few that none covers another."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    low, high = axes.get_xlim()
    of_ten = LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,))
    axes.xaxis.set_major_locator(of_ten if high > 5 * low else MaxNLocator(4))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:g}")


def name_points(figure: Figure, axes: Axes, points: Sequence[Compared]) -> list[Bbox]:
    """Writes each point's name next to it, where it covers least; returns the boxes of the names."""
    from matplotlib.transforms import Bbox, offset_copy

    pixels = figure.dpi / 72
    ends = [
        axes.transData.transform([(p.gflop, p.quality - p.spread), (p.gflop, p.quality + p.spread)]) for p in points
    ]
    marks = [Bbox([low - 4 * pixels, high + 4 * pixels]) for low, high in ends]
    names = list[Bbox]()
    for p in sorted(points, key=lambda p: (not p.on_frontier, p.gflop, -p.quality)):
        size, colour = ("small", "#000000") if p.on_frontier else ("x-small", "#777777")
        text = axes.text(p.gflop, p.quality, p.name, fontsize=size, color=colour)
        text.set_in_layout(False)
        best = None
        for number, (aligned, right, up) in enumerate(PLACES):
            moved = offset_copy(axes.transData, figure, right, up, units="points")
            text.set(ha=aligned, transform=moved)
            box = text.get_window_extent()
            lost = sum(_shared_area(box, other) for other in (*marks, *names))
            lost += float(box.width * box.height) - _shared_area(box, axes.bbox)  # outside the plot
            if best is None or lost < best[0]:
                best = lost, number, box, moved
        assert best is not None
        _, number, box, moved = best
        text.set(ha=PLACES[number][0], transform=moved)
        if number >= len(PLACES) - len(FAR):
            line = {"arrowstyle": "-", "color": "#aaaaaa", "linewidth": 0.7, "shrinkA": 0, "shrinkB": 3}
            across, up = axes.transData.inverted().transform((box.x0, (box.y0 + box.y1) / 2))
            axes.annotate("", (p.gflop, p.quality), xytext=(across, up), arrowprops=line).set_in_layout(False)
        names.append(box)
    return names


def _shared_area(box: Bbox, other: Bbox) -> float:
    shared = type(box).intersection(box, other)
    return 0.0 if shared is None else float(shared.width * shared.height)
