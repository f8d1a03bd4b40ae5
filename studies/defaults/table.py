"""The README's tables of quality, from the rows of the studies of defaults and of SetFit."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

SIZES = {"8": "8", "64": "64"}
ROWS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "one label a text, ten sets, accuracy": (
        ("banking77", "clinc150", "irony", "subj", "trec50", "ag_news", "trec6", "emotion", "cr", "sst5"),
        "TF-IDF",
    ),
    "entities, four sets, span F1": (("wnut17", "snips_slots", "mit_movie", "restaurant8k_slots"), "words around"),
}
VECTORS = ("mean vectors", "mean vectors, searched", "word vectors")  # the best of those that a set has is shown


def quality_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Mean test scores in points, each set's mean over its draws; the best of a row is bold."""
    lines = ["| training | task | no encoder | same encoder, logistic regression | Polyhead |", "|---|---|---|---|---|"]
    for size, shown in SIZES.items():
        for title, (sets, words) in ROWS.items():
            found = [_points(rows, size, name, words) for name in sets]
            means = [statistics.mean(points) for points in zip(*found, strict=True)]
            cells = [f"**{mean:.1f}**" if mean == max(means) else f"{mean:.1f}" for mean in means]
            lines.append(f"| {shown} a label | {title} | {' | '.join(cells)} |")
    return lines


def _points(rows: Sequence[Mapping[str, Any]], size: str, name: str, words: str) -> tuple[float, float, float]:
    """Points without an encoder, with its vectors, and of the default."""
    own = [row for row in rows if row["size"] == size and row["set"] == name]

    def mean(values: Sequence[float]) -> float:
        return 100 * statistics.mean(values)

    vectors = max(mean([row["baselines"][key] for row in own]) for key in VECTORS if key in own[0]["baselines"])
    return mean([row["baselines"][words] for row in own]), vectors, mean([row["default"] for row in own])


METHODS = {"logistic regression": "same encoder, logistic regression", "SetFit": "SetFit 1.2", "default": "Polyhead"}


def setfit_table(rows: Sequence[Mapping[str, Any]], draws: int = 3) -> list[str]:
    """Mean accuracy in points of the sets that have all draws, by size, and median seconds of training.

    Seconds are of runs that did not share their core with other work.
    """
    lines = [f"| training | one label a text | {' | '.join(METHODS.values())} |", f"|---|---|{'---|' * len(METHODS)}"]
    for size in dict.fromkeys(row["size"] for row in rows):
        by_set: dict[str, list[Mapping[str, Any]]] = {}
        for row in rows:
            if row["size"] == size:
                by_set.setdefault(row["set"], []).append(row)
        whole = [runs for runs in by_set.values() if len(runs) == draws]
        if not whole:
            continue
        means = {
            method: 100
            * statistics.mean(statistics.mean(run["methods"][method]["accuracy"] for run in runs) for runs in whole)
            for method in METHODS
        }
        best = max(means.values())
        cells = [f"**{mean:.1f}**" if mean == best else f"{mean:.1f}" for mean in means.values()]
        alone = [run["methods"] for runs in whole for run in runs if not run.get("beside_other_work")]
        lines.append(f"| {size} a label | accuracy, {len(whole)} sets | {' | '.join(cells)} |")
        if not alone:
            continue
        cells = [f"{statistics.median(run[method]['seconds'] for run in alone):.1f}" for method in METHODS]
        lines.append(f"| {size} a label | seconds to train, median of {len(alone)} runs | {' | '.join(cells)} |")
    return lines
