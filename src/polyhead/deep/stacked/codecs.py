"""Codecs of kept features on the device: values as a reader of the store sees them, without a way over the host."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from polyhead.codecs import TokenCodec
from polyhead.codecs.float16 import LARGEST_HALF, Float16
from polyhead.plan import Codec, Pool


class DeviceCodecs:
    """Runs the codecs' own graphs (`FeatureCodec.graph`) on tensors; constants stay on the device."""

    def __init__(self, device: torch.device) -> None:
        self.device, self._operators = device, _Operators(device)
        self._limits = [self.constant(np.array([limit])) for limit in (-LARGEST_HALF, LARGEST_HALF)]

    def constant(self, array: np.ndarray) -> Tensor:
        """The array there; equal ones are one."""
        return self._operators.constant(array)

    @staticmethod
    def can(pool: Pool) -> bool:
        """Whether the codec of this pool has a graph that reads no tokens."""
        kind = pool.codec.format
        return kind.is_exact or (
            kind.has_graph and not (isinstance(kind, TokenCodec) and pool.positions not in ("mean", "prompt"))
        )

    def coded(self, values: Tensor, codec: Codec) -> Tensor:
        """float32 (..., width), encoded and decoded; NaN where they are not finite and rounding would hide it."""
        if codec.format.is_exact:
            return values
        if isinstance(codec.format, Float16):  # its graph in two operations: infinite halves are clipped
            return torch.clamp(values.half(), *self._limits)
        decoded: Tensor = codec.format.graph(self._operators, values, codec)
        return torch.add(decoded, values, alpha=0)


class _Operators:
    """The operators of `engine.compile.ops.Ops` that codecs use, computed at once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._constants: dict[tuple[str, tuple[int, ...], bytes], Tensor] = {}

    def constant(self, array: np.ndarray) -> Tensor:
        array = np.asarray(array, np.float32 if array.dtype.kind == "f" else np.int64)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = torch.from_numpy(array.copy()).to(self._device)
        return self._constants[key]

    def slice(self, x: Tensor, axis: int, start: int, stop: int) -> Tensor:
        return x.narrow(axis, start, min(stop, x.shape[axis]) - start)

    def matmul(self, a: Tensor, b: Tensor, *, transposed: bool = False) -> Tensor:
        return a @ (b.mT if transposed else b)

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    def subtract(self, a: Tensor, b: Tensor) -> Tensor:
        return a - b

    def multiply(self, a: Tensor, b: Tensor) -> Tensor:
        return a * b

    def divide(self, a: Tensor, b: Tensor) -> Tensor:
        return a / b

    def maximum(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.maximum(a, b)

    def minimum(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.minimum(a, b)

    def round(self, x: Tensor) -> Tensor:
        return torch.round(x)

    def halved(self, x: Tensor) -> Tensor:
        return x.half().float()

    def signed(self, x: Tensor) -> Tensor:
        return torch.where(x >= 0, 1.0, -1.0)
