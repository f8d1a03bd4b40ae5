"""Memory that training frees in one update and takes again in the next stays with the process."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
KEPT, APART = 512 << 20, 32 << 20  # bytes: most that is kept; blocks from this size on come and go as before


def keep_freed() -> None:
    """Asks glibc to give at most what is beyond `KEPT` back to the system, for the whole process.

    Its default gives gradients back in each update, and writing into new pages takes 7 % of an update of a small trunk.
    Elsewhere nothing is changed.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(_MMAP_THRESHOLD, APART)
        libc.mallopt(_TRIM_THRESHOLD, KEPT)
