"""The claims of Huang et al. 2022 at our scale, from the rows of the study alone."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from studies.evidence import estimate, judged
from studies.huang2022.methods import (
    ABLATION,
    ISOLATED,
    METHODS,
    MTOP,
    NO_STOP,
    POOLED,
    SEARCH_SEEDS,
    SHARED_POOLER,
    SINGLE,
    Method,
    tried_for,
)
from studies.huang2022.study import Measure, Row, averages, differences, rows_of
from studies.results import Claim
from studies.shared.glue import TITLES
from studies.shared.rows import over_seeds
from studies.trained import NOT, UNKNOWN, Fit, Learned, learned, whole

EPOCHS = 5  # the last one where a trunk learns
SPLITS: dict[str, tuple[Measure, str]] = {
    "": ("validation", "the builder's split"),
    "-test": ("test", "huffpost41's test split"),
}
# id, what is compared, the method and the other, and whether the claim is of both splits
COMPARED: tuple[tuple[str, str, Method, Method, bool], ...] = (
    (
        "conditioning.mtop-vs-single",
        "MTOP, with one pass of the encoder, over single-task fine-tuning",
        MTOP,
        SINGLE,
        True,
    ),
    (
        "conditioning.isolated-vs-pooled",
        "isolated prompts over pooled attention, the trunk frozen",
        ISOLATED,
        POOLED,
        True,
    ),
    ("evidence.mtop-mtdnn", "MTOP over MT-DNN, one trunk with one pooler for all", MTOP, SHARED_POOLER, False),
    *(
        (f"evidence.mtop-{name}", f"MTOP over {METHODS[name].title}", MTOP, METHODS[name], False)
        for name in ("p-tuning", "p-tuning-v2", "ca-mtl")
    ),
    ("evidence.gradient-stop", "MTOP with its gradient stop over MTOP without", MTOP, NO_STOP, False),
    ("evidence.donors", "donor prompts and poolers over random ones, no gradient stop", NO_STOP, ABLATION[2], False),
)


def claims(raw: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """Both targets, on the builder's split as in the paper and on texts that chose no checkpoint; and its orderings."""
    rows, made = rows_of(raw), []
    for id, text, method, other, on_both in COMPARED:
        both = [row for row in rows if row.method in (method.name, other.name)]
        if {row.method for row in both} != {method.name, other.name}:
            continue
        unlike = len({(row.rows, row.scale, row.device) for row in both}) > 1
        for suffix, (measure, words) in SPLITS.items():
            if suffix and not on_both:
                continue
            points = differences(rows, method.name, other.name, measure)
            made.append(
                judged(
                    f"{id}{suffix}",
                    f"{text}: mean accuracy of the seven tasks on {words}",
                    estimate(points.values()),
                    target=0.0,
                    side="least" if on_both else "above",
                    note=_note(rows, method, other, measure, points, both[0].rows),
                    ours=method_learned(raw, method),
                    against=method_learned(raw, other),
                    lacking="its methods were not run alike" if unlike else "",
                )
            )
    return made


def glue_claims(raw: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """The same comparisons on the eight tasks of GLUE, on the reported splits."""
    rows, states, made = rows_of(raw, tasks=TITLES), glue_learned(raw), []
    for id, text, method, other, on_both in COMPARED:
        points = differences(rows, method.name, other.name, "test")
        if not points:
            continue
        alike = {(row.scale, row.device) for row in rows if row.method in (method.name, other.name)}
        made.append(
            judged(
                f"evidence.glue-{id.partition('.')[2]}",
                f"{text}: mean test score of eight tasks of GLUE, equal updates",
                estimate(points.values()),
                target=0.0,
                side="least" if on_both else "above",
                note=f"by seed {', '.join(f'{value:+.2f}' for value in points.values())}",
                ours=whole(method.title, states[method.name]),
                against=whole(other.title, states[other.name]),
                lacking="its methods were not run alike" if len(alike) > 1 else "",
            )
        )
    return made


def glue_learned(raw: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Learned]]:
    """By method and task of GLUE how far it had learned, beside the simple answers of the same study."""
    rows = rows_of(raw, tasks=TITLES)
    settings = {row.method: row.settings for row in rows}
    runs = [row for row in raw if "best_epoch" in row and settings.get(row["method"]) == row["settings"]]
    kept = {
        (run["method"], run["seed"], t): run["best_epoch"] for run in runs for t in run.get("own", [run.get("task")])
    }
    fits: dict[str, list[Fit]] = {}
    for row in rows:
        epoch = kept.get((row.method, row.seed, row.task))
        fit = Fit(task=row.task, score=100 * row.test, best_epoch=epoch, metric=row.metric, rows=row.rows)
        fits.setdefault(row.method, []).append(fit)
    allowed, simple = glue_epochs(raw), glue_simple(raw)
    return {method: learned(several, allowed=allowed, simple=simple) for method, several in fits.items()}


