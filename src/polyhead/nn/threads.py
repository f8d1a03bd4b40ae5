"""How many threads torch computes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from polyhead.processor import processors


def within_limits() -> None:
    """Limits torch to the processors of this container; torch itself counts those of the machine."""
    if torch.get_num_threads() > processors():
        torch.set_num_threads(processors())


@contextmanager
def one_thread() -> Iterator[None]:
    """Runs the block on one thread, which is faster for small products."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
