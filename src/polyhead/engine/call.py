"""One call of a session: inputs read piece by piece, batch by batch and stage by stage, until all is done or late."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from time import monotonic

import msgspec
import numpy as np

from polyhead.config import Value
from polyhead.engine.backends.base import Runner, Stage, TokenBatch, forks
from polyhead.engine.columns import Column, Columns
from polyhead.engine.gather import Gathered, Outputs, not_finite
from polyhead.engine.inputs import (
    AnyInput,
    InputType,
    checked_deadline,
    checked_inputs,
    checked_words,
    input_types_of,
    why_not,
)
from polyhead.engine.loaded_tasks import LoadedTasks
from polyhead.engine.prepare import Piece, prepared
from polyhead.engine.process import ProcessGuard
from polyhead.engine.ragged import Ragged
from polyhead.engine.receipts import PassRecord, Receipt, Receipts
from polyhead.engine.rows import Batch, Readings, batched, forms_in
from polyhead.errors import MissingExtra, without_frames
from polyhead.plan import Plan
from polyhead.seq2seq.answer import missing
from polyhead.tasks.task import Answer
from polyhead.text.tokenize import Tokenizer
from polyhead.trunk.data import TextSettings

Stages = Callable[[Plan, TokenBatch], Iterator[Stage]]
"""How a batch is run: `Runner.stages`, or `Reader.stages`."""
WRITTEN = 8  # texts that a task which owns its model writes of between two looks at the clock


class Reader(msgspec.Struct, frozen=True):
    """The tasks of one moment and what computes them: a call that has it ends as it began, whatever changes."""

    roster: LoadedTasks
    backend: Runner
    tokenizer: Tokenizer
    settings: TextSettings
    deterministic: bool
    # The tasks of each plan of which one failed when it was last run.
    failing: set[tuple[str, ...]] = msgspec.field(default_factory=set)

    def batches(self, readings: Readings) -> Iterator[Batch]:
        """Batches of these readings."""
        return batched(
            readings,
            pad_id=self.tokenizer.pad_id,
            max_tokens=self.settings.max_tokens,
            deterministic=self.deterministic,
            width=self.roster.shape.width if self.backend.packs else None,
        )

    def stages(self, plan: Plan, batch: TokenBatch) -> Iterator[Stage]:
        """All at once, the fastest; where anything fails stage by stage, so that it fails alone.

        What failed before is run stage by stage at once, until it no longer fails.
        """
        outputs = None
        if not self.failing or plan.tasks not in self.failing:
            with suppress(Exception):
                outputs = self.backend.run(plan, batch)
        if outputs is not None:
            yield Stage(outputs=outputs, failed={}, layers_left=0)
            return
        self.failing.discard(plan.tasks)
        try:  # the error is gone by now, and what it kept in memory
            for stage in self.backend.stages(plan, batch):
                if stage.failed:
                    self.failing.add(plan.tasks)
                yield stage
        except Exception:
            self.failing.add(plan.tasks)
            raise

    def gathered(self, readings: Sequence[Readings]) -> Gathered:
        """What takes the outputs of these readings."""
        return Gathered(readings, self.roster.tasks, self.backend.compared, alone=self.deterministic)


class TaskResults(Value):
    """One task's answers to some inputs."""

    task: str
    answers: dict[int, Answer]  # by the number of the input
    layers_left: int  # that the batch would still run for other tasks; 0 where it is done


