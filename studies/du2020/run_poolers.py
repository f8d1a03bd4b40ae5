"""Poolers and codecs on frozen features: emotion and offensive; a trained head against plain cosine: STS-B.

Three seeds, whole test splits; every number is a mean with its spread. The epoch is chosen on validation, and test
is read once a run.
Goes on where it stopped: one row a finished run in runs/first_light_quality.jsonl.
"""

from __future__ import annotations

import functools
import statistics
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from polyhead.deep.nn.runtime import precision_of
from polyhead.plan import Codec, Path
from polyhead.project.pretrained import load_trunk
from polyhead.project.recipes import Training
from polyhead.project.strategies import Pooled
from polyhead.project.tables import Project, TaskEntry, TrunkChoice
from polyhead.tasks import metrics
from polyhead.text.question import read_alone
from polyhead.train.candidates import candidate_paths
from polyhead.train.data.extract import Extractor
from polyhead.train.data.prepare import prepare, single_inputs, wanted
from polyhead.train.data.prepared import Prepared
from polyhead.train.data.source import FeatureRequest
from polyhead.train.events import Events
from polyhead.train.heads.run import train_task
from studies.du2020.claims import PLAIN, TRAINED, pooler_claims, scores
from studies.results import Study, results, write_results
from studies.settings import DATA, RESULTS, RUNS, answer_help

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
# Chosen on validation (docs/project/log.md), as in examples/tweets/polyhead.toml.
SIMILARITY = Pooled(layers="last", positions="mean")
SIMILARITY_TRAINING: dict[str, Any] = {"learning_rate": 1e-3, "dropout": 0.5}


def main() -> None:
    answer_help(__doc__)
    study = Study(RUNS / "first_light_quality.jsonl")
    extractor = open_extractor()
    fill_once(extractor)
    for seed in SEEDS:
        for method, strategy in STRATEGIES.items():
            for task in TASKS:
                run_once = functools.partial(run, entry(task), strategy, extractor, seed)
                print(study.row(run_once, task=task, method=method, seed=seed), flush=True)
        run_once = functools.partial(run, similarity(), SIMILARITY, extractor, seed)
        print(study.row(run_once, task="similarity", method=TRAINED, seed=seed), flush=True)
    plain = functools.partial(cosine, extractor)
    print(study.row(plain, task="similarity", method=PLAIN, seed=0), flush=True)
    command = "python -m studies du2020 run-poolers"
    file = results("first_light_quality", command=command, rows=study.rows, claims=pooler_claims(study.rows))
    print(write_results(RESULTS, file))
    plot(study.rows)


def plot(rows: list[dict[str, Any]]) -> None:
    """Bars of the means with their spread and every seed as a dot, one panel a task."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(TASKS), figsize=(11, 3.6), sharex=False)
    for panel, task in zip(panels, TASKS, strict=True):
        for place, method in enumerate(reversed(STRATEGIES)):
            values = [100 * value for value in scores(rows, task, method)]
            is_stored = method.startswith("attention, mean")
            panel.barh(place, statistics.mean(values), color="#4c78a8" if is_stored else "#b8c4d6", height=0.62)
            panel.errorbar(statistics.mean(values), place, xerr=statistics.stdev(values), color="black", capsize=3)
            panel.plot(values, [place] * len(values), "o", color="black", markersize=3)
        lowest = min(min(scores(rows, task, method)) for method in STRATEGIES)
        panel.set_xlim(100 * lowest - 3, None)
        panel.set_yticks(range(len(STRATEGIES)), list(reversed(STRATEGIES)))
        panel.set_xlabel("test macro-F1 (axis does not start at 0)")
        panel.set_title(f"{task}: {len(SEEDS)} seeds, mean and spread")
        panel.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(RESULTS / "first_light_quality.png", dpi=130)


def open_extractor() -> Extractor:
    data = load_trunk("minilm", max_tokens=128)
    return Extractor(data, folder=RUNS / "features", precision=precision_of(Training()))


def fill_once(extractor: Extractor) -> None:
    """Every stored value of every task and strategy, from one pass over each text."""
    requests = []
    for strategy in STRATEGIES.values():
        for task in TASKS:
            ready = prepared(entry(task), strategy, SEEDS[0])
            requests += wanted(ready, path_of(ready, strategy, extractor), extractor)
    ready = prepared(similarity(), SIMILARITY, SEEDS[0])
    requests += wanted(ready, path_of(ready, SIMILARITY, extractor), extractor)
    extractor.fill(requests, update=lambda done, total, share: print(f"\r{done} of {total}", end="", flush=True))


def entry(task: str) -> TaskEntry:
    folder, labels = TASKS[task]
    files = files_of(folder)
    return TaskEntry(name=task, kind="single_label", labels=labels, metric="macro_f1", **files)


def files_of(folder: str) -> dict[str, Any]:
    return {split: f"{DATA}/{folder}/{split}.jsonl.gz" for split in ("train", "validation", "test")}


def similarity() -> TaskEntry:
    files = files_of("glue_stsb")
    return TaskEntry(
        name="similarity", kind="regression", range=(0.0, 5.0), pair="separate", text="text_a", text_b="text_b", **files
    )


def prepared(declared: TaskEntry, strategy: Pooled, seed: int) -> Prepared:
    numbers = SIMILARITY_TRAINING if declared.name == "similarity" else {}
    training = Training(seed=seed, **numbers)
    project = Project(tasks=(declared,), trunk=TrunkChoice(), strategy=strategy, training=training)
    return prepare(project, FilePath())[0]


def run(declared: TaskEntry, strategy: Pooled, extractor: Extractor, seed: int) -> dict[str, object]:
    ready = prepared(declared, strategy, seed)
    assert ready.test is not None
    path = path_of(ready, strategy, extractor)
    extractor.fill(wanted(ready, path, extractor))
    trained = train_task(ready, [path], extractor, checkpoints=None, events=Events())
    return {
        "validation": trained.scores["validation"],
        "test": trained.scores["test"],
        "test_rows": len(ready.test.examples.targets),
        "best_epoch": trained.fitted.best_epoch,
    }


def path_of(ready: Prepared, strategy: Pooled, extractor: Extractor) -> Path:
    bare = candidate_paths(ready, extractor, strategy.feature_codec()[0])[0]
    codec = extractor.calibrated(bare, read_alone(ready.train.examples.inputs), per=strategy.codec_per)
    shape = extractor.data.architecture
    return strategy.path(ready.task, trunk=extractor.facts.digest, shape=shape, codec=codec)


def cosine(extractor: Extractor) -> dict[str, object]:
    """No training: cosine of the two texts' mean-pooled last states, the trunk's own sentence embedding."""
    ready = prepared(similarity(), Pooled(layers="last", positions="mean", codec="float32"), 1)
    assert ready.test is not None
    path = candidate_paths(ready, extractor, Codec(name="float32"))[0]
    inputs = single_inputs(ready.test.examples.inputs, ready.task)
    requests = [FeatureRequest(path=path, inputs=texts) for texts in inputs]
    extractor.fill(requests)
    u, v = (extractor.store(path).features(r.keys()).take(np.arange(len(r.inputs))).values[:, 0, 0] for r in requests)
    similarity_of = (u * v).sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)
    targets = np.array([float(t) for t in ready.test.examples.targets])
    return {
        "test": {
            "pearson": metrics.pearson(targets, similarity_of),
            "spearman": metrics.spearman(targets, similarity_of),
        },
        "test_rows": len(targets),
    }


if __name__ == "__main__":
    main()
