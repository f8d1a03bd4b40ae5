"""A loaded bundle that answers: every requested task of an input with one pass of the trunk."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path as FilePath

import numpy as np

from polyhead.arguments import typed
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.read import Bundle
from polyhead.codecs import EXACT
from polyhead.engine.answers import AnswerColumn, AnswerTable, Result
from polyhead.engine.backends import open_backend
from polyhead.engine.backends.base import ChangingBackend, LoadedTask, ProcessGuard, runner_of
from polyhead.engine.compile.ops import Runtime
from polyhead.engine.familiar import KnownTask, NoneBelow, check_none_below, is_wanted, known_tasks
from polyhead.engine.inputs import Inputs, Words
from polyhead.engine.loaded import (
    Changes,
    LoadedTasks,
    bundle_changes,
    check_task,
    loaded,
    shown_tasks,
    trained_precision,
    warn_of_precision,
    word_weights_of,
)
from polyhead.engine.receipt import Receipt
from polyhead.engine.request import Request, Stream, TaskResults
from polyhead.engine.scale_files import scales_for, warn_of, warn_of_attached
from polyhead.errors import BackendError, BadValue
from polyhead.plan import Codec, Embed, Head, Path, Plan, Pool, shared_layers
from polyhead.tasks.calibration import Wishes
from polyhead.tasks.kinds import KINDS
from polyhead.tasks.task import Task, owner_of
from polyhead.text.tokenize import Tokenizer

__all__ = ["Changes", "AnswerColumn", "AnswerTable", "TaskResults", "Receipt", "Result", "Session", "Stream"]


class Session:
    """A bundle opened for answering. Tasks are an argument of every call; there is no active task.

    `backend` is one of `engine.backends.BACKENDS`, or a runtime; None is `engine.backends.default_backend`. `precision`
    is that of the trunk; None takes the one the tasks were trained with, where this machine has it. A ready-made
    runtime has its own; another one raises BackendError. In deterministic mode every batch has the same shapes, so that
    a row's answer is the same bits whatever its batch mates are. With `streams` so many calls of several threads share
    the processors, where the backend can: for a server; else one call has all.

    Several threads may call it at once, also while tasks come and go: no call waits for a change, nor a change for one.
    After `os.fork()` it answers in the process that opened it; in the other one calls raise BackendError, unless the
    backend is `reference`.
    """

    @typed
    def __init__(
        self,
        bundle: Bundle | FilePath | str,
        *,
        backend: str | Runtime | None = None,
        precision: str | None = None,
        deterministic: bool = False,
        streams: int = 1,
    ) -> None:
        self.bundle = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
        trunk = self.bundle.trunk()
        if precision is None and backend is not None and not isinstance(backend, str):
            precision = backend.precision  # of a runtime that is ready made
        self.deterministic, self._precision = deterministic, precision
        self._trained = None if precision else trained_precision(self.bundle.tasks)
        self._arrays = {name: loaded(self.bundle, name) for name in self.bundle.tasks}
        self.backend = open_backend(
            backend,
            trunk,
            self._arrays,
            precision=precision,
            trained=self._trained,
            scales=partial(scales_for, self.bundle),
            deterministic=deterministic,
            streams=streams,
        )
        self.tokenizer = Tokenizer(trunk.tokenizer, trunk.settings)
        self.shape = trunk.architecture
        self._changing, self._home, self._hidden = threading.Lock(), ProcessGuard(self.backend), frozenset[str]()
        self._known, self._vectors, self._attaching = dict[str, KnownTask](), "", threading.Lock()
        self._now = self._with(self.bundle.tasks, self._arrays)

    def predict(
        self,
        inputs: Inputs,
        *,
        tasks: Iterable[str] | None = None,
        words: Words = None,
        deadline: float | None = None,
        calibrated: Wishes = True,
        familiar: bool = False,
        none_below: NoneBelow = None,
    ) -> list[Result]:
        """One result an input, in order. `tasks` asks for some; None for all that fit.

        An input is a text, a pair of texts, a `Passage` (a question and its context, for span tasks alone) or a
        `Question` with options. `words` gives an input's own words (words, 2), in characters, for tagging; without it
        words are found. After `deadline` seconds no further layers are begun, where those up to the next depth that a
        task reads run as one; results name the tasks that are late.
        Raises BadValue, with its number, for what is no input or words that do not lie in it.

        Answers of a calibrated task say under `calibrated` what that makes of them, beside label and scores, which stay
        as they are. `calibrated` False leaves it out; by a task's name it is False, or a `CalibrationChoice` of other
        thresholds or another coverage. Raises UnknownTask for a name of no task, BadValue for a task not asked or
        without that choice.

        With `familiar`, an answer of a task of one text whose bundle keeps rows says which share of these lies at least
        as far out as the text: 0.002 is as far out as 2 of 1,000. Below `none_below` (of all tasks, or by name; None:
        as each task says) it says `none_of_these`, beside label and scores. The mean vector that this takes comes from
        the same pass, which reads all layers of the trunk.

        A task that fails is named in the results and stops no other; where no task has any answer, and none is late,
        its error is raised.
        """
        names = None if tasks is None else self.loaded.task_names(tasks)

        def wants(now: LoadedTasks) -> bool:
            check_none_below(none_below, now.tasks, names)
            now.check_choices(calibrated, names)
            return wants_vectors(now, names, familiar=familiar, none_below=none_below)

        now, vectors = self._moment(wants)
        columns = Request(now, inputs, names, words=words, deadline=deadline, vectors=vectors).run(now)
        return columns.results(calibrated, familiar=familiar, none_below=none_below)

    def tells_familiar(
        self, tasks: Iterable[str] | None, *, familiar: bool = False, none_below: NoneBelow = None
    ) -> bool:
        """Whether any of these tasks reports how familiar a text is: on request, or for its own limit."""
        return wants_vectors(self.loaded, tasks, familiar=familiar, none_below=none_below)

    def columns(
        self,
        inputs: Inputs,
        *,
        tasks: Iterable[str] | None = None,
        words: Words = None,
        deadline: float | None = None,
        familiar: bool = False,
        raises: bool = True,
    ) -> AnswerTable:
        """The same answers as arrays, a column a task: for many inputs, without a Python value for each.

        Unless it `raises`, the error where no task has any answer stands in the table's `failure`.
        """
        now, vectors = self._moment(lambda now: familiar)
        return Request(now, inputs, tasks, words=words, deadline=deadline, vectors=vectors).run(now, raises=raises)

    def stream(
        self, inputs: Inputs, *, tasks: Iterable[str] | None = None, words: Words = None, deadline: float | None = None
    ) -> Stream:
        """The same answers, each task's as soon as it is known; later layers run when the next is requested."""
        now = self.loaded
        return Stream(Request(now, inputs, tasks, words=words, deadline=deadline), now)

    def outputs(self, task: str, inputs: Inputs, *, words: Words = None) -> list[np.ndarray]:
        """The task's outputs (logits) for each input, windows merged: what metrics are computed from."""
        now = self.loaded
        request = Request(now, inputs, [task], words=words)
        if unfit := request.unfit(task):
            row = min(unfit)
            raise BadValue(f"task '{task}' has no output for input {row}", got=unfit[row], do="leave that input out")
        column = request.run(now)[task]
        if (error := request.error(task)) is not None:
            raise error
        return list(column.outputs)

    @typed
    def attach(
        self,
        record: TaskRecord,
        arrays: Mapping[str, np.ndarray],
        *,
        others: Mapping[str, Mapping[str, np.ndarray]] | None = None,
        hidden: bool = False,
    ) -> None:
        """Makes a task answerable, or replaces it; `others` are the arrays that its path reads of other owners.

        Nothing is written; for what a bundle holds see `refresh`. Calls that run meanwhile answer as before, those that
        begin later have the task: where it is `hidden`, only those that ask for it by name. Raises WrongTrunk for a
        task of another trunk, WeightsMismatch for arrays that are not its path's.
        """
        self._home.check()
        with self._changing:
            now, name = self.loaded, record.task.name
            self._check_trained({name: record})
            task = check_task(record, arrays, others or {}, trunk=self.bundle.digest, shape=self.shape)
            hides = self._hidden | {name} if hidden else self._hidden - {name}
            self._change({**now.records, name: record}, {**self._arrays, name: task}, hidden=hides)
            if self.backend.precision == "int8" and not hidden:
                warn_of_attached(self.backend.name, name)

    @typed
    def detach(self, name: str) -> None:
        """Forgets a task; nothing is written, calls that run end as before. Raises UnknownTask."""
        self._home.check()
        with self._changing:
            now = self.loaded
            now.task_names([name])
            records = {other: record for other, record in now.records.items() if other != name}
            self._change(records, self._arrays)

    def refresh(
        self, check: Callable[[LoadedTasks, LoadedTasks, Changes], None] = lambda old, new, changes: None
    ) -> Changes:
        """Reads bundle.json again, and attaches, replaces and detaches what changed since the session last read it.

        Tasks that did not change stay as they are, to the bit in deterministic mode. `check` gets the tasks before and
        after, of which the latter no call has yet. Where it raises, or anything cannot be read or loaded, nothing
        changes and the error is raised.
        """
        self._home.check()
        with self._changing:
            bundle, now = Bundle.open(self.bundle.root), self.loaded
            changes = bundle_changes(self.bundle, bundle)
            self._check_trained(bundle.tasks)
            records = {name: record for name, record in now.records.items() if name not in changes.detached}
            changed = [name for name in (*changes.attached, *changes.replaced) if name in bundle.tasks]
            records |= {name: bundle.tasks[name] for name in changed}
            arrays = self._arrays | {name: loaded(bundle, name) for name in changed}
            self._change(records, arrays, bundle=bundle, check=lambda new: check(now, new, changes))
            if self.backend.precision == "int8":
                warn_of(bundle, self.backend.name, changed, scales=self.backend.calibration)
            return changes

    def follow(self, bundle: Bundle) -> None:
        """Replaces the tasks by those of another view of its bundle, read from the disk again; the trunk must be equal.

        Tasks with equal bits are not compiled again. Raises WrongTrunk, and the bundle's errors.
        """
        self._home.check()
        with self._changing:
            bundle_changes(self.bundle, bundle)
            arrays = {name: loaded(bundle, name) for name in bundle.tasks}
            self._change(bundle.tasks, arrays, bundle=bundle)

    def refresh_behind(self) -> Future[Changes]:
        """The same in a separate thread, while calls go on."""
        done: Future[Changes] = Future()

        def run() -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                done.set_result(self.refresh())
            except BaseException as error:  # it is raised where the result is asked for
                done.set_exception(error)

        threading.Thread(target=run, name="polyhead-refresh", daemon=True).start()
        return done

    def _moment(self, wants: Callable[[LoadedTasks], bool]) -> tuple[LoadedTasks, str | None]:
        """The tasks of now, and the hidden one of these that gives mean vectors, where they want it."""
        while wants(now := self.loaded):
            if (vectors := attached_vectors(self)) in now.tasks:
                return now, vectors
        return now, None

    def _check_trained(self, records: Mapping[str, TaskRecord]) -> None:
        """Warns of tasks that were trained in another precision than those with which the session was opened."""
        precision = None if self._precision else trained_precision(records)
        if precision not in (None, self._trained, self.backend.precision):
            warn_of_precision(records, precision, self.backend.precision)

    def _change(
        self,
        records: Mapping[str, TaskRecord],
        arrays: Mapping[str, LoadedTask],
        *,
        bundle: Bundle | None = None,
        hidden: frozenset[str] | None = None,
        check: Callable[[LoadedTasks], None] = lambda new: None,
    ) -> None:
        """Replaces the tasks for new calls; running calls end with the tasks they began with.

        If `check` of the new tasks raises, the old ones stay.
        """
        backend = self.backend
        if not isinstance(backend, ChangingBackend):
            raise BackendError(
                f"the {backend.name} backend cannot change its tasks", do="open a new session on the bundle"
            )
        arrays, before = {name: arrays[name] for name in records}, (self.bundle, self._hidden)
        backend.replace(arrays)
        try:
            self.bundle = self.bundle if bundle is None else bundle
            self._hidden = (self._hidden if hidden is None else hidden) & records.keys()
            new = self._with(records, arrays)
            check(new)
        except BaseException:
            self.bundle, self._hidden = before
            backend.replace(self._arrays)
            raise
        self._arrays, self._now = arrays, new

    def _with(self, records: Mapping[str, TaskRecord], arrays: Mapping[str, LoadedTask]) -> LoadedTasks:
        self._known = known_tasks(self.bundle, records, self._known)
        return LoadedTasks(
            records,
            runner_of(self.backend),
            self.tokenizer,
            shape=self.shape,
            deterministic=self.deterministic,
            versions=self._versions(records),
            hidden=self._hidden,
            known=self._known,
            word_weights=word_weights_of(arrays),
        )

    def _versions(self, records: Mapping[str, TaskRecord]) -> dict[str, str]:
        """The live version of every task that is as the bundle has it."""
        same = [name for name, record in records.items() if self.bundle.tasks.get(name) == record]
        return {name: self.bundle.version(name) for name in same}

    @property
    def loaded(self) -> LoadedTasks:
        """The tasks of this moment: what calls that begin now answer with, whatever comes and goes meanwhile."""
        self._home.check()
        return self._now

    @property
    def records(self) -> Mapping[str, TaskRecord]:
        """The records of all tasks, by name."""
        return self.loaded.records

    @property
    def tasks(self) -> dict[str, Task]:
        """Every task that is not hidden."""
        return shown_tasks(self.loaded)

    def arrays(self, name: str) -> LoadedTask:
        """The path and the arrays of a task. Raises UnknownTask."""
        self.loaded.task_names([name])
        return self._arrays[name]

    def plan(self, tasks: Iterable[str]) -> Plan:
        """The merged plan of these tasks."""
        return self.loaded.plan(tasks)

    def task_names(self, tasks: Iterable[str] | None) -> tuple[str, ...]:
        """The tasks that a call with this argument answers, each once; None asks for all. Raises UnknownTask."""
        return self.loaded.task_names(tasks)


