"""Entities from few sentences: the default, the default of before, and all layers fine-tuned with as many updates.

    python -m studies defaults run-entities [--sizes 100,200,all] [--report]

Span F1 on whole test splits, three draws. The default of before is a tanh layer on each word's vector for 30 epochs.
Fine-tuning is a branch of all layers of the trunk (its embeddings stay), 16 sentences an update, at the rate that
branches have by default. Of few sentences it takes as many updates as the default may, and stops by the same rule; of
all it takes three passes, or 1,500 updates where these are more. The best weights by validation are kept. Goes on where
it stopped: rows are in runs/right_entities.jsonl, or else in the results.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from functools import partial
from itertools import product
from pathlib import Path

import msgspec
import numpy as np

from polyhead.project.recipes import Training
from polyhead.project.strategies import Branch, Pooled, Strategy
from polyhead.project.strategies.branch import BRANCH_TRAINING
from polyhead.project.tables import Project, TrunkChoice
from polyhead.train.events import Events
from polyhead.train.run import train_project
from studies.defaults.run import MAX_TOKENS, SETS, Set, labels_of, read, written
from studies.results import Claim, Study
from studies.settings import RUNS, checked_names, command, parsed, report, resumed, say, study_arguments

NAMES = ("wnut17", "snips_slots", "restaurant8k_slots")
SIZES = ("100", "200", "all")
SEEDS = (1, 2, 3)
METHODS = DEFAULT, BEFORE, TUNED = "default", "default of before", "fine-tuning"
WHY = ". A head cannot make the words of frozen layers anew; layers of the task's own (a branch) close the gap."
SHARE = 0.1  # of the sentences that are held out
UPDATES, PASSES, BATCH = 1500, 3, 16  # of fine-tuning on all sentences, at least


def main() -> None:
    parser = study_arguments(__doc__, "right_entities.jsonl")
    parser.add_argument("--sizes", default=",".join(SIZES))
    options = parsed(parser)
    if not options.report:
        study, sizes = resumed(options.rows[0], "right_entities"), checked_names(options.sizes, SIZES, "size")
        for seed, size, name, method in product(SEEDS, sizes, NAMES, METHODS):
            training = partial(run, name, size, seed, method)
            say(str(study.row(training, set=name, size=size, seed=seed, method=method)))
        return
    rows = [row for file in options.rows for row in Study(file).rows]
    lacking = [
        f"{name}, {size}, {method}: {count} of {len(SEEDS)} seeds"
        for size in SIZES
        for name in NAMES
        for method in METHODS
        if (count := len(scores(rows, name, size, method))) < len(SEEDS)
    ]
    report("right_entities", command=command(), rows=rows, claims=claims(rows), lacking=lacking)


def run(name: str, size: str, seed: int, method: str) -> dict[str, object]:
    """One training, and its span F1 on the whole test split."""
    source = SETS[name]
    rows = sentences(source, size, seed)
    training, strategy = way(method, size, len(rows), seed)
    with tempfile.TemporaryDirectory() as folder:
        held = round(len(rows) * SHARE) if method == BEFORE else 0  # by a file: no folds, and no training again
        entry = written(source, rows[held:], Path(folder), labels_of(source))
        entry = msgspec.structs.replace(entry, strategy=strategy, training=training)
        if held:
            content = b"".join(msgspec.json.encode(row) + b"\n" for row in rows[:held])
            (Path(folder) / "validation.jsonl").write_bytes(content)
            entry = msgspec.structs.replace(entry, validation="validation.jsonl")
        project = Project(tasks=(entry,), trunk=TrunkChoice(max_tokens=MAX_TOKENS))
        cache = RUNS / "right-cache" if method != TUNED else Path(folder) / "cache"
        outcome = train_project(project, folder=Path(folder), cache=cache, events=Events(say=say))
        return {
            "rows": len(rows),
            "span_f1": outcome.trained["task"]["test"]["span_f1"],
            "seconds": round(outcome.seconds - outcome.extraction.seconds, 1),
        }


def sentences(source: Set, size: str, seed: int) -> list[dict]:
    rows = read(source, "train")
    order = [rows[index] for index in np.random.default_rng(seed).permutation(len(rows))]
    return order if size == "all" else order[: int(size)]


def way(method: str, size: str, rows: int, seed: int) -> tuple[Training, Strategy]:
    if method == DEFAULT:
        return Training(seed=seed), Pooled()
    if method == BEFORE:
        return Training(seed=seed, epochs=30, patience=6), Pooled(positions="mean")
    epochs = None
    if size == "all":
        epochs = max(PASSES, math.ceil(UPDATES * BATCH / rows))
    own = BRANCH_TRAINING
    training = Training(
        seed=seed, epochs=epochs, patience=epochs, batch=BATCH, learning_rate=own.learning_rate, warmup=own.warmup
    )
    return training, Branch(layers=6, tap=0)


def scores(rows: list[dict], name: str, size: str, method: str) -> list[float]:
    return [100 * row["span_f1"] for row in rows if (row["set"], row["size"], row["method"]) == (name, size, method)]


def spread(values: list[float]) -> str:
    """Mean and standard deviation, and of how many draws."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.1f} ± {deviation:.1f} ({len(values)} {'draws' if len(values) > 1 else 'draw'})"


def claims(rows: list[dict]) -> list[Claim]:
    """Claims for each size: the gain over the default of before, and the loss to fine-tuning."""
    claimed = []
    for size in SIZES:
        amount = "all sentences" if size == "all" else f"{size} sentences"
        for id, other, text, target in (
            ("gain", BEFORE, "the default less the default of before", 0.0),
            ("loss", TUNED, "the default less fine-tuning of all layers", 0.0),
        ):
            pairs = {name: [scores(rows, name, size, method) for method in (DEFAULT, other)] for name in NAMES}
            pairs = {name: both for name, both in pairs.items() if all(both)}
            if not pairs:
                continue
            value = statistics.mean(statistics.mean(own) - statistics.mean(theirs) for own, theirs in pairs.values())
            note = "; ".join(f"{name} {spread(own)}, {other} {spread(theirs)}" for name, (own, theirs) in pairs.items())
            claimed.append(
                Claim(
                    id=f"right.entities_{id}_{size}",
                    text=f"span F1, {text}, mean of {len(pairs)} sets, {amount}",
                    target=target,
                    value=round(value, 2),
                    unit="points",
                    holds=value >= target,
                    note=note + (WHY if id == "loss" and value < target else ""),
                )
            )
    return claimed


if __name__ == "__main__":
    main()
