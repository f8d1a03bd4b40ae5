"""The tables of docs/sample.md: what the sample holds, and how its tasks score."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from studies.sample.texts import Row
from studies.shared.rows import deviation_of

SPLITS = ("train", "validation", "test")
PACKAGED, DEMO = "packaged splits", "demo"  # runs beside those of folds
LINES = ("score", "linear", "constant")
TOPICS = ("delivery", "refund", "defect", "billing", "account", "product_info", "praise")
STEPS = ("escalate", "return_or_refund", "replace_or_repair", "investigate", "update", "answer", "acknowledge")
LABELS = {
    "sentiment": ("negative", "neutral", "positive"),
    "question": ("yes", "no"),
    "next_step": STEPS,
    "repeat_contact": ("yes", "no"),
}
SPANS = ("product", "order_number", "date", "person")


def score_table(rows: Sequence[Row]) -> list[str]:
    """Each task's mean over folds with its standard deviation, and its score on the packaged splits, with baselines."""
    folds = fold_rows(rows)
    packaged = next((row["tasks"] for row in rows if row["run"] == PACKAGED), {})
    head = f"{len(folds)} folds"
    table = [
        f"| task | kind | metric | {head} | linear | constant | packaged test | linear | constant |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, facts in folds[0]["tasks"].items() if folds else ():
        spread = [_spread([row["tasks"][name][line] for row in folds]) for line in LINES]
        once = [f"{packaged[name][line]:.3f}" if name in packaged else "" for line in LINES]
        cells = [f"`{name}`", f"`{facts['kind']}`", f"`{facts['metric']}`", *spread, *once]
        table.append(f"| {' | '.join(cells)} |")
    return table


def fold_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows of folds, in order."""
    return sorted((row for row in rows if str(row["run"]).startswith("fold ")), key=lambda row: str(row["run"]))


def over_linear(rows: Sequence[Row]) -> dict[str, float]:
    """By task, in points: the mean over folds of its score less that of the best linear head."""
    folds = fold_rows(rows)
    gains: dict[str, list[float]] = {}
    for row in folds:
        for name, facts in row["tasks"].items():
            gains.setdefault(name, []).append(100 * (facts["score"] - facts["linear"]))
    return {name: statistics.mean(values) for name, values in gains.items()}


def _spread(values: Sequence[float]) -> str:
    deviation = deviation_of(values)
    return f"{statistics.mean(values):.3f}" + ("" if deviation is None else f" ± {deviation:.3f}")


def count_table(messages: Sequence[Row], pairs: Sequence[Row]) -> list[str]:
    """How many rows of each split have each label."""
    lines = ["| | train | validation | test | all |", "| --- | ---: | ---: | ---: | ---: |"]

    def add(what: str, rows: Sequence[Row], count: Callable[[Row], int] = lambda row: 1) -> None:
        by_split = [sum(count(row) for row in rows if row["split"] == split) for split in SPLITS]
        lines.append(_line(what, [str(number) for number in (*by_split, sum(by_split))]))

    add("messages", messages)
    for topic in TOPICS:
        add(f"topic `{topic}`", messages, lambda row, topic=topic: topic in row["topics"])  # type: ignore[misc]
    add("two or more topics", messages, lambda row: len(row["topics"]) > 1)
    add("no topic", messages, lambda row: not row["topics"])
    for task, labels in LABELS.items():
        for label in labels:
            add(f"{task} `{label}`", messages, lambda row, task=task, label=label: row[task] == label)  # type: ignore[misc]
    for title, test in URGENCIES.items():
        add(title, messages, lambda row, test=test: test(row["urgency"]))  # type: ignore[misc]
    lines.append(_line("mean urgency", [f"{value:.2f}" for value in _mean_urgency(messages)]))
    for label in SPANS:
        add(f"span `{label}`", messages, lambda row, label=label: _spans(row, label))  # type: ignore[misc]
    add("no span", messages, lambda row: not row["spans"])
    add("pairs", pairs)
    for label in ("yes", "no"):
        add(f"same_request `{label}`", pairs, lambda row, label=label: row["same_request"] == label)  # type: ignore[misc]
    return lines


URGENCIES: dict[str, Callable[[Any], bool]] = {
    "urgency 0.0 to 0.2": lambda value: value <= 0.2,
    "urgency 0.3 and 0.4": lambda value: 0.3 <= value <= 0.4,
    "urgency 0.5 to 0.7": lambda value: 0.5 <= value <= 0.7,
    "urgency 0.8 to 1.0": lambda value: value >= 0.8,
}


def _spans(row: Row, label: str) -> int:
    return sum(span["label"] == label for span in row["spans"])


def _mean_urgency(messages: Sequence[Row]) -> list[float]:
    parts = [[row["urgency"] for row in messages if row["split"] in splits] for splits in (*SPLITS, SPLITS)]
    return [statistics.mean(part) for part in parts]


def _line(what: str, cells: Sequence[str]) -> str:
    return f"| {what} | {' | '.join(cells)} |"
