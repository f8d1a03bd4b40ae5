"""Lines of a terminal for what `polyhead evaluate` tells beyond scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polyhead.cli.output import counted, section, text_table
from polyhead.engine.session import Session
from polyhead.evaluate.cascade import CascadeChoice
from polyhead.evaluate.compare import Comparison
from polyhead.evaluate.details import Details, answer_text
from polyhead.evaluate.on_project import EvaluatedTask
from polyhead.evaluate.scores import SplitScore, ranged
from polyhead.progress import short

LABEL_HEAD = ("label", "precision", "recall", "f1", "support", "answered")
TASKS_NAMED = 4  # tasks in one line
PAIRS, SURE, MISTAKES, CHANGES, CHARACTERS = 8, 5, 5, 10, 60


def label_lines(score: SplitScore) -> list[str]:
    """The scores of each label; nothing for a kind without labels."""
    if not score.labels:
        return []
    cells = [
        [row.label, *(f"{value:.4f}" for value in (row.precision, row.recall, row.f1)), row.support, row.predicted]
        for row in score.labels
    ]
    wrong = "" if score.wrong is None else f", {score.wrong:,} of {counted(score.rows, 'row')} wrong"
    return section(f"{score.task}: each label{wrong}", text_table([LABEL_HEAD, *cells]))


def cascade_lines(choice: CascadeChoice, cheap: str, deep: str) -> list[str]:
    """The cascades of a task by threshold, and how to serve the one to take."""
    head = ("", "threshold", f"{Path(cheap).name} answers", choice.metric, "work", "layers a text")
    rows: list[Sequence[object]] = [head]
    full, chosen = choice.points[0], choice.chosen
    for point in choice.points:
        threshold = f"{point.threshold:g}" if point.share else "never"
        mark = "*" if point == choice.chosen else ""
        work = f"{point.work / full.work:.0%}"
        rows.append((mark, threshold, f"{point.share:.0%}", f"{point.score:.4f}", work, f"{point.layers:.2f}"))
    lines = section(
        f"{choice.task}: a cascade, by threshold, on {counted(choice.rows, 'row')}; * is the cheapest that loses at "
        f"most {choice.points_lost:g} points",
        text_table(rows),
    )
    if not choice.is_worth_it:
        return [*lines, f"no threshold loses at most {choice.points_lost:g} points: serve {deep} alone"]
    lines.append(
        f"{choice.work:.0%} of the work of {Path(deep).name} alone, {chosen.layers:.1f} layers a text beside "
        f"{full.layers:.1f}, {chosen.score - full.score:+.4f} {choice.metric} (95 % interval "
        f"{ranged(choice.difference)}): polyhead serve {cheap} {deep} --cascade {choice.task}={chosen.threshold:g}"
    )
    if choice.may_lose_more:
        lines.append(
            f"other texts may lose more than {choice.points_lost:g} points, the more as the cheapest of several "
            "thresholds was taken: give more rows, or a smaller --points-lost"
        )
    return lines


def fact_lines(scored: Sequence[EvaluatedTask], how: Mapping[str, str]) -> list[str]:
    """What to know of scores: who answered rows held out, and where fresh answers are computed as training's were not.

    `how` is the backend and precision of fresh answers: see `computed_by`.
    """
    kept, others, lines = dict[tuple[str, str], list[str]](), dict[str, list[str]](), list[str]()
    for each in scored:
        name, then = each.evaluation.score.task, each.held
        if then is not None:
            kept.setdefault((then.facts.split, _computed(then.facts.computed)), []).append(name)
        elif each.trained_with and each.trained_with != how:
            others.setdefault(_computed(each.trained_with), []).append(name)
        if then is not None and then.lacking:
            rows = counted(then.lacking, "row")
            lines.append(f"{name}: without {rows} that training held out: the file does not have them as before")
    for (split, computed), names in kept.items():
        lines.append(
            f"{_named(names)}: {split}: answers of training ({computed}), each row by a copy of the task that did not "
            "learn from it; training chose by these scores, so a test file says more"
        )
    for computed, names in others.items():
        lines.append(
            f"{_named(names)}: train scored with {computed}, this with {_computed(how)}: scores may differ a little"
        )
    return lines


def computed_by(session: Session) -> dict[str, str]:
    """The backend and the precision of a session."""
    return {"backend": session.backend.name, "precision": session.backend.precision}


def _named(tasks: Sequence[str]) -> str:
    return ", ".join(tasks) if len(tasks) <= TASKS_NAMED else counted(len(tasks), "task")


def _computed(how: Mapping[str, str]) -> str:
    return f"{how['backend']} {how['precision']}"


def slice_lines(details: Details) -> list[str]:
    """A table for each column."""
    lines = []
    for each in details.slices:
        rows = [(part.value, f"{part.rows:,}", part.shown_score, ranged(part.interval)) for part in each.slices]
        head = (each.column, "rows", each.metric, "95 % interval")
        lines += section(f"{details.score.task}: by {each.column}", text_table([head, *rows]))
    return lines


def detail_lines(details: Details) -> list[str]:
    """Intervals, confusion, reliability and the worst mistakes."""
    score = details.score
    rows = [(name, f"{value:.4f}", ranged(details.intervals.get(name))) for name, value in score.scores.items()]
    lines = section(
        f"{score.task}: {counted(score.rows, 'row')}", text_table([("metric", "score", "95 % interval"), *rows])
    )
    sure, off, confusion = details.reliability, details.differences, details.confusion
    if sure is not None:
        lines += [
            "",
            f"  {sure.confidence:.1%} sure on average, right in {sure.accuracy:.1%} of {sure.decisions:,} {sure.of}; "
            f"expected calibration error {sure.calibration_error:.4f}",
        ]
        step = max(1, len(sure.surest) // SURE)
        lines += [
            f"  of the surest {row.share:.0%}, from {row.least:.4f} on, {row.accuracy:.1%} are right"
            for row in sure.surest[::-step][::-1]
        ]
    if off is not None:
        shares = ", ".join(f"{share} of rows within {value:.4g}" for share, value in off.quantiles.items())
        lines += ["", f"  off by {off.mean_absolute:.4f} on average (mean {off.mean:+.4f}); {shares}"]
    wrong = [] if confusion is None else [cell for cell in confusion.cells if not cell.is_right]
    if confusion is not None and wrong:
        cells = [(cell.truth, cell.answer, f"{cell.count:,}") for cell in wrong[:PAIRS]]
        lines += ["", *(f"  {line}" for line in text_table([("truth", "answer", confusion.of), *cells], left=2))]
    if details.mistakes:
        mistakes = [
            (
                brief(row.row),
                brief(row.truth),
                brief(row.answer),
                "-" if row.score is None else f"{row.score:.4f}",
                brief(" | ".join(row.texts or ())),
            )
            for row in details.mistakes[:MISTAKES]
        ]
        first = "surest" if off is None else "farthest off"
        head = ("row", "truth", "answer", "score", f"mistakes, the {first} first")
        lines += ["", *(f"  {line}" for line in text_table([head, *mistakes], left=5))]
    return lines


def comparison_lines(outcome: Comparison) -> list[str]:
    """What changed, and the first rows that did."""
    interval = "" if outcome.interval is None else f", 95 % interval {ranged(outcome.interval)}"
    chance = "" if outcome.probability is None else f"; p = {outcome.probability:.4g} (McNemar, exact)"
    lines = [
        outcome.unscored
        or f"{outcome.metric} {outcome.before:.4f} -> {outcome.after:.4f} ({outcome.difference:+.4f}{interval})",
        f"{outcome.changed:,} of {counted(outcome.rows, 'row')} changed: {outcome.got_right:,} got better, "
        f"{outcome.got_wrong:,} got worse{chance}",
    ]
    rows = [
        (brief(row.row), brief(row.truth), brief(row.before), brief(row.after), brief(" | ".join(row.texts or ())))
        for row in outcome.changes[:CHANGES]
    ]
    shown = text_table([("row", "truth", "before", "now", "text"), *rows], left=5) if rows else []
    return section(f"{outcome.task}: against {outcome.against}", [*lines, "", *shown] if shown else lines)


def brief(value: Any) -> str:
    """A value in one short line."""
    return short("-" if value is None else answer_text(value), CHARACTERS, "…")
