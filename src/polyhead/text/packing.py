"""Short texts side by side in rows of fixed length: best fit, longest first."""

from __future__ import annotations

import numpy as np

from polyhead.config import Value

ROW = 64  # positions of a row, unless a text is longer


class Packing(Value, eq=False):
    """Where each text stands."""

    rows: int
    tokens: int  # positions of a row
    row: np.ndarray  # (texts,) int64
    start: np.ndarray  # (texts,) int64: position of its first token in the row


def packed(lengths: np.ndarray, *, tokens: int = ROW) -> Packing:
    """Texts of these lengths (at least 1) in as few rows as best fit, longest first, finds; none is cut or split.

    That is at most 11/9 of the fewest possible and 4 more (Johnson et al. 1974).
    """
    tokens = max(tokens, int(lengths.max(initial=1)))
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