class Call:
    """What one call has answered so far. It does not keep what computes: `run` and `results` are given that."""

    def __init__(
        self,
        roster: LoadedTasks,
        inputs: Iterable[AnyInput | str],
        tasks: Iterable[str] | None,
        *,
        words: Iterable[np.ndarray | None] | None = None,
        deadline: float | None = None,
    ) -> None:
        """`tasks` None asks for all; raises UnknownTask, and BadValue for inputs, words or a deadline of another form.

        `words` are an input's own words, for tasks that answer each; `deadline` counts seconds from now.
        """
        self.roster, self.inputs = roster, checked_inputs(inputs)
        names = roster.asked(tasks)
        self._is_required = tasks is not None  # whether a task may not be left out for want of a package
        self._own_words, seconds = checked_words(words, self.inputs), checked_deadline(deadline)
        self._end = None if seconds is None else monotonic() + seconds
        self._names, self._writing = roster.summaries.apart(names)
        self._forms: list[InputType | None] = []
        self._repaired: dict[int, int] = {}
        self._ran: list[PassRecord] = []
        self._running: list[PassRecord] = []  # of a batch that is not done
        self._now: tuple[Gathered, int] | None = None  # of a piece that is not done, and its first input
        self._outputs: dict[str, list[Outputs]] = {name: [] for name in names}
        self._costs: dict[str, list[Receipt]] = {}
        self._lacking: set[str] = set()  # tasks for which a package is missing
        self._failed: dict[str, dict[int, Exception]] = {name: {} for name in names}

    @property
    def is_late(self) -> bool:
        """Whether the deadline has passed."""
        return self._end is not None and monotonic() >= self._end

    def run(self, reader: Reader) -> Columns:
        """Goes on to the end; raises the first failure where no task has any answer, and none is merely late."""
        for _ in self._steps(reader, reader.stages if self._end is None else reader.backend.stages, streams=False):
            pass
        failures = [error for failed in self._failed.values() for error in failed.values()]
        columns = self.columns()
        is_late = any(column.late for column in columns.tasks.values())
        if failures and not is_late and not any(map(self._answered, self._outputs)):
            raise failures[0]
        return columns

    def results(self, reader: Reader) -> Iterator[TaskResults]:
        """Goes on to the end, and gives what each stage brings: a task's answers, once for an input."""
        return self._steps(reader, reader.backend.stages, streams=True)

    def columns(self) -> Columns:
        """All that is answered by now; what is neither answered nor failed nor unfit is late."""
        size = len(self.inputs)
        rows: dict[InputType | None, list[int]] = {}
        for row, form in enumerate([*self._forms, *forms_in(self.inputs[len(self._forms) :])]):
            rows.setdefault(form, []).append(row)
        ran, repaired, costs = [*self._ran, *self._running], dict(self._repaired), dict(self._costs)
        written = {task: _joined(self._outputs[task]).rows.tolist() for task in costs}

        def receipts() -> Receipts:
            receipts = Receipts.of(ran, size, repaired)
            for task, rows in written.items():
                receipts = receipts.with_written(task, rows, costs[task])
            return receipts

        tasks = {task: self._column(task, rows) for task in (*self._names, *self._writing)}
        return Columns(self.inputs, tasks, receipts, flops=self.roster.flops)

    def error(self, task: str) -> Exception | None:
        """Why the task failed, where it did."""
        return next(iter(self._failed[task].values()), None)

    def _column(self, name: str, rows: Mapping[InputType | None, list[int]]) -> Column:
        task, inputs = self.roster.tasks[name], self.inputs
        skipped: dict[int, str] = {}
        for form, some in rows.items():
            if form not in input_types_of(task):
                skipped |= dict.fromkeys(some, why_not(task, inputs[some[0]]))
            elif name in self._lacking:
                skipped |= dict.fromkeys(some, f"it needs '{missing()}', which is not installed")
        outputs = _joined(self._known(name))
        failed = {row: without_frames(error) for row, error in self._failed[name].items()}
        late: list[int] = []
        if len(outputs.rows) + len(skipped) + len(failed) < len(inputs):
            known = {*outputs.rows.tolist(), *skipped, *failed}
            late = [row for row in range(len(inputs)) if row not in known]
        return Column(task, inputs, outputs, skipped=skipped, failed=failed, late=late)

    def _known(self, task: str) -> list[Outputs]:
        """All that is known by now, of a piece that is not done too."""
        known = self._outputs[task]
        if self._now is None or task in self._writing:
            return known
        gathered, start = self._now
        try:
            return [*known, _moved(gathered.of(task), start)]
        except Exception:  # halves of pairs that cannot be compared: told when the piece is done
            return known

    def _answered(self, task: str) -> bool:
        return any(len(outputs.rows) for outputs in self._outputs[task])

    def _steps(self, reader: Reader, stages: Stages, *, streams: bool) -> Iterator[TaskResults]:
        """Piece after piece, each stage by stage and then its end; where it `streams`, with the answers of each."""
        if self.is_late:  # before any text is tokenized
            return
        tasks = {name: self.roster.tasks[name] for name in self._names}
        for piece in prepared(self.inputs, tasks, reader.tokenizer, reader.settings, self._own_words):
            self._forms += piece.forms
            self._repaired |= piece.repaired
            yield from self._piece(reader, piece, stages, streams=streams)
            if self.is_late:
                return
        for task in self._writing:
            self._write(task)
            if streams:
                yield from (self._results(task, outputs, 0) for outputs in self._outputs[task])

    def _piece(self, reader: Reader, piece: Piece, stages: Stages, *, streams: bool) -> Iterator[TaskResults]:
        gathered = reader.gathered(piece.readings)
        self._now = (gathered, piece.start)
        for number, readings in enumerate(piece.readings):
            for batch in reader.batches(readings):
                if self.is_late:
                    break
                plan = self.roster.plan(readings.tasks)
                for stage in self._batch(readings, batch, piece.start, stages(plan, batch.tokens)):
                    gathered.add(batch, number, stage.outputs)
                    self._fail_not_finite(gathered, piece.start)
                    for task in filter(gathered.is_at_once, stage.outputs if streams else ()):
                        outputs = _moved(gathered.of(task, batch=batch), piece.start)
                        yield self._results(task, outputs, stage.layers_left)
        self._now = None
        for task in gathered.tasks:
            try:
                self._outputs[task].append(_moved(gathered.of(task), piece.start))
            except Exception as error:  # halves of pairs that could not be compared: no other task is touched
                self._outputs[task].append(Outputs(rows=np.zeros(0, np.int64), values=[]))
                self._fail(task, gathered.rows_of(task) + piece.start, error)
        self._fail_not_finite(gathered, piece.start)
        for task in gathered.tasks if streams else ():
            if not gathered.is_at_once(task) and len(self._outputs[task][-1].rows):
                yield self._results(task, self._outputs[task][-1], 0)

    def _results(self, task: str, outputs: Outputs, layers_left: int) -> TaskResults:
        column = Column(self.roster.tasks[task], self.inputs, outputs, skipped={}, failed={}, late=())
        answers = dict(zip(column.rows.tolist(), column.answers, strict=True))
        return TaskResults(task=task, answers=answers, layers_left=layers_left)

    def _batch(self, readings: Readings, batch: Batch, start: int, stages: Iterator[Stage]) -> Iterator[Stage]:
        """The stages of one batch, and its entry in the receipts, until it is done or late."""
        members = batch.members
        answered: list[str] = []
        left = layers = self.roster.layers(readings.tasks)
        for stage in _guarded(stages, readings.tasks, layers):
            left = stage.layers_left
            answered += stage.outputs
            for task, error in stage.failed.items():
                self._fail(task, readings.texts.inputs_of(task, readings.entries[members]) + start, error)
            tasks = readings.tasks
            if len(answered) < len(tasks):
                tasks = tuple(task for task in tasks if task in answered)
            if answered or left < layers:  # else nothing was run
                self._running = list(PassRecord.of(readings, members, start=start, tasks=tasks, layers=layers - left))
            yield stage
            if self.is_late:
                break
        self._ran += self._running
        self._running = []

    def _write(self, task: str) -> None:
        inputs, roster = self.inputs, self.roster
        fitting = input_types_of(roster.tasks[task])
        rows = [row for row, form in enumerate(self._forms) if form in fitting]
        most, failures = len(rows) if self._end is None else WRITTEN, 0
        while rows and not self.is_late:
            chunk, rest = rows[:most], rows[most:]
            try:
                summed = roster.summaries.answered(task, inputs, chunk, required=self._is_required)
            except MissingExtra:
                raise
            except Exception as error:  # of this task alone; which texts are at fault is found one by one
                failures += len(chunk) == 1
                if failures == WRITTEN or isinstance(error, (MemoryError, OSError)):  # it is no text's fault
                    self._fail(task, np.array(rows, np.int64), error)
                    return
                if len(chunk) == 1:
                    self._fail(task, np.array(chunk, np.int64), error)
                    rows = rest
                most = 1
                continue
            failures = 0
            if summed is None:
                self._lacking.add(task)
                return
            self._outputs[task].append(summed.outputs)
            self._costs[task] = self._costs.get(task, []) + summed.costs
            rows = rest

    def _fail_not_finite(self, gathered: Gathered, start: int) -> None:
        """Names the inputs of which a task gave what is no answer."""
        for task in gathered.tasks:
            rows = gathered.not_finite(task)
            if len(rows):
                self._fail(task, rows + start, not_finite(task))

    def _fail(self, task: str, rows: np.ndarray, error: Exception) -> None:
        self._failed[task] |= dict.fromkeys(rows.tolist(), error)


