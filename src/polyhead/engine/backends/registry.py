"""The backends that are known: what each can do, and how it is opened."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import ClassVar

from polyhead.config import Value
from polyhead.engine.backends.base import Backend, LoadedTask
from polyhead.engine.compile.ops import Runtime
from polyhead.engine.quantize.scales import Scales
from polyhead.errors import BackendError, ConfigError
from polyhead.processor import processors
from polyhead.trunk.data import TrunkData


class OpenOptions(Value, eq=False):
    """How a backend is to compute."""

    precision: str | None  # of the trunk, one of the backend's; None: see `trained`
    trained: str | None = None  # where tasks were trained in one precision: taken if this machine has it
    scales: Callable[[], Scales] | None = None  # gives those of int8
    deterministic: bool = False  # equal bits whatever a row's batch mates are


class BackendKind(ABC):
    """A backend that can be opened by its name, once `register_backend` made it known."""

    name: ClassVar[str]
    precisions: ClassVar[tuple[str, ...]]  # of the trunk
    package: ClassVar[str]  # that computes: its version is part of how answers were computed
    compiles: ClassVar[bool] = False  # has a runtime that compiles graphs

    @abstractmethod
    def open(self, trunk: TrunkData, tasks: Mapping[str, LoadedTask], options: OpenOptions) -> Backend:
        """The backend with the trunk and the tasks' arrays loaded; raises MissingExtra where it is not installed."""

    def runtime(self, *, precision: str | None = None, scales: Scales | None = None) -> Runtime:
        """The library that compiles graphs; raises BackendError where the backend compiles none."""
        raise no_runtime(self.name)

    @property
    def has_bfloat16(self) -> bool:
        """Whether it can run a trunk in bfloat16 on this processor."""
        return "bfloat16" in self.precisions

    def label(self) -> dict[str, str]:
        """What computes here, and in how many threads: what may change the bits of outputs."""
        return {self.package: importlib.metadata.version(self.package), "threads": str(processors())}


_BACKENDS: dict[str, BackendKind] = {}
BACKENDS: Mapping[str, BackendKind] = MappingProxyType(_BACKENDS)
"""The backends that are registered, by name."""


def register_backend(kind: BackendKind) -> None:
    """Makes a backend known by its name; raises ConfigError where another one has that name."""
    if type(_BACKENDS.get(kind.name, kind)) is not type(kind):
        raise ConfigError(f"there is a backend '{kind.name}' already", do="give the new backend another name")
    _BACKENDS[kind.name] = kind


def backend_named(name: str) -> BackendKind:
    """The backend of this name; raises BackendError with the names that there are."""
    if name not in _BACKENDS:
        raise BackendError(f"there is no backend '{name}'", allowed=list(_BACKENDS), do="choose one of these")
    return _BACKENDS[name]


def no_runtime(name: str) -> BackendError:
    """The error for a name whose backend has no runtime, or that no backend has."""
    return BackendError(
        f"'{name}' compiles no graphs",
        allowed=[name for name, kind in BACKENDS.items() if kind.compiles],
        do="choose one of these, or open a session with it",
    )


def is_installed(package: str) -> bool:
    """Whether a package can be imported."""
    return importlib.util.find_spec(package) is not None
