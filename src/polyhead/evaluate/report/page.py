"""A page of HTML that stands alone: no script, no font, no image and no address is fetched by it.

All that comes from data goes through `html_text`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from polyhead.text.tokenize import repair

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
# Characters that no HTML file may hold, and those that turn the direction of what follows them.
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
th.left, td.left { text-align: left } td.text { text-align: left; max-width: 26rem; overflow-wrap: anywhere }
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
    """A value as text of HTML, also inside a quoted attribute: nothing of it can be markup."""
    return html.escape(CONTROLS.sub("\ufffd", repair(str(value))), quote=True)


def isolated(value: object) -> str:
    """The same, of which no character turns the direction of what stands around it."""
    return f"<bdi>{html_text(value)}</bdi>"


def card(title: str, *parts: str, is_wide: bool = False) -> str:
    """A box with a heading (text) and parts (HTML)."""
    return f'<section class="card{" wide" if is_wide else ""}"><h3>{html_text(title)}</h3>{"".join(parts)}</section>'


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """A table; the head is text, cells are HTML, the first `left` columns stand to the left."""
    marks = [' class="left"' if column < left else "" for column in range(len(head))]
    top = "".join(f"<th{mark}>{html_text(name)}</th>" for name, mark in zip(head, marks, strict=True))
    lines = (
        "<tr>" + "".join(f"<td{mark}>{cell}</td>" for cell, mark in zip(row, marks, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def paragraph(text: str) -> str:
    """A paragraph of softer text."""
    return f'<p class="soft">{html_text(text)}</p>'
