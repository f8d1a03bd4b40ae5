"""HTML for notebooks: answers with tags marked in their texts and bars for scores, a model's tasks, a whole page.

All data passes through `html_text`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from polyhead.evaluate.report.page import html_text, isolated
from polyhead.files import replace_file
from polyhead.progress import in_bytes
from polyhead.values import Value

MOST_ROWS, MOST_BARS, MOST_LABELS = 20, 5, 12
# Colours with an alpha stand on a light and on a dark page.
STYLE = """<style>
.ph-view { font: 14px/1.5 system-ui, sans-serif } .ph-view table { border-collapse: collapse; margin: .2em 0 .8em }
.ph-view th, .ph-view td { text-align: left; padding: .1em .8em .1em 0; vertical-align: top; background: none }
.ph-view th { font-weight: 600 } .ph-view .soft { opacity: .65 } .ph-view .words { white-space: pre-wrap; margin: 0 }
.ph-view mark { color: inherit; background: rgba(47, 109, 179, .22); border-radius: .25em; padding: .05em .25em }
.ph-view mark small { opacity: .75; margin-left: .4em } .ph-view .bar { display: inline-block; width: 8em;
  height: .7em; background: rgba(128, 128, 128, .2); border-radius: .2em; margin-right: .6em; overflow: hidden }
.ph-view .bar i { display: block; height: 100%; background: rgba(47, 109, 179, .8) }
</style>"""


class AnsweredText(Value, eq=False):
    """One input, and what tasks answer to it."""

    texts: tuple[str, ...]  # the last is the one in which tasks mark words
    answers: Mapping[str, Mapping[str, Any]]
    reasons: Mapping[str, str]  # of tasks without an answer


class TaskRow(Value):
    """A task of a model."""

    name: str
    kind: str
    labels: tuple[str, ...]
    version: str
    metric: str
    score: float | None
    split: str


class ReportPage(Value):
    """A page with the details of scores: `save` writes it, and a notebook shows it."""

    html: str

    def save(self, path: Path | str) -> Path:
        """Writes the page to a file."""
        replace_file(Path(path), self.html.encode())
        return Path(path)

    def __repr__(self) -> str:
        """Without the page's text, which would fill a terminal."""
        return f"ReportPage({in_bytes(len(self.html.encode()))} of HTML; .save('report.html') writes it)"

    def _repr_html_(self) -> str:
        frame = "width: 100%; height: 42rem; border: 1px solid rgba(128, 128, 128, .4)"
        return f'<iframe sandbox="" style="{frame}" srcdoc="{html_text(self.html)}"></iframe>'


def answers_html(answered: Sequence[AnsweredText]) -> str:
    """The first inputs with their answers."""
    rows = "".join(map(_answered, answered[:MOST_ROWS]))
    more = len(answered) - MOST_ROWS
    more_line = f'<p class="soft">{more:,} more</p>' if more > 0 else ""
    return f'{STYLE}<div class="ph-view">{rows}{more_line}</div>'


def tasks_html(title: str, tasks: Sequence[TaskRow]) -> str:
    """A table of tasks, with bars for their scores."""
    head = "".join(f"<th>{name}</th>" for name in ("task", "kind", "labels", "score", ""))
    rows = "".join(_task(task) for task in tasks)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>" if tasks else ""
    empty = "" if tasks else '<p class="soft">no task yet: model.fit(name, texts, labels)</p>'
    return f'{STYLE}<div class="ph-view"><p class="soft">{html_text(title)}</p>{table}{empty}</div>'


def bar_html(share: float) -> str:
    """A bar that is filled to a share."""
    return f'<span class="bar"><i style="width: {100 * min(max(share, 0.0), 1.0):.1f}%"></i></span>'


def _task(task: TaskRow) -> str:
    labels = ", ".join(map(isolated, task.labels[:MOST_LABELS]))
    labels += f" and {len(task.labels) - MOST_LABELS} more" if len(task.labels) > MOST_LABELS else ""
    score = "" if task.score is None else f"{bar_html(task.score)}{task.score:.3f}"
    facts = f"{task.metric}, {task.split}; {task.version}" if task.score is not None else task.version
    cells = (f"<b>{isolated(task.name)}</b>", html_text(task.kind), labels, score)
    return f'<tr>{"".join(f"<td>{cell}</td>" for cell in cells)}<td class="soft">{html_text(facts)}</td></tr>'


def _answered(row: AnsweredText) -> str:
    marked = {name: spans for name, answer in row.answers.items() if (spans := _spans(answer)) is not None}
    lines = [f'<p class="words">{isolated(text)}</p>' for text in row.texts[: -1 if marked else None]]
    lines += [f'<p class="words">{marked_html(row.texts[-1], spans)}</p>' for spans in marked.values()]
    cells = [
        f"<tr><th>{isolated(name)}</th><td>{_answer_html(answer)}</td><td>{_bars(answer.get('scores'))}</td></tr>"
        for name, answer in row.answers.items()
    ]
    cells += [
        f'<tr><th>{isolated(name)}</th><td class="soft" colspan="2">{html_text(reason)}</td></tr>'
        for name, reason in row.reasons.items()
    ]
    return f"<div>{''.join(lines)}<table>{''.join(cells)}</table></div>"


def marked_html(text: str, spans: Sequence[Mapping[str, Any]]) -> str:
    """The text with spans marked, each with its label; of overlapping spans the first."""
    at, pieces = 0, []
    for span in sorted(spans, key=lambda span: int(span["start"])):
        start, end = int(span["start"]), int(span["end"])
        if start < at or end <= start:
            continue
        label = f"<small>{isolated(span['label'])}</small>" if span.get("label") else ""
        title = f' title="{float(span["score"]):.3f}"' if span.get("score") is not None else ""
        pieces += [html_text(text[at:start]), f"<mark{title}>{html_text(text[start:end])}{label}</mark>"]
        at = end
    return f"<bdi>{''.join(pieces)}{html_text(text[at:])}</bdi>"


def _spans(answer: Mapping[str, Any]) -> Sequence[Mapping[str, Any]] | None:
    """The spans that an answer marks in the text; None for kinds without spans."""
    if (spans := answer.get("spans", answer.get("words"))) is not None:
        return [span for span in spans if span.get("label") != "O"]
    if {"start", "end"} <= answer.keys():
        return [] if answer["start"] is None else [{"start": answer["start"], "end": answer["end"]}]
    return None


def _answer_html(answer: Mapping[str, Any]) -> str:
    if (spans := answer.get("spans", answer.get("words"))) is not None:
        named = [f"{span['label']}: {span.get('text', '')}" for span in spans if span.get("label") != "O"]
        return ", ".join(map(isolated, named)) or '<span class="soft">none</span>'
    for key in ("label", "labels", "option", "value", "text"):
        if key in answer:
            return _plain(answer[key])
    return _plain({key: value for key, value in answer.items() if key != "scores"})


def _plain(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(isolated, value)) or '<span class="soft">none</span>'
    if isinstance(value, float):
        return f"{value:.4g}"
    if value is None or isinstance(value, dict):
        return '<span class="soft">none</span>' if value is None else html_text(msgspec.json.encode(value).decode())
    return f"<b>{isolated(value)}</b>"


def _bars(scores: object) -> str:
    if not isinstance(scores, Mapping):
        scores = dict(enumerate(scores)) if isinstance(scores, list | tuple) else {}
    ranked = sorted(scores.items(), key=lambda each: -float(each[1]))[:MOST_BARS]
    return "<br>".join(f"{bar_html(float(score))}{isolated(label)} {float(score):.3f}" for label, score in ranked)
