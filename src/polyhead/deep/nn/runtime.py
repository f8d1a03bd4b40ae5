"""How torch computes in this process: its threads, and deterministic mode."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from polyhead.machine import processors


def within_limits() -> None:
    """Limits torch to the processors of this container; torch itself counts those of the machine."""
    if torch.get_num_threads() > processors():
        torch.set_num_threads(processors())


@contextmanager
def single_thread() -> Iterator[int]:
    """Runs the block on one thread, which is faster for small products; gives the number of threads outside."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield before
    finally:
        torch.set_num_threads(before)


@contextmanager
def deterministic() -> Iterator[None]:
    """Inside, torch takes only algorithms that give the same bits for the same input, or raises RuntimeError.

    That is one of five conditions. The same bits need, besides:

    - the same shapes: products of other shapes are summed in another order, so rows and tokens are padded to
      fixed sizes (`text.batch.batches(fixed_rows=...)`) and stacks of tasks to fixed widths;
    - evaluation mode, so that no dropout draws numbers;
    - the same number of threads, the same precision, processor and torch version (the numerics label);
    - weights at torch's own aligned addresses, which `Trunk.from_data` sees to by copying.

    On CUDA, cuBLAS also wants the environment variable CUBLAS_WORKSPACE_CONFIG=:4096:8 set before the start.
    """
    _inside.enter()
    try:
        yield
    finally:
        _inside.leave()


class _Inside:
    """Counts the threads inside: the first switches torch to deterministic mode, the last switches it back."""

    def __init__(self) -> None:
        self._count, self._lock = 0, threading.Lock()
        self._before: tuple[int, bool] = (0, False)

    def enter(self) -> None:
        with self._lock:
            self._count += 1
            if self._count == 1:
                self._before = torch.get_deterministic_debug_mode(), torch.backends.cudnn.benchmark
                # The same switch as `use_deterministic_algorithms`, which imports torch's compiler first (1 s).
                torch.set_deterministic_debug_mode("error")
                torch.backends.cudnn.benchmark = False

    def leave(self) -> None:
        with self._lock:
            self._count -= 1
            if not self._count:
                mode, torch.backends.cudnn.benchmark = self._before
                torch.set_deterministic_debug_mode(mode)


_inside = _Inside()
