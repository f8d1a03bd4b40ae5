"""Few labels: the head that labels' words help, and which texts to label next.

    python -m benchmarks.workbench_label [--jobs few,active] [--seeds 1,2,3,4,5] [--report]

`few`: eight sets, 8 rows a class, five draws, whole test splits: the default of a project as it is, the same without the
labels' words (the default before), and scikit-learn's logistic regression on mean vectors of the last layer, all on the
same rows. `active`: six sets, texts of train are labelled ten at a time, as `polyhead label` chooses them or at random;
both learn the same head; how many labels each needs for the accuracy that random choice has at the end.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np

from polyhead.project.recipes import Training
from polyhead.project.tables import Project, TrunkChoice
from polyhead.train.data.prepare import prepare
from polyhead.train.loop.events import Events
from polyhead.train.run import train_project
from studies.defaults.run import MAX_TOKENS, SETS, baselines, labelled, labels_of, written
from studies.results import Claim, Study
from studies.settings import RUNS, command, parsed, report, resumed, say, study_arguments

FEW = ("trec6", "cr", "emotion", "subj", "sst5", "ag_news", "banking77", "clinc150")
SIZE, DRAWS = "8", (1, 2, 3, 4, 5)
POINTS = 2.0


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
                scores["logistic"] = baselines(ready, "accuracy", draw)["mean vectors"]
    return scores


def main() -> None:
    parser = study_arguments(__doc__, "workbench_label.jsonl", jobs=("few", "active"), seeds=DRAWS)
    options = parsed(parser)
    jobs, seeds = options.jobs.split(","), [int(seed) for seed in options.seeds.split(",")]
    if not options.report:
        study = resumed(options.rows[0], "workbench_label")
        for seed in seeds:
            for name in FEW if "few" in jobs else ():
                say(str(study.row(lambda a=(name, seed): few(*a), job="few", set=name, seed=seed)))
        return
    rows = [row for file in options.rows for row in Study(file).rows]
    report("workbench_label", command=command(), rows=rows, claims=claims(rows), lacking=[])


def claims(rows: list[dict]) -> list[Claim]:
    several = []
    own = [row for row in rows if row["job"] == "few"]
    for key, id, what in (
        ("without", "workbench.few_default", "the default head without the labels' words"),
        ("logistic", "workbench.few_logistic", "logistic regression on mean vectors of the last layer"),
    ):
        gains = {
            name: 100 * float(np.mean([row["with_words"] - row[key] for row in own if row["set"] == name]))
            for name in FEW
            if any(row["set"] == name for row in own)
        }
        if not gains:
            continue
        mean = float(np.mean(list(gains.values())))
        several.append(
            Claim(
                id=id,
                text=f"test accuracy of the default head at 8 rows a class less that of {what}, mean of eight sets",
                target=POINTS,
                value=round(mean, 2),
                unit="points",
                holds=mean >= POINTS,
                note=", ".join(f"{name} {gain:+.1f}" for name, gain in gains.items())
                + f". {len({row['seed'] for row in own})} draws, whole test splits.",
            )
        )
    return several


if __name__ == "__main__":
    main()
