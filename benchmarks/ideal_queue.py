"""The best queue over a known engine: it takes what waits as soon as the engine is idle, and costs nothing itself.

What it says is no promise of a server: a server also reads requests and writes answers on the same processors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from polyhead.values import Value

Seconds = Callable[[int, int, bool], float]
"""How long a batch of so many texts and tokens takes, and whether the engine was idle before it."""


def latencies(moments: Sequence[float], tokens: Sequence[int], seconds: Seconds, *, most: int) -> list[float]:
    """Seconds from each arrival to the end of its batch; `moments` ascend, `most` is the texts of a batch."""
    waited, free, first = list[float](), float("-inf"), 0
    while first < len(moments):
        is_idle, begins = moments[first] > free, max(free, moments[first])
        stop = first + 1
        while stop < min(len(moments), first + most) and moments[stop] <= begins:
            stop += 1
        free = begins + seconds(stop - first, sum(tokens[first:stop]), is_idle)
        waited += [free - moment for moment in moments[first:stop]]
        first = stop
    return waited


class BatchCost(Value, eq=False):
    """Seconds of batches as they were measured: between numbers of texts on straight lines, and by their tokens."""

    texts: tuple[int, ...]  # ascending
    warm: tuple[float, ...]  # of batches of so many texts, right after another batch
    cold: tuple[float, ...]  # the same after a pause
    tokens_a_text: float
    a_token: float  # seconds of a token more than texts have on average

    @classmethod
    def of(cls, rows: Sequence[dict[str, Any]]) -> BatchCost:
        """From batches with their `texts`, `tokens`, `seconds`, and whether they were `cold`."""
        sizes = sorted({int(row["texts"]) for row in rows})
        tokens_a_text = sum(row["tokens"] for row in rows) / sum(row["texts"] for row in rows)
        medians = {
            (size, cold): float(np.median([r["seconds"] for r in rows if (r["texts"], r["cold"]) == (size, cold)]))
            for size in sizes
            for cold in (False, True)
        }
        warm = [row for row in rows if not row["cold"]]
        over = np.array([row["tokens"] - row["texts"] * tokens_a_text for row in warm])
        rest = np.array([row["seconds"] - medians[row["texts"], False] for row in warm])
        return cls(
            texts=tuple(sizes),
            warm=tuple(medians[size, False] for size in sizes),
            cold=tuple(medians[size, True] for size in sizes),
            tokens_a_text=tokens_a_text,
            a_token=max(0.0, float(over @ rest) / max(1.0, float(over @ over))),
        )

    def seconds(self, texts: int, tokens: int, cold: bool) -> float:
        """The seconds that a batch takes: never below half of what the smallest measured one took."""
        measured = self.cold if cold else self.warm
        own = float(np.interp(texts, self.texts, measured)) + self.a_token * (tokens - texts * self.tokens_a_text)
        return max(own, 0.5 * measured[0])

    @property
    def a_second(self) -> float:
        """Texts a second in the largest batches."""
        return self.texts[-1] / self.warm[-1]
