"""Tags of words from few sentences: the default, all layers fine-tuned with as many updates, and no encoder at all.

    python -m studies defaults run-entities [--sets wnut17] [--sizes 100,200,all] [--report]

Span F1 on whole test splits (accuracy for parts of speech), three draws; writes results/heads_entities.json. Without an
encoder: logistic regression on the words around each word, as in `run`. Fine-tuning is a branch of all layers of the
trunk (its embeddings stay), 16 sentences an update, at the rate that branches have by default. Of few sentences it
takes as many updates as the default may, and stops by the same rule; of all it takes three passes, or 1,500 updates
where these are more. The best weights by validation are kept. Goes on where it stopped: rows are in
runs/heads_entities.jsonl, or else in the results.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from polyhead.project.recipes import Training
from polyhead.project.strategies import Branch, Pooled, Strategy
from polyhead.project.strategies.branch import BRANCH_TRAINING
from polyhead.project.tables import Project, TrunkChoice
from polyhead.tasks.kinds import kind_of
from polyhead.train.data.prepare import prepare
from polyhead.train.events import Events
from polyhead.train.run import train_project
from studies.defaults.run import MAX_TOKENS, SETS, Set, labels_of, read, words_around, written
from studies.evidence import by_draw, estimate, judged
from studies.evidence import least as lowest
from studies.results import Claim, Study
from studies.settings import RUNS, checked_names, command, parsed, report, resumed, say, study_arguments
from studies.shared.rows import paired
from studies.trained import unknown

NAME = "heads_entities"
TAGGED = {
    **{name: SETS[name] for name in ("wnut17", "snips_slots", "restaurant8k_slots")},
    "ud_ewt_upos": Set("ud_ewt_upos", "tagging"),
    "mit_movie_trivia_slots": SETS["mit_movie"],
}
SIZES = ("100", "200", "all")
SEEDS = (1, 2, 3)
METHODS = DEFAULT, TUNED, AROUND = "default", "fine-tuning", "words around"
BEHIND = 5.0  # points that the default may be behind fine-tuning
UPDATES, PASSES, BATCH = 1500, 3, 16  # of fine-tuning on all sentences, at least


def main() -> None:
    parser = study_arguments(__doc__, f"{NAME}.jsonl")
    parser.add_argument("--sets", default=",".join(TAGGED))
    parser.add_argument("--sizes", default=",".join(SIZES))
    options = parsed(parser)
    if not options.report:
        study = resumed(options.rows[0], NAME)
        sets, sizes = checked_names(options.sets, TAGGED, "set"), checked_names(options.sizes, SIZES, "size")
        for seed, size, name, method in product(SEEDS, sizes, sets, METHODS):
            training = partial(run, name, size, seed, method)
            say(str(study.row(training, set=name, size=size, seed=seed, method=method)))
        return
    rows = [row for file in options.rows for row in Study(file).rows]
    lacking = [
        f"{name}, {size}, {method}: {count} of {len(SEEDS)} seeds"
        for size in SIZES
        for name in TAGGED
        for method in METHODS
        if (count := len(scores(rows, name, size, method))) < len(SEEDS)
    ]
    report(NAME, command=command(), rows=rows, claims=claims(rows), lacking=lacking)


def run(name: str, size: str, seed: int, method: str) -> dict[str, object]:
    """One training, and its score on the whole test split."""
    source = TAGGED[name]
    rows = sentences(source, size, seed)
    training, strategy = way(method, size, len(rows), seed)
    with tempfile.TemporaryDirectory() as folder:
        entry = written(source, rows, Path(folder), labels_of(source))
        entry = msgspec.structs.replace(entry, strategy=strategy, training=training)
        project = Project(tasks=(entry,), trunk=TrunkChoice(max_tokens=MAX_TOKENS))
        ready = prepare(project, Path(folder))[0]
        metric = kind_of(ready.task).default_metric(ready.task)
        if method == AROUND:
            began = time.perf_counter()
            score, seconds = words_around(ready, seed, metric), time.perf_counter() - began
        else:
            cache = RUNS / "right-cache" if method != TUNED else Path(folder) / "cache"
            outcome = train_project(project, folder=Path(folder), cache=cache, events=Events(say=say))
            assert outcome.extraction is not None
            score, seconds = outcome.trained["task"]["test"][metric], outcome.seconds - outcome.extraction.seconds
        return {"rows": len(rows), "metric": metric, "score": score, "seconds": round(seconds, 1)}


def sentences(source: Set, size: str, seed: int) -> list[dict[str, Any]]:
    rows = read(source, "train")
    order = [rows[index] for index in np.random.default_rng(seed).permutation(len(rows))]
    return order if size == "all" else order[: int(size)]


def way(method: str, size: str, rows: int, seed: int) -> tuple[Training, Strategy]:
    if method != TUNED:
        return Training(seed=seed), Pooled()
    epochs = None
    if size == "all":
        epochs = max(PASSES, math.ceil(UPDATES * BATCH / rows))
    own = BRANCH_TRAINING
    training = Training(
        seed=seed, epochs=epochs, patience=epochs, batch=BATCH, learning_rate=own.learning_rate, warmup=own.warmup
    )
    return training, Branch(layers=6, tap=0)


def scores(rows: list[dict[str, Any]], name: str, size: str, method: str) -> list[float]:
    return list(by_seed(rows, name, size, method).values())


def by_seed(rows: list[dict[str, Any]], name: str, size: str, method: str) -> dict[int, float]:
    """Points by seed; earlier rows call them `span_f1`."""
    its = [row for row in rows if (row["set"], row["size"], row["method"]) == (name, size, method)]
    return {row["seed"]: 100 * (row["score"] if "score" in row else row["span_f1"]) for row in its}


def spread(values: list[float]) -> str:
    """Mean and standard deviation, and of how many draws."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.1f} ± {deviation:.1f} ({len(values)} {'draws' if len(values) > 1 else 'draw'})"


