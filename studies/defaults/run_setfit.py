"""The default beside SetFit 1.2 and logistic regression, the same encoder and rows: accuracy and seconds of training.

    python benchmarks/peers/environments.py setfit       once: SetFit's environment
    python -m studies defaults run-setfit [--sets trec6,cr] [--sizes 8,16,64] [--part 1/2] [--default] [--report]

Whole test splits, three draws. SetFit has its own defaults (`benchmarks/peers/setfit_train.py`); where one pass over
its pairs has more than `--max-steps` steps, its argument `max_steps` ends training there, as each row says. Seconds
are of learning from labelled texts, encoding included; models are loaded before. Goes on where it stopped: rows are in
runs/heads_setfit.jsonl, or else in the results. With `--default` the default of rows that are there is trained anew,
and nothing else; such a row says when and where under `default_of`.
"""

from __future__ import annotations

import datetime
import json
import os
import statistics
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.peers.rivals import HERE, OFFLINE, python_of
from polyhead.deep.nn.runtime import precision_of
from polyhead.engine.session import Session
from polyhead.progress import duration
from polyhead.project.encoders import MINILM
from polyhead.project.pretrained import find_encoder, load_trunk
from polyhead.project.recipes import Training
from polyhead.project.tables import Project, TrunkChoice
from polyhead.train.data.extract import Extractor
from polyhead.train.data.prepare import prepare
from polyhead.train.data.prepared import Split
from polyhead.train.events import Events
from polyhead.train.run import train_project
from studies.defaults.claims import DRAWS, listed
from studies.defaults.run import (
    MAX_TOKENS,
    SETS,
    labelled,
    labelled_rows,
    labels_of,
    logistic,
    opened,
    read,
    test_split,
    vectors,
    written,
)
from studies.evidence import by_draw, counted, estimate, judged
from studies.results import Claim, hardware
from studies.settings import (
    checked_names,
    command,
    parsed,
    part_of,
    report,
    resumed,
    rows_of,
    say,
    say_left,
    study_arguments,
)

NAME = "heads_setfit"
SIZES = ("8", "16", "64")
NAMES = ("ag_news", "banking77", "trec6", "emotion", "clinc150", "irony", "cr", "sst5", "subj", "trec50")
METHODS = OURS, THEIRS, REGRESSION = "default", "SetFit", "logistic regression"
MAX_STEPS = 500
GOAL = 8  # of the ten sets


def main() -> None:
    parser = study_arguments(__doc__, f"{NAME}.jsonl")
    parser.add_argument("--sets", default=",".join(NAMES))
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--part", default="1/1", help="i/n: every n-th run, from the i-th on")
    parser.add_argument("--max-steps", type=int, default=MAX_STEPS, help="of SetFit's encoder")
    parser.add_argument("--default", action="store_true", help="train only the default of rows that are there anew")
    options = parsed(parser)
    if not options.report:
        study = resumed(options.rows[0], NAME)
        sets, sizes = checked_names(options.sets, NAMES, "set"), checked_names(options.sizes, SIZES, "size")
        jobs = part_of([(name, size, draw) for size in sizes for draw in DRAWS for name in sets], options.part)
        for number, (name, size, draw) in enumerate(jobs, start=1):
            if options.default:
                for row in study.replaced(again, set=name, size=size, draw=draw):
                    say(str(row))
                continue
            training = (name, size, draw, options.max_steps, options.threads)
            say(str(study.row(partial(run, *training), set=name, size=size, draw=draw)))
            say_left(study.rows, done=number, total=len(jobs))
        return
    rows = rows_of(options.rows)
    whole = len(SIZES) * len(NAMES) * len(DRAWS)
    if rows:
        mean = statistics.mean(row["run_seconds"] for row in rows)
        say(f"{len(rows)} of {whole} runs; all take about {duration(mean * whole)}, judged by these")
    lacking = [
        f"{name}, {size} rows a class: {count} of {len(DRAWS)} draws"
        for size in SIZES
        for name in NAMES
        if (count := len(scores(rows, name, size, OURS))) < len(DRAWS)
    ]
    report(NAME, command=command(), rows=rows, claims=claims(rows), lacking=lacking)


def run(name: str, size: str, draw: int, max_steps: int, threads: int | None) -> dict[str, object]:
    """Accuracy and seconds of the three, learned from the same labelled rows."""
    began = time.perf_counter()
    rows, test = labelled(SETS[name], size, draw), read(SETS[name], SETS[name].test)
    methods = {
        OURS: default(name, rows, test, draw),
        THEIRS: setfit(rows, test, draw, max_steps, threads),
        REGRESSION: regression(name, rows),
    }
    return {"rows": len(rows), "methods": methods, "run_seconds": round(time.perf_counter() - began, 1)}


def again(row: dict[str, Any]) -> dict[str, Any]:
    """The row with the default trained anew on the same labelled rows."""
    source = SETS[row["set"]]
    trained = default(row["set"], labelled(source, row["size"], row["draw"]), read(source, source.test), row["draw"])
    now = {"date": datetime.date.today().isoformat(), "hardware": hardware()}
    return {**row, "methods": {**row["methods"], OURS: trained}, "default_of": now}


