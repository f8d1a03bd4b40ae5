"""How a session computes, and how far its answers to a bundle's pinned probes agree with those of training.

What was measured is kept in the bundle's `agreements.json`, beside all that digests cover: it says how values were
computed, not what they should be.
"""

from __future__ import annotations

from pathlib import Path as FilePath

import msgspec

from polyhead.bundle.files import read_inside, writing
from polyhead.bundle.format import LARGEST_JSON
from polyhead.bundle.read import Bundle
from polyhead.config import Value, from_json, to_json
from polyhead.engine.agreement import Agreement, agreement_of
from polyhead.engine.pinned import Answering, answers_of
from polyhead.engine.session import Session
from polyhead.errors import BundleError, CorruptFile, PolyheadError
from polyhead.files import replace_file

FILE = "agreements.json"


class Numerics(Value):
    """How answers were computed; `calibration` is the digest of the scales of int8, `weight_bits` the width."""

    backend: str
    precision: str
    version: str = ""  # of the backend's library
    calibration: str = ""
    weight_bits: int | None = None  # of int8: 8, or 7 on processors whose sums of bytes saturate


class Measured(Value):
    """The agreement of one version of a task, whose task.json has the SHA-256 `record`."""

    record: str
    agreement: Agreement


class Agreements(Value):
    """Of answers to pinned probes under `numerics`, with those under the numerics that each task was trained in."""

    numerics: Numerics
    tasks: dict[str, Measured] = {}

    @property
    def agreements(self) -> dict[str, Agreement]:
        """By task."""
        return {name: one.agreement for name, one in self.tasks.items()}


class _File(Value):
    agreements: tuple[Agreements, ...] = ()


def numerics_of(session: Session) -> Numerics:
    """How a session computes, as its backend was opened: whatever lies beside the bundle by now."""
    backend = session.backend
    return Numerics(
        backend=backend.name,
        precision=backend.precision,
        version=backend.version,
        calibration=backend.calibration,
        weight_bits=backend.weight_bits,
    )


def on_probes(trained: Answering, session: Session, name: str) -> Agreement | None:
    """Agreement of a session's answers to a task's pinned probes with those of the task as it was trained."""
    probes = trained.probes(name)
    pairs = zip(trained.answers(name, probes), answers_of(session, name, probes), strict=True)
    both = [(one, two) for one, two in pairs if one is not None and two is not None]
    task = trained.bundle.tasks[name].task
    return agreement_of(task, [one for one, _ in both], [two for _, two in both])


def read_agreements(bundle: Bundle) -> list[Agreements]:
    """What was measured of the live versions; raises CorruptFile for a file that cannot be read."""
    live_agreements = []
    for entry in _read(bundle.root).agreements:
        live = {n: m for n, m in entry.tasks.items() if n in bundle.lines and m.record == bundle.lines[n].record}
        if live:
            live_agreements.append(msgspec.structs.replace(entry, tasks=live))
    return live_agreements


def keep_agreements(bundle: Bundle, numerics: Numerics, agreements: dict[str, Agreement]) -> None:
    """Writes what was measured, in place of what was measured before under the same backend, precision and width."""
    tasks = {n: Measured(record=bundle.lines[n].record, agreement=agreements[n]) for n in agreements}
    with writing(bundle.root, "agreements cannot be kept"):
        try:
            before = _read(bundle.root).agreements
        except BundleError:
            before = ()  # it can be measured again at any time
        others = [entry for entry in before if _place(entry.numerics) != _place(numerics)]
        content = _File(agreements=(*others, Agreements(numerics=numerics, tasks=tasks)))
        replace_file(bundle.root / FILE, to_json(content))


def _place(numerics: Numerics) -> tuple[object, ...]:
    return numerics.backend, numerics.precision, numerics.weight_bits or 8


def _read(root: FilePath) -> _File:
    path = root / FILE
    if not path.exists():
        return _File()
    try:
        return from_json(read_inside(root, FILE, limit=LARGEST_JSON), _File, source=str(path))
    except PolyheadError as error:
        raise CorruptFile(
            f"{path} cannot be read", got=error, do="delete it, and measure again with `polyhead agree`", path=path
        ) from None
