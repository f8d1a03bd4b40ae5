"""Small plots as inline SVG, whose colours the page's style gives in light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence

from polyhead.evaluate.report.page import html_text
from polyhead.values import Value

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 420, 260, 44, 36, 10, 12


class Bar(Value):
    """From `start` to `stop` on the horizontal axis, so high."""

    start: float
    stop: float
    height: float
    title: str = ""  # shown under the pointer
    is_pale: bool = False


class Dot(Value):
    """A named value with a range around it."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None


class Axes(Value):
    """The two axes of a plot."""

    across: tuple[float, float]
    up: tuple[float, float]
    across_title: str
    up_title: str

    def x(self, value: float) -> float:
        """Where a value stands, from the left."""
        low, high = self.across
        return LEFT + (value - low) / ((high - low) or 1.0) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Where a value stands, from the top."""
        low, high = self.up
        return HEIGHT - BOTTOM - (value - low) / ((high - low) or 1.0) * (HEIGHT - TOP - BOTTOM)


def plot(
    axes: Axes,
    *,
    bars: Sequence[Bar] = (),
    line: Sequence[tuple[float, float]] = (),
    guide: Sequence[tuple[float, float]] = (),
    label: str,
) -> str:
    """Bars, a line with points, and a dashed guide, over axes with ticks; `label` says what it shows."""
    parts = [_grid(axes)]
    for bar in bars:
        x, y = axes.x(bar.start) + 0.5, axes.y(bar.height)
        width, height = max(axes.x(bar.stop) - axes.x(bar.start) - 1, 0.5), max(axes.y(axes.up[0]) - y, 0)
        title = f"<title>{html_text(bar.title)}</title>" if bar.title else ""
        parts.append(
            f'<rect class="{"pale" if bar.is_pale else "blue"}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
            f'height="{height:.1f}">{title}</rect>'
        )
    if guide:
        parts.append(f'<polyline class="soft-line" points="{_points(axes, guide)}"/>')
    if line:
        parts.append(f'<polyline class="line" points="{_points(axes, line)}"/>')
        parts += [
            f'<circle class="blue" cx="{axes.x(x):.1f}" cy="{axes.y(y):.1f}" r="3">'
            f"<title>{x:.4g}: {y:.4f}</title></circle>"
            for x, y in line
        ]
    return _svg(WIDTH, HEIGHT, label, parts)


def dots(several: Sequence[Dot], *, at: float | None, label: str) -> str:
    """A row for each named value, from the least to the largest there is; a dashed line stands at `at`."""
    ends = [end for dot in several for end in (dot.value, dot.low, dot.high) if end is not None]
    ends += [] if at is None else [at]
    low, high = min(ends), max(ends)
    margin = (high - low) * 0.06 or 0.05
    low, high = low - margin, high + margin
    width, names, step = 460, 150, 22
    height = step * len(several) + 26

    def x(value: float) -> float:
        return names + (value - low) / (high - low) * (width - names - 56)

    parts = []
    if at is not None:
        parts.append(f'<line class="soft-line" x1="{x(at):.1f}" x2="{x(at):.1f}" y1="2" y2="{height - 22}"/>')
    for number, dot in enumerate(several):
        y = step * number + 14
        name = dot.name if len(dot.name) <= 22 else f"{dot.name[:21]}…"
        parts.append(
            f'<text class="name" x="0" y="{y + 4}">{html_text(name)}<title>{html_text(dot.name)}</title></text>'
        )
        if dot.low is not None and dot.high is not None:
            parts.append(f'<line class="range" x1="{x(dot.low):.1f}" x2="{x(dot.high):.1f}" y1="{y}" y2="{y}"/>')
        parts.append(f'<circle class="blue" cx="{x(dot.value):.1f}" cy="{y}" r="4"/>')
        parts.append(f'<text x="{width}" y="{y + 4}" text-anchor="end">{dot.value:.4f}</text>')
    parts += [
        f'<text x="{x(value):.1f}" y="{height - 4}" text-anchor="middle">{value:.3g}</text>'
        for value in (low + margin, high - margin)
    ]
    return _svg(width, height, label, parts)


def _grid(axes: Axes) -> str:
    parts = []
    for value in _ticks(axes.up):
        y = axes.y(value)
        parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.6g}</text>')
    for value in _ticks(axes.across):
        x = axes.x(value)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{value:.4g}</text>')
    parts.append(
        f'<text x="{(LEFT + WIDTH) / 2:.0f}" y="{HEIGHT - 4}" text-anchor="middle">'
        f"{html_text(axes.across_title)}</text>"
    )
    parts.append(
        f'<text transform="translate(11 {(HEIGHT - BOTTOM) / 2:.0f}) rotate(-90)" text-anchor="middle">'
        f"{html_text(axes.up_title)}</text>"
    )
    return "".join(parts)


def _ticks(ends: tuple[float, float], most: int = 5) -> list[float]:
    """At most so many round numbers between the ends: steps of 1, 2 or 5 times a power of ten."""
    low, high = ends
    if not high > low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if (high - low) / step <= most)
    return [number * step for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _points(axes: Axes, places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in places)


def _svg(width: float, height: float, label: str, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{html_text(label)}">{"".join(parts)}</svg>'
