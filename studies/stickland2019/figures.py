"""The study, drawn: each method's mean by sampling, and figure 1 of the appendix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from polyhead.errors import DataError
from studies.shared.drawing import sheet
from studies.shared.rows import Split
from studies.stickland2019.study import GLUE, Row, averages
from studies.stickland2019.tables import Point, compared, title

_COLOURS = {
    "alone": "#555555",
    "proportional": "#b8c4d6",
    "square-root": "#e0a030",
    "annealed": "#2f6db3",
    "round-robin": "#7a9a5b",
}
_LINES = ("#2f6db3", "#c8553d", "#7a9a5b", "#8a63a8")


def plot_methods(
    rows: Sequence[Row], path: Path | str, *, methods: Iterable[str] | None = None, split: Split = "test"
) -> None:
    """A line a method: mean, standard error and each seed by sampling; parameters and FLOPs with its name."""
    wanted = None if methods is None else set(methods)
    lines = [line for line in compared(rows, split=split) if wanted is None or line.method in wanted]
    if not lines:
        raise DataError("there are no means to draw: no run has all eight tasks", do="run the study further")
    order = list(dict.fromkeys(line.method for line in lines))
    figure, axes = sheet(7.5, 1.4 + 0.42 * len(order))
    known = [name for name in _COLOURS if any(line.sampling == name for line in lines)]
    for line in lines:
        place = order.index(line.method) + 0.16 * (known.index(line.sampling) - (len(known) - 1) / 2)
        colour = _COLOURS[line.sampling]
        axes.errorbar(line.average.mean, place, xerr=line.average.error, fmt="D", color=colour, capsize=3)
        seeds = list(averages(rows, line.method, line.sampling, split=split).values())
        axes.plot(seeds, [place] * len(seeds), "o", color="black", markersize=2, zorder=3)
    costs = {line.method: line.costs for line in lines}
    labels = [
        f"{title(name)} ({costs[name].ratio:.2f} × parameters, {costs[name].share:.2f} of the FLOPs)" for name in order
    ]
    axes.set_yticks(range(len(order)), labels, fontsize="small")
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel(
        f"mean {split} score of the eight tasks, points; standard error and each seed\n"
        "FLOPs of all tasks on one text, over those of an encoder a task",
        fontsize="small",
        loc="right",  # under long names too
    )
    for name in known:
        axes.plot([], [], "D", color=_COLOURS[name], label=name)
    figure.legend(loc="outside lower center", ncols=len(known), fontsize="small", frameon=False)
    figure.savefig(path, dpi=150)


def plot_curves(points_by_task: Mapping[str, Mapping[str, Sequence[Point]]], path: Path | str) -> None:
    """A panel a task: validation points by step, with the standard deviation over seeds as a band."""
    there = {task: lines for task, lines in points_by_task.items() if lines}
    if not there:
        raise DataError("there are no curves to draw", do="run the study further")
    columns = 4 if len(there) > 4 else len(there)
    height = -(-len(there) // columns)
    figure, panels = sheet(2.6 * columns, 2.3 * height + 0.4, rows=height, columns=columns)
    names = list(dict.fromkeys(name for lines in there.values() for name in lines))
    places = list(getattr(panels, "flat", [panels]))
    for panel, (task, lines) in zip(places, there.items(), strict=False):
        for name, points in lines.items():
            colour = _LINES[names.index(name) % len(_LINES)]
            steps, means = [p.step for p in points], [p.mean for p in points]
            around = [p.deviation or 0.0 for p in points]
            low, high = zip(*((m - d, m + d) for m, d in zip(means, around, strict=True)), strict=True)
            panel.plot(steps, means, "o-", color=colour, markersize=2.5)
            panel.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
        panel.set_title(GLUE.get(task, task), fontsize="small")
        panel.tick_params(labelsize="x-small")
        panel.grid(alpha=0.3)
    for panel in places[len(there) :]:
        panel.set_axis_off()
    seeds = max(point.seeds for lines in there.values() for points in lines.values() for point in points)
    figure.supxlabel("updates", fontsize="small")
    figure.supylabel(f"validation points, {seeds} seed{'s' * (seeds != 1)}", fontsize="small")
    for index, name in enumerate(names):
        places[0].plot([], [], color=_LINES[index % len(_LINES)], label=title(name))
    figure.legend(loc="outside upper center", ncols=len(names), fontsize="small", frameon=False)
    figure.savefig(path, dpi=150)
