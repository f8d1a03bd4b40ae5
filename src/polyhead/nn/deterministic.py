"""Deterministic mode: what certificates, backfills and tests of equal bytes run under."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


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
    # The debug mode is the same switch; `use_deterministic_algorithms` imports torch's compiler first (1 s).
    before = torch.get_deterministic_debug_mode()
    benchmark = torch.backends.cudnn.benchmark
    torch.set_deterministic_debug_mode("error")
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = benchmark
        torch.set_deterministic_debug_mode(before)
