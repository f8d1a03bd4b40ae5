"""Numerics: the label of how values are computed that goes with every trained part (docs/concepts.md)."""

from __future__ import annotations

import platform

import torch

from polyhead.machine import processor
from polyhead.project.recipes import Training


def precision_of(training: Training, device: str = "cpu") -> str:
    """The precision of the trunk: `auto` is bfloat16 where the device that computes has it, else float32."""
    if training.precision != "auto":
        return training.precision
    return "bfloat16" if has_native_bfloat16(device) else "float32"


def has_native_bfloat16(device: str = "cpu") -> bool:
    """Whether the processor, or this CUDA device, has bfloat16 arithmetic of its own; emulation does not count."""
    if _is_cuda(device):
        with torch.cuda.device(device):
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    probe = getattr(
        torch.cpu, "_is_avx512_bf16_supported", None
    )  # it tells of the processor also where oneDNN is capped
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
