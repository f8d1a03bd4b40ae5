"""Figure 2 at our scale: do students that begin as their teacher's layers beat those from the pre-trained ones?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyhead.errors import DataError, MissingExtra
from polyhead.values import Value
from studies.shared.rows import Split
from studies.wei2021.study import Run, tasks_of

INITS = ("pretrained", "teacher")
_COLOURS = {"pretrained": "#b8c4d6", "teacher": "#2f6db3"}
_ACROSS = 4  # panels beside one another


class Box(Value):
    """Quartiles over seeds of the students of one task, size and beginning, in points."""

    task: str
    layers: int
    init: str
    scores: tuple[float, ...]
    low: float
    first: float
    median: float
    third: float
    high: float


def boxes(runs: Sequence[Run], *, split: Split = "test") -> tuple[Box, ...]:
    """One for each task, number of private layers and beginning; raises DataError when there are no students."""
    scores: dict[tuple[str, int, str], list[float]] = {}
    for run in runs:
        if run.method == "student":
            scores.setdefault((run.task, run.layers, run.init or "teacher"), []).append(run.points(split))
    if not scores:
        raise DataError("figure 2 compares students, and there are none", do="run the study further")
    order = {task: index for index, task in enumerate(tasks_of(runs))}
    keys = sorted(scores, key=lambda key: (order[key[0]], key[1], key[2]))
    return tuple(_box(*key, scores[key]) for key in keys)


def gains(boxes: Sequence[Box]) -> dict[tuple[str, int], float]:
    """Median of the students from the teacher minus that of those from pre-trained layers, by task and layers."""
    medians = {(box.task, box.layers, box.init): box.median for box in boxes}
    return {
        (task, layers): median - medians[task, layers, "pretrained"]
        for (task, layers, init), median in medians.items()
        if init == "teacher" and (task, layers, "pretrained") in medians
    }


def plot_figure2(runs: Sequence[Run], path: Path | str, *, split: Split = "test") -> None:
    """Draws figure 2 into `path` (.svg, .png or .pdf): a panel a task; raises MissingExtra without matplotlib."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError:
        raise MissingExtra("matplotlib", "plots", "drawing figure 2") from None
    drawn = boxes(runs, split=split)
    tasks = list(dict.fromkeys(box.task for box in drawn))
    across = min(_ACROSS, len(tasks))
    down = -(-len(tasks) // across)
    figure = Figure(figsize=(2.4 * across + 0.8, 2.3 * down + 1.0), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False)
    for panel in panels.flat[len(tasks) :]:
        panel.set_visible(False)
    for task, panel in zip(tasks, panels.flat, strict=False):
        _draw(panel, [box for box in drawn if box.task == task])
        panel.set_title(task, fontsize="medium")
    figure.supxlabel("private layers of the student", fontsize="medium")
    figure.supylabel(f"{split} score, points", fontsize="medium")
    words = {"pretrained": "from pre-trained layers", "teacher": "from the teacher's layers"}
    handles = [Patch(facecolor=_COLOURS[init], edgecolor="black", label=words[init]) for init in INITS]
    seeds = max(len(box.scores) for box in drawn)
    figure.legend(
        handles=handles,
        title=f"where students begin, {seeds} seeds",
        loc="outside upper center",
        ncols=2,
        frameon=False,
    )
    figure.savefig(path, dpi=150)


def _draw(panel: Any, boxes: Sequence[Box]) -> None:
    sizes = sorted({box.layers for box in boxes})
    for box in boxes:
        place = sizes.index(box.layers) + (-0.2 if box.init == "pretrained" else 0.2)
        panel.bxp(
            [
                {
                    "whislo": box.low,
                    "q1": box.first,
                    "med": box.median,
                    "q3": box.third,
                    "whishi": box.high,
                    "fliers": [],
                }
            ],
            positions=[place],
            widths=0.32,
            patch_artist=True,
            showfliers=False,
            boxprops={"facecolor": _COLOURS[box.init]},
            medianprops={"color": "black"},
        )
        panel.plot([place] * len(box.scores), box.scores, "o", color="black", markersize=2.5, zorder=3)
    panel.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    panel.set_xlim(-0.6, len(sizes) - 0.4)
    panel.grid(axis="y", alpha=0.3)
    panel.tick_params(labelsize="small")


def _box(task: str, layers: int, init: str, scores: list[float]) -> Box:
    low, first, median, third, high = (float(v) for v in np.percentile(scores, [0, 25, 50, 75, 100]))
    return Box(
        task=task,
        layers=layers,
        init=init,
        scores=tuple(scores),
        low=low,
        first=first,
        median=median,
        third=third,
        high=high,
    )
