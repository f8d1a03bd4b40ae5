"""Few labels: the head that labels' words help, and which texts to label next.

    python -m benchmarks.workbench_label [--jobs few,active] [--seeds 1,2,3,4,5] [--report]

`few`: eight sets, 8 rows a class, five draws, whole test splits: the default of a project as it is, the same without
the labels' words (the default before), and scikit-learn's logistic regression on mean vectors of the last layer, all on
the same rows. `active`: six sets, texts of train are labelled ten at a time, as `polyhead label` chooses them or at
random; both learn the same head; how many labels each needs for the accuracy that random choice has at the end.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from unittest import mock

import msgspec
import numpy as np

from benchmarks.workbench_vectors import encoded, read
from benchmarks.workbench_vectors import labels_of as labels_in
from polyhead.check.active_learning import first_texts, next_texts
from polyhead.project.encoders import MINILM
from polyhead.project.recipes import Training
from polyhead.project.tables import Project, TrunkChoice
from polyhead.tasks.task import Task
from polyhead.train.data.prepare import prepare
from polyhead.train.events import Events
from polyhead.train.heads.held_out import FewLabels, FewLabelsFit
from polyhead.train.heads.label_words import centred, sentences
from polyhead.train.run import train_project
from studies.defaults.run import MAX_TOKENS, SETS, baselines, labelled, labels_of, opened, written
from studies.evidence import by_draw, estimate, judged
from studies.results import Claim, Study
from studies.settings import RUNS, command, parsed, report, resumed, say, study_arguments

FEW = ("trec6", "cr", "emotion", "subj", "sst5", "ag_news", "banking77", "clinc150")
SIZE, DRAWS = "8", (1, 2, 3, 4, 5)
POINTS = 2.0
ACTIVE = ("trec6", "cr", "tweeteval_emotion", "subj", "ag_news", "banking77")
BUDGET = {"banking77": 600}  # labels at the end; of the others 300
POOL, LABELS, SETS_REACHED = 2500, 0.7, 4


def few(name: str, draw: int) -> dict[str, object]:
    """Test accuracy of the default with and without the labels' words, and of logistic regression."""
    source = SETS[name]
    rows = labelled(source, SIZE, draw)
    scores: dict[str, object] = {"rows": len(rows)}
    for key in ("with_words", "without"):
        with tempfile.TemporaryDirectory() as folder:
            entry = written(source, rows, Path(folder), labels_of(source))
            project = Project(tasks=(entry,), trunk=TrunkChoice(max_tokens=MAX_TOKENS), training=Training(seed=draw))
            reads = mock.PropertyMock(return_value=False)
            patched = mock.patch("polyhead.train.data.prepared.Prepared.reads_label_words", reads)
            with patched if key == "without" else mock.patch.dict({}):
                outcome = train_project(project, folder=Path(folder), cache=RUNS / "right-cache", events=Events())
            test = outcome.trained["task"]["test"]
            written_scores = json.loads(next(Path(outcome.bundle).glob("tasks/task/*/scores.json")).read_bytes())
            scores |= {key: test["accuracy"], f"{key}_chosen": written_scores.get("chosen")}
            if key == "without":
                ready = prepare(project, Path(folder))[0]
                scores["logistic"] = baselines(ready, "accuracy", draw, opened(MINILM))["mean vectors"]
    return scores


def active(name: str, how: str, seed: int) -> dict[str, object]:
    """Test accuracy after each batch of labels, chosen as `polyhead label` does or at random, of the same head."""
    rows = read(name, "train")
    rows = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))[:POOL]]
    test, names = read(name, "test"), labels_in(name)
    values = encoded(f"{name}-pool", [row["text"] for row in rows])[2]
    held = encoded(f"{name}-test", [row["text"] for row in test])[2]
    task = Task(name="label", kind="single_label", labels=names)
    words = encoded(f"{name}-words", [sentence[0] for sentence in sentences(task)])[2]
    truth = np.array([names.index(row["label"]) for row in rows])
    wanted = np.array([names.index(row["label"]) for row in test])
    head = FewLabels(np.concatenate([values, held]), len(names), centred(words))
    generator = np.random.default_rng(seed)
    order, chosen, curve = generator.permutation(len(rows)), list[int](), list[tuple[int, float]]()
    most, step = BUDGET.get(name, 300), BUDGET.get(name, 300) // 15
    learned: FewLabelsFit | None = None
    while len(chosen) < most:
        if how == "random":
            chosen += order[len(chosen) : len(chosen) + step].tolist()
        elif learned is None:
            chosen += first_texts(values, step, generator)
        else:
            done = np.isin(np.arange(len(rows)), chosen)
            chosen += next_texts(values, learned.probabilities[: len(rows)], done, step, generator)
        learned = head.learn(chosen, truth[chosen].tolist(), seed=seed)
        right = learned.probabilities[len(rows) :].argmax(axis=1) == wanted
        curve.append((len(chosen), round(float(right.mean()), 4)))
    return {"labels": [labels for labels, _ in curve], "accuracy": [accuracy for _, accuracy in curve]}


