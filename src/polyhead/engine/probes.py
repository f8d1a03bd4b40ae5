"""A bundle's tasks answering their pinned probes: deterministic, as each was trained; and as a session computes them.

How far a session's answers agree with those of training is kept in the bundle's `agreements.json`, beside all that
digests cover: it says how values were computed, not what they should be."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any

import msgspec
import numpy as np

from polyhead._version import __version__
from polyhead.bundle.files import read_inside, writing_bundle
from polyhead.bundle.format import LARGEST_JSON
from polyhead.bundle.live_versions import Probe
from polyhead.bundle.manifest import Live, TaskRecord
from polyhead.bundle.read import Bundle
from polyhead.engine.backends import BACKENDS, default_backend
from polyhead.engine.backends.base import ChangingBackend
from polyhead.engine.backends.graph import GraphBackend
from polyhead.engine.batch import FIXED_ROWS, TOKEN_STEP
from polyhead.engine.compile.heads import room_for
from polyhead.engine.compile.state_cache import StateCache
from polyhead.engine.session import Session
from polyhead.errors import BundleError, CorruptFile, PolyheadError
from polyhead.files import replace_file
from polyhead.machine import processor
from polyhead.plan import TRUNK, Path
from polyhead.tasks.agreement import Agreement, AnswerChange, agreement_of, says_the_same, without_scores
from polyhead.tasks.kinds import kind_of
from polyhead.text.question import texts_of
from polyhead.values import Value, from_json, to_json

KEPT_ENCODINGS = 1024  # calls of the tokenizer; a bundle of 22 tasks has about 20
SHOWN = 80  # characters of a text of a probe that a certificate keeps


class ProbeRunner:
    """The tasks of one bundle, loaded when the first is asked, all that share a precision at once."""

    def __init__(
        self, bundle: Bundle, *, backend: str | None = None, before: ProbeRunner | None = None, kept_bytes: int = 0
    ) -> None:
        """`backend` None is `backend_here`. What `before` loaded and compiled of the same bundle is taken over.

        Then only tasks whose arrays on disk are others are compiled anew; `before` answers no more. Of each precision
        up to `kept_bytes` of what layers made of probes are kept, so that layers run once for a probe, and those that
        `store` has stored are taken; with any, tokens of probes are kept too.
        """
        self.bundle = bundle
        self.backend = backend or backend_here()
        self._sessions: dict[str, Session] = {}
        self._before: dict[str, Session] = {}
        self._kept_bytes = kept_bytes
        if before is not None and before.backend == self.backend:
            self._before = before._before | before._sessions
            before._before, before._sessions = {}, {}

    def drop_unread(self) -> None:
        """Forgets what layers made of probes that were not asked since the last call of this."""
        for kept in self._kept():
            kept.drop_unread()

    def forget(self) -> bool:
        """Forgets all states kept of probes, and keeps none from now on; returns whether there were any."""
        self._kept_bytes, kept = 0, [states for states in self._kept() if states.size]
        for states in kept:
            states.forget()
        return bool(kept)

    def store(self) -> None:
        """Stores what layers made of probes for later processes, if this program keeps a folder for it."""
        for session in self._sessions.values():
            if isinstance(session.backend, GraphBackend):
                session.backend.store_states(self.bundle.root)

    def _kept(self) -> list[StateCache]:
        backends = [session.backend for session in self._sessions.values()]
        return [cache for b in backends if isinstance(b, GraphBackend) and (cache := b.state_cache) is not None]

    def answered(self, names: Iterable[str]) -> dict[str, ProbeAnswers]:
        """Digests of each task's answers to its own probes."""
        probes = {name: readable_probes(self.bundle, name) for name in names}
        outputs: dict[str, list[np.ndarray]] = dict.fromkeys(probes, [])
        by_precision: dict[str, dict[str, list[Probe]]] = {}
        for name, pinned in probes.items():
            if pinned:
                by_precision.setdefault(self._precision(self.bundle.tasks[name]), {})[name] = pinned
        for precision, pinned_by_task in by_precision.items():
            outputs |= probe_outputs(self._session(precision), pinned_by_task)
        return {name: self._answered(name, outputs[name]) for name in probes}

    def answers(self, name: str, probes: Sequence[Probe]) -> list[dict[str, Any] | None]:
        """The task's decoded answers without their scores; None where it cannot read the probe."""
        return probe_results(self._session(self._precision(self.bundle.tasks[name])), name, probes)

    def _answered(self, name: str, outputs: Sequence[np.ndarray]) -> ProbeAnswers:
        line, total = self.bundle.lines[name], hashlib.sha256()
        for output in outputs:
            total.update(f"{output.dtype.str}\0{output.shape}\0".encode())
            total.update(output.tobytes())
        digest = total.hexdigest() if outputs else ""
        return ProbeAnswers(version=line.version, record=line.record, probes=len(outputs), sha256=digest)

    def _precision(self, record: TaskRecord) -> str:
        return precision_here(record, self.backend)

    def _session(self, precision: str) -> Session:
        if precision not in self._sessions:
            records = self.bundle.tasks
            lines = {n: self.bundle.lines[n] for n, record in records.items() if self._precision(record) == precision}
            self.bundle.trunk()  # once for all precisions
            view, session = self.bundle.view(lines), self._before.pop(precision, None)
            if session is None or not isinstance(session.backend, ChangingBackend):
                session = Session(view, backend=self.backend, precision=precision, deterministic=True)
                if isinstance(session.backend, GraphBackend):
                    session.backend.keep_states(self.bundle.root, self._kept_bytes)
            else:
                session.follow(view)
            if isinstance(session.backend, GraphBackend):
                session.backend.ready()
            if self._kept_bytes:
                session.tokenizer.most_kept = KEPT_ENCODINGS
            self._sessions[precision] = session
        return self._sessions[precision]


