"""Scales beside a bundle: `cache/int8.json` says what they are, and names the file that holds them.

Nothing in a bundle depends on them; they may be deleted at any time, and found again with `polyhead quantize`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path as FilePath

import numpy as np

from polyhead.bundle.files import check_hash, hash_inside, read_inside, writing
from polyhead.bundle.format import LARGEST_JSON
from polyhead.bundle.read import Bundle
from polyhead.bundle.tensors import read_arrays, write_arrays
from polyhead.config import Value, from_json, to_json
from polyhead.engine.agreement import Agreement
from polyhead.engine.quantize.scales import Scale, Scales
from polyhead.errors import BackendError, PolyheadError
from polyhead.files import TEMPORARY, replace_file, sync_folder
from polyhead.trunk_data import check_finite

log = logging.getLogger(__name__)
CACHE, RECORD = "cache", "int8.json"
SMOOTH, EIGHT = ".smooth", ".eight"


class Change(Value):
    """What int8 changes of a task: its agreement with float32 on held-out texts, and its metric on labelled data."""

    agreement: Agreement | None = None  # None where no held-out text fits the task
    metric: str | None = None
    before: float | None = None
    after: float | None = None

    @property
    def points(self) -> float | None:
        """What the metric gained, in points of a hundred."""
        return None if self.before is None or self.after is None else 100 * (self.after - self.before)

    @property
    def is_measured(self) -> bool:
        """Whether anything is known."""
        return self.agreement is not None or self.points is not None


class Measured(Value):
    """The change of one version of a task, whose task.json has the SHA-256 `record`."""

    record: str
    change: Change


class Calibration(Value):
    """Where scales came from, and what they change."""

    trunk: str  # digest
    scales: str  # SHA-256 of the file that holds them: the digest of the calibration
    texts: int  # that were answered for it
    backend: str  # that was measured
    tasks: dict[str, Measured] = {}

    def of(self, bundle: Bundle) -> dict[str, Change]:
        """What is known of the live versions."""
        live = {name: line.record for name, line in bundle.lines.items()}
        return {name: one.change for name, one in self.tasks.items() if live.get(name) == one.record}


def read_calibration(bundle: Bundle) -> Calibration | None:
    """What is beside a bundle, for its trunk; None where there is nothing, or nothing of use."""
    try:
        return _record(bundle)
    except (BackendError, OSError):
        return None


def read_scales(bundle: Bundle) -> tuple[Calibration, Scales]:
    """The scales beside a bundle, for its trunk. Raises BackendError where there are none, or they are damaged."""
    record, root = _record(bundle), bundle.root
    name = _name(record.scales)
    try:
        check_hash(root / CACHE / name, hash_inside(root, CACHE, name), record.scales)
        arrays = read_arrays(root, CACHE, name)
        check_finite(arrays, owner=name)
        return record, _scales(arrays, record.scales)
    except (PolyheadError, ValueError, KeyError) as error:
        raise _damaged(root, error) from None


def scales_for(bundle: Bundle, backend: str) -> Scales:
    """The scales beside a bundle; tasks whose change was not measured with this backend are named in the log."""
    record, scales = read_scales(bundle)
    _warn(backend, [name for name in bundle.lines if name not in _known(record, bundle, backend)])
    return scales


def warn_of(bundle: Bundle, backend: str, tasks: Iterable[str], *, scales: str) -> None:
    """Names in the log those of the bundle's tasks of which nobody measured what int8 changes by these `scales`."""
    record = read_calibration(bundle)
    is_ours = record is not None and record.scales == scales
    known = _known(record, bundle, backend) if record is not None and is_ours else {}
    _warn(backend, [name for name in tasks if name not in known])


def warn_of_attached(backend: str, task: str) -> None:
    """The same of a task that no bundle holds."""
    log.warning("nobody measured what int8 on %s changes for %s: it is in no bundle", backend, task)


def _known(record: Calibration, bundle: Bundle, backend: str) -> Mapping[str, Change]:
    return record.of(bundle) if record.backend == backend else {}


def _warn(backend: str, unknown: Sequence[str]) -> None:
    if unknown:
        log.warning(
            "nobody measured what int8 on %s changes for %s: run `polyhead quantize` again",
            backend,
            ", ".join(unknown),
        )


def write_scales(
    bundle: Bundle, scales: Scales, *, texts: int, backend: str, changes: Mapping[str, Change]
) -> Calibration:
    """Keeps scales beside a bundle, whole or not at all, in place of older ones."""
    folder = bundle.root / CACHE
    with writing(bundle.root, "the scales cannot be kept"):
        folder.mkdir(exist_ok=True)
        temporary = folder / f"{TEMPORARY}scales"
        digest = write_arrays(temporary, _arrays(scales))
        record = Calibration(
            trunk=bundle.digest,
            scales=digest,
            texts=texts,
            backend=backend,
            tasks={
                name: Measured(record=bundle.lines[name].record, change=change)
                for name, change in changes.items()
                if change.is_measured
            },
        )
        os.replace(temporary, folder / _name(digest))
        sync_folder(folder)
        replace_file(folder / RECORD, to_json(record))
        for other in folder.glob("int8-*.safetensors"):
            if other.name != _name(digest):
                with suppress(OSError):
                    other.unlink()
    return record


def _record(bundle: Bundle) -> Calibration:
    path = bundle.root / CACHE / RECORD
    if not path.exists():
        raise _missing(f"{bundle.root} has no scales for int8")
    try:
        raw = read_inside(bundle.root, CACHE, RECORD, limit=LARGEST_JSON)
        record = from_json(raw, Calibration, source=str(path))
    except PolyheadError as error:
        raise _damaged(bundle.root, error) from None
    if record.trunk != bundle.digest:
        raise _missing(f"the scales in {path.parent} are those of another trunk", got=record.trunk)
    return record


def _name(digest: str) -> str:
    """Of the file of scales with this SHA-256."""
    return f"int8-{digest[:16]}.safetensors"


def _arrays(scales: Scales) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for digest, scale in scales.known.items():
        found[digest + SMOOTH] = scale.smooth
        found[digest + EIGHT] = np.array([scale.step, scale.zero], np.float32)
    return found


def _scales(arrays: Mapping[str, np.ndarray], sha256: str) -> Scales:
    found = {}
    for name, smooth in arrays.items():
        digest = name.removesuffix(SMOOTH)
        if digest != name:
            step, zero = arrays[digest + EIGHT].tolist()
            found[digest] = Scale(smooth=smooth, step=step, zero=round(zero))
    return Scales(found, digest=sha256)


def _damaged(root: FilePath, error: Exception) -> BackendError:
    return _missing(f"the scales in {root / CACHE} are damaged", got=error)


def _missing(what: str, *, got: object = None) -> BackendError:
    return BackendError(
        what, got=got, do="find them on your own texts with `polyhead quantize`, or use another --precision"
    )
