"""One caller's request: its inputs are read piece by piece, batch by batch and stage by stage, until done or late."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import chain
from time import monotonic

import numpy as np
from msgspec import UNSET, UnsetType

from polyhead.engine.answers import AnswerColumn, AnswerTable
from polyhead.engine.backends.base import ProcessGuard, StageResults, TokenBatch
from polyhead.engine.batch import EncodedInputs, batched, prepared
from polyhead.engine.generate.texts import KEPT, TextStates
from polyhead.engine.inputs import (
    AnyInput,
    InputType,
    checked_deadline,
    checked_inputs,
    checked_words,
    types_of_inputs,
    why_not,
)
from polyhead.engine.loaded import LoadedTasks
from polyhead.engine.outputs import NO_OUTPUTS, Gathered, Outputs, WordOutputs, concatenate_outputs, not_finite
from polyhead.engine.receipt import Receipts
from polyhead.errors import without_frames
from polyhead.plan import Plan
from polyhead.tasks.task import Answer
from polyhead.values import Value

Stages = Callable[[Plan, TokenBatch], Iterator[StageResults]]
"""How a batch is run: `Runner.stages`, or `LoadedTasks.stages`."""


class TaskResults(Value):
    """One task's answers to some inputs."""

    task: str
    answers: dict[int, Answer]  # by the number of the input
    layers_left: int  # that the batch would still run for other tasks; 0 where it is done
    bundle: str | UnsetType = UNSET  # of a set of bundles: the one that answered


