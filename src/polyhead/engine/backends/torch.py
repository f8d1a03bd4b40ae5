"""The torch backend: the training code itself, in evaluation mode."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

import numpy as np
import torch
from torch import nn

from polyhead.engine.backends.base import LoadedTask, TokenBatch
from polyhead.errors import BackendError
from polyhead.model import Model, TextBatch
from polyhead.nn.deterministic import deterministic as equal_bits
from polyhead.nn.trunk import Trunk
from polyhead.plan import Plan
from polyhead.sharing.make import make_families, make_part
from polyhead.sharing.pooled import compared
from polyhead.trunk_data import TrunkData


class TorchBackend:
    """Runs plans with `polyhead.model`; layers and deltas in `precision`, poolers and heads in float32.

    Paths that differ in their deltas run side by side, and isolated prompts at once; in deterministic mode one after
    another.
    """

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
        dtype = getattr(torch, precision)
        families = make_families({name: task.path for name, task in tasks.items()}, trunk.architecture)
        for owner, family in families.items():
            _fill(family, owner, _shared_arrays(owner, tasks))
            family.lower(dtype)
        parts = {}
        for name, task in tasks.items():
            parts[name] = make_part(task.path, trunk.architecture, families=families)
            _fill(parts[name], task.path.head.part, task.arrays)
            parts[name].lower(dtype)
        self._model = Model(
            Trunk.from_data(trunk, dtype=dtype),
            parts,
            families,
            stacked=not deterministic,
        )
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


def _shared_arrays(owner: str, tasks: Mapping[str, LoadedTask]) -> dict[str, np.ndarray]:
    """All arrays of an owner that tasks read beside their own."""
    return {name: array for task in tasks.values() for name, array in task.others.get(owner, {}).items()}


def _fill(module: nn.Module, owner: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Gives a part or family its arrays, those of them that the tasks here read."""
    wanted = list(module.state_dict())
    missing = [name for name in wanted if name not in arrays]
    if missing:
        raise BackendError(
            f"layers, prompts or heads read arrays of '{owner}' that are not loaded",
            got=f"none for {missing[:3]}",
            do="give every owner's arrays with the tasks that read them",
        )
    module.load_state_dict({name: torch.from_numpy(np.array(arrays[name])) for name in wanted})
