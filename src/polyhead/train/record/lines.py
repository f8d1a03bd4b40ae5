"""What a run says of a trained task: its scores beside those of simple answers, and a warning where they are equal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from polyhead.progress import duration
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task

if TYPE_CHECKING:
    from polyhead.train.data.prepared import Prepared
    from polyhead.train.heads.trained import Trained

FEW = 20  # rows of a split of which a score says little
ADVISED_FROM = 100  # labelled texts: of fewer, layers of a task's own were not compared
Scores = Mapping[str, Mapping[str, float]]


def task_lines(prepared: Prepared, trained: Trained) -> list[str]:
    """Its scores, and what is to be known of them."""
    rows = {split.name: len(split.examples.inputs) for split in prepared.splits}
    if trained.folds and prepared.whole is not None:
        rows["validation"] = len(prepared.whole.targets)
    shown = scores_shown(prepared.task, trained.scores, trained.baselines, rows=rows, folds=trained.folds)
    line = f"{prepared.task.name}: {shown}{_how(prepared, trained)}, {duration(trained.fitted.seconds)}"
    return [line, *warnings_of(prepared.task, trained.scores, trained.baselines, rows), *_advice(prepared)]


def _advice(prepared: Prepared) -> list[str]:
    """A line where layers of the task's own may be worth what they cost: entities are where frozen ones lose most."""
    rows = len((prepared.whole or prepared.train.examples).targets)
    if not kind_of(prepared.task).labels_words or not prepared.strategy.reads_kept_features or rows < ADVISED_FROM:
        return []
    return [
        f"{prepared.task.name}: words are read as the frozen trunk has them. Layers of the task's own usually score "
        'higher, and cost more for each text: try strategy = { kind = "branch" } (docs/branches.md, Entities)'
    ]


def scores_shown(
    task: Task,
    scores: Scores,
    baselines: Mapping[str, Scores],
    *,
    rows: Mapping[str, int] | None = None,
    folds: int = 0,
) -> str:
    """`validation accuracy 0.8100 (linear 0.7900, constant 0.2500), test accuracy 0.8000 (...)`."""
    metric = kind_of(task).default_metric(task)
    shown = []
    for split, values in scores.items():
        text = f"{split} {metric} {values[metric]:.4f}"
        of = [f"{folds} folds"] if folds and split == "validation" else []
        count = (rows or {}).get(split, FEW)
        of += [f"of {count} rows"] if count < FEW else []
        of += [
            f"{name} {baseline[split][metric]:.4f}"
            for name, baseline in reversed(list(baselines.items()))
            if metric in baseline.get(split, {})
        ]
        shown.append(text + (f" ({', '.join(of)})" if of else ""))
    return ", ".join(shown)


def warnings_of(task: Task, scores: Scores, baselines: Mapping[str, Scores], rows: Mapping[str, int]) -> list[str]:
    """A line where the task scores as one answer for every row does: by several metrics, on `FEW` rows or more."""
    constant = baselines.get("constant", {})
    alike = [
        split
        for split, values in scores.items()
        if rows.get(split, 0) >= FEW and len(values) > 1 and values == constant.get(split)
    ]
    if not alike:
        return []
    advice = "label more rows of the rare answers, or name a metric by which they count"
    if kind_of(task).scores != "softmax":
        advice = "check that the labels differ, and label more rows"
    return [
        f"{task.name}: warning: on {' and '.join(alike)} it answers as if every row were alike: one answer is all that "
        f"it gives; {advice}"
    ]


def _how(prepared: Prepared, trained: Trained) -> str:
    """Which head it is, and how long it learned."""
    fitted, how = trained.fitted, ""
    if trained.chosen:
        others = [name for name in trained.tried if name != trained.chosen]
        how = f"; {trained.chosen}" + (f" (not {'; '.join(others)})" if others else "")
    if description := prepared.strategy.describe(trained.path):
        how = f"; {description}"
    if not fitted.updates:
        return how
    if trained.refitted:
        count = fitted.best_update or fitted.updates
        return f"{how}, {count:,} {'update' if count == 1 else 'updates'} on all rows"
    return f"{how}, best after {fitted.best_update:,} of {fitted.updates:,} updates"