class Request:
    """The inputs and tasks of a call, and all answers so far. It keeps no backend: `run` and `results` get that."""

    def __init__(
        self,
        loaded: LoadedTasks,
        inputs: Iterable[AnyInput | str],
        tasks: Iterable[str] | None,
        *,
        words: Iterable[np.ndarray | None] | None = None,
        deadline: float | None = None,
        vectors: str | None = None,
    ) -> None:
        """`tasks` None asks for all; raises UnknownTask, and BadValue for inputs, words or a deadline of another form.

        `words` are an input's own words, for tasks that answer each; `deadline` counts seconds from now. `vectors` is
        the hidden task whose output is the mean vector: columns then say how familiar texts are.
        """
        self.inputs = checked_inputs(inputs)
        requested = loaded.task_names(tasks)
        needed = self._asked = loaded.asked(requested if vectors is None else (*requested, vectors))
        self.tasks = needed.tasks
        self._vectors, self._known_tasks = vectors, loaded.known
        self._words, seconds = checked_words(words, self.inputs), checked_deadline(deadline)
        self._end = None if seconds is None else monotonic() + seconds
        self._types, self._flops = types_of_inputs(self.inputs), loaded.flops_of(requested)
        self._calibrations = loaded.calibrations
        self._rows: dict[InputType | None, list[int]] = {}  # by type
        for row, input_type in enumerate(self._types):
            self._rows.setdefault(input_type, []).append(row)
        self._receipts = Receipts(self.inputs)
        # A batch that is not done, as receipts count it.
        self._running: tuple[EncodedInputs, tuple[str, ...], int] | None = None
        self._gathered: Gathered | None = None  # of a piece that is not done
        self._outputs: dict[str, list[Outputs]] = {name: [] for name in self.tasks}
        self._failed: dict[str, dict[int, Exception]] = {name: {} for name in self.tasks}
        # Inputs that tasks do not read, and why, by the types of input that these read.
        self._unfit: dict[tuple[InputType, ...], dict[int, str]] = {}

    @property
    def is_late(self) -> bool:
        """Whether the deadline has passed."""
        return self._end is not None and monotonic() >= self._end

    def run(self, loaded: LoadedTasks, *, raises: bool = True) -> AnswerTable:
        """Runs to the end; if it `raises`, the first error where no task has an answer and none is late."""
        for _ in self._steps(loaded, loaded.stages if self._end is None else loaded.backend.stages, streams=False):
            pass
        columns = self.columns()
        if raises and any(self._failed.values()) and columns.failure is not None:
            raise columns.failure
        return columns

    def results(self, loaded: LoadedTasks) -> Iterator[TaskResults]:
        """Runs to the end, and yields the results of each stage: a task's answers, once for an input."""
        return self._steps(loaded, loaded.backend.stages, streams=True)

    def columns(self) -> AnswerTable:
        """All answers so far; the rest, unless failed or unfit, is late."""
        receipts = self._receipts.copy()
        if self._running is not None:
            receipts.add(*self._running)
        tasks = {task: self._column(task) for task in self.tasks}
        vectors = None if self._vectors is None else tasks.pop(self._vectors)
        if vectors is not None:
            receipts = receipts.of(tasks)
            for name, column in tasks.items():
                column.known, column.vectors = self._known_tasks.get(name), vectors
        return AnswerTable(self.inputs, tasks, receipts, flops=self._flops, versions=self._asked.versions)

    def error(self, task: str) -> Exception | None:
        """The error of the task, if it failed."""
        return next(iter(self._failed[task].values()), None)

    def unfit(self, task: str) -> dict[int, str]:
        """The inputs that the task does not read, and why."""
        read_types = self._asked.reads[task]
        unfit = self._unfit.get(read_types)
        if unfit is None:
            unfit = self._unfit[read_types] = {}
            for input_type, rows in self._rows.items():
                if input_type not in read_types:
                    unfit |= dict.fromkeys(rows, why_not(self.tasks[task], self.inputs[rows[0]]))
        return unfit

    def _column(self, name: str) -> AnswerColumn:
        inputs, skipped = self.inputs, self.unfit(name)
        outputs = concatenate_outputs(self._known(name))
        if name in self._asked.writing and (np.diff(outputs.rows) < 0).any():  # written as their lengths came
            order = np.argsort(outputs.rows, kind="stable")
            outputs = Outputs(rows=outputs.rows[order], values=[outputs.values[i] for i in order.tolist()])
        failed: dict[int, Exception] = {}
        if self._failed[name]:
            failed = {row: without_frames(error) for row, error in self._failed[name].items()}
        late: list[int] = []
        if len(outputs.rows) + len(skipped) + len(failed) < len(inputs):
            known = {*outputs.rows.tolist(), *skipped, *failed}
            late = [row for row in range(len(inputs)) if row not in known]
        its = self._calibrations.get(name)
        return AnswerColumn(
            self.tasks[name], inputs, outputs, skipped=skipped, failed=failed, late=late, calibration=its
        )

    def _known(self, task: str) -> list[Outputs]:
        """All that is known by now, of a piece that is not done too."""
        known = self._outputs[task]
        if self._gathered is None or task in self._asked.writing:
            return known
        try:
            return [*known, self._gathered.of(task)]
        except Exception:  # comparison failed; it is reported when the piece is done
            return known

    def _steps(self, loaded: LoadedTasks, stages: Stages, *, streams: bool) -> Iterator[TaskResults]:
        """Runs one piece after another, each stage by stage to its end; if it `streams`, with the answers of each."""
        if self.is_late:  # before any text is tokenized
            return
        for readings in prepared(self.inputs, self._types, self._asked.readers, loaded.tokenizer, self._words):
            with closing(WordOutputs(self.inputs, loaded.word_weights)) as words:
                yield from self._piece(loaded, readings, words, stages, streams=streams)
            if self.is_late:
                return

    def _piece(
        self,
        loaded: LoadedTasks,
        readings: Sequence[EncodedInputs],
        words: WordOutputs,
        stages: Stages,
        *,
        streams: bool,
    ) -> Iterator[TaskResults]:
        gathered = Gathered(
            readings,
            self.tasks,
            self._asked.kinds,
            loaded.backend.compared,
            singly=loaded.deterministic,
            words=words.added,
        )
        self._gathered = gathered
        if not streams:  # else each batch's answers are wanted by themselves
            words.begin({task: gathered.expected(task) for task in gathered.tasks if task in loaded.word_weights})
        waiting: dict[str, list[TextStates]] = {task: [] for task in gathered.tasks if task in self._asked.writing}
        batches = partial(
            batched,
            tokenizer=loaded.tokenizer,
            deterministic=loaded.deterministic,
            width=loaded.width,
            breadth=loaded.breadth,
        )
        for batch, tokens in chain.from_iterable(map(batches, readings)):
            if self.is_late:
                break
            layers = loaded.layers(batch.tasks)
            for stage in self._batch(batch, stages(loaded.plan(batch.tasks), tokens), layers):
                outputs = {task: values for task, values in stage.outputs.items() if task not in waiting}
                gathered.add(batch, outputs)
                self._fail_not_finite(gathered)
                for task in filter(gathered.is_at_once, outputs if streams else ()):
                    yield self._results(task, gathered.of(task, batch=batch), stage.layers_left)
                for task in stage.outputs.keys() & waiting.keys():
                    waiting[task] += _states(batch, stage.outputs[task])
            if sum(text.values.nbytes for texts in waiting.values() for text in texts) > KEPT:
                yield from self._written(loaded, waiting, streams=streams)
        yield from self._written(loaded, waiting, streams=streams)
        self._gathered = None
        if self.is_late:  # what came is added, and nothing more is computed ahead
            words.close()
        for task in gathered.tasks:
            if task in waiting:
                continue
            try:
                self._outputs[task].append(gathered.of(task))
            except Exception as error:  # halves of pairs that could not be compared: no other task is touched
                self._outputs[task].append(NO_OUTPUTS)
                self._fail(task, gathered.rows_of(task), error)
        self._fail_not_finite(gathered)
        for task in gathered.tasks if streams else ():
            if task not in waiting and not gathered.is_at_once(task) and len(self._outputs[task][-1].rows):
                yield self._results(task, self._outputs[task][-1], 0)

    def _results(self, task: str, outputs: Outputs, layers_left: int) -> TaskResults:
        its = self._calibrations.get(task)
        column = AnswerColumn(self.tasks[task], self.inputs, outputs, skipped={}, failed={}, late=(), calibration=its)
        answers = dict(zip(column.rows.tolist(), column.answers, strict=True))
        return TaskResults(task=task, answers=answers, layers_left=layers_left)

    def _batch(self, batch: EncodedInputs, stages: Iterator[StageResults], layers: int) -> Iterator[StageResults]:
        """The stages of one batch, and its entry in the receipts, until it is done or late."""
        answered: set[str] = set()
        for stage in _guarded(stages, batch.tasks, layers):
            answered.update(stage.outputs)
            for task, error in stage.failed.items():
                self._fail(task, batch.texts.inputs_of(task, batch.entries), error)
            if answered or stage.layers_left < layers:  # else nothing was run
                tasks = tuple(task for task in batch.tasks if task in answered)
                self._running = (batch, tasks, layers - stage.layers_left)
            yield stage
            if self.is_late:
                break
        if self._running is not None:
            self._receipts.add(*self._running)
        self._running = None

    def _written(
        self, loaded: LoadedTasks, waiting: dict[str, list[TextStates]], *, streams: bool
    ) -> Iterator[TaskResults]:
        """Writes all waiting texts and releases their states; texts not written in time stay unanswered."""
        for task, states in waiting.items():
            if not states or self.is_late:
                continue
            rows, texts, costs = list[int](), list[np.ndarray](), list[tuple[int, int]]()
            try:
                writer = loaded.writer(task)
            except Exception as error:  # of this task's decoder
                self._fail(task, np.array([written.row for written in states], np.int64), error)
                continue
            for written in writer.written(states, is_late=lambda: self.is_late):
                if written.error is not None:
                    self._fail(task, np.array([written.row], np.int64), written.error)
                elif written.text is not None:
                    rows.append(written.row)
                    texts.append(np.array(writer.text(written.text), np.str_))
                    costs.append(writer.cost(written.tokens, written.text.steps))
            outputs = Outputs(rows=np.array(rows, np.int64), values=texts)
            self._outputs[task].append(outputs)
            self._receipts.add_written(task, rows, costs)
            if streams and rows:
                yield self._results(task, outputs, 0)
        for states in waiting.values():
            states.clear()

    def _fail_not_finite(self, gathered: Gathered) -> None:
        for task in () if gathered.are_finite else gathered.tasks:
            rows = gathered.not_finite(task)
            if len(rows):
                self._fail(task, rows, not_finite(task))

    def _fail(self, task: str, rows: np.ndarray, error: Exception) -> None:
        self._failed[task] |= dict.fromkeys(rows.tolist(), error)