def claims(rows: list[dict[str, Any]]) -> list[Claim]:
    """Claims for each size, of the set where the default does worst: beside fine-tuning, and beside no encoder."""
    claimed = []
    for size in SIZES:
        amount = "all sentences" if size == "all" else f"{size} sentences"
        for id, other, least, text in (
            ("tuned", TUNED, -BEHIND, "the default less fine-tuning of all layers"),
            ("around", AROUND, 0.0, "the default less a regression on the words around, without an encoder"),
        ):
            points = {name: [by_seed(rows, name, size, method) for method in (DEFAULT, other)] for name in TAGGED}
            few = [name for name, both in points.items() if any(len(values) < len(SEEDS) for values in both)]
            pairs = {name: both for name, both in points.items() if all(both)}
            if not pairs:
                continue
            gains = [estimate(paired(*both).values()) for both in pairs.values()]
            claimed.append(
                judged(
                    f"heads.tagging_{id}_{size}",
                    f"tagging, {text}, the least of {len(pairs)} sets, {amount}",
                    lowest(gains),
                    target=least,
                    side="least" if least else "above",
                    note=told(pairs, other),
                    against=unknown("fine-tuning") if other == TUNED else None,
                    lacking=f"fewer than {len(SEEDS)} draws of {', '.join(few)}" if few else "",
                )
            )
    return claimed


def told(pairs: Mapping[str, Sequence[Mapping[int, float]]], other: str) -> str:
    """Mean and deviation of both sides of each set."""
    return "; ".join(
        f"{name} {spread(list(own.values()))}, {other} {spread(list(theirs.values()))}"
        for name, (own, theirs) in pairs.items()
    )


def earlier_claims(rows: list[dict[str, Any]]) -> list[Claim]:
    """Of the rows before words were read: the mean over sets of the default less that of before, and fine-tuning."""
    claimed = []
    for size in SIZES:
        amount = "all sentences" if size == "all" else f"{size} sentences"
        for id, other, text in (
            ("gain", "default of before", "the default less the default of before"),
            ("loss", TUNED, "the default less fine-tuning of all layers"),
        ):
            names = dict.fromkeys(row["set"] for row in rows)
            points = {name: [by_seed(rows, name, size, method) for method in (DEFAULT, other)] for name in names}
            pairs = {name: both for name, both in points.items() if all(both)}
            claimed.append(
                judged(
                    f"right.entities_{id}_{size}",
                    f"span F1, {text}, mean of {len(pairs)} sets, {amount}",
                    by_draw({name: paired(*both) for name, both in pairs.items()}),
                    target=0.0,
                    note=told(pairs, other),
                    against=unknown("fine-tuning") if other == TUNED else None,
                )
            )
    return claimed


if __name__ == "__main__":
    main()
