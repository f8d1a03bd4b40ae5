"""How values are computed: the label that goes with every trained part (docs/concepts.md)."""

from __future__ import annotations

import platform

import torch

from polyhead.project import Training


def precision_of(training: Training) -> str:
    """The precision of the frozen trunk: `auto` is bfloat16 where the processor computes in it, else float32."""
    if training.precision != "auto":
        return training.precision
    return "bfloat16" if has_native_bfloat16() else "float32"


def has_native_bfloat16() -> bool:
    """Whether this processor has bfloat16 arithmetic."""
    probe = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return bool(probe and probe())


def numerics(precision: str) -> dict[str, str]:
    """Backend, precision, version and processor."""
    return {
        "backend": "torch",
        "precision": precision,
        "version": str(torch.__version__),
        "processor": platform.machine(),
    }
