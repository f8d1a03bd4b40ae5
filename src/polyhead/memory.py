"""What glibc keeps of memory that was freed. Other systems have no such calls: there, nothing is done."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable

ARENAS = 2  # of the allocator, for all threads; its own number is eight for each processor
M_ARENA_MAX = -8  # of malloc.h


def share_arenas() -> None:
    """Lets all threads of the process have `ARENAS` arenas: each keeps what was freed in it for its own threads.

    In a process that has many threads and runs for days, that is memory which only ever grows.
    """
    mallopt = _of_glibc("mallopt")
    if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ:  # whoever started it may know better
        mallopt(M_ARENA_MAX, ARENAS)


def trim() -> None:
    """Gives freed memory back to the system."""
    if (malloc_trim := _of_glibc("malloc_trim")) is not None:
        malloc_trim(ctypes.c_size_t(0))


def _of_glibc(name: str) -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
