"""Kind `summarization`: a short text for a long one, written by an encoder-decoder of the task's own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyhead import metrics
from polyhead.tasks.example import Example
from polyhead.tasks.kinds import base
from polyhead.tasks.task import Answer, Kind, Task
from polyhead.text.tokenize import repair


class Summarization(Kind):
    """Text for text. A target is every reference of a row, an output the summary: arrays of strings."""

    name = "summarization"
    loss = "token_cross_entropy"

    def check(self, task: Task) -> None:
        """One text, without labels, whose end is cut where it is too long."""
        base.check_unused(task, "null_answers", "labels", "positive", "threshold", "range", "pair", "long_texts")
        base.check_metric(task, self.metrics(task))

    def width(self, task: Task) -> int:
        """One summary; there is no head."""
        return 1

    def metrics(self, task: Task) -> tuple[str, ...]:
        """F1 of ROUGE (Lin 2004): the longest common subsequence of words, single words, pairs of words."""
        return ("rouge_l", "rouge_1", "rouge_2")

    def parse(self, cell: str, separator: str | None) -> object:
        """The cell as one reference, or several: a JSON list, or what stands between separators."""
        return base.listed(cell, [part.strip() for part in cell.split(separator)] if separator else cell)

    def encode(self, task: Task, label: object, example: Example) -> np.ndarray:
        """The references, str (references,); training takes the first, scores the best of them."""
        several = label if isinstance(label, list) else [label]
        found = [repair(one) for one in several if isinstance(one, str) and one.strip()]
        if not found or len(found) < len(several):
            raise base.bad_value(
                task, example, "a summary is needed", got=label, allowed="a string that is not blank, or a list of such"
            )
        return np.array(found, np.str_)

    def decode(self, task: Task, outputs: np.ndarray, example: Example) -> Answer:
        """`{"summary"}`."""
        return {"summary": str(np.asarray(outputs).reshape(())[()])}

    def evaluate(
        self, task: Task, outputs: Sequence[np.ndarray], targets: Sequence[np.ndarray], examples: Sequence[Example]
    ) -> dict[str, float]:
        """`rouge_l`, `rouge_1`, `rouge_2`."""
        base.check_split(task, outputs, targets)
        summaries = [str(np.asarray(one).reshape(())[()]) for one in outputs]
        found = metrics.rouge([target.tolist() for target in targets], summaries)
        return {name: found[name] for name in self.metrics(task)}

    def class_weights(self, task: Task, targets: Sequence[np.ndarray]) -> None:
        """None: there are no classes."""
