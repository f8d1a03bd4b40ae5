"""A self-contained HTML page, and charts for it: it fetches no script, font, image or address.

All data passes through 'html_text'."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence

from polyhead.text.tokenize import repair
from polyhead.values import Value

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
# Characters that no HTML file may contain, and those that change the direction of the text after them.
CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufdd0-\ufdef\ufffe\uffff]"
)
STYLE = """
:root { color-scheme: light dark; --back: #fff; --card: #f6f7f9; --ink: #1b1f24; --soft: #5b6470; --line: #d8dde3;
  --blue: #2f6db3; --orange: #c2501a; --green: #2c7a4b; --for: 47,109,179; --against: 209,88,27; }
@media (prefers-color-scheme: dark) { :root { --back: #14171b; --card: #1d2127; --ink: #e6e9ed; --soft: #9aa4b0;
  --line: #343b44; --blue: #6ea8e6; --orange: #f0945f; --green: #67c08c; --for: 90,150,220; --against: 225,120,60; } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem; background: var(--back); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif }
h1, h2, h3, p { overflow-wrap: anywhere } h1 { font-size: 1.6rem; margin: 0 }
h2 { font-size: 1.3rem; margin: 2.5rem 0 .5rem; border-top: 1px solid var(--line);
  padding-top: 1.2rem } h3 { font-size: 1rem; margin: 0 0 .5rem }
p { margin: .3rem 0; max-width: 60rem } .soft, caption, figcaption { color: var(--soft) } a { color: var(--blue) }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1rem;
  margin: 1rem 0; align-items: start }
.card { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: 1rem; min-width: 0 }
.wide { grid-column: 1 / -1 }
.scroll { overflow-x: auto; max-width: 100% }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem }
th, td { padding: .25rem .45rem; text-align: right; border-bottom: 1px solid var(--line); vertical-align: top }
th { font-weight: 600; color: var(--soft); vertical-align: bottom }
th.left, td.left { text-align: left } td:not(.left) { white-space: nowrap }
table.cells td { text-align: center; min-width: 2.2rem; border: 1px solid var(--line); padding: .2rem .35rem }
table.cells th { border: 0; font-weight: 500; max-width: 14rem; max-height: 12rem; overflow: hidden;
  text-overflow: ellipsis; white-space: nowrap }
table.cells thead th { writing-mode: vertical-rl; transform: rotate(180deg); text-align: left }
svg { display: block; width: 100%; max-width: 34rem; height: auto }
svg text { fill: var(--soft); font: 11px system-ui, sans-serif } svg .axis { stroke: var(--line); stroke-width: 1 }
svg .name { fill: var(--ink) } svg .blue { fill: var(--blue) } svg .orange { fill: var(--orange) }
svg .line { fill: none; stroke: var(--blue); stroke-width: 2 } svg .soft-line { stroke: var(--soft);
  stroke-dasharray: 4 4; fill: none } svg .range { stroke: var(--blue); stroke-width: 2 }
svg .pale { fill: var(--blue); opacity: .35 }
.mistake { border-top: 1px solid var(--line); padding: .6rem 0 } 
bdi { unicode-bidi: isolate } .words { white-space: pre-wrap } .truth { color: var(--green) }
.answer { color: var(--orange) }
mark { color: inherit; border-radius: .2em; padding: 0 .1em }
@media print { body { max-width: none } .card { break-inside: avoid } }
"""


def html_page(title: str, body: Iterable[str]) -> str:
    """The whole page; `title` is text, `body` is HTML."""
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="referrer" '
        f'content="no-referrer">\n<title>{html_text(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n'
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def html_text(value: object) -> str:
    """A value as HTML text, also inside a quoted attribute: nothing in it can be markup."""
    return html.escape(CONTROLS.sub("\ufffd", repair(str(value))), quote=True)


def isolated(value: object) -> str:
    """The same, isolated so that its characters cannot change the direction of the surrounding text."""
    return f"<bdi>{html_text(value)}</bdi>"


def card(title: str, *parts: str, is_wide: bool = False) -> str:
    """A box with a heading (text) and parts (HTML)."""
    return f'<section class="card{" wide" if is_wide else ""}"><h3>{html_text(title)}</h3>{"".join(parts)}</section>'


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """A table; the head is text, cells are HTML, the first `left` columns are left-aligned."""
    marks = [' class="left"' if column < left else "" for column in range(len(head))]
    top = "".join(f"<th{mark}>{html_text(name)}</th>" for name, mark in zip(head, marks, strict=True))
    lines = (
        "<tr>" + "".join(f"<td{mark}>{cell}</td>" for cell, mark in zip(row, marks, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def paragraph(text: str) -> str:
    """A paragraph of softer text, in which code stands between backticks."""
    shown = re.sub("`([^`]+)`", r"<code>\1</code>", html_text(text))
    return f'<p class="soft">{shown}</p>'


WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 420, 260, 44, 36, 10, 12


class Bar(Value):
    """A bar from `start` to `stop` on the horizontal axis, with a height."""

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
        """The horizontal position of a value."""
        low, high = self.across
        return LEFT + (value - low) / ((high - low) or 1.0) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """The vertical position of a value."""
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
    """Bars, a line with points, and a dashed guide, over axes with ticks; `label` describes the content."""
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


def dots(entries: Sequence[Dot], *, at: float | None, label: str) -> str:
    """One row per named value, over the range of all values; a dashed line marks `at`."""
    ends = [end for dot in entries for end in (dot.value, dot.low, dot.high) if end is not None]
    ends += [] if at is None else [at]
    low, high = min(ends), max(ends)
    margin = (high - low) * 0.06 or 0.05
    low, high = low - margin, high + margin
    width, names, step = 460, 150, 22
    height = step * len(entries) + 26

    def x(value: float) -> float:
        return names + (value - low) / (high - low) * (width - names - 56)

    parts = []
    if at is not None:
        parts.append(f'<line class="soft-line" x1="{x(at):.1f}" x2="{x(at):.1f}" y1="2" y2="{height - 22}"/>')
    for number, dot in enumerate(entries):
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
    """At most this many round numbers between the ends: steps of 1, 2 or 5 times a power of ten."""
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
