"""Kind `ordinal`: one of the task's labels, which are in an order: a near miss counts more than a far one.

This is all that a kind of one's own takes: a class, registered before a project names it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyhead.tasks.kinds import base, register_kind
from polyhead.tasks.task import Answer, Decoded, Example, RowKind, Task


class Ordinal(RowKind):
    """Softmax over the labels; the answer is the label nearest to the expected place in their order."""

    name = "ordinal"
    loss = "cross_entropy"
    scores = "softmax"
    uses = ("labels", "pair", "long_texts")
    cell, cell_key, score_cell = "text", "level", "shares"

    def check(self, task: Task) -> None:
        """At least two labels."""
        base.check_labels(task, least=self.least_labels)

    def metrics(self, task: Task) -> tuple[str, ...]:
        """`closeness` is 1 less the mean absolute error, as a share of the distance between first and last label."""
        return ("closeness", "exact")

    def encode(self, task: Task, label: object, example: Example) -> np.ndarray:
        """The label's place, int64 ()."""
        return np.asarray(base.label_index(task, label, example), np.int64)

    def decode_rows(self, task: Task, outputs: np.ndarray) -> Decoded:
        """`label` and `scores`."""
        scores = base.softmax(outputs)
        return Decoded(label=np.rint(scores @ np.arange(len(task.labels))).astype(np.int64), scores=scores)

    def answers(self, task: Task, decoded: Decoded) -> list[Answer]:
        """`{"level", "scores": {label: probability}}` for each row."""
        assert decoded.label is not None and decoded.scores is not None
        return [
            {"level": task.labels[place], "scores": dict(zip(task.labels, scores, strict=True))}
            for place, scores in zip(decoded.label.tolist(), decoded.scores.tolist(), strict=True)
        ]

    def stratum(self, target: np.ndarray) -> int:
        """The label's place."""
        return int(target)

    def evaluate(
        self, task: Task, outputs: Sequence[np.ndarray], targets: Sequence[np.ndarray], examples: Sequence[Example]
    ) -> dict[str, float]:
        """`closeness` and `exact`."""
        base.check_split(task, outputs, targets)
        places = self.decode_rows(task, np.stack(outputs)).label
        assert places is not None
        errors = np.abs(places - np.stack(targets))
        return {"closeness": float(1 - errors.mean() / (len(task.labels) - 1)), "exact": float((errors == 0).mean())}

    def class_weights(self, task: Task, targets: Sequence[np.ndarray]) -> np.ndarray:
        """Balanced."""
        return base.balanced(np.array(targets, np.int64), len(task.labels))


register_kind(Ordinal())