def readable_probes(bundle: Bundle, name: str) -> list[Probe]:
    """The task's pinned probes that fit it; raises CorruptFile for a line that is no probe."""
    probes = []
    for line in bundle.probes(name):
        try:
            probe = msgspec.convert(line, Probe)
        except msgspec.ValidationError as error:
            fault = f"a probe of task '{name}' cannot be read"
            raise CorruptFile(fault, got=error, allowed="`text`, a list of texts", do="train the task again") from None
        if probe.fits(bundle.tasks[name].task):
            probes.append(probe)
    return probes


def probe_outputs(session: Session, probes: Mapping[str, Sequence[Probe]]) -> dict[str, list[np.ndarray]]:
    """Each task's outputs for its own probes, in their order; the session must be deterministic.

    Tasks that are read alike are asked together. In deterministic mode a row's bits depend neither
    on its batch mates nor on what else is asked, so they are those of `Session.outputs`.
    """
    assert session.deterministic
    by_task: dict[str, dict[Probe, np.ndarray]] = {name: {} for name in probes}
    for names in _read_alike(session, probes):
        for requested, group in _asked_alike(session, {name: probes[name] for name in names}):
            columns = session.columns([probe.input for probe in group], tasks=requested, words=_words(group))
            numbers = {probe: number for number, probe in enumerate(group)}
            for name in requested:
                by_number, column = {numbers[probe]: probe for probe in probes[name] if probe in numbers}, columns[name]
                if failed := by_number.keys() & column.errors.keys():
                    raise column.errors[min(failed)]
                places = dict(zip(column.rows.tolist(), column.outputs, strict=True))
                by_task[name] |= {probe: places[number] for number, probe in by_number.items()}
    return {name: [by_task[name][probe] for probe in task_probes] for name, task_probes in probes.items()}


def probe_results(session: Session, name: str, probes: Sequence[Probe]) -> list[dict[str, Any] | None]:
    """A session's answers of a task without their scores; None where it cannot read the probe."""
    results = session.predict([probe.input for probe in probes], tasks=[name], words=_words(probes))
    return [without_scores(result.answers[name]) if name in result.answers else None for result in results]


