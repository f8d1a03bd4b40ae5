"""Kind `single_label`: exactly one of the task's labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from polyhead.errors import ConfigError
from polyhead.tasks import metrics
from polyhead.tasks.judging import Decisions, Judged, confusion_of, from_labels, label_metrics
from polyhead.tasks.kinds import base
from polyhead.tasks.metrics import LabelScore
from polyhead.tasks.task import Answer, Arrays, Decoded, Example, Mistake, RowKind, Task

ROUNDING = 0.02  # how far the sum of a row's probabilities may differ from 1: two decimals, or float16
RARE, FREQUENT = 0.8, 0.5  # shares of the most frequent label, for two labels and for more
BY_LABEL = ("f1", "macro_f1", "macro_recall", "matthews")


class SingleLabel(RowKind):
    """Softmax over the labels; the answer is the most probable one, the first of equals."""

    name = "single_label"
    other_names = (
        *("classification", "text_classification", "sequence_classification", "multiclass", "multi_class", "binary"),
        *("single_label_classification", "textcat", "sentiment", "nli"),
    )
    loss = "cross_entropy"
    scores = "softmax"
    uses = ("labels", "positive", "none_below", "pair", "long_texts")
    problem_type = "single_label_classification"
    cell, cell_key, score_cell = "text", "label", "shares"
    takes_shares = True

    def check(self, task: Task) -> None:
        """At least two labels; `positive` one of them."""
        base.check_labels(task, least=self.least_labels)
        if task.positive is not None and task.positive not in task.labels:
            raise ConfigError(
                f"task '{task.name}': 'positive' is none of its labels",
                got=task.positive,
                allowed=task.labels,
                task=task.name,
            )

    def metrics(self, task: Task) -> tuple[str, ...]:
        """The metrics; `f1` is that of the positive label, and the default if one is declared."""
        return (*(("f1",) if task.positive else ()), "accuracy", "macro_f1", "macro_recall", "matthews")

    def encode(self, task: Task, label: object, example: Example) -> np.ndarray:
        """The label's index, int64 ()."""
        return np.asarray(base.label_index(task, label, example), np.int64)

    def shares(self, task: Task, numbers: np.ndarray, example: Example) -> np.ndarray:
        """Normalized to a sum of 1, which they have up to rounding."""
        total = float(numbers.sum())
        if abs(total - 1) > ROUNDING:
            allowed = f"1, up to {ROUNDING:g} of rounding"
            raise base.bad_value(task, example, "soft labels of one row sum to 1", got=round(total, 6), allowed=allowed)
        return np.asarray(numbers / total, np.float32)

    def target_of(self, task: Task, shares: np.ndarray) -> np.ndarray:
        """The most probable label, the first of equals."""
        return np.asarray(shares.argmax(), np.int64)

    def shares_of(self, task: Task, target: np.ndarray) -> np.ndarray:
        """1 for the label, 0 for the others."""
        return np.asarray(np.arange(len(task.labels)) == target, np.float32)

    def decode_rows(self, task: Task, outputs: np.ndarray) -> Decoded:
        """`label` and `scores`."""
        return Decoded(label=outputs.argmax(axis=-1), scores=base.softmax(outputs))

    def decode_tasks(self, tasks: Sequence[Task], outputs: Arrays) -> list[Decoded]:
        """`label` and `scores` of each task."""
        scores = base.softmax_of_each(outputs)
        return [Decoded(label=o.argmax(axis=-1), scores=s) for o, s in zip(outputs, scores, strict=True)]

    def answers(self, task: Task, decoded: Decoded) -> list[Answer]:
        """`{"label", "scores": {label: probability}}` for each row."""
        assert decoded.label is not None and decoded.scores is not None
        names = task.labels
        return [
            {"label": names[label], "scores": dict(zip(names, scores, strict=True))}
            for label, scores in zip(decoded.label.tolist(), decoded.scores.tolist(), strict=True)
        ]

    def answers_of_tasks(self, tasks: Sequence[Task], decoded: Sequence[Decoded]) -> list[list[Answer]]:
        """The same of each task."""
        if not all(len(rows.label) == 1 for rows in decoded if rows.label is not None):
            return super().answers_of_tasks(tasks, decoded)
        chosen = np.concatenate([rows.label for rows in decoded if rows.label is not None]).tolist()
        scores = np.concatenate([rows.scores.ravel() for rows in decoded if rows.scores is not None]).tolist()
        answers, start = list[list[Answer]](), 0
        for task, label in zip(tasks, chosen, strict=True):
            names = task.labels
            label_scores = dict(zip(names, scores[start : start + len(names)], strict=True))
            answers.append([{"label": names[label], "scores": label_scores}])
            start += len(names)
        return answers

    def stratum(self, target: np.ndarray) -> int:
        """The label's index."""
        return int(target)

    def evaluate(self, task: Task, outputs: Arrays, targets: Arrays, examples: Sequence[Example]) -> dict[str, float]:
        """`f1` (with `positive`), `accuracy`, `macro_f1`, `macro_recall`, `matthews`."""
        base.check_split(task, outputs, targets)
        wanted, answered = np.stack(targets), np.argmax(np.stack(outputs), axis=-1)
        table: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
            "accuracy": metrics.accuracy,
            "macro_f1": metrics.macro_f1,
            "macro_recall": metrics.macro_recall,
            "matthews": metrics.matthews,
        }
        if task.positive is not None:
            table["f1"] = metrics.f1_of(task.labels.index(task.positive))
        return {name: table[name](wanted, answered) for name in self.metrics(task)}

    def label_scores(
        self, task: Task, outputs: Arrays, targets: Arrays, examples: Sequence[Example]
    ) -> tuple[LabelScore, ...]:
        """Scores over rows."""
        wanted, answered = np.stack(targets), np.argmax(np.stack(outputs), axis=-1)
        counts = (np.bincount(of, minlength=len(task.labels)) for of in (wanted[wanted == answered], answered, wanted))
        return metrics.scores_by_label(task.labels, *counts)

    def judged(self, task: Task, outputs: Arrays, targets: Arrays, examples: Sequence[Example]) -> Judged:
        """Everything except differences, for rows."""
        wanted, probabilities = np.array(targets, np.int64), base.softmax(np.stack(outputs))
        answered, names, rows = np.argmax(np.stack(outputs), axis=-1), self.metrics(task), np.arange(len(targets))
        place = 0 if task.positive is None else task.labels.index(task.positive)
        has_positive = place in wanted or place in answered
        undefined = ("matthews",) * (len(np.unique(wanted)) == 1) + ("f1",) * (not has_positive)

        def of(right: np.ndarray, predicted: np.ndarray, true: np.ndarray) -> dict[str, np.ndarray]:
            values = label_metrics(right, predicted, true)
            values["f1"] = metrics.ratio(2 * right, predicted + true)[..., place]
            return {name: values[name] for name in names}

        return Judged(
            recount=from_labels(wanted, answered, rows, len(task.labels), of),
            confusion=confusion_of(wanted, answered, of="rows", truths=task.labels, outcomes=task.labels),
            decisions=Decisions(of="rows", confidence=probabilities[rows, answered], is_right=wanted == answered),
            undefined=undefined,
        )

    def support(self, task: Task, answer: Answer, other: Answer) -> dict[str, float]:
        """The probability of the label."""
        return {answer["label"]: other["scores"][answer["label"]]}

    def mistake(self, task: Task, answer: Answer, target: np.ndarray, example: Example) -> Mistake | None:
        """The label given instead, and its probability."""
        truth, answered = task.labels[int(target)], answer["label"]
        return None if truth == answered else Mistake(truth=truth, answer=answered, score=answer["scores"][answered])

    def constant(self, task: Task, targets: Arrays, examples: Sequence[Example]) -> list[np.ndarray]:
        """The shares of the labels, so that the most frequent is answered; by `f1`, the positive label."""
        shares = _shares(task, targets).astype(np.float32)
        if task.positive is not None and self.default_metric(task) == "f1":
            shares[task.labels.index(task.positive)] += 1
        return [shares] * len(examples)

    def fitting_metric(self, task: Task, targets: Arrays) -> str | None:
        """`matthews` if the rarer of two labels has less than a fifth of the rows.

        `macro_f1` if one of more than two labels has more than half of the rows. Accuracy would be high for a task that
        always answers the most frequent label.
        """
        if task.positive is not None:
            return None
        most = float(_shares(task, targets).max())
        if len(task.labels) == 2:
            return "matthews" if most > RARE else None
        return "macro_f1" if most > FREQUENT else None

    def offsets(self, task: Task, targets: Arrays) -> list[np.ndarray]:
        """Half of `-log p(label)`, and all of it (Menon et al. 2021), for metrics that count labels equally."""
        if task.metric not in BY_LABEL and not (task.positive is not None and task.metric is None):
            return []
        shares = np.maximum(_shares(task, targets), 1 / max(len(targets), 1))
        return [(-share * np.log(shares)).astype(np.float32) for share in (0.5, 1.0)]

    def class_weights(self, task: Task, targets: Arrays) -> np.ndarray:
        """`n / (k n_c)`, scikit-learn's 'balanced' (King and Zeng 2001)."""
        return base.balanced(np.array(targets), len(task.labels))


def _shares(task: Task, targets: Arrays) -> np.ndarray:
    """Each label's share of the rows, float64 (labels,)."""
    counts = np.bincount(np.array(targets, np.int64), minlength=len(task.labels))
    return np.asarray(counts / max(len(targets), 1))
