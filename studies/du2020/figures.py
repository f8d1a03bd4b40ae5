"""Tables 3 and 4 at our scale, drawn: frozen trunks that learned from nothing, all but one task, all but one group."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from polyhead.errors import DataError
from studies.du2020.table import Line, Table
from studies.shared.drawing import sheet
from studies.shared.rows import Split

POOLER = "AVG/MHA"  # the one that every such trunk has a row of
_BARS = {
    "b": ("nothing more: plain", "#b8c4d6"),
    "c": ("all tasks but one", "#2f6db3"),
    "d": ("all groups but one", "#e0a030"),
}
_WIDTH = 0.27


def plot_tasks(table: Table, path: Path | str, *, split: Split = "test") -> None:
    """Three bars a task, with deviations over seeds, and three for the average (.svg, .png or .pdf)."""
    lines = _lines(table)
    spreads = {block: line.spreads or (None,) * len(line.scores) for block, line in lines.items()}
    _plot(
        (*table.tasks, "average"),
        {block: (*line.scores, line.average) for block, line in lines.items()},
        {block: (*spreads[block], line.spread) for block, line in lines.items()},
        path,
        split=split,
    )


def plot_groups(table: Table, path: Path | str, *, split: Split = "test") -> None:
    """Three bars a group of tasks, and three for the average."""
    lines = _lines(table)
    names = (*table.groups, "average")
    values = {block: (*line.groups, line.average) for block, line in lines.items()}
    _plot(names, values, {block: (None,) * len(names) for block in lines}, path, split=split)


def _lines(table: Table) -> dict[str, Line]:
    """By block; raises DataError where there is nothing to draw."""
    by_block = {line.block: line for line in table.lines if line.name == POOLER and line.block in _BARS}
    if not any(score is not None for line in by_block.values() for score in line.scores):
        raise DataError(f"there is no row {POOLER} of a frozen trunk to draw", do="run the study further")
    return by_block


def _plot(
    names: Sequence[str],
    values: dict[str, tuple[float | None, ...]],
    spreads: dict[str, tuple[float | None, ...]],
    path: Path | str,
    *,
    split: Split,
) -> None:
    figure, axes = sheet(1.6 + 0.95 * len(names), 4.6)
    for number, (block, (label, colour)) in enumerate(_BARS.items()):
        known = [(at, value) for at, value in enumerate(values.get(block, ())) if value is not None]
        places = [at + (number - 1) * _WIDTH for at, _ in known]
        heights = [value for _, value in known]
        axes.bar(places, heights, width=0.92 * _WIDTH, color=colour, label=label)
        for place, (at, value) in zip(places, known, strict=True):
            spread = spreads[block][at] or 0.0
            if spread:
                axes.errorbar(place, value, yerr=spread, color="black", linewidth=0.8, capsize=2)
            above = (place, value + spread)
            axes.annotate(
                f"{value:.1f}",
                above,
                xytext=(0, 3),
                textcoords="offset points",
                rotation=90,
                ha="center",
                va="bottom",
                fontsize="x-small",
            )
    axes.set_xticks(range(len(names)), names, rotation=25, ha="right")
    axes.axvline(len(names) - 1.5, color="grey", linewidth=0.6, linestyle=":")
    axes.set(
        ylabel=f"{split} accuracy in %", ylim=(0, 114), title=f"frozen trunk, pooler {POOLER}: what it learned from"
    )
    axes.set_yticks(range(0, 101, 20))
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    figure.legend(loc="outside lower center", ncols=len(_BARS), fontsize="small", frameon=False)
    figure.savefig(path, dpi=150)
