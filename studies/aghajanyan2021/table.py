"""The form that the paper's tables and ours have in common: pairs of lines, a model before and after pre-finetuning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from polyhead.values import Value
from studies.shared.tables import differs

AFTER = "+ MUPPET"  # a line of this name belongs to the one before it


class Line(Value):
    """Scores in points, one a column (None: not there), and what follows from them."""

    name: str
    scores: tuple[float | None, ...]
    spreads: tuple[float | None, ...] = ()  # standard deviations over seeds
    counted: dict[str, float] = {}  # columns that other columns give, counted anew
    note: str = ""


class Table(Value):
    """Lines over the same columns; `metrics` names what each column measures."""

    columns: tuple[str, ...]
    metrics: tuple[str, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()


def before_and_after(
    name: str, before: Sequence[float | None], after: Sequence[float | None], *, note: str = ""
) -> list[Line]:
    """The two lines of one model."""
    return [Line(name=name, scores=tuple(before), note=note), Line(name=AFTER, scores=tuple(after))]


def table_of(
    columns: Sequence[str],
    metrics: Sequence[str],
    lines: Sequence[Line],
    *,
    means: Mapping[str, Mapping[str, float]] | None = None,
    notes: Sequence[str] = (),
) -> Table:
    """The table; `means` are columns that are the mean of others, with the weight of each of these."""
    filled = []
    for line in lines:
        scores = dict(zip(columns, line.scores, strict=True))
        counted = {column: _mean(scores, weights) for column, weights in (means or {}).items()}
        known = {column: value for column, value in counted.items() if value is not None}
        filled.append(msgspec.structs.replace(line, counted=known))
    return Table(columns=tuple(columns), metrics=tuple(metrics), lines=tuple(filled), notes=tuple(notes))


def gains(table: Table) -> dict[str, dict[str, float]]:
    """Points that pre-finetuning adds, by model and column, where both lines have a score."""
    gain: dict[str, dict[str, float]] = {}
    for before, after in zip(table.lines, table.lines[1:], strict=False):
        if before.name == AFTER or after.name != AFTER:
            continue
        gain[before.name] = {
            column: second - first
            for column, first, second in zip(table.columns, before.scores, after.scores, strict=True)
            if first is not None and second is not None
        }
    return gain


def printed_otherwise(table: Table) -> list[str]:
    """Each printed mean that is not what the other columns give, with that."""
    lines, model = [], ""
    for line in table.lines:
        model = f"{model} {AFTER}" if line.name == AFTER else line.name
        scores = dict(zip(table.columns, line.scores, strict=True))
        for column, counted in line.counted.items():
            lines += differs(f"{model}: {column}", scores[column], counted)
    return lines


def _mean(scores: Mapping[str, float | None], weights: Mapping[str, float]) -> float | None:
    total = 0.0
    for column, weight in weights.items():
        score = scores[column]
        if score is None:
            return None
        total += weight * score
    return total / sum(weights.values())