class Stream(Iterator[TaskResults]):
    """Gives a task's answers once the layers that it needs have run: tasks that need the fewest come first.

    A task over pairs read separately, in windows or over options is given when all that it reads of an input is there.
    After the deadline nothing more is given; `columns` then names what is late. What fails for one task is named there
    too, and stops no other. Tasks that are replaced or removed meanwhile answer here as when it began; what only they
    need stays in memory until the stream has ended or is forgotten.
    """

    def __init__(self, call: Call, reader: Reader) -> None:
        self._call, self._results, self._home = call, call.results(reader), ProcessGuard(forks=forks(reader.backend))

    def __next__(self) -> TaskResults:
        """The next answers; work goes on until they are known."""
        self._home.check()
        return next(self._results)

    def columns(self) -> Columns:
        """All that is answered by now, the receipts so far, and why the rest is not answered."""
        return self._call.columns()


def _guarded(stages: Iterator[Stage], tasks: Sequence[str], layers: int) -> Iterator[Stage]:
    """The stages; where all that is left fails, one in which it is named."""
    left, rest = layers, dict.fromkeys(tasks)
    while rest:
        try:
            stage = next(stages)
        except StopIteration:
            return
        except Exception as error:  # named for each task, and raised where no task has an answer
            yield Stage(outputs={}, failed=dict.fromkeys(rest, error), layers_left=left)
            return
        left = stage.layers_left
        for task in (*stage.outputs, *stage.failed):
            rest.pop(task, None)
        yield stage


def _moved(outputs: Outputs, start: int) -> Outputs:
    return msgspec.structs.replace(outputs, rows=outputs.rows + start) if start else outputs


def _joined(pieces: Sequence[Outputs]) -> Outputs:
    filled = [outputs for outputs in pieces if len(outputs.rows)]
    if len(filled) == 1:
        return filled[0]
    values = [outputs.values for outputs in filled]
    words = [outputs.words for outputs in filled if outputs.words is not None]
    return Outputs(
        rows=np.concatenate([np.zeros(0, np.int64), *(outputs.rows for outputs in filled)]),
        values=_end_to_end(values),
        words=list(chain.from_iterable(words)) if words else None,
    )


def _end_to_end(pieces: Sequence[Sequence[np.ndarray] | np.ndarray]) -> Sequence[np.ndarray] | np.ndarray:
    arrays = [values for values in pieces if isinstance(values, np.ndarray)]
    ragged = [values for values in pieces if isinstance(values, Ragged)]
    if arrays and len(arrays) == len(pieces):
        return np.concatenate(arrays)
    if ragged and len(ragged) == len(pieces):
        return Ragged.joined(ragged)
    return list(chain.from_iterable(pieces))
