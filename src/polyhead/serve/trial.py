"""Trying tasks before any caller sees them: warm-up texts, stored probes, and whether others answer as before."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np

from polyhead.bundle.live_versions import Probe
from polyhead.bundle.read import Bundle
from polyhead.certify import ProbeAnswers, numerics_label
from polyhead.certify.certificate import Ledger
from polyhead.engine.answers import AnswerTable
from polyhead.engine.inputs import input_type_of, input_types_of
from polyhead.engine.loaded import LoadedTasks
from polyhead.engine.probes import backend_here, precision_here, readable_probes
from polyhead.engine.request import Request
from polyhead.engine.session import Session
from polyhead.errors import BackendError, IsolationError, PolyheadError
from polyhead.plan import TRUNK, Embed
from polyhead.serve.event_loop import ALONE, Pace
from polyhead.serve.http import replaced
from polyhead.tasks.kinds import kind_of
from polyhead.text.batch import LINES
from polyhead.text.question import Question, TaskInput
from polyhead.text.tokenize import Tokenizer

CHANGED = 16  # probes of a changed task; in deterministic mode it is asked all, whose digest its certificate has
UNCHANGED = 2  # probes of any other task: they show which numbers it reads; its certificate was made of all
BUILT_IN: tuple[TaskInput, ...] = (
    ("where is my order number 12, and when will it be here?",),
    ("when did the parcel come?", "The parcel was late. It came on Monday."),
    Question(text="when did the parcel come?", options=("on Monday", "never"), context="It came on Monday."),
)
Element = TypeVar("Element")


def built_in(loaded: LoadedTasks, names: Iterable[str]) -> dict[str, list[Probe]]:
    """For each of these tasks the built-in inputs that it reads."""
    return {
        name: [Probe.of(each) for each in BUILT_IN if input_type_of(each) in input_types_of(loaded.tasks[name])]
        for name in names
    }


def trial_outputs(
    loaded: LoadedTasks, probes: Mapping[str, Sequence[Probe]], pace: Pace = ALONE, *, beside: Sequence[str] = ()
) -> dict[str, list[np.ndarray]]:
    """Each task's outputs for its own probes, in their order; raises the error of a task that fails on one.

    Tasks that read alike are run together. Those that use the trunk alone are run with the tasks `beside`, so that the
    combinations that callers request are compiled now. Tasks that write give each text as an array of one string.
    """
    by_task: dict[str, list[np.ndarray]] = {}
    for names in _read_alike(loaded, probes):
        together = list(names)
        if _added_to_trunk(loaded, names[0]) is None:
            among = {*names, *(name for name in beside if _added_to_trunk(loaded, name) is None)}
            together = [name for name in loaded.tasks if name in among]
        inputs = list(dict.fromkeys(probe for name in names for probe in probes[name]))
        known: dict[str, dict[Probe, np.ndarray]] = {name: {} for name in names}
        while inputs:
            size = pace.at_once
            requested, inputs = inputs[:size], inputs[size:]
            words = [None if p.words is None else np.array(p.words, np.int32).reshape(-1, 2) for p in requested]
            request = Request(loaded, [probe.input for probe in requested], together, words=words)
            with pace.one_pass():
                columns = _columns(request, loaded)
            for name in names:
                column = columns[name]
                for error in (error for row, error in column.errors.items() if requested[row] in probes[name]):
                    if isinstance(error, PolyheadError):
                        raise error
                    problem = f"task '{name}' fails on an input that it must answer"
                    raise BackendError(problem, got=type(error).__name__, task=name) from error
                known[name] |= dict(zip((requested[row] for row in column.rows.tolist()), column.outputs, strict=True))
        for name in names:
            by_task[name] = [known[name][probe] for probe in probes[name] if probe in known[name]]
    return {name: by_task[name] for name in probes}


def _columns(request: Request, loaded: LoadedTasks) -> AnswerTable:
    """All answers; where every task failed, each says so."""
    try:
        return request.run(loaded)
    except Exception:
        columns = request.columns()
        if not any(column.errors for column in columns.tasks.values()):
            raise
        return columns


def _read_alike(loaded: LoadedTasks, names: Iterable[str]) -> Iterable[list[str]]:
    """Tasks that make the same of an input, and run the same layers."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for name in names:
        task = loaded.tasks[name]
        key = (_added_to_trunk(loaded, name), task.pair, task.long_texts, kind_of(task).per_option)
        groups.setdefault(key, []).append(name)
    return groups.values()


def _added_to_trunk(loaded: LoadedTasks, name: str) -> str | Embed | None:
    """None for a task that runs only the trunk, its prompts, or its name if it has its own layers."""
    record = loaded.records[name]
    if any(node.weights != TRUNK or node.delta for node in record.path.layers):
        return name
    return record.path.embed if record.path.embed.prompts else None


