"""Kind `multi_label`: any number of the task's labels, including none."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

import numpy as np

from polyhead.errors import ConfigError
from polyhead.tasks import metrics
from polyhead.tasks.judging import Confusion, Decisions, Judged, from_sums
from polyhead.tasks.kinds import base
from polyhead.tasks.metrics import LabelScore
from polyhead.tasks.task import Answer, Arrays, Decoded, Example, Mistake, RowKind, Task

GOLD_THRESHOLD = 0.5
OUTCOMES = ("rightly given", "wrongly given", "missed", "rightly left out")

NAMELESS = "a list of 0 and 1 says of each label whether it applies, but not what it is called"
NAMES, BY_NAMES = "the names of the labels that apply", "write names, or a column of 0 and 1 for each label"


def are_marks(row: Sequence[object]) -> bool:
    """Whether a list holds only 0 and 1, as numbers or bools, and at least two of them."""
    return len(row) > 1 and all(isinstance(mark, (int, float)) and mark in (0, 1) for mark in row)


class MultiLabel(RowKind):
    """One sigmoid per label; the answer holds the labels that reach the task's threshold."""

    name = "multi_label"
    other_names = ("multilabel", "multi_label_classification", "multilabel_classification", "textcat_multilabel")
    loss = "binary_cross_entropy"
    scores = "sigmoid"
    uses = ("labels", "threshold", "none_below", "pair", "long_texts")
    least_labels = 1
    problem_type = "multi_label_classification"
    empty_is_none = label_is_list = True
    cell, cell_key, score_cell = "texts", "labels", "shares"
    takes_shares = True

    def check(self, task: Task) -> None:
        """At least one label; a threshold between 0 and 1."""
        base.check_labels(task, least=self.least_labels)
        if not 0 < task.threshold < 1:
            raise ConfigError(
                f"task '{task.name}': 'threshold' is a probability",
                got=task.threshold,
                allowed="between 0 and 1, both excluded",
                task=task.name,
            )

    def metrics(self, task: Task) -> tuple[str, ...]:
        """The metrics; `accuracy` counts rows whose whole set of labels is right."""
        return ("micro_f1", "macro_f1", "accuracy")

    def parse(self, cell: str, separator: str | None) -> object:
        """A JSON list, where `[]` means no label, or labels between separators, of which some may hold nothing."""
        return base.listed(
            cell, [part.strip() for part in cell.split(separator) if part.strip()] if separator else cell
        )

    def encode(self, task: Task, label: object, example: Example) -> np.ndarray:
        """Float32 (labels,) of 0 and 1."""
        if not isinstance(label, list):
            raise base.bad_value(
                task,
                example,
                "a list of labels is needed",
                got=label,
                allowed=task.labels,
                do="write a list, or declare the separator of the column",
            )
        if are_marks(label) and len(set(label)) < len(label):
            raise base.bad_value(task, example, NAMELESS, got=label, allowed=NAMES, do=BY_NAMES)
        target = np.zeros(len(task.labels), np.float32)
        for name in label:
            target[base.label_index(task, name, example)] = 1.0
        return target

    def shares(self, task: Task, numbers: np.ndarray, example: Example) -> np.ndarray:
        """The probabilities unchanged: labels are independent."""
        return numbers.astype(np.float32)

    def target_of(self, task: Task, shares: np.ndarray) -> np.ndarray:
        """The labels that apply more probably than not, whatever threshold answers are cut at."""
        return (shares >= GOLD_THRESHOLD).astype(np.float32)

    def shares_of(self, task: Task, target: np.ndarray) -> np.ndarray:
        """The target itself."""
        return target

    def decode_rows(self, task: Task, outputs: np.ndarray) -> Decoded:
        """`labels` and `scores`."""
        scores = base.sigmoid(outputs)
        return Decoded(labels=scores >= task.threshold, scores=scores)

    def answers(self, task: Task, decoded: Decoded) -> list[Answer]:
        """`{"labels", "scores": {label: probability}}` for each row, labels in the task's order."""
        assert decoded.labels is not None and decoded.scores is not None
        names = task.labels
        return [
            {"labels": list(compress(names, chosen)), "scores": dict(zip(names, scores, strict=True))}
            for chosen, scores in zip(decoded.labels.tolist(), decoded.scores.tolist(), strict=True)
        ]

    def evaluate(self, task: Task, outputs: Arrays, targets: Arrays, examples: Sequence[Example]) -> dict[str, float]:
        """`micro_f1`, `macro_f1` over all declared labels, `accuracy` of whole sets."""
        base.check_split(task, outputs, targets)
        wanted = np.stack(targets).astype(np.int64)
        answered = (base.sigmoid(np.stack(outputs)) >= task.threshold).astype(np.int64)
        return {
            "micro_f1": metrics.micro_f1(wanted, answered),
            "macro_f1": metrics.macro_f1(wanted, answered),
            "accuracy": metrics.accuracy(wanted, answered),
        }

    def label_scores(
        self, task: Task, outputs: Arrays, targets: Arrays, examples: Sequence[Example]
    ) -> tuple[LabelScore, ...]:
        """Scores over rows."""
        wanted, answered = np.stack(targets) > 0, base.sigmoid(np.stack(outputs)) >= task.threshold
        counts = (of.sum(axis=0) for of in (wanted & answered, answered, wanted))
        return metrics.scores_by_label(task.labels, *counts)

    def judged(self, task: Task, outputs: Arrays, targets: Arrays, examples: Sequence[Example]) -> Judged:
        """Everything except differences, per label of each row; confusion counts labels given and omitted."""
        wanted, scores = np.stack(targets) > 0, base.sigmoid(np.stack(outputs))
        is_given, labels = scores >= task.threshold, len(task.labels)
        is_right = is_given == wanted
        parts = [wanted & is_given, is_given, wanted, is_right.all(axis=1, keepdims=True), np.ones((len(wanted), 1))]

        def of(sums: np.ndarray) -> dict[str, np.ndarray]:
            right, predicted, true = (sums[..., i * labels : (i + 1) * labels] for i in range(3))
            micro = metrics.ratio(2 * right.sum(axis=-1), predicted.sum(axis=-1) + true.sum(axis=-1))
            macro = metrics.ratio(2 * right, predicted + true).mean(axis=-1)
            return {"micro_f1": micro, "macro_f1": macro, "accuracy": metrics.ratio(sums[..., -2], sums[..., -1])}

        cells = (wanted & is_given, ~wanted & is_given, wanted & ~is_given, ~wanted & ~is_given)
        counts = np.stack([cell.sum(axis=0) for cell in cells], axis=1)
        return Judged(
            recount=from_sums(np.concatenate(parts, axis=1, dtype=np.float64), of),
            confusion=Confusion(
                of="rows", truths=task.labels, answers=OUTCOMES, counts=counts, right=(OUTCOMES[0], OUTCOMES[3])
            ),
            decisions=Decisions(
                of="labels of rows",
                confidence=np.where(is_given, scores, 1 - scores).reshape(-1),
                is_right=is_right.reshape(-1),
            ),
            undefined=() if wanted.any() or is_given.any() else ("micro_f1", "macro_f1"),
        )

    def support(self, task: Task, answer: Answer, other: Answer) -> dict[str, float]:
        """The probability of each given label; if there is none, of the likeliest label not applying."""
        if not answer["labels"]:
            return {"none of the labels": 1 - max(other["scores"].values())}
        return {name: other["scores"][name] for name in answer["labels"]}

    def mistake(self, task: Task, answer: Answer, target: np.ndarray, example: Example) -> Mistake | None:
        """The labels given instead, and the probability of the most confident wrong decision."""
        truth, answered = list(compress(task.labels, target > 0)), answer["labels"]
        surest = {name: p if name in answered else 1 - p for name, p in answer["scores"].items()}
        wrong = set(truth) ^ set(answered)
        return Mistake(truth=truth, answer=answered, score=max(surest[name] for name in wrong)) if wrong else None

    def constant(self, task: Task, targets: Arrays, examples: Sequence[Example]) -> list[np.ndarray]:
        """The set of labels that scores best by the task's metric when given for every row.

        By `micro_f1`, the most frequent labels, in the best number; by `macro_f1` all labels that occur; by `accuracy`
        the most frequent set.
        """
        wanted = np.stack(targets) > 0
        is_given = _best_set(wanted, self.default_metric(task))
        shares = np.clip(wanted.mean(axis=0), 0.5 / len(targets), 1 - 0.5 / len(targets))
        least, most = min(task.threshold * 1.01, 1 - 1e-6), task.threshold * 0.99  # on the given side of the threshold
        shares = np.where(is_given, np.maximum(shares, least), np.minimum(shares, most))
        return [np.log(shares / (1 - shares)).astype(np.float32)] * len(examples)

    def class_weights(self, task: Task, targets: Arrays) -> np.ndarray:
        """The weight of a positive against a negative row, per label: n_0 / n_1, the ratio of balanced weights.

        It equals (n / 2 n_1) / (n / 2 n_0) of scikit-learn's 'balanced', in the form of a loss's positive weight; 1 for
        a label that every row or no row has.
        """
        rows = np.asarray(targets, np.float64).reshape(-1, len(task.labels))
        positive = rows.sum(axis=0)
        negative = len(rows) - positive
        usable = (positive > 0) & (negative > 0)
        return np.where(usable, negative / np.maximum(positive, 1), 1.0).astype(np.float32)


def _best_set(wanted: np.ndarray, metric: str) -> np.ndarray:
    """The labels of the best constant answer, bool (labels,)."""
    counts = wanted.sum(axis=0)
    if metric == "macro_f1":
        return np.asarray(counts > 0)
    if metric == "accuracy":
        sets, frequencies = np.unique(wanted, axis=0, return_counts=True)
        return np.asarray(sets[frequencies.argmax()])
    order = np.argsort(-counts, kind="stable")
    sizes = np.arange(len(order) + 1)
    right = np.concatenate([[0], np.cumsum(counts[order])])
    best = int(np.argmax(metrics.ratio(2 * right, sizes * len(wanted) + counts.sum())))
    return np.isin(np.arange(len(order)), order[:best])
