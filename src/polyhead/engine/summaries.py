"""Answers of the tasks that own their models, beside those that read the trunk.

They are computed by `transformers` on torch, whatever the session's backend; a model is loaded on its first request.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from polyhead.bundle.format import CONFIG
from polyhead.bundle.models import read_model
from polyhead.bundle.read import Bundle
from polyhead.encoder.summarizer import Seq2SeqShape, shape_of
from polyhead.engine.backends.base import TORCH_POOL
from polyhead.engine.inputs import AnyInput, task_input
from polyhead.engine.outputs import Outputs
from polyhead.engine.receipt import Receipt
from polyhead.errors import MissingExtra
from polyhead.plan.cost.work import summary_flops, summary_layers
from polyhead.tasks.task import Task
from polyhead.text.question import Question, texts_of

NEEDED = ("torch", "transformers")


class SummaryTasks:
    """Writes the summaries of a session. In deterministic mode each document is a batch of its own."""

    def __init__(self, bundle: Bundle, *, deterministic: bool = False) -> None:
        self._bundle, self._alone = bundle, deterministic
        self.lines = {name: line for name, line in bundle.lines.items() if line.owns_model}
        self.tasks: dict[str, Task] = {name: bundle.record(name).task for name in self.lines}
        self._models = {name: _Model(bundle, name) for name in self.lines}
        self._shapes: dict[str, Seq2SeqShape] = {}

    def refreshed(self, bundle: Bundle) -> SummaryTasks:
        """The tasks of the bundle as it is now; open models that did not change stay open."""
        refreshed = SummaryTasks(bundle, deterministic=self._alone)
        same = {name for name, line in refreshed.lines.items() if self.lines.get(name) == line}
        refreshed._models |= {name: model for name, model in self._models.items() if name in same}
        return refreshed

    def split(self, names: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Splits the tasks: those that read the trunk, and those that own their models."""
        several = tuple(names)
        writing = tuple(name for name in several if name in self.tasks)
        return tuple(name for name in several if name not in writing), writing

    def outputs(self, task: str, inputs: Sequence[AnyInput]) -> list[np.ndarray]:
        """The summary of each text as an array of one string, the form that metrics read."""
        return [np.array(summary.text, np.str_) for summary in self._written(task, inputs)]

    def answered(
        self, name: str, inputs: Sequence[AnyInput], rows: Sequence[int], *, required: bool
    ) -> tuple[Outputs, list[Receipt]] | None:
        """The summaries of these inputs, which must fit the task, and the cost of each.

        None where torch or transformers is not installed; a `required` task raises MissingExtra instead.
        """
        if not required and missing() is not None:
            return None
        written = self._written(name, [inputs[row] for row in rows])
        shape = self._shape(name)
        costs = [
            Receipt(
                passes=1,
                layers=summary_layers(shape, summary.steps),
                tokens=summary.tokens,
                cut=summary.cut,
                repaired=summary.repaired,
                added_flops={name: summary_flops(shape, summary.tokens, summary.steps)},
            )
            for summary in written
        ]
        texts = [np.array(summary.text, np.str_) for summary in written]
        return Outputs(rows=np.array(rows, np.int64), values=texts), costs

    def _written(self, name: str, inputs: Sequence[AnyInput]) -> list[Any]:
        """`polyhead.deep.summarizer.GeneratedSummary` for each text."""
        texts = [texts_of(task_input(example))[0] for example in inputs if not isinstance(example, Question)]
        summaries: list[Any] = self._models[name].open().write(texts, alone=self._alone) if texts else []
        return summaries

    def _shape(self, name: str) -> Seq2SeqShape:
        if name not in self._shapes:
            self._shapes[name] = shape_of(self._bundle.read_file(name, CONFIG))
        return self._shapes[name]


class _Model:
    """One task's model, opened by the first call that needs it; others wait for it."""

    def __init__(self, bundle: Bundle, name: str) -> None:
        self._bundle, self._name, self._lock = bundle, name, threading.Lock()
        self._opened: Any = None  # polyhead.deep.summarizer.Seq2Seq, which is not imported before it is needed

    def open(self) -> Any:
        with self._lock:
            if self._opened is None:
                if lacking := missing():
                    raise MissingExtra(lacking, "train", f"answering task '{self._name}'")
                seq2seq = importlib.import_module("polyhead.deep.summarizer")
                TORCH_POOL.use(sys.modules["torch"].get_num_threads())  # which that module has imported
                self._opened = seq2seq.Seq2Seq(read_model(self._bundle, self._name))
            return self._opened


def missing() -> str | None:
    """The first package that summaries need and that is not installed; None if all are there."""
    return next((name for name in NEEDED if importlib.util.find_spec(name) is None), None)
