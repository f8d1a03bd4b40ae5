"""The tasks of a bundle that own their models, answered beside those that read the trunk.

What computes is `transformers` on torch, whatever the backend of the others; a model is loaded when it is first asked.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from polyhead.bundle.models import Models
from polyhead.bundle.read import Bundle
from polyhead.cost.summary import summary_flops, summary_layers
from polyhead.engine.inputs import AnyInput, form_of, forms_of, is_blank, plain, why_not
from polyhead.errors import MissingExtra
from polyhead.seq2seq_data import Seq2SeqShape, shape_of
from polyhead.tasks.example import Example
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.text.question import Question, texts_of

if TYPE_CHECKING:
    from polyhead.engine.session import Result

NEEDED = ("torch", "transformers")


class Summaries:
    """What writes for a session. In deterministic mode each document is read alone."""

    def __init__(self, bundle: Bundle, *, deterministic: bool = False) -> None:
        self.models, self._alone = Models(bundle.root), deterministic
        self.tasks: dict[str, Task] = self.models.tasks
        self._opened: dict[
            str, Any
        ] = {}  # polyhead.nn.seq2seq.Seq2Seq, which is not imported before it is needed
        self._shapes: dict[str, Seq2SeqShape] = {}

    def apart(self, names: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Of these tasks those that read the trunk, and those that own their models."""
        several = list(names)
        return (
            tuple(name for name in several if name not in self.tasks),
            tuple(name for name in several if name in self.tasks),
        )

    def outputs(self, task: str, inputs: Sequence[AnyInput]) -> list[np.ndarray]:
        """What the task writes for each text: arrays of one string, which metrics are computed from."""
        return [np.array(one.text, np.str_) for one in self._written(task, inputs)]

    def added(
        self, results: Sequence[Result], given: Sequence[AnyInput], names: Sequence[str], *, required: bool
    ) -> list[Result]:
        """The results with these tasks' answers and what they cost.

        Where torch or transformers is not installed, the tasks are skipped with that reason; `required` ones raise
        MissingExtra instead.
        """
        found = list(results)
        for name in names:
            found = self._with(found, given, name, required=required)
        return found

    def _with(
        self, results: list[Result], given: Sequence[AnyInput], name: str, *, required: bool
    ) -> list[Result]:
        task, missing = self.tasks[name], None if required else _missing()
        fitting = [i for i, one in enumerate(given) if form_of(one) in forms_of(task) and not is_blank(one)]
        for i in set(range(len(given))) - set(fitting):
            results[i] = _skipped(results[i], name, why_not(task, given[i]))
        if missing:
            for i in fitting:
                results[i] = _skipped(results[i], name, f"it needs '{missing}', which is not installed")
            return results
        written = self._written(name, [given[i] for i in fitting])
        for i, one in zip(fitting, written, strict=True):
            answer = kind_of(task).decode(task, np.array(one.text, np.str_), Example(given=plain(given[i])))
            results[i] = self._answered(results[i], name, answer, one)
        return results

    def _answered(self, result: Result, name: str, answer: dict[str, object], written: Any) -> Result:
        receipt, shape = result.receipt, self._shape(name)
        flops = summary_flops(shape, written.tokens, written.steps)
        return msgspec.structs.replace(
            result,
            answers={**result.answers, name: answer},
            receipt=msgspec.structs.replace(
                receipt,
                passes=receipt.passes + 1,
                layers=receipt.layers + summary_layers(shape, written.steps),
                tokens=receipt.tokens + written.tokens,
                cut=receipt.cut + written.cut,
                repaired=max(receipt.repaired, written.repaired),
                added_flops={**receipt.added_flops, name: flops},
            ),
        )

    def _written(self, name: str, inputs: Sequence[AnyInput]) -> list[Any]:
        """`polyhead.nn.seq2seq.Written` for each text."""
        texts = [texts_of(plain(one))[0] for one in inputs if not isinstance(one, Question)]
        found: list[Any] = self._model(name).write(texts, alone=self._alone) if texts else []
        return found

    def _model(self, name: str) -> Any:
        if name not in self._opened:
            if missing := _missing():
                raise MissingExtra(missing, "train", f"answering task '{name}'")
            seq2seq = importlib.import_module("polyhead.nn.seq2seq")
            self._opened[name] = seq2seq.Seq2Seq(self.models.data(name))
        return self._opened[name]

    def _shape(self, name: str) -> Seq2SeqShape:
        if name not in self._shapes:
            self._shapes[name] = shape_of(self.models.config(name))
        return self._shapes[name]


def _skipped(result: Result, name: str, reason: str) -> Result:
    return msgspec.structs.replace(result, skipped={**result.skipped, name: reason})


def _missing() -> str | None:
    """A package without which nothing can be written here."""
    return next((name for name in NEEDED if importlib.util.find_spec(name) is None), None)
