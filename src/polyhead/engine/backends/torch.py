"""The torch backend: the training code itself, in evaluation mode."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

import numpy as np
import torch

from polyhead.engine.backends.base import LoadedTask, TokenBatch
from polyhead.model import Model, TextBatch
from polyhead.nn.deterministic import deterministic as equal_bits
from polyhead.nn.trunk import Trunk
from polyhead.plan import Plan
from polyhead.sharing.branch import BranchPart, make_part
from polyhead.sharing.pooled import compared
from polyhead.trunk_data import TrunkData


class TorchBackend:
    """Runs plans with `polyhead.model`; layers in `precision`, poolers and heads in float32."""

    name = "torch"

    def __init__(
        self,
        trunk: TrunkData,
        tasks: Mapping[str, LoadedTask],
        *,
        precision: str = "float32",
        deterministic: bool = False,
    ) -> None:
        self.precision = precision
        self._guard = equal_bits if deterministic else nullcontext
        self.tolerance = 1e-4 if precision == "float32" else 0.5
        parts = {}
        for name, task in tasks.items():
            part = make_part(task.path, trunk.architecture)
            part.load_state_dict(
                {key: torch.from_numpy(np.array(value)) for key, value in task.arrays.items()}
            )
            if isinstance(part, BranchPart):
                part.layers.to(getattr(torch, precision))
            parts[name] = part
        self._model = Model(Trunk.from_data(trunk, dtype=getattr(torch, precision)), parts)
        self._model.eval().requires_grad_(False)

    @property
    def layers_run(self) -> int:
        """Layers evaluated so far."""
        return self._model.layers_run

    @torch.inference_mode()
    def features(self, plan: Plan, batch: TokenBatch) -> dict[str, np.ndarray]:
        """One run of the plan, then each task's own pooler."""
        tensors = TextBatch(
            ids=torch.from_numpy(batch.ids),
            mask=torch.from_numpy(batch.mask),
            segments=torch.from_numpy(batch.segments),
            words=torch.from_numpy(batch.words),
        )
        with self._guard():
            stored = self._model.stored(plan, tensors)
            return {
                task: self._model.parts[task].features(v.values, v.mask).numpy() for task, v in stored.items()
            }

    @torch.inference_mode()
    def outputs(self, task: str, features: np.ndarray, second: np.ndarray | None = None) -> np.ndarray:
        """The task's head on its features."""
        values = torch.from_numpy(features)
        if second is not None:
            values = compared(values, torch.from_numpy(second))
        with self._guard():
            out: np.ndarray = self._model.parts[task].head(values).numpy()
        return out