def _states(batch: EncodedInputs, states: np.ndarray) -> list[TextStates]:
    """The states of each text, from a batch's states (rows, tokens, width)."""
    read = zip(batch.row.tolist(), batch.lengths.tolist(), strict=True)
    return [TextStates(row=row, values=states[i, :length]) for i, (row, length) in enumerate(read)]


class Stream(Iterator[TaskResults]):
    """An iterator of `TaskResults`: a task's, once its layers have run, those with the fewest layers first.

    A task over pairs read separately, in windows or over options is given when all that it reads of an input is there.
    After the deadline nothing more is given; `columns` then names what is late. What fails for one task is named there
    too, and stops no other. Tasks that are replaced or removed meanwhile answer here as when it began; what only they
    need stays in memory until the stream has ended or is forgotten.
    """

    def __init__(self, request: Request, loaded: LoadedTasks) -> None:
        self._request, self._results, self._home = request, request.results(loaded), ProcessGuard(loaded.backend)

    def __next__(self) -> TaskResults:
        """The next answers; runs until they are known."""
        self._home.check()
        return next(self._results)

    def columns(self) -> AnswerTable:
        """All that is answered by now, the receipts so far, and why the rest is not answered."""
        return self._request.columns()


def _guarded(stages: Iterator[StageResults], tasks: Sequence[str], layers: int) -> Iterator[StageResults]:
    """The stages; if the next one cannot be computed, a last one in which all waiting tasks fail."""
    layers_left, waiting = layers, dict.fromkeys(tasks)
    while waiting:
        try:
            stage = next(stages)
        except StopIteration:
            return
        except Exception as error:  # named for each task, and raised where no task has an answer
            yield StageResults(outputs={}, failed=dict.fromkeys(waiting, error), layers_left=layers_left)
            return
        layers_left = stage.layers_left
        for task in (*stage.outputs, *stage.failed):
            waiting.pop(task, None)
        yield stage
