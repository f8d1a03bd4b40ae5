"""A comparison as rows of a table, and as a page that needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from polyhead.advise.compare import AT, Compared, WayComparison
from polyhead.advise.measure import Counted
from polyhead.advise.plot import plot_svg
from polyhead.errors import MissingExtra
from polyhead.progress import counted, duration

NAMED = 12  # ways in one note
HEADINGS = (
    ("", "way"),
    ("points", "mean over the tasks of each one's own metric, on test where there is one; ± over seeds"),
    ("added", "parameters that one more task adds"),
    ("layers", f"layers run on one text: 1 and {AT} tasks"),
    ("GFLOP", f"on one text: 1 and {AT} tasks"),
    ("ms", f"measured, one text alone: 1 and {AT} tasks"),
    ("texts/s", f"measured, many in one call: 1 and {AT} tasks"),
    ("bytes", "kept for one text in a store"),
    ("trained in", "once"),
    ("retrained when a task is added", ""),
)


def table_rows(comparison: WayComparison) -> list[list[str]]:
    """The table, its heading first; a star marks ways that no cheaper way equals."""
    rows = [[heading or "way" for heading, _ in HEADINGS]]
    for way in comparison.ways:
        rows.append([("* " if way.on_frontier else "  ") + way.name, *_cells(way)])
    return rows


def speed_rows(comparison: WayComparison) -> list[list[str]]:
    """Milliseconds of one text and texts a second by number of tasks."""
    counts = sorted({count for way in comparison.ways if way.costs for count in way.costs.timed})
    rows = [["way", *(f"{count} tasks" if count > 1 else "1 task" for count in counts)]]
    for way in comparison.ways:
        speeds = [way.costs.speed_for(count) if way.costs else None for count in counts]
        cells = ["-" if speed is None else f"{speed.ms:.2f} / {speed.texts_a_second:,.0f}" for speed in speeds]
        rows.append([way.name, *cells])
    return rows


def task_rows(comparison: WayComparison) -> list[list[str]]:
    """Each task's points by way."""
    rows = [["way", *(f"{name} ({metric})" for name, metric in comparison.tasks.items())]]
    for way in comparison.ways:
        marks = {name: "°" if name in way.stood_in else "" for name in comparison.tasks}
        rows.append([way.name, *(f"{way.tasks[name]:.2f}{marks[name]}" for name in comparison.tasks)])
    return rows


def notes(comparison: WayComparison) -> list[str]:
    """Notes that a reader needs with the numbers."""
    lines = []
    backends = sorted({way.costs.backend for way in comparison.ways if way.costs and way.costs.backend})
    seeds = sorted({way.seeds for way in comparison.ways})
    if backends:
        lines.append(f"Times are measured on this machine by {'; '.join(backends)}, on copies of the trained tasks.")
    if comparison.ways and len(seeds) == 1:
        lines.append(f"{seeds[0]} seed{'s' if seeds[0] > 1 else ''} of every way.")
    elif seeds:
        lines.append("Seeds: " + ", ".join(f"{way.name} {way.seeds}" for way in comparison.ways) + ".")
    for way in comparison.ways:
        for task, why in way.stood_in.items():
            lines.append(f"{way.name}: {task} is pooled (°), as {why}.")
    if any(way.kind == "fine_tune" for way in comparison.ways):
        lines.append("A trunk for each task: the times of several tasks add up.")
    if comparison.left:
        lines.append(f"Left out, as they write texts: {', '.join(comparison.left)}.")
    lines += [f"{name} cannot be trained on these tasks: {why}" for name, why in comparison.refused.items()]
    for seed, names in comparison.lacking.items():
        shown = ", ".join(names) if len(names) <= NAMED else f"{len(names)} ways"
        lines.append(f"Not run, seed {seed}: {shown}.")
    lines.append("What several ways read is computed once: the first to need it takes longer.")
    return lines


def comparison_page(comparison: WayComparison) -> str:
    """The comparison as one HTML file."""
    try:
        svg = plot_svg(comparison)
        plot = svg[svg.index("<svg") :]
    except MissingExtra as error:
        plot = f"<p>No plot: {escape(str(error))}</p>"
    parts = [
        f"<h1>Ways of sharing: {escape(comparison.project)}</h1>",
        f"<p>Trunk {escape(comparison.trunk)}; {counted(len(comparison.ways), 'way')}, trained in "
        f"{duration(comparison.seconds)} altogether.</p>",
        *(f"<p>{escape(note)}</p>" for note in notes(comparison)),
        plot,
        "<h2>All ways, by cost</h2>",
        f"<div class=words>{_table(table_rows(comparison), titles=[title for _, title in HEADINGS])}</div>",
        "<p>* no cheaper way equals it. Pointing at a heading says what it is.</p>",
        "<h2>Each task, in points</h2>",
        _table(task_rows(comparison)),
        "<h2>Milliseconds of one text / texts a second</h2>",
        _table(speed_rows(comparison)),
    ]
    return f"{_HEAD}<title>{escape(comparison.project)}</title></head><body>{''.join(parts)}</body></html>\n"


def _cells(way: Compared) -> list[str]:
    quality = f"{way.quality:.2f}" + (f" ± {way.spread:.2f}" if way.seeds > 1 else "")
    costs = way.costs
    if costs is None:
        return [quality, *["-"] * 6, duration(way.seconds), way.retrained]
    single, of_many = costs.counted_for(1), costs.counted_for(AT)
    first, many = costs.speed_for(1), costs.speed_for(AT)
    return [
        quality,
        f"{costs.added_parameters:,.0f}",
        f"{single.layers if single else '-'}, {of_many.layers if of_many else '-'}",
        f"{_giga(single)}, {_giga(of_many)}",
        f"{first.ms:.1f}" + (f", {many.ms:.1f}" if many else ", -") if first else "-",
        f"{first.texts_a_second:,.0f}" + (f", {many.texts_a_second:,.0f}" if many else ", -") if first else "-",
        f"{costs.stored_bytes:,}",
        duration(way.seconds),
        way.retrained,
    ]


def _giga(counted: Counted | None) -> str:
    return "-" if counted is None else f"{counted.flops / 1e9:.2f}"


def _table(rows: Sequence[Sequence[str]], titles: Sequence[str] = ()) -> str:
    named = titles or [""] * len(rows[0])
    head = "".join(
        f'<th title="{escape(title)}">{escape(cell)}</th>' for cell, title in zip(rows[0], named, strict=True)
    )
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:])
    return f"<div class=wide><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap; }
th:first-child, td:first-child, .words td:last-child, .words th:last-child { text-align: left; }
.wide { overflow-x: auto; } svg { max-width: 100%; height: auto; background: #fff; }
</style>"""
