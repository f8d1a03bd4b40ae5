"""Rows cut into blocks, so that layers with a window read of a long row what is near, and not all of it."""

from __future__ import annotations

BLOCK = 128  # positions of a block, at least
WORTH = 2  # a row is cut where it has at least so many times the positions that a block reads


def block_of(positions: int, window: int) -> int:
    """How many positions a block of a row has, at least the window; all that there are where cutting does not pay.

    A block reads itself and a window on either side. The last block may be filled up with less than a block.
    """
    least = max(BLOCK, window)
    if positions < WORTH * (least + 2 * window):
        return positions
    return -(-positions // (positions // least))
