"""The tables of docs/project/sample.md: what the sample holds, and how its tasks score."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

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
URGENCIES = ((0.0, 0.2), (0.3, 0.4), (0.5, 0.7), (0.8, 1.0))
SPANS = ("product", "order_number", "date", "person")


def score_table(rows: Sequence[Row]) -> list[str]:
    """Each task's mean over folds with its standard deviation, and its score on the packaged splits, with baselines."""
    folds = fold_rows(rows)
    packaged: Row = next((row["tasks"] for row in rows if row["what"] == PACKAGED), {})
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
    return sorted((row for row in rows if str(row["what"]).startswith("fold ")), key=lambda row: str(row["what"]))


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

    def add(what: str, counts: Sequence[int], rows: Sequence[Row] = messages) -> None:
        """`counts`: how often each of the rows has it."""
        by_split = dict.fromkeys(SPLITS, 0)
        for row, count in zip(rows, counts, strict=True):
            by_split[row["split"]] += count
        lines.append(_line(what, [str(number) for number in (*by_split.values(), sum(by_split.values()))]))

    add("messages", [1] * len(messages))
    for topic in TOPICS:
        add(f"topic `{topic}`", [topic in row["topics"] for row in messages])
    add("two or more topics", [len(row["topics"]) > 1 for row in messages])
    add("no topic", [not row["topics"] for row in messages])
    for task, labels in LABELS.items():
        for label in labels:
            add(f"{task} `{label}`", [row[task] == label for row in messages])
    for low, high in URGENCIES:
        add(f"urgency {low} to {high}", [low <= row["urgency"] <= high for row in messages])
    lines.append(_line("mean urgency", [f"{value:.2f}" for value in _mean_urgency(messages)]))
    for label in SPANS:
        add(f"span `{label}`", [sum(span["label"] == label for span in row["spans"]) for row in messages])
    add("no span", [not row["spans"] for row in messages])
    add("pairs", [1] * len(pairs), pairs)
    for label in ("yes", "no"):
        add(f"same_request `{label}`", [pair["same_request"] == label for pair in pairs], pairs)
    return lines


def _mean_urgency(messages: Sequence[Row]) -> list[float]:
    parts = [[row["urgency"] for row in messages if row["split"] in splits] for splits in (*SPLITS, SPLITS)]
    return [statistics.mean(part) for part in parts]


def _line(what: str, cells: Sequence[str]) -> str:
    return f"| {what} | {' | '.join(cells)} |"