def glue_epochs(raw: Sequence[Mapping[str, Any]]) -> int | None:
    """The last epoch that the study's newest runs could reach; None where no row tells."""
    told = [int(row["epochs"]) for row in raw if "epochs" in row]
    return told[-1] if told else None


def glue_simple(raw: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Points of the simple answers by task."""
    simple = [row for row in raw if row.get("stage") == "simple"]
    return {row["task"]: {name: 100 * score for name, score in row["baselines"].items()} for row in simple}


def method_learned(raw: Sequence[Mapping[str, Any]], method: Method) -> Learned | None:
    """How far a method that trains a trunk had learned; None for one over the frozen trunk, which stops by itself."""
    if method.way == "frozen":
        return None
    ended, runs = ends(raw, method.name)
    if ended:
        return Learned(
            state=NOT,
            why=f"{method.title} is {NOT} ({ended} of {runs} runs end at the last epoch)",
            runs=runs,
            ended=ended,
        )
    return Learned(state=UNKNOWN, why=f"{method.title} is {UNKNOWN} (no simple scores beside it)", runs=runs)


def ends(raw: Sequence[Mapping[str, Any]], method: str, *, allowed: int = EPOCHS) -> tuple[int, int]:
    """How many trainings of the method kept the last epoch that was allowed, of how many."""
    settings = [row["settings"] for row in raw if row.get("method") == method and "settings" in row]
    its = [
        row["best_epoch"]
        for row in raw
        if row.get("method") == method and "best_epoch" in row and row.get("settings") == settings[-1]
    ]
    return sum(epoch == allowed for epoch in its), len(its)


def method_ends(raw: Sequence[Mapping[str, Any]], *, allowed: int = EPOCHS) -> dict[str, str]:
    """By title of the methods that train a trunk, `4 of 5`: trainings that kept the last epoch that was allowed."""
    there = {row.get("method") for row in raw}
    counts = {
        m.title: ends(raw, m.name, allowed=allowed) for m in METHODS.values() if m.way != "frozen" and m.name in there
    }
    return {title: f"{ended} of {runs}" for title, (ended, runs) in counts.items()}


def _note(
    rows: Sequence[Row], method: Method, other: Method, measure: Measure, points: Mapping[int, float], size: int
) -> str:
    recall = over_seeds(differences(rows, method.name, other.name, "recall"))
    medians = [statistics.median(averages(rows, m.name, measure).values()) for m in (method, other)]
    cost = {row.method: row.over_plain for row in rows}
    parts = [f"by seed {', '.join(f'{value:+.2f}' for value in points.values())}"]
    parts += [f"mean recall on test {recall.mean:+.2f}"] if recall is not None else []
    parts += [f"medians {medians[0]:.2f} and {medians[1]:.2f}"]
    parts += [rates] if (rates := searched(rows, (method, other), measure)) else []
    parts += [f"FLOPs {cost[method.name]:.2f} and {cost[other.name]:.2f} plain passes"]
    return "; ".join([*parts, f"seven tasks of {size:,} rows on minilm, {EPOCHS} epochs where a trunk learns"])


def searched(rows: Sequence[Row], methods: Sequence[Method], measure: Measure) -> str:
    """How methods compare at the best of the learning rates that were tried for them, chosen on the builder's split."""
    bests = []
    for method in methods:
        tried = [other for other in tried_for(method) if other.learning_rate is not None]
        means = {m: averages(rows, m.name, "validation") for m in tried}
        there = {m: statistics.mean(points.values()) for m, points in means.items() if points}
        if len(there) < 2:
            return ""
        best = max(there, key=lambda m: there[m])
        value = statistics.mean(averages(rows, best.name, measure).values())
        bests.append(f"{value:.2f} at {best.learning_rate:g}")
    several = SEARCH_SEEDS[methods[0].way]
    seeds = "one seed" if len(several) == 1 else f"seeds {', '.join(map(str, several))}"
    return f"at the best of the rates that were tried, {seeds}: {' and '.join(bests)}"
