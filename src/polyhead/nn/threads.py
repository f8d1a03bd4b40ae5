"""How many threads torch computes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from polyhead.processor import processors


def within_limits() -> None:
    """No more threads than this process may keep busy: torch counts the machine's processors, not the container's."""
    if torch.get_num_threads() > processors():
        torch.set_num_threads(processors())


@contextmanager
def one_thread() -> Iterator[None]:
    """Small products take longer on several threads than on one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
