"""The report of `polyhead evaluate`: a page with the details of each task's score."""

from __future__ import annotations

from collections.abc import Iterator

from polyhead.evaluate.compare import Comparison
from polyhead.evaluate.details import ConfusionTable, Details, Differences, Reliability, ShownMistake, answer_text
from polyhead.evaluate.explain import Explanation, Said
from polyhead.evaluate.report.page import (
    Axes,
    Bar,
    Dot,
    card,
    dots,
    html_page,
    html_table,
    html_text,
    isolated,
    paragraph,
    plot,
)
from polyhead.evaluate.scores import Sliced, ranged
from polyhead.tasks.agreement import AnswerChange
from polyhead.values import Value

BASELINES = ("tf-idf", "linear", "constant")
MOST_LABELS = 24  # labels of a drawn confusion table; with more, its largest mistakes are listed
WIDE = 10  # columns of a confusion table beyond which it takes the full width of the page
LEAST = 0.1  # effect, as a share of the answer's confidence, that is shaded fully
MOST_PAIRS, MOST_SCORES, MOST_CHANGES = 25, 60, 40


class Reported(Value):
    """The content of a report."""

    title: str
    facts: tuple[str, ...]  # lines below the title: data, time, runtime
    details: tuple[Details, ...]
    comparisons: tuple[Comparison, ...] = ()
    baselines: dict[str, dict[str, dict[str, float]]] = {}  # of some tasks: name -> metric -> value, on the same rows


def page_of(reported: Reported) -> str:
    """The report as one HTML file."""
    comparisons = {comparison.task: comparison for comparison in reported.comparisons}
    body = [f"<h1>{html_text(reported.title)}</h1>", *map(paragraph, reported.facts)]
    body.append(f'<div class="cards">{card("Scores", _overview(reported), is_wide=True)}</div>')
    for details in reported.details:
        score = details.score
        body.append(f'<h2 id="{html_text(score.task)}">{html_text(score.task)}</h2>')
        how = "wrong" if details.differences is None else "off by more than 1 % of the range"
        wrong = "" if score.wrong is None else f", {score.wrong:,} of them {how}"
        body.append(paragraph(f"{score.rows:,} rows, {score.split}{wrong}"))
        cards = [*_cards(details, comparisons.get(score.task))]
        body.append(f'<div class="cards">{"".join(cards)}</div>')
    body.append(
        paragraph(
            "Intervals are the middle 95 % over 1,000 resamples of the rows (bootstrap). They tell how much a score "
            "would move with other rows like these, and nothing of rows unlike them."
        )
    )
    return html_page(reported.title, body)


def _overview(reported: Reported) -> str:
    rows, shown = [], [name for name in BASELINES if any(name in of for of in reported.baselines.values())]
    for details in reported.details:
        score, reliability = details.score, details.reliability
        simple = reported.baselines.get(score.task, {})
        rows.append(
            [
                f'<a href="#{html_text(score.task)}">{html_text(score.task)}</a>',
                html_text(score.metric),
                f"{score.scores[score.metric]:.4f}",
                ranged(details.intervals.get(score.metric)),
                *(
                    f"{simple[name][score.metric]:.4f}" if score.metric in simple.get(name, {}) else ""
                    for name in shown
                ),
                "" if reliability is None else f"{reliability.calibration_error:.4f}",
                html_text(score.split),
                f"{score.rows:,}",
                _others(details),
            ]
        )
    head = ("task", "metric", "score", "95 % interval", *shown, "calibration error", "split", "rows", "other metrics")
    return html_table(head, rows)


def _others(details: Details) -> str:
    score = details.score
    return "<br>".join(
        html_text(f"{name} {value:.4f}") + f' <span class="soft">{ranged(details.intervals.get(name))}</span>'
        for name, value in score.scores.items()
        if name != score.metric
    )


def _cards(details: Details, comparison: Comparison | None) -> Iterator[str]:
    if comparison is not None:
        yield _compared(comparison)
    if details.reliability is not None:
        yield from _reliability(details.reliability)
    if details.differences is not None:
        yield _differences(details.differences)
    if details.score.labels:
        yield _labels(details)
    if details.confusion is not None:
        yield _confusion(details.confusion)
    for each in details.slices:
        yield _slices(each, details)
    if details.mistakes:
        first = "surest" if details.differences is None else "farthest off"
        label = "sure" if details.differences is None else "off by this share of the range:"
        yield card(f"Worst mistakes, the {first} first", *(_mistake(m, label) for m in details.mistakes), is_wide=True)


