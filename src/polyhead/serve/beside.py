"""Work that takes long, done beside the event loop: whatever one request asks, the others are answered meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import ParamSpec, TypeVar

LARGE = 16_384  # characters, bytes or values, of which work is done in another thread
# Two threads: each more would let the event loop wait longer for Python's lock.
_THREADS = ThreadPoolExecutor(2, "polyhead-beside")
P = ParamSpec("P")
T = TypeVar("T")


async def off_loop(size: int, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """What a function returns: where the size of its work is LARGE it runs in a thread, else here and now."""
    if size < LARGE:
        return function(*arguments, **named)
    call = partial(copy_context().run, function, *arguments, **named)
    return await asyncio.get_running_loop().run_in_executor(_THREADS, call)
