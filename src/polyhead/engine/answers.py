"""Answers to many inputs: one column per task, converted to one result per input on request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec
import numpy as np

from polyhead.engine.familiar import KnownTask, NoneBelow, none_below, with_familiar
from polyhead.engine.inputs import AnyInput, task_input
from polyhead.engine.outputs import Outputs
from polyhead.engine.receipt import Flops, Receipt, Receipts
from polyhead.errors import UnknownTask, in_words
from polyhead.lazy import lazy
from polyhead.tasks.calibration import Calibration, Wish, Wishes, wish_of, with_calibrated
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Answer, Decoded, Example, RowKind, Task
from polyhead.values import Value, few_digits

Logits = np.ndarray | Sequence[np.ndarray]
Made = TypeVar("Made")
FEW = 64  # inputs of which all tasks of a kind are decoded at once; of more each task when it is asked for


class Result(Value):
    """Answers keyed by task, the receipt, and for each asked task without an answer why there is none."""

    answers: dict[str, dict[str, object]]
    receipt: Receipt
    skipped: dict[str, str] = {}  # tasks that do not fit this input
    failed: dict[str, str] = {}  # tasks that could not be computed
    late: tuple[str, ...] = ()  # tasks that were not done by the deadline
    versions: dict[str, str] = {}  # of the asked tasks that lie in a bundle

    def __repr__(self) -> str:
        """With few digits, which the fields have all of."""
        return msgspec.Struct.__repr__(msgspec.structs.replace(self, answers=few_digits(self.answers)))

    def to_dict(self) -> dict[str, object]:
        """Plain values, as JSON holds them."""
        plain: dict[str, object] = msgspec.to_builtins(self)
        return plain | {"late": list(self.late)}


class AnswerColumn:
    """One task's answers to all inputs of a call.

    Arrays have a row for each input; without an answer, numbers are NaN and indices -1. They are made at first use.
    `rows` are the indices of the answered inputs, `outputs` their logits; `late` are the inputs not done by the
    deadline, and `skipped` holds the reasons of inputs that the task does not read.
    """

    def __init__(
        self,
        task: Task,
        inputs: Sequence[AnyInput],
        outputs: Outputs,
        *,
        skipped: Mapping[int, str],
        failed: Mapping[int, Exception],
        late: Sequence[int],
        calibration: Calibration | None = None,
    ) -> None:
        """`outputs` of the inputs that are answered; the others by number, with the reason where there is one."""
        self.calibration = calibration
        self.task, self.rows, self.outputs = task, outputs.rows, outputs.values
        self.skipped, self.errors, self.late = skipped, failed, tuple(late)
        self._inputs, self._words = inputs, outputs.words
        self.known: KnownTask | None = None  # the rows that texts are compared with
        self.vectors: AnswerColumn | None = None  # of the same inputs: their mean vectors
        self.alike: DecodedAlike | None = None  # decodes it with the other tasks of its kind

    @lazy
    def failed(self) -> dict[int, str]:
        """The errors in words, by the number of the input."""
        return {row: in_words(error) for row, error in self.errors.items()}

    @property
    def label(self) -> np.ndarray | None:
        """Index of the answered label, int64 (inputs,); None but for `single_label`."""
        return self._filled(self._decoded.label, -1)

    @property
    def labels(self) -> np.ndarray | None:
        """Which labels are answered, bool (inputs, labels); None but for `multi_label`."""
        return self._filled(self._decoded.labels, False)

    @property
    def scores(self) -> np.ndarray | None:
        """Probabilities, float32 (inputs, labels); None but for `single_label` and `multi_label`."""
        scores = self._decoded.scores
        return self._filled(None if scores is None else scores.astype(np.float32), np.nan)

    @property
    def value(self) -> np.ndarray | None:
        """The number, float64 (inputs,); None but for `regression`."""
        return self._filled(self._decoded.value, np.nan)

    @lazy
    def familiar(self) -> np.ndarray | None:
        """The share of known rows at least as far out as each text, float64 (inputs,).

        None if it was not requested, or the bundle keeps no rows of the task.
        """
        rows = None if self.known is None or self.vectors is None else self.known.rows
        if rows is None or self.vectors is None:
            return None
        shares, read = np.full(len(self._inputs), np.nan), self.vectors.rows
        if len(read):
            shares[read] = rows.familiar(np.asarray(self.vectors.outputs))
        return shares

    @lazy
    def answers(self) -> list[Answer]:
        """Plain values for each of `rows`: the answers of kinds whose answers are no arrays too.

        Those of a task that was calibrated say under `calibrated` what that makes of them.
        """
        return self._raw if self.calibration is None else with_calibrated(self.task, self.calibration, self._raw)

    def answers_as(self, wish: Wish, *, familiar: bool = True, limit: NoneBelow = None) -> list[Answer]:
        """The same without what calibration says, or as a request wants that. Raises BadValue.

        Where vectors were read, with what these say of familiarity; unless `familiar`, only where there is a limit.
        """
        answers = self.answers if wish is True else with_calibrated(self.task, self.calibration, self._raw, wish)
        if self.vectors is None:
            return answers
        task_limit = none_below(self.task, limit)
        if not (familiar or task_limit) or self.familiar is None:
            return answers
        return with_familiar(self.task, answers, self.familiar[self.rows], task_limit)

    @lazy
    def _raw(self) -> list[Answer]:
        kind = kind_of(self.task)
        if isinstance(kind, RowKind):
            return kind.answers(self.task, self._decoded) if self.alike is None else self.alike.answers(self.task, kind)
        words = [None] * len(self.rows) if self._words is None else self._words
        examples = [
            Example(input=task_input(self._inputs[row]), words=input_words)
            for row, input_words in zip(self.rows.tolist(), words, strict=True)
        ]
        return kind.decode_all(self.task, list(self.outputs), examples)

    @lazy
    def _decoded(self) -> Decoded:
        kind = kind_of(self.task)
        if not isinstance(kind, RowKind):
            return Decoded()
        if self.alike is None:
            return kind.decode_rows(self.task, _rows_of(kind, self.task, self.outputs))
        return self.alike.decoded(self.task, kind)

    def _filled(self, decoded: np.ndarray | None, nothing: float) -> np.ndarray | None:
        if decoded is None or len(self.rows) == len(self._inputs):
            return decoded
        whole = np.full((len(self._inputs), *decoded.shape[1:]), nothing, decoded.dtype)
        whole[self.rows] = decoded
        return whole


class AnswerTable:
    """The answers of a call: one column for each task, in the order of the call, and the cost of each input.

    `columns["mood"]` is the column of that task; it raises UnknownTask for one that was not asked.
    """

    def __init__(
        self,
        inputs: Sequence[AnyInput],
        tasks: Mapping[str, AnswerColumn],
        receipts: Receipts,
        *,
        flops: Flops,
        versions: dict[str, str],
    ) -> None:
        """`flops` says what tasks add to a pass; `versions` are those of tasks that lie in a bundle."""
        self.inputs, self.tasks, self.receipts, self._flops = inputs, dict(tasks), receipts, flops
        self._versions = versions
        if len(inputs) <= FEW:
            # No column, which would hold what holds it.
            alike = DecodedAlike([(column.task, column.outputs) for column in tasks.values()])
            for column in self.tasks.values():
                column.alike = alike

    def __getitem__(self, task: str) -> AnswerColumn:
        """The column of a task; raises UnknownTask for one that was not asked."""
        if not isinstance(task, str) or task not in self.tasks:
            raise UnknownTask(
                f"the call did not ask task {task!r}", allowed=list(self.tasks), do="ask for it in `tasks`"
            )
        return self.tasks[task]

    @property
    def failure(self) -> Exception | None:
        """The first error, where no task has an answer and none is late."""
        columns = self.tasks.values()
        errors = next((column.errors for column in columns if column.errors), None)
        if errors is None or any(len(column.rows) or column.late for column in columns):
            return None
        return next(iter(errors.values()))

    def receipt(self, row: int) -> Receipt:
        """The cost of one input."""
        return self.receipts.at(row, self._flops)

    def results(
        self, calibrated: Wishes = True, *, familiar: bool = True, none_below: NoneBelow = None
    ) -> list[Result]:
        """One result an input, in order; what is wished as `Session.predict` takes it, of columns that are familiar."""
        answers: list[dict[str, dict[str, object]]] = [{} for _ in self.inputs]
        skipped: list[dict[str, str]] = [{} for _ in self.inputs]
        failed: list[dict[str, str]] = [{} for _ in self.inputs]
        late: list[tuple[str, ...]] = [() for _ in self.inputs]
        for name, column in self.tasks.items():
            wish = calibrated if calibrated is True else wish_of(calibrated, name)
            its = column.answers_as(wish, familiar=familiar, limit=none_below)
            for row, answer in zip(column.rows.tolist(), its, strict=True):
                answers[row][name] = answer
            if column.skipped:
                for row, reason in column.skipped.items():
                    skipped[row][name] = reason
            if column.errors:
                for row, reason in column.failed.items():
                    failed[row][name] = reason
            for row in column.late:
                late[row] = (*late[row], name)
        return [
            Result(
                answers=by_task,
                receipt=self.receipt(row),
                skipped=skipped[row],
                failed=failed[row],
                late=late[row],
                versions=dict(self._versions),  # the caller's own
            )
            for row, by_task in enumerate(answers)
        ]


class DecodedAlike:
    """Outputs of several tasks: those of all tasks of a kind are decoded when the first of them is read."""

    def __init__(self, tasks: Sequence[tuple[Task, Logits]]) -> None:
        self._by_kind: dict[str, list[tuple[Task, Logits]]] = {}
        for task, outputs in tasks:
            self._by_kind.setdefault(task.kind, []).append((task, outputs))
        self._decoded, self._answers = dict[str, Decoded](), dict[str, list[Answer]]()

    def decoded(self, task: Task, kind: RowKind) -> Decoded:
        """The answers of one of the tasks as arrays."""
        if task.name not in self._decoded:
            alike = self._by_kind[task.kind]
            rows = [_rows_of(kind, other, outputs) for other, outputs in alike]
            self._decoded |= self._named(task, kind.decode_tasks([other for other, _ in alike], rows))
        return self._decoded[task.name]

    def answers(self, task: Task, kind: RowKind) -> list[Answer]:
        """The same as plain values."""
        if task.name not in self._answers:
            self.decoded(task, kind)
            alike = [other for other, _ in self._by_kind[task.kind]]
            values = kind.answers_of_tasks(alike, [self._decoded[other.name] for other in alike])
            self._answers |= self._named(task, values)
        return self._answers[task.name]

    def _named(self, task: Task, values: Sequence[Made]) -> dict[str, Made]:
        return {other.name: value for (other, _), value in zip(self._by_kind[task.kind], values, strict=True)}


def _rows_of(kind: RowKind, task: Task, outputs: Logits) -> np.ndarray:
    shape = len(outputs), kind.width(task)
    return outputs if isinstance(outputs, np.ndarray) and outputs.shape == shape else np.reshape(outputs, shape)
