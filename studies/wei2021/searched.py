"""Full fine-tuning and branches that each search their own rate: the same rates, epochs and rule of stopping for all.

Under the first seed every method and depth of a task learns at each rate of the product's search; the others take the
rate that was best on validation. Simple answers are learned from the same rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path as FilePath
from typing import Any

import msgspec

from polyhead.errors import DataError
from polyhead.plan.cost.allocate import best_under
from polyhead.project.recipes import SearchGrid, Training
from studies.evidence import judged
from studies.results import Claim
from studies.shared.runs import Rows, Say, silent
from studies.trained import SIMPLE, Fit, Learned, learned, whole
from studies.wei2021.claims import LAYERS, share
from studies.wei2021.runs import SEEDS, Runs
from studies.wei2021.study import Run, options_of, runs_of
from studies.wei2021.table import ONE_A_LAYER
from studies.wei2021.tasks import TASKS, Size, entries, prepared_for

TRAINING = Training(epochs=10, patience=3, batch=16, warmup=0.1, precision="float32")  # alike on every processor
RATES = SearchGrid().learning_rates
DEPTHS = (1, 2, 3)
SINGLE_TEXTS = tuple(task for task, entry in entries("").items() if entry.pair is None)


class SearchedRuns(Runs):
    """The runs of every rate; one row each."""

    def __init__(
        self, data: FilePath, folder: FilePath, study: Rows, *, size: Size | None = None, say: Say = silent
    ) -> None:
        super().__init__(data, folder, study, size=size, training=TRAINING, say=say)
        self.depths = DEPTHS

    def search(self, tasks: Iterable[str] = TASKS, seeds: Iterable[int] = SEEDS) -> None:
        """Simple answers, each depth and full fine-tuning: all rates under the first seed, then the best."""
        tasks = tuple(tasks)
        for task in tasks:
            self.study.row(partial(self._simple, task), task=task, method="simple", settings=self.settings)
        for seed in seeds:
            for task in tasks:
                for layers in (*self.depths, self.layers):
                    for rate in RATES if seed == SEEDS[0] else [best_rate(self._tried(task, layers))]:
                        self._run(task, seed, layers, rate)

    def _run(self, task: str, seed: int, layers: int, rate: float) -> None:
        if layers == self.layers:
            self._row(task, seed, "full", layers, 0, partial(self._full, task, seed, rate), rate=rate)
        else:
            run = partial(self._teacher, task, seed, layers, rate)
            self._row(task, seed, "branch", layers, self.layers - layers, run, rate=rate)

    def _tried(self, task: str, layers: int) -> list[dict[str, object]]:
        key = (task, layers, self.settings)
        return [row for row in self.study.rows if (row["task"], row.get("layers"), row["settings"]) == key]

    def _simple(self, task: str) -> dict[str, object]:
        from studies.defaults.run import baselines

        entry = entries(str(self.data))[task]
        pair = "separate" if entry.pair == "joined" else entry.pair
        prepared = prepared_for(msgspec.structs.replace(entry, pair=pair), self.size)
        ready = msgspec.structs.replace(prepared, whole=prepared.train.examples)
        metric = prepared.task.metric or ""
        return {"metric": metric, "scores": baselines(ready, metric, SEEDS[0], self.extractor)}


def best_rate(rows: Iterable[Mapping[str, Any]]) -> float:
    """The rate with the best validation score under the first seed; ties: the lowest.

    Raises DataError where the first seed has no row.
    """
    tried = {float(row["rate"]): float(row["validation"]) for row in rows if row["seed"] == SEEDS[0]}
    if not tried:
        raise DataError("no rate was tried yet", do=f"run seed {SEEDS[0]} first: it chooses the rate of all")
    return min(tried, key=lambda rate: (-tried[rate], rate))


def chosen(rows: Iterable[Mapping[str, Any]]) -> tuple[Run, ...]:
    """Each task's runs of full fine-tuning and of every depth at the rate that its first seed chose."""
    tried: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for row in rows:
        if "rate" in row:
            tried.setdefault((row["task"], row["layers"]), []).append(row)
    rates = {option: best_rate(several) for option, several in tried.items()}
    return runs_of([row for option, several in tried.items() for row in several if row["rate"] == rates[option]])


