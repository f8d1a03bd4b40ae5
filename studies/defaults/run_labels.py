"""Accuracy by labels a class, beside what hosted decision models are published to do without any.

    python -m studies defaults run-labels [--sets ag_news,banking77] [--sizes 1,2,4,...,all] [--report]

Test accuracy on whole test splits, three draws, of the default, of TF-IDF with logistic regression and of logistic
regression on mean vectors (see `run.py`). With no label a text gets the option whose words are nearest:
results/server_similarity.json. Published figures are of hosted models that see no label, on the same test sets (the
cards of JevK5-Lite and openagents#9377; of DAIR's emotion set, another one, none is drawn). Goes on where it stopped:
rows are in runs/heads_labels.jsonl, or else in the results.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from studies.defaults.claims import DRAWS
from studies.defaults.run import NAME as DEFAULTS
from studies.defaults.run import run
from studies.evidence import Estimate, estimate, judged
from studies.results import Claim, Study
from studies.settings import (
    RESULTS,
    checked_names,
    command,
    parsed,
    report,
    results_rows,
    resumed,
    say,
    study_arguments,
)
from studies.shared.drawing import sheet

NAME = "heads_labels"
JOB = ("set", "size", "draw")
SIZES = ("1", "2", "4", "8", "16", "32", "64", "all")
PUBLISHED = {"ag_news": (0.875, 0.91), "banking77": (0.76, 0.87), "emotion": None}
TITLES = {"ag_news": "AG News", "banking77": "BANKING77", "emotion": "TweetEval emotion"}
NEVER = 1000  # labels a class: more than any set of the study has
FOLDERS = {"emotion": "tweeteval_emotion"}
LINES = {"default": "#1f5fa8", "TF-IDF": "#b0762a", "mean vectors": "#8a8a8a"}


def main() -> None:
    parser = study_arguments(__doc__, f"{NAME}.jsonl")
    parser.add_argument("--sets", default=",".join(PUBLISHED))
    parser.add_argument("--sizes", default=",".join(SIZES))
    options = parsed(parser)
    if not options.report:
        study = resumed(options.rows[0], NAME)
        sets, sizes = checked_names(options.sets, PUBLISHED, "set"), checked_names(options.sizes, SIZES, "size")
        known = {(row["set"], row["size"], row["draw"]): row for row in results_rows(DEFAULTS)}
        for job in ((name, size, draw) for draw in DRAWS for size in sizes for name in sets):
            measured = known[job].copy if job in known else partial(run, *job)
            say(str(study.row(measured, **dict(zip(JOB, job, strict=True)))))
        return
    rows = [row for file in options.rows for row in Study(file).rows]
    without = without_labels(RESULTS / "server_similarity.json")
    draw_curves(rows, without, RESULTS / f"{NAME}.png")
    lacking = [
        f"{TITLES[name]}, {size} labels a class: {len(found)} of {len(DRAWS)} draws"
        for name in PUBLISHED
        for size in SIZES
        if len(found := values(rows, name, size, "default")) < len(DRAWS)
    ]
    report(NAME, command=command(), rows=rows, claims=list(claims(rows, without)), lacking=lacking)


def without_labels(file: Path) -> dict[str, float]:
    """By set, the best accuracy of answers by similarity, with descriptions of the options or with their names."""
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
    folders = {name: FOLDERS.get(name, name) for name in PUBLISHED}
    return {name: max(row["accuracy"] for row in rows if row["set"] == folder) for name, folder in folders.items()}


def values(rows: list[dict[str, Any]], name: str, size: str, line: str) -> list[float]:
    """The accuracies of all draws."""
    several = [row for row in rows if row["set"] == name and row["size"] == size]
    return [row["default"] if line == "default" else row["baselines"][line] for row in several]


def curve(rows: list[dict[str, Any]], name: str, line: str) -> list[tuple[float, float]]:
    """Labelled rows a class, on average, and the mean accuracy, for each size with a row."""
    points = []
    for size in SIZES:
        if found := values(rows, name, size, line):
            labels = {"ag_news": 4, "banking77": 77, "emotion": 4}[name]
            counts = [row["rows"] for row in rows if row["set"] == name and row["size"] == size]
            points.append((statistics.mean(counts) / labels, statistics.mean(found)))
    return points


def restated(rows: list[dict[str, Any]]) -> list[Claim]:
    """The claims of these rows, beside what is known without labels."""
    return list(claims(rows, without_labels(RESULTS / "server_similarity.json")))


def claims(rows: list[dict[str, Any]], without: dict[str, float]) -> Iterator[Claim]:
    """The fewest labels a class with which the default passes the best published figure without labels."""
    for name, published in PUBLISHED.items():
        if published is None:
            continue
        found = {size: estimate(several) for size in SIZES if (several := values(rows, name, size, "default"))}
        few = [size for size, one in found.items() if one.seeds < len(DRAWS)]
        low = {size: one.mean if one.low is None else one.low for size, one in found.items()}
        mean = {size: one.mean for size, one in found.items()}
        high = {size: one.mean if one.high is None else one.high for size, one in found.items()}
        surely, by_means, perhaps = (labels_from(points, published[1]) for points in (low, mean, high))
        yield judged(
            f"heads.labels_{name}",
            f"labels a class from which the default on {TITLES[name]} is more accurate than the best published of "
            f"hosted models without labels, {published[1]:.1%}; {NEVER} where it is not, or with all rows alone",
            Estimate(
                mean=by_means, low=perhaps, high=surely, seeds=min((one.seeds for one in found.values()), default=0)
            ),
            target=64,
            side="most",
            unit="labels",
            digits=0,
            note=f"without labels {without[name]:.1%}; "
            + ", ".join(f"{size}: {one.mean:.1%}" for size, one in found.items()),
            lacking=f"fewer than {len(DRAWS)} draws at {', '.join(few)}" if few else "",
        )


def labels_from(accuracies: dict[str, float], published: float) -> int:
    """The least size from which no larger one falls to the published accuracy; NEVER where there is none."""
    at = NEVER
    for size in reversed(accuracies):
        if accuracies[size] <= published:
            break
        at = NEVER if size == "all" else int(size)
    return at


def apart(heights: dict[str, float], least: float = 0.035) -> dict[str, float]:
    """The heights, those raised that would be less than `least` above the next lower one."""
    raised = dict[str, float]()
    for name, height in sorted(heights.items(), key=lambda pair: pair[1]):
        raised[name] = max([height, *(lower + least for lower in raised.values())])
    return raised


def draw_curves(rows: list[dict[str, Any]], without: dict[str, float], path: Path) -> None:
    """One panel a set: accuracy over labels a class, lines labelled at their ends."""
    shown = [name for name in PUBLISHED if curve(rows, name, "default")]
    figure, axes = sheet(4.2 * max(1, len(shown)), 3.4, columns=max(1, len(shown)))
    for name, axis in zip(shown, axes if len(shown) > 1 else [axes], strict=True):
        heights = apart({line: curve(rows, name, line)[-1][1] for line in LINES})
        for line, colour in LINES.items():
            points = curve(rows, name, line)
            axis.plot(
                *zip(*points, strict=True),
                color=colour,
                marker="o",
                markersize=3,
                linewidth=2 if line == "default" else 1,
            )
            axis.annotate(
                line,
                (points[-1][0], heights[line]),
                xytext=(4, 0),
                textcoords="offset points",
                color=colour,
                va="center",
                fontsize=8,
            )
        axis.axhline(without[name], color=LINES["default"], linewidth=0.8, linestyle=":")
        axis.annotate(
            "default, no label",
            (1, without[name]),
            xycoords=("axes fraction", "data"),
            xytext=(0, 3),
            textcoords="offset points",
            ha="right",
            fontsize=7,
            color=LINES["default"],
        )
        if published := PUBLISHED[name]:
            axis.axhspan(*published, color="#d9d9d9", zorder=0)
            axis.annotate(
                "hosted models, no label",
                (1, published[1]),
                xytext=(0, 2),
                textcoords="offset points",
                fontsize=7,
                color="#555555",
            )
        sizes = [size for size in SIZES if values(rows, name, size, "default")]
        places = [labels for labels, _ in curve(rows, name, "default")]
        axis.set_xscale("log", base=2)
        axis.set_xticks(places, sizes)
        axis.set_xlim(0.9, 6 * max(places))
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axis.set_title(TITLES[name], fontsize=10)
        axis.set_xlabel("labels a class", fontsize=8)
        axis.tick_params(labelsize=8)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