def pinned(bundle: Bundle, name: str, *, most: int | None = None) -> list[Probe]:
    """The probes of a task of the bundle, or `most` of them, spread over all."""
    probes = readable_probes(bundle, name)
    return probes if most is None else probes[:: max(1, -(-len(probes) // most))]


def check_new(
    loaded: LoadedTasks, session: Session, names: Sequence[str], *, pace: Pace, beside: Sequence[str]
) -> None:
    """Raises the error of a new task that cannot answer built-in inputs or 16 of its probes with finite numbers.

    In deterministic mode it must answer all of its probes, as its certificate says where that was made under these
    numerics: the same backend and precision on this machine. Raises IsolationError where it does not.
    """
    bundle, backend = session.bundle, session.backend
    reading = [name for name in names if name in loaded.records]
    requested = built_in(loaded, names)
    trial_outputs(loaded, requested, pace, beside=beside)
    probes = {name: pinned(bundle, name, most=None if loaded.deterministic else CHANGED) for name in reading}
    outputs = trial_outputs(loaded, probes, pace, beside=beside)
    for name in reading:
        if len(outputs[name]) < len(probes[name]):
            raise BackendError(f"task '{name}' does not answer all of its probes", task=name)
    if not reading or not loaded.deterministic or backend.name != backend_here():
        return
    certified = Ledger(bundle.root).find({name: bundle.lines[name] for name in reading}, numerics_label())
    for name, (answered, certificate) in certified.items():
        if answered.probes and precision_here(loaded.records[name], backend.name) == backend.precision:
            _check_digest(name, outputs[name], answered, certificate.name)


def _check_digest(name: str, outputs: Sequence[np.ndarray], answered: ProbeAnswers, certificate: str) -> None:
    total = hashlib.sha256()
    for output in outputs:
        total.update(f"{output.dtype.str}\0{output.shape}\0".encode())
        total.update(output.tobytes())
    if (len(outputs), total.hexdigest()) != (answered.probes, answered.sha256):
        raise IsolationError(
            f"task '{name}' answers its probes otherwise than {certificate} says",
            do="run `polyhead tasks verify` on the bundle",
            tasks=(name,),
        )


class Isolation:
    """Whether tasks that were left alone answer their probes as before a change; remembers what they answered."""

    def __init__(self, *, tolerance: float, pace: Pace = ALONE) -> None:
        """`tolerance` is the backend's, about the reference: two of its answers may differ by twice as much."""
        self._tolerance, self._pace = 2 * tolerance, pace
        self._known: dict[str, tuple[str, list[Probe], list[np.ndarray]]] = {}  # by task: its record's SHA-256, probes

    def check(
        self,
        old: LoadedTasks,
        new: LoadedTasks,
        bundle: Bundle,
        changed: Iterable[str],
        *,
        requested: Callable[[LoadedTasks], Sequence[str]],
    ) -> None:
        """Raises IsolationError with the tasks outside `changed` whose answers differ.

        In deterministic mode every bit counts, else the tolerance, within which texts that tasks write may differ.
        Hidden tasks are not compared. `requested` gives the tasks of usual requests, as `beside` of `trial_outputs`.
        """
        apart = {*changed, *new.hidden}
        kept = [name for name in new.records if name in old.records and name in bundle.lines and name not in apart]
        self._learn(old, bundle, kept, beside=requested(old))
        after = trial_outputs(new, {name: self._known[name][1] for name in kept}, self._pace, beside=requested(new))
        differing = [name for name in kept if not self._is_same(self._known[name][2], after[name], new.deterministic)]
        if differing:
            raise IsolationError(
                "tasks that were left alone would answer their probes otherwise",
                got=differing,
                do="run `polyhead tasks verify` on the bundle",
                tasks=tuple(differing),
            )
        self._known = {name: self._known[name] for name in kept}

    def _learn(self, old: LoadedTasks, bundle: Bundle, names: Sequence[str], *, beside: Sequence[str]) -> None:
        """Computes the answers of tasks that have none stored."""
        records = {name: bundle.lines[name].record for name in names}
        unknown = {
            name: pinned(bundle, name, most=UNCHANGED)
            for name in names
            if name not in self._known or self._known[name][0] != records[name]
        }
        for name, outputs in trial_outputs(old, unknown, self._pace, beside=beside).items():
            self._known[name] = (records[name], unknown[name], outputs)

    def _is_same(self, before: Sequence[np.ndarray], after: Sequence[np.ndarray], is_exact: bool) -> bool:
        if len(before) != len(after):
            return False
        if is_exact:
            return all(a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in zip(before, after, strict=True))
        return all(
            # A word that is not read has NaN.
            a.shape == b.shape and np.allclose(a, b, rtol=0.0, atol=self._tolerance, equal_nan=True)
            for a, b in zip(before, after, strict=True)
            if a.dtype.kind != "U"
        )


def without_paths(error: BaseException, places: Mapping[str, str]) -> str:
    """An error in words, with no path of this machine: `places` are paths and what stands for them."""
    text = str(error) if isinstance(error, PolyheadError) else f"{type(error).__name__}"
    return replaced(text, places)


WORD = "a"  # one token of most vocabularies
BESIDE = 5  # texts of a row: more than poolers and heads take as few
LARGER = ((8, 64), (32, 12), (64, 8))  # batches of several rows, no larger than is quick: texts, tokens of each


def every_shape(tokenizer: Tokenizer) -> Iterator[list[str]]:
    """One row of every size, of one text or a few; then batches of several rows, of shorter and longer texts."""
    for size in LINES:
        yield [_text(tokenizer, size)] if size <= tokenizer.max_tokens else [_text(tokenizer, size // 2)] * 2
        if size >= 8 * BESIDE:
            yield [_text(tokenizer, size // BESIDE)] * BESIDE
    for texts, tokens in LARGER:
        yield [_text(tokenizer, tokens)] * texts


def every_head(tokenizer: Tokenizer) -> Iterator[list[str]]:
    """The same for what poolers and heads run alone: fewer, since layers are prepared already, and none is large."""
    for size in (8, 12, 16, 24, 32, 48, 64):
        yield [_text(tokenizer, size)]
    yield [_text(tokenizer, 16)] * BESIDE


def _text(tokenizer: Tokenizer, tokens: int) -> str:
    """The longest text of this word that has at most so many tokens, special ones among them; one word at least."""
    least, most = 1, tokens
    while least < most:
        middle = (least + most + 1) // 2
        length = tokenizer.encodings([(" ".join([WORD] * middle),)]).lengths[0]
        least, most = (middle, most) if length <= tokens else (least, middle - 1)
    return " ".join([WORD] * least)