def simple_points(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Points of the simple answers by task; of several searches of one the best by test score, which favours them."""
    points: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["method"] == "simple":
            kept = points.setdefault(row["task"], {})
            for title, score in row["scores"].items():
                name = title.partition(",")[0]
                if name in SIMPLE:
                    kept[name] = max(kept.get(name, -100.0), 100 * score)
    return points


def states(rows: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, Learned]:
    """How far these options ("full-6", "branch-2") had learned each task that has a run of one of them."""
    names = set(names)
    fits = [
        Fit(task=run.task, score=run.points("test"), best_epoch=run.best_epoch, metric=run.metric, rows=run.train_rows)
        for run in chosen(rows)
        if run.option in names
    ]
    return learned(fits, allowed=TRAINING.most_epochs, simple=simple_points(rows))


def claims(rows: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """Independent tasks over a frozen trunk, as shares of full fine-tuning that has learned.

    Of the tasks of single texts, and of all eight; none of tasks that lack a row. A third of the layers of the former
    is less than the trunk and a layer a task.
    """
    made = [
        _claim(rows, SINGLE_TEXTS, "half-texts", "tasks of single texts", share_of_layers=1 / 2, target=0.99),
        _claim(rows, TASKS, "half", "tasks", share_of_layers=1 / 2, target=0.99),
        _claim(rows, TASKS, "third", "tasks", share_of_layers=1 / 3, target=0.996),
    ]
    return [claim for claim in made if claim is not None]


def _claim(
    rows: Sequence[Mapping[str, Any]],
    tasks: Sequence[str],
    name: str,
    kind: str,
    *,
    share_of_layers: float,
    target: float,
) -> Claim | None:
    if lacking(rows, tasks):
        return None
    rows = [row for row in rows if row["task"] in tasks]
    runs, of_all = chosen(rows), LAYERS * len(tasks)
    budget = round(share_of_layers * of_all)
    allocation = best_under(options_of(runs), budget, ONE_A_LAYER)
    by_task = {task: option.name for task, option in allocation.chosen.items()}
    branch_states = {
        task: states([row for row in rows if row["task"] == task], [option])[task] for task, option in by_task.items()
    }
    depths = ", ".join(f"{task} {option.layers}" for task, option in allocation.chosen.items())
    return judged(
        f"evidence.searched-{name}",
        f"branches, the exact best on validation within {budget} of {of_all} layer evaluations ({allocation.layers} "
        f"used): mean test score of {len(tasks)} {kind} over that of full fine-tuning, three rates and at most "
        f"{TRAINING.most_epochs} epochs each; the same seeds",
        share(runs, allocation, tasks),
        target=target,
        unit="ratio",
        digits=4,
        note=f"layers: {depths}",
        ours=whole("a branch", branch_states),
        against=whole("full fine-tuning", states(rows, [f"full-{LAYERS}"])),
    )


def lacking(rows: Sequence[Mapping[str, Any]], tasks: Sequence[str] = TASKS) -> list[str]:
    """The runs of these tasks that are not there yet."""
    rows = [row for row in rows if row["task"] in tasks]
    lines = [f"the simple answers to {task}" for task in tasks if task not in simple_points(rows)]
    if len({row["settings"] for row in rows}) > 1:
        lines.append("rows of one setting alone")
    runs = {(row["task"], row["layers"], row["seed"], row["rate"]) for row in rows if "rate" in row}
    counts = Counter((task, layers) for task, layers, _, _ in runs)
    needed = len(RATES) + len(SEEDS) - 1
    return lines + [
        f"{counts[task, layers]} of {needed} runs of {layers} layers on {task}"
        for task in tasks
        for layers in (*DEPTHS, LAYERS)
        if counts[task, layers] < needed
    ]