def changes(
    probes: Sequence[Probe], before: Sequence[dict[str, Any] | None], after: Sequence[dict[str, Any] | None]
) -> tuple[AnswerChange, ...]:
    """The probes that an old and a new version of a task answer differently."""
    return tuple(
        AnswerChange(texts=tuple(map(_line, texts_of(probe.input))), before=old, after=new)
        for probe, old, new in zip(probes, before, after, strict=True)
        if not says_the_same(old, new)
    )


def numerics_label() -> dict[str, str]:
    """The label of how outputs are computed here: facts that may change their bits although every file is the same."""
    backend = backend_here()
    precision = "as trained" if has_bfloat16(backend) else "float32"
    label = {"backend": backend, "precision": precision, "deterministic": "yes"}
    shapes = f"{FIXED_ROWS} rows, tokens in steps of {TOKEN_STEP}, words no fewer"
    label |= {"shapes": shapes, "polyhead": __version__}
    return label | BACKENDS[backend].label() | {"processor": processor().label}


def backend_here() -> str:
    """The backend that proves: the fastest that is installed."""
    return default_backend()


@functools.cache
def has_bfloat16(backend: str) -> bool:
    """Whether the backend can run a trunk in bfloat16 on this processor."""
    return BACKENDS[backend].has_bfloat16


def precision_here(record: TaskRecord, backend: str) -> str:
    """bfloat16 if the task was trained on a trunk in it, and the backend has it; else float32, also for int8."""
    return "bfloat16" if recorded_precision(record) == "bfloat16" and has_bfloat16(backend) else "float32"


def recorded_precision(record: TaskRecord) -> str:
    """The precision of the trunk that the task was trained on; float32 if none is recorded."""
    label = record.trained_with.get("numerics")
    return str(label.get("precision", "float32")) if isinstance(label, dict) else "float32"


def _line(text: str) -> str:
    """A text of a probe on one line, cut."""
    joined = " ".join(text.split())
    return joined if len(joined) <= SHOWN else joined[: SHOWN - 1] + "…"


def _read_alike(session: Session, names: Iterable[str]) -> Iterable[list[str]]:
    """Groups of tasks that read the same encodings of an input and run the same layers.

    Those that read the trunk's layers alone stand together, and the tasks of one prompt group. One with layers of its
    own is asked by itself: a call runs the layers and prompts of all its tasks over all its inputs.
    """
    groups: dict[tuple[object, ...], list[str]] = {}
    for name in names:
        task, path = session.records[name].task, session.records[name].path
        is_own = any(node.weights != TRUNK or node.delta for node in path.layers)
        layers = name if is_own else path.embed if path.embed.prompts else None
        groups.setdefault((layers, task.pair, task.long_texts, task.ends, kind_of(task).per_option), []).append(name)
    return groups.values()


def _asked_alike(session: Session, probes: Mapping[str, Sequence[Probe]]) -> Iterator[tuple[list[str], list[Probe]]]:
    """The probes of each call and the tasks to request: those of the probes, and those whose heads share their graphs.

    So no head is computed for the probes of all others. Single texts whose tasks have heads of the same graphs are a
    call; if a probe is a pair or a task reads windows, all probes are one call.
    """
    inputs = dict.fromkeys(probe for task_probes in probes.values() for probe in task_probes)
    forms = {name: _form(session.records[name].path) for name in probes}
    if any(len(texts_of(probe.input)) > 1 for probe in inputs) or any(
        session.records[name].task.long_texts == "windows" for name in probes
    ):
        yield list(probes), list(inputs)
        return
    of_probe: dict[Probe, set[tuple[object, ...]]] = {probe: set() for probe in inputs}
    for name, task_probes in probes.items():
        for probe in task_probes:
            of_probe[probe].add(forms[name])
    alike: dict[frozenset[tuple[object, ...]], list[Probe]] = {}
    for probe, wanted in of_probe.items():
        alike.setdefault(frozenset(wanted), []).append(probe)
    for requested, group in alike.items():
        yield [name for name in probes if forms[name] in requested], group


