"""Scales of a bundle: `cache/int8.json` describes them, and names the file that holds them.

Nothing in a bundle depends on them; they may be deleted at any time, and made again by `polyhead tasks quantize`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path as FilePath

import msgspec
import numpy as np

from polyhead.bundle.files import check_hash, hash_inside, read_arrays, read_inside, write_arrays, writing_bundle
from polyhead.bundle.format import LARGEST_JSON
from polyhead.bundle.read import Bundle
from polyhead.encoder.data import check_finite
from polyhead.engine.scales import EIGHT, MEAN, SMOOTH, Scale, Scales
from polyhead.errors import BackendError, PolyheadError
from polyhead.files import make_folder, remove_leftovers, replace_file, sync_folder, temporary_name
from polyhead.machine import processor
from polyhead.tasks.agreement import Agreement
from polyhead.values import Value, from_json, to_json

log = logging.getLogger(__name__)
CACHE, RECORD = "cache", "int8.json"


class Int8Change(Value):
    """Change of a task in int8: agreement with float32 on held-out texts, and the metric on labelled data."""

    agreement: Agreement | None = None  # None where no held-out text fits the task
    metric: str | None = None
    before: float | None = None
    after: float | None = None

    @property
    def points(self) -> float | None:
        """Change of the metric, in points."""
        return None if self.before is None or self.after is None else 100 * (self.after - self.before)

    @property
    def is_measured(self) -> bool:
        """True if anything was measured."""
        return self.agreement is not None or self.points is not None


class VersionChange(Value):
    """The change of one version of a task, with its `answers_digest`."""

    answers: str = msgspec.field(name="record")
    change: Int8Change


class Measurement(Value):
    """Changes by int8 on one kind of machine: a backend, and weights of so many bits."""

    backend: str
    weight_bits: int
    tasks: dict[str, VersionChange]

    def of(self, bundle: Bundle) -> dict[str, Int8Change]:
        """Measurements of the live versions."""
        there = {name: measured for name, measured in self.tasks.items() if name in bundle.lines}
        return {name: m.change for name, m in there.items() if bundle.has_answers(name, m.answers)}


class ScalesRecord(Value):
    """Origin of scales, and the changes measured with them, here and on other machines."""

    trunk: str  # digest
    scales: str  # SHA-256 of the file that holds them: the digest of the calibration
    texts: int  # that were answered for it
    measurements: tuple[Measurement, ...] = ()  # first the one of the machine where the scales were found


def read_calibration(bundle: Bundle) -> ScalesRecord | None:
    """The scales of a bundle's trunk; None if there are no usable ones."""
    try:
        return _record(bundle)
    except (BackendError, OSError):
        return None


def kept_files(bundle: Bundle) -> tuple[str, ...]:
    """The names, in CACHE, of the files of a bundle's scales; none if it has no usable scales."""
    record = read_calibration(bundle)
    return () if record is None else (RECORD, _name(record.scales))


def read_scales(bundle: Bundle) -> tuple[ScalesRecord, Scales]:
    """The scales of a bundle's trunk. Raises BackendError if there are none, or they are damaged."""
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
    """The scales of a bundle; tasks whose change was not measured on such a machine are named in the log."""
    record, scales = read_scales(bundle)
    _warn(bundle, backend, list(bundle.tasks), record)
    return scales


def warn_of(bundle: Bundle, backend: str, tasks: Iterable[str], *, scales: str) -> None:
    """Names in the log the bundle's tasks for which the change by int8 with these `scales` was not measured."""
    record = read_calibration(bundle)
    _warn(bundle, backend, list(tasks), record if record is not None and record.scales == scales else None)


def warn_of_attached(backend: str, task: str) -> None:
    """The same of a task that no bundle holds."""
    log.warning("nobody measured what int8 on %s changes for %s: it is in no bundle", backend, task)


