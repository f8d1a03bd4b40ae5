"""Backends run a plan; each states its tolerance and has a deterministic mode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from polyhead.engine.backends.base import Backend, LoadedTask
from polyhead.errors import BackendError, MissingExtra
from polyhead.trunk_data import TrunkData

BackendName = Literal["torch", "reference"]
BACKENDS: tuple[BackendName, ...] = ("torch", "reference")


def open_backend(
    name: str,
    trunk: TrunkData,
    tasks: Mapping[str, LoadedTask],
    *,
    precision: str = "float32",
    deterministic: bool = False,
) -> Backend:
    """A backend with the trunk and the tasks' arrays loaded; `deterministic` lets it use such algorithms only."""
    if name == "reference":
        from polyhead.engine.backends.reference import ReferenceBackend

        return ReferenceBackend(trunk, tasks)
    if name == "torch":
        try:
            from polyhead.engine.backends.torch import TorchBackend
        except ImportError:
            raise MissingExtra(
                "torch",
                "train",
                "the torch backend",
                instead="choose the slow backend 'reference', which needs no torch (--backend reference)",
            ) from None
        return TorchBackend(trunk, tasks, precision=precision, deterministic=deterministic)
    raise BackendError(f"there is no backend '{name}'", allowed=BACKENDS, do="choose one of these")