def wants_vectors(
    now: LoadedTasks, tasks: Iterable[str] | None, *, familiar: bool = False, none_below: NoneBelow = None
) -> bool:
    """True if answers of these tasks need the mean vector of each text, to say how familiar it is (`is_wanted`)."""
    if not (familiar or none_below or now.limited):
        return False
    requested = {name: now.tasks[name] for name in now.task_names(tasks)}
    return is_wanted(now.known, requested, familiar=familiar, asked=none_below)


def attached_vectors(session: Session) -> str:
    """The hidden task that gives mean vectors: attached when it is first needed, then kept."""
    with session._attaching:
        if session._vectors not in session.loaded.hidden:
            session._vectors = attach_vectors(session)
        return session._vectors


def vector_path(trunk: str, depth: int, *, codec: str = EXACT) -> Path:
    """The path of the mean of a trunk's last states, without a head; `codec` is how it is kept."""
    pool = Pool(positions="mean", codec=Codec(name=codec))
    return Path(nodes=(Embed(trunk=trunk), *shared_layers(depth), pool))


def attach_vectors(session: Session) -> str:
    """Adds a hidden task whose output is the mean of the trunk's last states, float32 (width,); returns its name.

    Its head is the identity, so that nothing but the engine's usual path computes it. The mean is over all tokens of
    the text, special tokens included, as sentence-transformers pools; it is not normalized.
    """
    width, depth = session.shape.width, session.shape.layers
    # Any kind with an output a label serves: only raw outputs of hidden tasks are read.
    kind = next(known.name for known in KINDS.values() if known.scores == "sigmoid" and "labels" in known.uses)
    labels = tuple(str(number) for number in range(width))
    task = Task(name=f"vector-{secrets.token_hex(8)}", kind=kind, labels=labels)
    owner = owner_of(task)
    vector = vector_path(session.bundle.digest, depth)
    path = Path(nodes=(*vector.nodes, Head(kind=task.kind, width=width, part=owner)))
    arrays = {"head.output.weight": np.eye(width, dtype=np.float32), "head.output.bias": np.zeros(width, np.float32)}
    session.attach(TaskRecord(task=task, path=path, trunk=session.bundle.digest), arrays, hidden=True)
    return task.name