def main() -> None:
    parser = study_arguments(__doc__, "workbench_label.jsonl", jobs=("few", "active"), seeds=DRAWS)
    options = parsed(parser)
    jobs, seeds = options.jobs.split(","), [int(seed) for seed in options.seeds.split(",")]
    if not options.report:
        study = resumed(options.rows[0], "workbench_label")
        for seed in seeds:
            for name in ACTIVE if "active" in jobs and seed in DRAWS[:3] else ():
                for how in ("random", "active"):
                    row = study.row(partial(active, name, how, seed), job="active", set=name, how=how, seed=seed)
                    say(str(row))
            for name in FEW if "few" in jobs else ():
                say(str(study.row(partial(few, name, seed), job="few", set=name, seed=seed)))
        return
    rows = [row for file in options.rows for row in Study(file).rows]
    wanted = len(FEW) * len(DRAWS) + 2 * 3 * len(ACTIVE)
    lacking = [f"{wanted - len(rows)} of {wanted} runs"] if len(rows) < wanted else []
    report("workbench_label", command=command(), rows=rows, claims=claims(rows), lacking=lacking)


def claims(rows: list[dict]) -> list[Claim]:
    several = []
    own = [row for row in rows if row["job"] == "few"]
    for key, id, what in (
        ("without", "workbench.few_default", "the default head without the labels' words"),
        ("logistic", "workbench.few_logistic", "logistic regression on mean vectors of the last layer"),
    ):
        gains = {
            name: {row["seed"]: 100 * (row["with_words"] - row[key]) for row in own if row["set"] == name}
            for name in FEW
            if any(row["set"] == name for row in own)
        }
        if not gains:
            continue
        several.append(
            judged(
                id,
                f"test accuracy of the default head at 8 rows a class less that of {what}, mean of eight sets",
                by_draw(gains),
                target=POINTS,
                note=", ".join(f"{name} {np.mean(list(points.values())):+.1f}" for name, points in gains.items())
                + "; whole test splits",
            )
        )
    return [*several, *active_claims([row for row in rows if row["job"] == "active"])]


def active_claims(rows: list[dict]) -> list[Claim]:
    """How many sets reach random choice's last accuracy with 70 % of the labels or fewer, by mean curves.

    The interval is of the same count by each seed's own curves.
    """
    told, reached, by_seed = [], 0, Counter({row["seed"]: 0 for row in rows})
    for name in ACTIVE:
        curves = {
            how: [row for row in rows if row["set"] == name and row["how"] == how] for how in ("random", "active")
        }
        if not all(curves.values()):
            continue
        labels = curves["random"][0]["labels"]
        means = {how: np.mean([row["accuracy"] for row in several], axis=0) for how, several in curves.items()}
        goal = float(means["random"][-1])
        first = next((n for n, mean in zip(labels, means["active"], strict=True) if mean >= goal), None)
        share = None if first is None else first / labels[-1]
        reached += share is not None and share <= LABELS
        for seed in by_seed:
            own = {
                how: next((row["accuracy"] for row in several if row["seed"] == seed), None)
                for how, several in curves.items()
            }
            if own["random"] is not None and own["active"] is not None:
                enough = [n for n, value in zip(labels, own["active"], strict=True) if value >= own["random"][-1]]
                by_seed[seed] += bool(enough) and enough[0] / labels[-1] <= LABELS
        said = "not reached" if first is None else f"{first} of {labels[-1]} labels"
        told.append(f"{name} {100 * goal:.1f} % with {said} (active at the end {100 * means['active'][-1]:.1f})")
    if not told:
        return []
    return [
        judged(
            "workbench.active",
            f"sets of {len(told)} where chosen texts reach the last accuracy of random ones with 70 % of labels",
            msgspec.structs.replace(estimate(by_seed.values()), mean=reached),
            target=SETS_REACHED,
            unit="sets",
            note="mean curves, the interval by curves of each seed, pool of 2,500 texts, whole test splits: "
            + "; ".join(told),
        )
    ]


if __name__ == "__main__":
    main()
