"""Rows cut into blocks, so that layers with a window read only near positions of a long row."""

from __future__ import annotations

BLOCK = 128  # positions of a block, at least
WORTH = 2  # a row is cut where it has at least so many times the positions that a block reads


def block_of(positions: int, window: int) -> int:
    """The number of positions in a block of a row, at least the window; all positions if cutting is not faster.

    A block reads itself and a window on either side. The last block may be filled up with less than a block.
    """
    least = max(BLOCK, window)
    if positions < WORTH * (least + 2 * window):
        return positions
    return -(-positions // (positions // least))
