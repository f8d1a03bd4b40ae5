"""The sheet that the figures of studies are drawn on."""

from __future__ import annotations

from typing import Any

from polyhead.errors import MissingExtra


def sheet(width: float, height: float, *, rows: int = 1, columns: int = 1) -> tuple[Any, Any]:
    """A figure of this size in inches, and its axes; raises MissingExtra without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "plots", "drawing the study") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns)
