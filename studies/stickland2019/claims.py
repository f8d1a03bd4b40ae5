"""The claims of Stickland and Murray 2019 at our scale, from the rows of the study alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from studies.evidence import Side, estimate, judged
from studies.results import Claim
from studies.stickland2019.methods import MAIN, METHODS
from studies.stickland2019.study import GLUE, Row, differences, rows_of
from studies.trained import NOT, UNKNOWN, Fit, Learned, learned, whole

MOST = 1.13  # times the parameters of one encoder
EPOCHS = 8  # the last one of every run
SINGLE = ("single", "alone")
# id, what is compared, a method and its sampling, the other, and the side of 0
COMPARED: tuple[tuple[str, str, tuple[str, str], tuple[str, str], Side], ...] = (
    ("pals-shared", "PALs over sharing alone, both annealed", ("pals", "annealed"), ("shared", "annealed"), "above"),
    ("pals-single", "PALs, annealed, over a trunk a task", ("pals", "annealed"), SINGLE, "least"),
    ("shared-single", "sharing alone, annealed, over a trunk a task", ("shared", "annealed"), SINGLE, "least"),
    ("pals-on-top", "PALs over attention on top, both annealed", ("pals", "annealed"), ("on-top", "annealed"), "above"),
    ("pals-low-rank", "PALs over low rank, both annealed", ("pals", "annealed"), ("low-rank", "annealed"), "above"),
    (
        "pals-top",
        "PALs in all layers over PALs in the top half",
        ("pals", "annealed"),
        ("pals-top", "annealed"),
        "above",
    ),
    ("annealed-pals", "PALs: annealed over proportional", ("pals", "annealed"), ("pals", "proportional"), "above"),
    (
        "annealed-shared",
        "sharing: annealed over proportional",
        ("shared", "annealed"),
        ("shared", "proportional"),
        "above",
    ),
    ("annealed-root", "PALs: annealed over the square root", ("pals", "annealed"), ("pals", "square-root"), "above"),
)


def claims(raw: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """What all tasks' parameters come to, and the orderings that the paper states, at equal updates."""
    rows = rows_of(raw)
    return [*_parameters(rows), *_orderings(raw, rows)]


def single_learned(raw: Sequence[Mapping[str, Any]]) -> dict[str, Learned]:
    """How far a trunk a task had learned each of them."""
    epochs = {row["seed"]: row.get("best_epoch", {}) for row in _runs(raw, *SINGLE)}
    sizes: Mapping[str, int] = next((row.get("examples", {}) for row in _runs(raw, *SINGLE)), {})
    fits = [
        Fit(
            task=row.task,
            score=100 * row.test,
            best_epoch=epochs.get(row.seed, {}).get(row.task),
            metric=row.metric,
            rows=sizes.get(row.task, 0),
        )
        for row in rows_of(raw)
        if (row.method, row.sampling) == SINGLE and row.task in GLUE
    ]
    return learned(fits, allowed=EPOCHS)


def ends(raw: Sequence[Mapping[str, Any]], method: str, sampling: str) -> tuple[int, int]:
    """How many runs of a method that learns all tasks together kept the last epoch that was allowed, of how many."""
    epochs = [row.get("best_epoch") for row in _runs(raw, method, sampling)]
    return sum(epoch == EPOCHS for epoch in epochs), len(epochs)


def _orderings(raw: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> list[Claim]:
    made = []
    for id, text, way, other, side in COMPARED:
        points = differences(rows, way, other)
        if not points:
            continue
        against = whole("a trunk a task", single_learned(raw)) if other == SINGLE else None
        made.append(
            judged(
                f"evidence.{id}",
                f"{text}: mean test score of eight tasks of GLUE, equal updates",
                estimate(points.values()),
                target=0.0,
                side=side,
                note=f"by seed {', '.join(f'{value:+.2f}' for value in points.values())}",
                ours=_learned(raw, *way) if other == SINGLE else None,
                against=against,
            )
        )
    return made


def _learned(raw: Sequence[Mapping[str, Any]], method: str, sampling: str) -> Learned:
    ended, runs = ends(raw, method, sampling)
    title, state = METHODS[method].title, NOT if ended else UNKNOWN
    return Learned(state=state, why=f"{title} is {state} ({ended} of {runs} runs end at the last epoch)", runs=runs)


def _runs(raw: Sequence[Mapping[str, Any]], method: str, sampling: str) -> list[Mapping[str, Any]]:
    return [
        row
        for row in raw
        if (row.get("stage"), row.get("method"), row.get("sampling")) == ("run", method, sampling)
        and set(row.get("tasks", ())) >= set(GLUE)
    ]


def _parameters(rows: Sequence[Row]) -> list[Claim]:
    there = {row.method: row for row in rows if row.task in GLUE}  # others say what two tasks cost
    if any(method.name not in there for method in MAIN):
        return []
    each = [(method.title, there[method.name]) for method in MAIN]
    most = max(row.ratio for _, row in each)
    ratios = ", ".join(f"{title} {row.ratio:.3f} ({row.ratio_bert_base:.3f})" for title, row in each)
    return [
        Claim(
            id="conditioning.adapter-parameters",
            text="parameters that serve eight tasks, over those of one encoder with its pooler: the most of the "
            "five main methods on minilm",
            target=MOST,
            value=most,
            unit="times",
            holds=most <= MOST,
            note=f"minilm, sizes in the paper's proportion; in brackets BERT-base: {ratios}",
        )
    ]
