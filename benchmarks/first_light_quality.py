"""Poolers and codecs on frozen features: emotion and offensive, three seeds, whole test splits; STS-B against cosine.

Every number is a mean over seeds with its spread. Choices (epoch) are made on validation; test is read once a run.
Goes on where it stopped: one row a finished run in runs/first_light_quality.jsonl.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import numpy as np
import torch
from settings import DATA, RESULTS, RUNS

from polyhead import metrics
from polyhead.nn.load import load_trunk
from polyhead.plan import Codec
from polyhead.project import Pooled, Project, TaskEntry, Training, TrunkChoice
from polyhead.report.results import Claim, Study, results, write_results
from polyhead.sharing.pooled import pooled_path
from polyhead.train.events import Events
from polyhead.train.extract import Extractor, Wanted
from polyhead.train.numerics import precision_of
from polyhead.train.prepare import Prepared, prepare, single_inputs
from polyhead.train.task_run import paths_of, train_task, wanted

SEEDS = (1, 2, 3)
TASKS = {
    "emotion": ("tweeteval_emotion", ("anger", "joy", "optimism", "sadness")),
    "offensive": ("tweeteval_offensive", ("not-offensive", "offensive")),
}
STRATEGIES = {
    "first, last layer": Pooled(layers="last", positions="first"),
    "mean, last layer": Pooled(layers="last", positions="mean"),
    "attention, last layer": Pooled(layers="last", positions="attention"),
    "attention, mean of 4": Pooled(layers="mean", of=4, positions="attention"),
    "attention, mean of 4, uint8": Pooled(layers="mean", of=4, positions="attention", codec="uint8"),
    "attention, mean of 4, 1 bit": Pooled(layers="mean", of=4, positions="attention", codec="sign"),
}
SIMILARITY = Pooled(layers="mean", of=4, positions="mean", codec="float16")


def main() -> None:
    study = Study(RUNS / "first_light_quality.jsonl")
    extractor = None
    for seed in SEEDS:
        for name, strategy in STRATEGIES.items():
            for task in TASKS:
                key = {"task": task, "method": name, "seed": seed}
                if any(all(row.get(k) == v for k, v in key.items()) for row in study.rows):
                    continue
                extractor = extractor or open_extractor()
                row = study.row(lambda s=strategy, t=task, x=extractor, n=seed: run(entry(t), s, x, n), **key)
                print(row, flush=True)
        key = {"task": "similarity", "method": "trained head on mean pooling", "seed": seed}
        if not any(all(row.get(k) == v for k, v in key.items()) for row in study.rows):
            extractor = extractor or open_extractor()
            print(
                study.row(lambda x=extractor, n=seed: run(similarity(), SIMILARITY, x, n), **key), flush=True
            )
    if not any(row["method"] == "cosine of mean pooling" for row in study.rows):
        extractor = extractor or open_extractor()
        print(
            study.row(
                lambda x=extractor: cosine(x), task="similarity", method="cosine of mean pooling", seed=0
            )
        )
    found = results(
        "first_light_quality",
        command="python benchmarks/first_light_quality.py",
        rows=study.rows,
        claims=claims(study.rows),
    )
    print(write_results(RESULTS, found))


def open_extractor() -> Extractor:
    data = load_trunk("minilm", max_tokens=128)
    return Extractor(data, folder=RUNS / "features", precision=precision_of(Training()))


def entry(task: str) -> TaskEntry:
    folder, labels = TASKS[task]
    files = {split: f"{DATA}/{folder}/{split}.jsonl.gz" for split in ("train", "validation", "test")}
    return TaskEntry(name=task, kind="single_label", labels=labels, metric="macro_f1", **files)


def similarity() -> TaskEntry:
    files = {split: f"{DATA}/glue_stsb/{split}.jsonl.gz" for split in ("train", "validation", "test")}
    return TaskEntry(
        name="similarity",
        kind="regression",
        range=(0.0, 5.0),
        pair="separate",
        text="text_a",
        text_b="text_b",
        **files,
    )


def prepared(declared: TaskEntry, strategy: Pooled, seed: int) -> Prepared:
    project = Project(tasks=(declared,), trunk=TrunkChoice(), strategy=strategy, training=Training(seed=seed))
    return prepare(project, Path())[0]


def run(declared: TaskEntry, strategy: Pooled, extractor: Extractor, seed: int) -> dict[str, object]:
    ready = prepared(declared, strategy, seed)
    bare = paths_of(ready, extractor, Codec(name=strategy.codec))[0]
    codec = extractor.calibrated(bare, ready.train.examples.inputs, per=strategy.codec_per)
    shape = extractor.data.architecture
    path = pooled_path(ready.task, strategy, trunk=extractor.digest, shape=shape, codec=codec)
    extractor.fill(wanted(ready, path))
    trained = train_task(ready, [path], extractor, checkpoints=None, events=Events())
    return {
        "validation": trained.scores["validation"],
        "test": trained.scores["test"],
        "test_rows": len(ready.test.examples.targets),
        "best_epoch": trained.fitted.best_epoch,
        "seconds": trained.fitted.seconds,
    }


def cosine(extractor: Extractor) -> dict[str, object]:
    """No training: cosine of the two texts' mean-pooled last states, the trunk's own sentence embedding."""
    ready = prepared(similarity(), Pooled(layers="last", positions="mean", codec="float32"), 1)
    path = paths_of(ready, extractor, Codec(name="float32"))[0]
    inputs = single_inputs(ready.test.examples.inputs, ready.task)
    requests = [Wanted(path=path, inputs=texts) for texts in inputs]
    extractor.fill(requests)
    u, v = (
        extractor.store(path).features(r.keys()).take(np.arange(len(r.inputs))).values[:, 0, 0]
        for r in requests
    )
    similarity_of = (u * v).sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)
    targets = np.array([float(t) for t in ready.test.examples.targets])
    return {
        "test": {
            "pearson": metrics.pearson(targets, similarity_of),
            "spearman": metrics.spearman(targets, similarity_of),
        },
        "test_rows": len(targets),
    }


def claims(rows: list[dict]) -> list[Claim]:
    def scores(task: str, method: str) -> list[float]:
        metric = "pearson" if task == "similarity" else "macro_f1"
        return [row["test"][metric] for row in rows if row["task"] == task and row["method"] == method]

    found = []
    for task in TASKS:
        first, mean, attention = (
            scores(task, name) for name in ("first, last layer", "mean, last layer", "attention, mean of 4")
        )
        gap = 100 * min(
            statistics.mean(attention) - statistics.mean(mean), statistics.mean(mean) - statistics.mean(first)
        )
        said = ", ".join(
            f"{n} {100 * statistics.mean(s):.1f} ± {100 * statistics.stdev(s):.1f}"
            for n, s in (("attention over the mean of 4", attention), ("mean", mean), ("first", first))
        )
        found.append(
            Claim(
                id=f"first-light.pooler-order-{task}",
                text=f"{task}: attention over the mean of the last 4 layers beats mean pooling beats first position (smaller of the two gaps; macro-F1 {said})",
                target=0.0,
                value=gap,
                unit="points",
                holds=gap > 0,
            )
        )
    emotion = statistics.mean(scores("emotion", "attention, mean of 4"))
    found.append(
        Claim(
            id="first-light.emotion",
            text="emotion test macro-F1, attention over the mean of the last 4 layers, mean of 3 seeds",
            target=0.75,
            value=emotion,
            unit="macro-F1",
            holds=emotion >= 0.75,
        )
    )
    for task in TASKS:
        pairs = zip(
            scores(task, "attention, mean of 4, uint8"), scores(task, "attention, mean of 4"), strict=True
        )
        change = 100 * statistics.mean(a - b for a, b in pairs)
        found.append(
            Claim(
                id=f"first-light.uint8-{task}",
                text=f"{task}: uint8 minus float16 features, paired by seed, mean of 3 (within 0.5 points)",
                target=-0.5,
                value=change,
                unit="points",
                holds=change >= -0.5,
            )
        )
    trained, plain = (
        statistics.mean(scores("similarity", "trained head on mean pooling")),
        scores("similarity", "cosine of mean pooling")[0],
    )
    found.append(
        Claim(
            id="first-light.stsb-cosine",
            text=f"STS-B test Pearson, trained head (mean of 3 seeds {trained:.4f}) minus plain cosine of mean-pooled vectors ({plain:.4f})",
            target=0.0,
            value=100 * (trained - plain),
            unit="points",
            holds=trained > plain,
        )
    )
    return found


if __name__ == "__main__":
    torch.set_num_threads(2)
    sys.exit(main())
