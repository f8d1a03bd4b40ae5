"""The study, drawn: each method's average against what it costs, and figure 2 of the paper."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from polyhead.errors import DataError
from studies.huang2022.methods import MAIN, Method
from studies.huang2022.study import MEASURES, Measure, Row, averages
from studies.huang2022.tables import grid
from studies.shared.drawing import sheet

_ONE_PASS, _MORE = "#2f6db3", "#b8c4d6"


def plot_methods(
    rows: Sequence[Row], path: Path | str, *, methods: Sequence[Method] = MAIN, measure: Measure = "validation"
) -> None:
    """A line a method: mean, deviation and each seed's average; those that need one pass of the encoder in blue."""
    averages_of = {method: averages(rows, method.name, measure) for method in methods}
    there = {method: points for method, points in averages_of.items() if points}
    if not there:
        raise DataError("there are no averages to draw: no method has all tasks", do="run the study further")
    passes = {row.method: row.passes for row in rows}
    figure, axes = sheet(7.5, 1.2 + 0.4 * len(there))
    for place, (method, points) in enumerate(there.items()):
        values = list(points.values())
        deviation = statistics.stdev(values) if len(values) > 1 else None  # no bar for one seed
        colour = _ONE_PASS if passes[method.name] == 1 else _MORE
        axes.errorbar(statistics.mean(values), place, xerr=deviation, fmt="D", color=colour, capsize=4)
        axes.plot(values, [place] * len(values), "o", color="black", markersize=2.5, zorder=3)
    axes.set_yticks(
        range(len(there)),
        [f"{method.title} ({passes[method.name]} × encoder, {method.learned} learned)" for method in there],
        fontsize="small",
    )
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel(f"{MEASURES[measure]}\nmean of the tasks, points", fontsize="small", loc="right")
    figure.savefig(path, dpi=150)


def plot_figure2(rows: Sequence[Row], path: Path | str, *, measure: Measure = "validation") -> None:
    """A heat map: rows of each task's prompt by shared rows before them."""
    cells = grid(rows, measure)
    if not cells:
        raise DataError("figure 2 compares numbers of prompt rows, and there are no runs", do="run the study further")
    own, shared = (sorted({getattr(cell, name) for cell in cells}) for name in ("rows", "shared"))
    values = np.full((len(own), len(shared)), np.nan)
    for cell in cells:
        values[own.index(cell.rows), shared.index(cell.shared)] = cell.average
    figure, axes = sheet(1.8 + 1.2 * len(shared), 1.6 + 0.6 * len(own))
    axes.imshow(values, aspect="auto", cmap="Blues")
    middle = (np.nanmin(values) + np.nanmax(values)) / 2
    for (row, column), value in np.ndenumerate(values):
        if not np.isnan(value):
            colour = "white" if value > middle else "black"
            axes.text(column, row, f"{value:.1f}", ha="center", va="center", color=colour)
    axes.set_xticks(range(len(shared)), [str(count) for count in shared])
    axes.set_yticks(range(len(own)), [str(count) for count in own])
    axes.set(xlabel="shared rows", ylabel="rows of a task")
    axes.set_title(f"mean of the tasks, {cells[0].seeds} seed{'s' * (cells[0].seeds != 1)}", fontsize="small")
    figure.savefig(path, dpi=150)
