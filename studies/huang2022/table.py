"""The form that the paper's tables and ours have in common: a line a method, a column a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polyhead.values import Value
from studies.shared.tables import differs, mean


class Line(Value):
    """Scores in points, one a task (None: not there), and what they cost."""

    name: str
    scores: tuple[float | None, ...]
    average: float | None = None  # as printed, or of our seeds' averages what the table says
    counted: float | None = None  # mean of the scores
    spreads: tuple[float | None, ...] = ()  # standard deviations over seeds
    mean: float | None = None  # over seeds, of their averages
    spread: float | None = None  # of the averages
    seeds: int = 0
    passes: int | None = None  # of the encoder, for one text and all tasks
    layers: int | None = None  # evaluated
    over_plain: float | None = None  # FLOPs for a text of mean length, over a plain pass of the encoder
    parameters: int | None = None  # of everything that serves all tasks
    learned: str = ""  # which trunks learned, besides the parts; "" where it is not known


class Table(Value):
    """Lines over the same tasks."""

    tasks: tuple[str, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()


def printed_table(
    tasks: Sequence[str],
    rows: Mapping[str, tuple[float, ...]],
    *,
    learned: Mapping[str, str],
    passes: Mapping[str, int] | None = None,
) -> Table:
    """The paper's rows, each with its average last; the average counted anew beside it."""
    lines = [
        Line(
            name=name,
            scores=scores[:-1],
            average=scores[-1],
            counted=mean(scores[:-1]),
            passes=(passes or {}).get(name),
            learned=learned.get(name, ""),
        )
        for name, scores in rows.items()
    ]
    return Table(tasks=tuple(tasks), lines=tuple(lines))


def printed_otherwise(table: Table) -> list[str]:
    """Each printed average that is not the mean of its scores, with that."""
    return [text for line in table.lines for text in differs(f"{line.name}: average", line.average, line.counted)]
