"""A loaded bundle that answers: every requested task of an input with one pass of the trunk."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path as FilePath

import numpy as np

from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.read import Bundle
from polyhead.engine.backends import open_backend
from polyhead.engine.backends.base import LiveBackend
from polyhead.engine.call import Asked, Call, Reader
from polyhead.engine.changes import Changes, checked, difference, loaded, trained_precision
from polyhead.engine.columns import Column, Columns, Result
from polyhead.engine.gather import Outputs
from polyhead.engine.graph.ops import Runtime
from polyhead.engine.inputs import AnyInput, why_not
from polyhead.engine.live import Gate, Live, Loaded
from polyhead.engine.quantize.files import scales_for
from polyhead.engine.receipts import Receipt
from polyhead.engine.rows import Batch, Readings
from polyhead.engine.stream import Early, Stream
from polyhead.engine.summaries import Summaries
from polyhead.errors import BackendError, BadValue
from polyhead.plan import Plan
from polyhead.tasks.task import Task
from polyhead.text.tokenise import Tokeniser

__all__ = ["Changes", "Column", "Columns", "Early", "Receipt", "Result", "Session", "Stream"]


class Session:
    """A bundle opened for answering. Tasks are an argument of every call; there is no active task.

    `backend` is one of `engine.backends.BACKENDS`, or a runtime; None takes the fastest that is installed. `precision`
    is that of the trunk; None takes the one the tasks were trained with, where this machine has it. In deterministic
    mode every batch has the same shapes, so that a row's answer is the same bits whatever its batch mates are.

    Several threads may call it at once, also while tasks come and go.
    """

    def __init__(
        self,
        bundle: Bundle | FilePath | str,
        *,
        backend: str | Runtime | None = None,
        precision: str | None = None,
        deterministic: bool = False,
    ) -> None:
        self.bundle = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
        trunk = self.bundle.trunk()
        self.deterministic, self._precision = deterministic, precision
        tasks = {name: loaded(self.bundle, name) for name in self.bundle.tasks}
        self.backend = open_backend(
            backend,
            trunk,
            {name: one.task for name, one in tasks.items()},
            precision=precision,
            trained=None if precision else trained_precision(self.bundle.tasks),
            scales=partial(scales_for, self.bundle),
            deterministic=deterministic,
        )
        self.tokeniser = Tokeniser(trunk.tokenizer, trunk.settings)
        self.shape, self.settings = trunk.architecture, trunk.settings
        summaries = Summaries(self.bundle, deterministic=deterministic)
        self._live = Live(tasks, summaries, self.shape)
        self._gate, self._changing = Gate(), threading.Lock()

    def predict(
        self,
        inputs: Sequence[AnyInput | str],
        *,
        tasks: Iterable[str] | None = None,
        words: Sequence[np.ndarray | None] | None = None,
        deadline: float | None = None,
    ) -> list[Result]:
        """One result an input, in order. `tasks` asks for some; None for all that fit.

        An input is a text, a pair of texts, a `Passage` (a question and its context, for span tasks alone) or a
        `Question` with options. `words` gives an input's own words (words, 2), in characters, for tagging; without it
        words are found. After `deadline` seconds no further layer is begun, and results name the tasks that are late.

        A task that fails is named in the results and stops no other; where no task has any answer, its error is raised.
        """
        return self.columns(inputs, tasks=tasks, words=words, deadline=deadline).results()

    def columns(
        self,
        inputs: Sequence[AnyInput | str],
        *,
        tasks: Iterable[str] | None = None,
        words: Sequence[np.ndarray | None] | None = None,
        deadline: float | None = None,
    ) -> Columns:
        """The same answers as arrays, a column a task: for many inputs, without a Python value for each."""
        with self._gate.call():
            return self._call(inputs, tasks, words, deadline).run()

    def stream(
        self,
        inputs: Sequence[AnyInput | str],
        *,
        tasks: Iterable[str] | None = None,
        words: Sequence[np.ndarray | None] | None = None,
        deadline: float | None = None,
    ) -> Stream:
        """The same answers, each task's as soon as it is known; work goes on when the next is asked for."""
        return Stream(self._call(inputs, tasks, words, deadline), self._gate, lambda: self._live)

    def outputs(
        self, task: str, inputs: Sequence[AnyInput], *, words: Sequence[np.ndarray | None] | None = None
    ) -> list[np.ndarray]:
        """The task's outputs (logits) for each input, windows merged: what metrics are computed from."""
        live = self._live
        live.asked([task])
        if task in live.summaries.tasks:
            return live.summaries.outputs(task, inputs)
        with self._gate.call():
            call = Call(self._reader, self._live, Asked(inputs=inputs, tasks=(task,), words=words))
            column = call.run()[task]
        for index, given in enumerate(inputs):
            if index in column.skipped:
                raise BadValue(
                    f"task '{task}' has no output for input {index}",
                    got=why_not(column.task, given),
                    do="leave that input out",
                )
        if (error := call.error(task)) is not None:
            raise error
        return list(column.outputs)

    def outputs_together(self, readings: Sequence[Readings]) -> dict[str, Outputs]:
        """Outputs of these readings, batched in common: all tasks of a batch run over all its rows."""
        live, found = self._live, self._reader.gathered(readings, self._live)
        with self._gate.call():
            for batch in self.batches(readings):
                names = (task for part in batch.parts for task in readings[part.readings].tasks)
                found.add(batch, self.backend.run(live.plan(dict.fromkeys(names)), batch.tokens))
            return {task: found.of(task) for task in found.tasks}

    def batches(self, readings: Sequence[Readings]) -> Iterable[Batch]:
        """The batches of all these readings together."""
        return self._reader.batches(readings)

    def attach(
        self,
        record: TaskRecord,
        arrays: Mapping[str, np.ndarray],
        *,
        others: Mapping[str, Mapping[str, np.ndarray]] | None = None,
    ) -> None:
        """Makes a task answerable, or replaces it; `others` are the arrays that its path reads of other owners.

        Nothing is written; for what a bundle holds see `refresh`. Calls that run meanwhile answer as before, those that
        begin later have the task; a task is replaced when no call runs, and calls wait for that moment. Raises
        WrongTrunk for a task of another trunk, WeightsMismatch for arrays that are not its path's.
        """
        task = checked(record, arrays, others or {}, trunk=self.bundle.digest, shape=self.shape)
        with self._changing:
            self._change({**self._live.loaded, record.task.name: task}, self._live.summaries)

    def detach(self, name: str) -> None:
        """Forgets a task that reads the trunk, when no call runs; nothing is written. Raises UnknownTask."""
        with self._changing:
            self._live.asked([name])
            rest = {other: task for other, task in self._live.loaded.items() if other != name}
            self._change(rest, self._live.summaries)

    def refresh(self) -> Changes:
        """Reads bundle.json again, and attaches, replaces and detaches what changed since the session last read it.

        Tasks that did not change stay as they are, to the bit in deterministic mode. Where anything cannot be read or
        loaded, nothing changes and the error is raised.
        """
        with self._changing:
            bundle = Bundle.open(self.bundle.root)
            changes, tasks = difference(self.bundle, bundle), dict(self._live.loaded)
            if self._precision is None:
                trained_precision(bundle.tasks)
            for name in changes.detached:
                tasks.pop(name, None)
            for name in (*changes.attached, *changes.replaced):
                tasks[name] = loaded(bundle, name)
            self._change(tasks, self._live.summaries.refreshed(bundle))
            self.bundle = bundle
            return changes

    def refresh_behind(self) -> Future[Changes]:
        """The same in a thread of its own: calls go on meanwhile."""
        done: Future[Changes] = Future()

        def run() -> None:
            try:
                done.set_result(self.refresh())
            except BaseException as error:  # it is raised where the result is asked for
                done.set_exception(error)

        threading.Thread(target=run, name="polyhead-refresh", daemon=True).start()
        return done

    def _change(self, tasks: Mapping[str, Loaded], summaries: Summaries) -> None:
        """Answers these tasks from now on."""
        before, backend = self._live.loaded, self.backend
        if not isinstance(backend, LiveBackend):
            raise BackendError(
                f"the {backend.name} backend cannot change its tasks", do="open a new session on the bundle"
            )
        wanted = {name: one.task for name, one in tasks.items()}
        live = Live(tasks, summaries, self.shape)
        if all(
            tasks.get(name) is one for name, one in before.items()
        ):  # some came, and no call can miss them
            backend.replace(wanted)
            self._live = live
            return
        with self._gate.change():
            backend.replace(wanted)
            self._live = live

    @property
    def records(self) -> Mapping[str, TaskRecord]:
        """The records of all tasks that read the trunk, by name."""
        return self._live.records

    @property
    def summaries(self) -> Summaries:
        """The tasks that own their models."""
        return self._live.summaries

    @property
    def tasks(self) -> dict[str, Task]:
        """Every task that can be asked: those that read the trunk, then those that own their models."""
        return self._live.tasks

    def plan(self, tasks: Iterable[str]) -> Plan:
        """The merged plan of these tasks."""
        return self._live.plan(tasks)

    def asked(self, tasks: Iterable[str] | None) -> tuple[str, ...]:
        """The tasks that a call with this argument answers, each once; None asks for all. Raises UnknownTask."""
        return self._live.asked(tasks)

    @property
    def _reader(self) -> Reader:
        return Reader(self.backend, self.tokeniser, self.settings, self.deterministic)

    def _call(
        self,
        inputs: Sequence[AnyInput | str],
        tasks: Iterable[str] | None,
        words: Sequence[np.ndarray | None] | None,
        deadline: float | None,
    ) -> Call:
        live, some = self._live, None if tasks is None else tuple(tasks)
        given: list[AnyInput] = [(text,) if isinstance(text, str) else text for text in inputs]
        asked = Asked(
            inputs=given,
            tasks=live.asked(some),
            required=some is not None,
            words=words,
            deadline=deadline,
        )
        return Call(self._reader, live, asked)