def default(name: str, rows: list[dict[str, Any]], test: list[dict[str, Any]], draw: int) -> dict[str, object]:
    """The default, trained without test rows and from no kept feature, then asked about all test texts."""
    with tempfile.TemporaryDirectory() as folder:
        entry = msgspec.structs.replace(written(SETS[name], rows, Path(folder), labels_of(SETS[name])), test=None)
        project = Project(tasks=(entry,), trunk=TrunkChoice(max_tokens=MAX_TOKENS), training=Training(seed=draw))
        outcome = train_project(project, folder=Path(folder), events=Events())
        session = Session(outcome.bundle, backend="torch", precision="float32")
        answers = session.columns([row["text"] for row in test]).tasks["task"]
        labels = session.tasks["task"].labels
        assert answers.scores is not None
        answered = [labels[best] for best in answers.scores[answers.rows].argmax(axis=1)]
    right = sum(answer == row["label"] for answer, row in zip(answered, test, strict=True))
    return {"accuracy": right / len(test), "seconds": round(outcome.seconds, 1)}


def setfit(
    rows: list[dict[str, Any]], test: list[dict[str, Any]], draw: int, max_steps: int, threads: int | None
) -> dict[str, object]:
    """SetFit in its own environment."""
    train, held = ([(row["text"], row["label"]) for row in several] for several in (rows, test))
    job = {"model": str(find_encoder("minilm")), "train": train, "test": held, "seed": draw, "max_steps": max_steps}
    limits = {"OMP_NUM_THREADS": str(threads)} if threads else {}
    done = subprocess.run(
        [str(python_of("setfit")), str(HERE / "setfit_train.py")],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        env=os.environ | OFFLINE | limits,
    )
    if done.returncode:
        raise SystemExit(f"SetFit ended with {done.returncode}:\n{done.stderr[-2000:]}")
    row: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return row


def regression(name: str, rows: list[dict[str, Any]]) -> dict[str, object]:
    """Logistic regression on mean vectors of the last layer; the test's vectors are no part of the seconds."""
    with tempfile.TemporaryDirectory() as folder:
        entry = written(SETS[name], rows, Path(folder), labels_of(SETS[name]))
        ready = prepare(Project(tasks=(entry,), trunk=TrunkChoice(max_tokens=MAX_TOKENS)), Path(folder))[0]
        data = load_trunk("minilm", max_tokens=MAX_TOKENS)
        extractor = Extractor(data, folder=Path(folder) / "features", precision=precision_of(Training()))
        began = time.perf_counter()
        learned = vectors(ready, Split(name="train", examples=labelled_rows(ready)), extractor)
        model = logistic(None).fit(learned[0], learned[1])
        seconds = time.perf_counter() - began
    held = vectors(ready, test_split(ready), opened(MINILM))
    return {"accuracy": float(np.mean(model.predict(held[0]) == held[1])), "seconds": round(seconds, 1)}


def scores(rows: list[dict[str, Any]], name: str, size: str, method: str, what: str = "accuracy") -> list[float]:
    return [row["methods"][method][what] for row in rows if (row["set"], row["size"]) == (name, size)]


def claims(rows: list[dict[str, Any]]) -> list[Claim]:
    """For each size: the mean of the default above SetFit's, and the number of sets on which it is ahead."""
    claimed = []
    for size in SIZES:
        there = [name for name in NAMES if scores(rows, name, size, OURS)]
        if not there:
            continue
        means = {
            method: {name: 100 * statistics.mean(scores(rows, name, size, method)) for name in there}
            for method in METHODS
        }
        gains = {name: gained(rows, name, size) for name in there}
        few = [name for name in NAMES if len(gains.get(name, {})) < len(DRAWS)]
        lacking = f"fewer than {len(DRAWS)} draws of {', '.join(few)}" if few else ""
        claimed.append(
            judged(
                f"heads.setfit_{size}",
                f"accuracy of the default less SetFit's, mean of {len(there)} sets, {size} rows a class",
                by_draw(gains),
                target=0,
                side="above",
                note=notes(rows, size, there, means),
                lacking=lacking,
            )
        )
        claimed.append(
            judged(
                f"heads.setfit_sets_{size}",
                f"sets of {len(there)} on which the default is above SetFit, {size} rows a class",
                counted({name: estimate(points.values()) for name, points in gains.items()}, 0.0, side="above"),
                target=GOAL,
                unit="sets",
                note=listed(gains),
                lacking=lacking,
            )
        )
    return claimed


def gained(rows: list[dict[str, Any]], name: str, size: str) -> dict[int, float]:
    """Points of the default above SetFit, by draw."""
    its = [row for row in rows if (row["set"], row["size"]) == (name, size)]
    return {row["draw"]: 100 * (row["methods"][OURS]["accuracy"] - row["methods"][THEIRS]["accuracy"]) for row in its}


def notes(rows: list[dict[str, Any]], size: str, there: list[str], means: dict[str, dict[str, float]]) -> str:
    """Each method's mean and median seconds, of runs alone on their core, and where SetFit's pass was cut."""
    parts, alone = [], [row for row in rows if not row.get("beside_other_work")]
    for method in METHODS:
        seconds = [value for name in there for value in scores(alone, name, size, method, "seconds")]
        mean = statistics.mean(means[method].values())
        parts.append(f"{method} {mean:.1f}" + (f" in {statistics.median(seconds):.1f} s" if seconds else ""))
    cut = []
    for name in there:
        steps, whole = (max(scores(rows, name, size, THEIRS, what)) for what in ("steps", "steps_of_a_pass"))
        if steps < whole:
            cut.append(f"{name} {steps:,} of {whole:,}")
    return ", ".join(parts) + (f"; SetFit's steps, cut by max_steps: {', '.join(cut)}" if cut else "")


if __name__ == "__main__":
    main()