def _form(path: Path) -> tuple[object, ...]:
    """Equal for tasks whose poolers and heads are one graph, which computes all or none; others may be too."""
    pool, head = path.pool, path.head
    return (
        msgspec.structs.replace(pool, part=None if pool.part is None else ""),
        head.hidden,
        head.activation,
        head.norm,
        room_for(head.width),
    )


def _words(probes: Sequence[Probe]) -> list[np.ndarray | None]:
    return [None if probe.words is None else np.array(probe.words, np.int32).reshape(-1, 2) for probe in probes]


class ProbeAnswers(Value):
    """The bits of one task's outputs on its probes, in deterministic mode."""

    version: str
    record: str  # SHA-256 of task.json
    probes: int  # 0: the task has none, so nothing is proven of it
    sha256: str  # over type, shape and bytes of each probe's outputs, in the order of the probes; "" without any

    def is_of(self, line: Live) -> bool:
        """Whether these are answers of exactly this version."""
        return (self.version, self.record) == (line.version, line.record)


FILE = "agreements.json"


class Numerics(Value):
    """Numerics of answers; `calibration` is the digest of the scales of int8, `weight_bits` the width."""

    backend: str
    precision: str
    version: str = ""  # of the backend's library
    calibration: str = ""
    weight_bits: int | None = None  # of int8: 8, or 7 on processors whose sums of bytes saturate


class VersionAgreement(Value):
    """The agreement of one version of a task, with its `answers_digest`."""

    answers: str = msgspec.field(name="record")
    agreement: Agreement


class Agreements(Value):
    """Digests of answers to pinned probes under `numerics_label` and under the numerics of each task's training."""

    numerics: Numerics
    tasks: dict[str, VersionAgreement] = {}

    @property
    def agreements(self) -> dict[str, Agreement]:
        """By task."""
        return {name: measured.agreement for name, measured in self.tasks.items()}


class _File(Value):
    agreements: tuple[Agreements, ...] = ()


def numerics_of(session: Session) -> Numerics:
    """Numerics of a session as its backend was opened, regardless of later files next to the bundle."""
    backend = session.backend
    return Numerics(
        backend=backend.name,
        precision=backend.precision,
        version=backend.version,
        calibration=backend.calibration,
        weight_bits=backend.weight_bits,
    )


def on_probes(trained: ProbeRunner, session: Session, name: str) -> Agreement | None:
    """Agreement of a session's answers to a task's pinned probes with those of the task as it was trained."""
    probes = readable_probes(trained.bundle, name)
    pairs = zip(trained.answers(name, probes), probe_results(session, name, probes), strict=True)
    answered = [(old, new) for old, new in pairs if old is not None and new is not None]
    return agreement_of(trained.bundle.tasks[name].task, answered)


def read_agreements(bundle: Bundle) -> list[Agreements]:
    """Measurements of the live versions; raises CorruptFile for a file that cannot be read."""
    live_agreements = []
    for entry in _read(bundle.root).agreements:
        live = {n: m for n, m in entry.tasks.items() if n in bundle.lines and bundle.has_answers(n, m.answers)}
        if live:
            live_agreements.append(msgspec.structs.replace(entry, tasks=live))
    return live_agreements


def keep_agreements(bundle: Bundle, numerics: Numerics, agreements: dict[str, Agreement]) -> None:
    """Writes measurements, in place of earlier ones of the same backend, precision and width."""
    tasks = {n: VersionAgreement(answers=bundle.answers_digest(n), agreement=agreements[n]) for n in agreements}
    with writing_bundle(bundle.root, "agreements cannot be kept"):
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
            f"{path} cannot be read", got=error, do="delete it, and measure with `polyhead tasks agree`", path=path
        ) from None
