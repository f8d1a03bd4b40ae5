"""Torch in this process: threads, deterministic mode, copies to and from a card, and the label of numerics."""

from __future__ import annotations

import platform
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from polyhead.machine import one_blas_thread, processor, processors
from polyhead.project.recipes import Training


def within_limits() -> None:
    """Limits torch to the processors of this container; torch itself counts those of the machine."""
    if torch.get_num_threads() > processors():
        torch.set_num_threads(processors())


@contextmanager
def single_thread() -> Iterator[int]:
    """A context that runs on one thread, which is faster for small products; yields the number outside."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with one_blas_thread():
            yield before
    finally:
        torch.set_num_threads(before)


@contextmanager
def deterministic() -> Iterator[None]:
    """A context in which torch only uses algorithms with the same bits for the same input, or raises RuntimeError.

    That is one of five conditions. Equal bits also need:

    - the same shapes: products of other shapes are summed in another order, so rows and tokens are padded to
      fixed sizes (`text.batch.batches(fixed_rows=...)`) and stacks of tasks to fixed widths;
    - evaluation mode, so that no dropout draws numbers;
    - the same number of threads, the same precision, processor and torch version (the numerics label);
    - weights at torch's own aligned addresses, which `Trunk.from_data` ensures by copying.

    On CUDA, cuBLAS also needs the environment variable CUBLAS_WORKSPACE_CONFIG=:4096:8 set before the start.
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


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """A copy there, for which a card is not waited for; on the processor the array itself."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def to_host(tensors: Sequence[Tensor]) -> list[np.ndarray]:
    """Float32 tensors of one device in the host's memory; the call waits for the one copy of all."""
    if not tensors:
        return []
    flat = torch.cat([values.flatten() for values in tensors])
    if flat.is_cuda:
        host = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True).copy_(flat, non_blocking=True)
        torch.cuda.current_stream(flat.device).synchronize()
        flat = host
    parts = torch.split(flat, [values.numel() for values in tensors])
    return [part.view(values.shape).numpy() for part, values in zip(parts, tensors, strict=True)]


def precision_of(training: Training, device: str = "cpu") -> str:
    """The precision of the trunk: `auto` is bfloat16 if the computing device has it, else float32."""
    if training.precision != "auto":
        return training.precision
    return "bfloat16" if has_native_bfloat16(device) else "float32"


def has_native_bfloat16(device: str = "cpu") -> bool:
    """Whether the processor, or this CUDA device, has native bfloat16 arithmetic; emulation does not count."""
    if _is_cuda(device):
        with torch.cuda.device(device):
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    probe = getattr(torch.cpu, "_is_avx512_bf16_supported", None)  # it describes the processor even if oneDNN is capped
    return bool(probe and probe()) and processor().may_have_bfloat16


def numerics(precision: str, device: str = "cpu") -> dict[str, str]:
    """Backend, precision, version, and the processor or CUDA device."""
    return {
        "backend": "torch",
        "precision": precision,
        "version": str(torch.__version__),
        "processor": torch.cuda.get_device_name(device) if _is_cuda(device) else platform.machine(),
    }


def _is_cuda(device: str) -> bool:
    return torch.device(device).type == "cuda"
