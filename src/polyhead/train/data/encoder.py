"""The encoder of a project, and how training computes its features."""

from __future__ import annotations

import importlib.metadata
import platform
from contextlib import suppress
from pathlib import Path as FilePath

import msgspec

from polyhead.bundle.format import BUNDLE
from polyhead.bundle.read import Bundle
from polyhead.encoder.data import TrunkData
from polyhead.engine.backends import BACKENDS, encoding_backend
from polyhead.engine.loaded import trained_precision
from polyhead.errors import PolyheadError
from polyhead.project.pretrained import load_trunk
from polyhead.project.recipes import Training
from polyhead.project.tables import Project


def load_any_trunk(project: Project, folder: FilePath) -> TrunkData:
    """The project's trunk: that of a bundle if `trunk.name` is a bundle's folder, else from `load_trunk`."""
    place, limit = project.trunk.place(folder), project.trunk.max_tokens
    if not (FilePath(place) / BUNDLE).is_file():
        return msgspec.structs.replace(load_trunk(place, max_tokens=limit), name=project.trunk.name)
    data = Bundle.open(place).trunk()
    settings = data.settings
    if limit is not None:
        settings = msgspec.structs.replace(settings, max_tokens=limit)
    return msgspec.structs.replace(data, name=project.trunk.name, settings=settings)


def encoding_precision(training: Training, root: FilePath | None = None) -> str:
    """The precision of a frozen trunk: `auto` is bfloat16 if the backend that encodes has it here, else float32.

    Of the tasks in a bundle at `root` it is theirs, if a backend has that here: one pass answers all of them.
    """
    if training.precision != "auto":
        return training.precision
    theirs = None if root is None else _precision_in(root)
    backend = encoding_backend(theirs)
    return "bfloat16" if theirs != "float32" and BACKENDS[backend].has_bfloat16 else "float32"


def _precision_in(root: FilePath) -> str | None:
    with suppress(PolyheadError):  # no bundle, or tasks that differ
        return trained_precision(Bundle.open(root, verify=False).tasks)
    return None


def encoding_numerics(precision: str) -> dict[str, str]:
    """The computation of a frozen trunk's features: backend, precision, version and processor."""
    backend = encoding_backend(precision)
    version = importlib.metadata.version(BACKENDS[backend].package)
    return {"backend": backend, "precision": precision, "version": version, "processor": platform.machine()}
