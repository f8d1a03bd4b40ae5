"""Quality against cost as a plot: a point for each way, those that no cheaper one equals joined by a line."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from polyhead.config import Value
from polyhead.errors import MissingExtra

COLOURS = ("#2f6db3", "#d1581b", "#3a8f5c", "#8f4fa8", "#b08a1e", "#555555", "#c2387f")
MARKS = "osD^vP*"


class Point(Value):
    """One way in the plot."""

    name: str
    group: str  # of one colour and mark
    cost: float
    quality: float
    spread: float
    on_frontier: bool


def plot_points(points: Sequence[Point], path: Path | str | None, *, cost: str, quality: str, title: str = "") -> str:
    """Draws into `path` (.svg, .png or .pdf); gives the drawing as SVG text. Raises MissingExtra without matplotlib."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "plots", "drawing quality against cost") from None
    figure = Figure(figsize=(9, 5.4), layout="constrained")
    axes = figure.subplots()
    best = sorted((p for p in points if p.on_frontier), key=lambda p: p.cost)
    axes.step([p.cost for p in best], [p.quality for p in best], where="post", color="#999999", zorder=1)
    for number, group in enumerate(dict.fromkeys(p.group for p in points)):
        several = [p for p in points if p.group == group]
        axes.errorbar(
            [p.cost for p in several],
            [p.quality for p in several],
            yerr=[p.spread for p in several],
            fmt=MARKS[number % len(MARKS)],
            color=COLOURS[number % len(COLOURS)],
            markersize=6,
            elinewidth=0.8,
            capsize=2,
            label=group,
            zorder=3,
        )
    for p in points:
        size, colour = ("small", "#000000") if p.on_frontier else ("x-small", "#777777")
        place = (p.cost, p.quality)
        axes.annotate(p.name, place, xytext=(5, 5), textcoords="offset points", fontsize=size, color=colour)
    axes.set_xscale("log")
    for set_form in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        set_form("{x:g}")
    axes.set(xlabel=cost, ylabel=quality, title=title)
    axes.margins(x=0.12, y=0.1)
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize="small", loc="lower right")
    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "polyhead"}):  # the same drawing, the same bytes
        figure.savefig(text, format="svg", metadata={"Date": None})
    if path is not None:
        figure.savefig(path, dpi=150)
    return text.getvalue()
