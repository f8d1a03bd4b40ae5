"""Short texts side by side in rows of fixed length: best fit, longest first."""

from __future__ import annotations

import numpy as np

from polyhead.config import Value

ROW = 64  # positions of a row, unless a text is longer
FULL = 0.85  # rows of that length are taken where tokens fill this share of them


class Packing(Value, eq=False):
    """Where each text stands."""

    rows: int
    tokens: int  # positions of a row
    row: np.ndarray  # (texts,) int64
    start: np.ndarray  # (texts,) int64: position of its first token in the row


def packed(lengths: np.ndarray, *, width: int) -> Packing:
    """Texts of these lengths (at least 1) in rows that an encoder of this width runs soonest; none is cut or split.

    Where texts leave much of a row free, rows of twice and three times its length are tried too.
    """
    least = max(ROW, int(lengths.max(initial=1)))
    found = fitted(lengths, tokens=least)
    if lengths.sum() >= FULL * found.rows * found.tokens:
        return found
    longer = [fitted(lengths, tokens=times * least) for times in (2, 3)]
    return min([found, *longer], key=lambda one: work(one.rows, one.tokens, width=width))


def work(rows: int, tokens: int, *, width: int) -> float:
    """What layers cost on so many positions: `24 d^2 t + 4 t^2 d` a row (see `cost`), in units of `24 d^2`."""
    return rows * tokens * (1 + tokens / (6 * width))


def fitted(lengths: np.ndarray, *, tokens: int) -> Packing:
    """Texts in as few rows of this many tokens as best fit, longest first, finds.

    That is at most 11/9 of the fewest possible and 4 more (Johnson et al. 1974).
    """
    order = np.argsort(-lengths, kind="stable")
    free: list[list[int]] = [[] for _ in range(tokens + 1)]  # rows by how much room they have
    row, start = [0] * len(lengths), [0] * len(lengths)
    rows = 0
    for text, size in zip(order.tolist(), lengths[order].tolist(), strict=True):
        room = next((room for room in range(size, tokens) if free[room]), tokens)
        if room == tokens:
            free[tokens].append(rows)
            rows += 1
        place = free[room].pop()
        row[text], start[text] = place, tokens - room
        free[room - size].append(place)
    return Packing(rows=rows, tokens=tokens, row=np.array(row, np.int64), start=np.array(start, np.int64))
