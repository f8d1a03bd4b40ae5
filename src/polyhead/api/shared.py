"""Kept features and encoder files, shared by the estimators of a process and its workers."""

from __future__ import annotations

import hashlib
import os
import shutil
from contextlib import suppress
from pathlib import Path as FilePath
from typing import Any

from polyhead.api.encoder import named_encoder, packed, unpack
from polyhead.api.model import Model
from polyhead.bundle.create import linked_bundle
from polyhead.bundle.files import write_arrays
from polyhead.bundle.format import BUNDLE, TRUNK, WEIGHTS
from polyhead.bundle.manifest import read_trunk_record
from polyhead.encoder.data import arrays_digest
from polyhead.errors import BundleError, PolyheadError
from polyhead.files import link_or_copy, temporary_folder, temporary_name
from polyhead.progress import ProgressDisplay
from polyhead.train.training import TrainingResult


class SharedFolder:
    """A folder for the life of the process; a worker uses that of the process that started it."""

    def __init__(self) -> None:
        self._path: FilePath | None = None

    @property
    def path(self) -> FilePath:
        """The folder, made when it is first needed."""
        if self._path is None or not self._path.is_dir():
            self._path = temporary_folder(self)
        return self._path

    @property
    def sent(self) -> tuple[str, int]:
        """The arguments with which a worker calls `adopt`."""
        return str(self.path), os.getpid()

    def adopt(self, path: str, process: int) -> None:
        """Uses the folder of the process that started this one, unless there is one already."""
        if self._path is None and process == os.getppid() and os.path.isdir(path):
            self._path = FilePath(path)

    def encoder(self, name: str) -> FilePath:
        """The place of a bundle without tasks for an encoder, by its name and, of a folder, its files."""
        files = sorted(os.scandir(name), key=lambda entry: entry.name) if os.path.isdir(name) else []
        states = [(entry.name, entry.stat().st_size, entry.stat().st_mtime_ns) for entry in files]
        digest = hashlib.sha256(repr((name, states)).encode("utf-8", "surrogatepass")).hexdigest()
        return self.path / "encoders" / digest[:16]

    def keep_encoder(self, bundle: FilePath, place: FilePath) -> None:
        """Keeps the encoder of a bundle for others, if the disk allows."""
        if place.exists():
            return
        building = place.with_name(temporary_name(place.name))
        with suppress(OSError, PolyheadError):
            linked_bundle(building, bundle)
            building.rename(place)
        shutil.rmtree(building, ignore_errors=True)


SHARED = SharedFolder()


class EstimatorModel(Model):
    """The model of an estimator: it is trained once, and its encoder's files are hard links of one copy."""

    keeps_rows = False
    portable = False  # whether a pickle holds the encoder too

    def _train(self, entries: Any, display: ProgressDisplay, **options: Any) -> TrainingResult:
        place = SHARED.encoder(self.trunk)
        if not (self.folder / BUNDLE).exists() and (place / BUNDLE).exists():
            linked_bundle(self.folder, place)
        outcome = super()._train(entries, display, **options)
        SHARED.keep_encoder(self.folder, place)
        return outcome

    def __reduce__(self) -> tuple[Any, ...]:
        options = {"trunk": self.trunk, "verbose": self.verbose, "cache": self._cache} | self._how
        left_out = () if self.portable else (f"{TRUNK}/{WEIGHTS}",)
        return _unpacked, (options, self.portable, packed(self.folder, left_out=left_out))


def _unpacked(options: dict[str, Any], portable: bool, content: bytes) -> EstimatorModel:
    """An unpickled model, in its own temporary folder, with the encoder that it names."""
    model = EstimatorModel(**{**options, "trunk": None})
    model.trunk, model.portable = options["trunk"], portable
    if not content:
        return model
    unpack(content, model.folder)
    if not (model.folder / TRUNK / WEIGHTS).exists():
        _add_encoder(model)
    return model


def _add_encoder(model: EstimatorModel) -> None:
    """Finds the weights of an unpickled model's encoder again; raises BundleError if they are gone or differ."""
    expected, place = read_trunk_record(model.folder), SHARED.encoder(model.trunk)
    target = model.folder / TRUNK / WEIGHTS
    with suppress(OSError, PolyheadError):
        if read_trunk_record(place).weights == expected.weights:
            link_or_copy(place / TRUNK / WEIGHTS, target)
            return
    do = "give this machine the encoder, or pickle an estimator with portable=True, which holds it"
    problem = f"the encoder '{model.trunk}' of a pickled estimator is not on this machine"
    try:
        data = named_encoder(model.trunk)
    except PolyheadError as error:
        raise BundleError(problem, got=error, do=do) from None
    if (digest := arrays_digest(data.arrays)) != expected.arrays:
        problem = f"the encoder '{model.trunk}' has other weights than the one that a pickled estimator learned over"
        raise BundleError(problem, got=digest[:16], allowed=expected.arrays[:16], do=do)
    write_arrays(target, data.arrays)
    SHARED.keep_encoder(model.folder, place)
