"""Freed memory returned to the system, by calls of glibc. On other systems these functions do nothing."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable

ARENAS = 2  # of the allocator; glibc's own limit is eight for each processor
M_ARENA_MAX = -8  # of malloc.h


def share_arenas() -> None:
    """Limits the allocator to `ARENAS` arenas for all threads of the process, unless MALLOC_ARENA_MAX is set.

    Freed memory stays in its arena, so that a process with many arenas keeps more of it.
    """
    mallopt = _of_glibc("mallopt")
    if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt(M_ARENA_MAX, ARENAS)


def trim() -> None:
    """Returns freed memory to the system."""
    if (malloc_trim := _of_glibc("malloc_trim")) is not None:
        malloc_trim(ctypes.c_size_t(0))


def _of_glibc(name: str) -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
