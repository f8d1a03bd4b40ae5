"""Parts that the papers' tables have in common: means where all scores are there, and printed numbers counted anew."""

from __future__ import annotations

from collections.abc import Sequence

ROUNDING = 0.05 + 1e-9  # of a number printed with one decimal


def mean(scores: Sequence[float | None]) -> float | None:
    """The average, None where a score is missing."""
    known = [score for score in scores if score is not None]
    return sum(known) / len(known) if known and len(known) == len(scores) else None


def differs(what: str, printed: float | None, counted: float | None, *, digits: int = 2) -> list[str]:
    """A line for a printed number that is not what was counted; empty where they agree, or one is not known."""
    if printed is None or counted is None or abs(counted - printed) <= ROUNDING:
        return []
    return [f"{what} printed {printed:g}, counted {counted:.{digits}f}"]