def _reliability(curve: Reliability) -> Iterator[str]:
    filled = [each for each in curve.bins if each.accuracy is not None]
    bars = [
        Bar(
            start=each.low,
            stop=each.high,
            height=each.accuracy or 0.0,
            title=f"{each.decisions:,} {curve.of}: right {each.accuracy:.4f}, confidence {each.confidence:.4f}",
        )
        for each in filled
    ]
    axes = Axes(across=(0, 1), up=(0, 1), across_title="confidence", up_title="share that is right")
    most = max(each.decisions for each in curve.bins)
    counts = [
        Bar(start=each.low, stop=each.high, height=each.decisions, title=f"{each.decisions:,}", is_pale=True)
        for each in filled
    ]
    yield card(
        "Is it as right as it is sure?",
        plot(axes, bars=bars, guide=((0, 0), (1, 1)), label="share of right answers by confidence"),
        paragraph(
            f"Mean confidence {curve.confidence:.4f}, right {curve.accuracy:.4f} of {curve.decisions:,} {curve.of}; "
            f"expected calibration error {curve.calibration_error:.4f}. Bars on the dashed line are calibrated."
        ),
        plot(
            Axes(across=(0, 1), up=(0, most), across_title="confidence", up_title=curve.of),
            bars=counts,
            label="decisions by confidence",
        ),
    )
    line = [(each.share, each.accuracy) for each in curve.surest]
    least = min(accuracy for _, accuracy in line)
    yield card(
        "How right are the surest?",
        plot(
            Axes(
                across=(0, 1),
                up=(max(0.0, least - 0.05), 1),
                across_title=f"share of {curve.of}, the surest first",
                up_title="share that is right",
            ),
            line=line,
            label="share of right answers among the surest",
        ),
        html_table(
            ("surest", "confidence from", "right"),
            [
                (f"{each.share:.1%}", f"{each.least:.4f}", f"{each.accuracy:.4f}")
                for each in curve.surest[:: -max(1, len(curve.surest) // 6)][::-1]
            ],
            left=0,
        ),
    )


def _differences(errors: Differences) -> str:
    bars = [
        Bar(start=each.low, stop=each.high, height=each.rows, title=f"{each.low:.4g} to {each.high:.4g}: {each.rows:,}")
        for each in errors.bins
    ]
    ends = errors.bins[0].low, errors.bins[-1].high
    most = max(each.rows for each in errors.bins)
    axes = Axes(across=ends, up=(0, most), across_title="answer less truth", up_title="rows")
    shares = ", ".join(f"{share} within {value:.4g}" for share, value in errors.quantiles.items())
    return card(
        "How far off?",
        plot(axes, bars=bars, label="rows by how far the number is off"),
        paragraph(
            f"Mean absolute error {errors.mean_absolute:.4f}, root mean square {errors.root_mean_square:.4f}, mean "
            f"{errors.mean:+.4f}; {shares}."
        ),
    )


def _labels(details: Details) -> str:
    labels = sorted(details.score.labels, key=lambda each: each.f1)
    rows = [
        (
            isolated(each.label),
            f"{each.precision:.4f}",
            f"{each.recall:.4f}",
            f"{each.f1:.4f}",
            f"{each.support:,}",
            f"{each.predicted:,}",
        )
        for each in labels[:MOST_SCORES]
    ]
    more = f"The {MOST_SCORES} labels with the lowest F1 of {len(labels):,}." if len(labels) > MOST_SCORES else ""
    head = ("label", "precision", "recall", "f1", "support", "answered")
    return card("Each label, the lowest F1 first", html_table(head, rows), paragraph(more) if more else "")


def _confusion(table: ConfusionTable) -> str:
    wrong = [cell for cell in table.cells if not cell.is_right]
    if max(len(table.truths), len(table.answers)) > MOST_LABELS:
        rows = [(isolated(c.truth), isolated(c.answer), f"{c.count:,}") for c in wrong[:MOST_PAIRS]]
        return card("Most frequent confusions", html_table(("truth", "answer", table.of), rows, left=2))
    counts = {(cell.truth, cell.answer): cell.count for cell in table.cells}
    right = {cell.answer for cell in table.cells if cell.is_right and cell.answer not in table.truths}
    lines = []
    for truth in table.truths:
        total = sum(counts.get((truth, answer), 0) for answer in table.answers)
        cells = []
        for answer in table.answers:
            count = counts.get((truth, answer), 0)
            color = "for" if answer == truth or answer in right else "against"
            share = count / total if total else 0.0
            title = f"{truth} → {answer}: {count:,}, {share:.1%}"
            cells.append(
                f'<td style="background: rgba(var(--{color}), {share * 0.75:.3f})" '
                f'title="{html_text(title)}">{count:,}</td>'
            )
        lines.append(f'<tr><th title="{html_text(truth)}">{isolated(truth)}</th>{"".join(cells)}</tr>')
    head = "".join(f'<th title="{html_text(answer)}">{isolated(answer)}</th>' for answer in table.answers)
    body = f'<table class="cells"><thead><tr><th></th>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'
    lead = "Each label has a row" if right else "Rows are the truth, columns the answer"
    note = paragraph(f"{lead}; {table.of} are counted, shades are shares of a row.")
    return card("Confusion", f'<div class="scroll">{body}</div>', note, is_wide=len(table.answers) > WIDE)


def _slices(sliced: Sliced, details: Details) -> str:
    points = [
        Dot(
            name=f"{each.value} ({each.rows:,})",
            value=each.score,
            low=None if each.interval is None else each.interval.low,
            high=None if each.interval is None else each.interval.high,
        )
        for each in sliced.slices
        if each.score is not None
    ]
    whole = details.score.scores[sliced.metric]
    rows = [(isolated(each.value), f"{each.rows:,}", each.shown_score, ranged(each.interval)) for each in sliced.slices]
    return card(
        f"By {sliced.column}: {sliced.metric}",
        dots(points, at=whole, label=f"{sliced.metric} by {sliced.column}"),
        paragraph(f"The dashed line is the score of all rows, {whole:.4f}."),
        html_table((sliced.column, "rows", sliced.metric, "95 % interval"), rows),
    )


def _compared(pair: Comparison) -> str:
    interval = f", 95 % interval {ranged(pair.interval)}" if pair.interval is not None else ""
    chance = "" if pair.probability is None else f" McNemar's exact test: p = {pair.probability:.4g}."
    rows = [
        (
            answer_text(change.row),
            f'<span class="truth">{isolated(answer_text(change.truth))}</span>' if change.truth is not None else "",
            isolated(answer_text(change.before)),
            isolated(answer_text(change.after)),
            _verdict(change),
            "<br>".join(map(isolated, change.texts or ())),
        )
        for change in pair.changes[:MOST_CHANGES]
    ]
    shown = f" The first {MOST_CHANGES} are shown." if pair.changed > MOST_CHANGES else ""
    shift = f"{pair.metric} {pair.before:.4f} → {pair.after:.4f} ({pair.difference:+.4f}{interval})"
    return card(
        f"Against {pair.against}",
        f"<p>{html_text(pair.unscored or shift)}.{chance}</p>",
        paragraph(
            f"{pair.changed:,} of {pair.rows:,} rows have another answer: {pair.got_right:,} got better, "
            f"{pair.got_wrong:,} got worse.{shown}"
        ),
        html_table(("row", "truth", "before", "now", "", "text"), rows, left=6) if rows else "",
        is_wide=True,
    )


def _verdict(change: AnswerChange) -> str:
    if change.is_right == change.was_right:
        return ""
    return '<span class="truth">got right</span>' if change.is_right else '<span class="answer">got wrong</span>'


def _mistake(mistake: ShownMistake, score_label: str) -> str:
    """One mistake; `score_label` is the text before its score."""
    score = "" if mistake.score is None else f" · {score_label} {mistake.score:.4f}"
    facts = (
        f'<span class="soft">row {mistake.row:,}</span> · truth <span class="truth">'
        f'{isolated(answer_text(mistake.truth))}</span> · answer <span class="answer">'
        f"{isolated(answer_text(mistake.answer))}</span>{score}"
    )
    explanation = mistake.explanation
    if explanation is not None and explanation.said:
        true = mistake.truth if isinstance(mistake.truth, list) else [mistake.truth]
        about = next((each for each in explanation.said if each.says not in true), explanation.said[0])
        texts = _explained(explanation, about)
    else:
        texts = "".join(f'<p class="words">{isolated(text)}</p>' for text in mistake.texts)
    return f'<div class="mistake"><p>{facts}</p>{texts}</div>'


def _explained(explanation: Explanation, about: Said) -> str:
    """The texts with words shaded by their effect on one part of the answer; weak effects stay pale."""
    most = max([LEAST * abs(about.support), *(abs(part.effect) for part in about.parts)]) or 1.0
    lines = []
    for place, text in enumerate(explanation.texts):
        at, pieces = 0, []
        for part in (part for part in about.parts if part.place == place):
            color = "for" if part.effect > 0 else "against"
            title = f"{part.effect:+.3g}" + (f", without it: {part.becomes}" if part.becomes else "")
            pieces.append(html_text(text[at : part.start]))
            pieces.append(
                f'<mark style="background: rgba(var(--{color}), {abs(part.effect) / most * 0.65:.3f})" '
                f'title="{html_text(title)}">{html_text(text[part.start : part.end])}</mark>'
            )
            at = part.end
        lines.append(f'<p class="words"><bdi>{"".join(pieces)}{html_text(text[at:])}</bdi></p>')
    strongest = ", ".join(f"{part.text} {part.effect:+.3g}" for part in about.strongest(5))
    return "".join(lines) + paragraph(f"For “{about.says}” ({about.support:.4f}) spoke: {strongest or 'no word'}.")