def _warn(bundle: Bundle, backend: str, tasks: Sequence[str], record: ScalesRecord | None) -> None:
    """At most two lines: of tasks measured only on other machines, and of those never measured."""
    bits, measured_here, elsewhere = processor().weight_bits, set[str](), set[str]()
    for measurement in () if record is None else record.measurements:
        is_here = (measurement.backend, measurement.weight_bits) == (backend, bits)
        (measured_here if is_here else elsewhere).update(measurement.of(bundle))
    moved = [name for name in tasks if name in elsewhere - measured_here]
    if moved:
        log.warning(
            "nobody measured what int8 on %s with weights of %d bits, as on this processor, changes for %s: run "
            "`polyhead tasks quantize --measure`",
            backend,
            bits,
            ", ".join(moved),
        )
    unknown = [name for name in tasks if name not in elsewhere | measured_here]
    if unknown:
        log.warning(
            "nobody measured what int8 on %s changes for %s: run `polyhead tasks quantize` again",
            backend,
            ", ".join(unknown),
        )


def write_scales(
    bundle: Bundle, scales: Scales, *, texts: int, backend: str, changes: Mapping[str, Int8Change]
) -> ScalesRecord:
    """Writes scales next to a bundle atomically, in place of older ones; `changes` were measured on this machine."""
    folder = bundle.root / CACHE
    with writing_bundle(bundle.root, "the scales cannot be kept"):
        make_folder(folder, root=bundle.root)
        remove_leftovers(folder)
        temporary = folder / temporary_name("scales")
        digest = write_arrays(temporary, scales.arrays)
        record = ScalesRecord(
            trunk=bundle.digest, scales=digest, texts=texts, measurements=(_measured(bundle, backend, changes),)
        )
        temporary.rename(folder / _name(digest))
        sync_folder(folder)
        replace_file(folder / RECORD, to_json(record))
        for other in folder.glob("int8-*.safetensors"):
            if other.name != _name(digest):
                with suppress(OSError):
                    other.unlink()
    return record


def write_changes(
    bundle: Bundle, record: ScalesRecord, *, backend: str, changes: Mapping[str, Int8Change]
) -> ScalesRecord:
    """Writes the changes by the scales of `record` on this machine, in place of earlier ones of such a machine."""
    measured = _measured(bundle, backend, changes)
    with writing_bundle(bundle.root, "what int8 changes cannot be kept"):
        now = _record(bundle)
        if now.scales != record.scales:
            raise BackendError(
                "the scales were found anew while they were measured; nothing was written",
                got=now.scales,
                allowed=record.scales,
                do="measure again",
            )
        by_machine = {(entry.backend, entry.weight_bits): entry for entry in (*now.measurements, measured)}
        now = msgspec.structs.replace(now, measurements=tuple(by_machine.values()))
        replace_file(bundle.root / CACHE / RECORD, to_json(now))
    return now


def _measured(bundle: Bundle, backend: str, changes: Mapping[str, Int8Change]) -> Measurement:
    tasks = {
        name: VersionChange(answers=bundle.answers_digest(name), change=change)
        for name, change in changes.items()
        if change.is_measured
    }
    return Measurement(backend=backend, weight_bits=processor().weight_bits, tasks=tasks)


def _record(bundle: Bundle) -> ScalesRecord:
    path = bundle.root / CACHE / RECORD
    if not path.exists():
        raise _missing(f"{bundle.root} has no scales for int8")
    try:
        raw = read_inside(bundle.root, CACHE, RECORD, limit=LARGEST_JSON)
        record = from_json(raw, ScalesRecord, source=str(path))
    except PolyheadError as error:
        raise _damaged(bundle.root, error) from None
    if record.trunk != bundle.digest:
        raise _missing(f"the scales in {path.parent} are those of another trunk", got=record.trunk)
    return record


def _name(digest: str) -> str:
    return f"int8-{digest[:16]}.safetensors"


def _scales(arrays: Mapping[str, np.ndarray], sha256: str) -> Scales:
    scales = {}
    for name, smooth in arrays.items():
        digest = name.removesuffix(SMOOTH)
        if digest != name:
            step, zero = arrays[digest + EIGHT].tolist()
            mean = arrays.get(digest + MEAN)  # None where it was not kept
            scales[digest] = Scale(smooth=smooth, step=step, zero=round(zero), mean=mean)
    return Scales(scales, digest=sha256)


def _damaged(root: FilePath, error: Exception) -> BackendError:
    return _missing(f"the scales in {root / CACHE} are damaged", got=error)


def _missing(problem: str, *, got: object = None) -> BackendError:
    return BackendError(
        problem, got=got, do="find them on your own texts with `polyhead tasks quantize`, or use another --precision"
    )
