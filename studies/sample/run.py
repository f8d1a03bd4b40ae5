"""How the packaged sample's tasks score: five folds over all rows, the packaged splits, and what the demo takes.

    python -m studies sample run [--threads 1] [--report]

Each run trains the sample's own project file, so with default settings. In a fold a fifth of the rows is the test
split, the next fifth validates and three fifths train; pairs that were written together stay together. Training
computes both baselines: the best linear head over the same features, and the best constant answer. Goes on where it
stopped: rows are in runs/sample_scores.jsonl.
"""

from __future__ import annotations

import importlib.resources
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from polyhead import Bundle
from polyhead.project.tables import read_project
from polyhead.train.events import Events
from polyhead.train.run import train_project
from studies.evidence import estimate, judged
from studies.results import Claim
from studies.sample.table import DEMO, PACKAGED, fold_rows, over_linear
from studies.sample.texts import FOLDS, near_duplicates, refolded, sample_rows, written_together
from studies.settings import ROOT, RUNS, command, parsed, report, resumed, rows_of, say, study_arguments

NAME = "sample_scores"


def main() -> None:
    options = parsed(study_arguments(__doc__, f"{NAME}.jsonl"))
    messages, pairs = sample_rows("messages"), sample_rows("pairs")
    folds = [f"fold {fold + 1}" for fold in range(FOLDS)]
    if not options.report:
        study = resumed(options.rows[0], NAME)
        say(str(study.row(lambda: trained(messages, pairs), what=PACKAGED)))
        for fold, name in enumerate(folds):
            say(str(study.row(partial(of_fold, messages, pairs, fold), what=name)))
        say(str(study.row(demo, what=DEMO)))
    rows = rows_of(options.rows)
    made = {row["what"] for row in rows}
    lacking = [name for name in (PACKAGED, *folds, DEMO) if name not in made]
    report(NAME, command=command(), rows=rows, claims=claims(rows, messages, pairs), lacking=lacking)


def of_fold(messages: list[dict[str, Any]], pairs: list[dict[str, Any]], fold: int) -> dict[str, object]:
    alone = [[number] for number in range(len(messages))]
    return trained(refolded(messages, alone, fold), refolded(pairs, written_together(pairs), fold))


def trained(messages: list[dict[str, Any]], pairs: list[dict[str, Any]]) -> dict[str, object]:
    """Test scores of every task of the sample's project file over these rows, and those of its baselines."""
    began = time.process_time()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, rows in (("messages", messages), ("pairs", pairs)):
            (folder / f"{file}.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
        settings = importlib.resources.files("polyhead.sample").joinpath("polyhead.toml").read_bytes()
        (folder / "polyhead.toml").write_bytes(settings)
        project = read_project(folder / "polyhead.toml")
        events = Events(say=say)
        outcome = train_project(project, folder=folder, cache=RUNS / "sample-cache", events=events)
        bundle = Bundle.open(outcome.bundle)
        tasks = {entry.name: facts_of(bundle, entry.name, entry.kind) for entry in project.tasks}
    return {"tasks": tasks, "processor_seconds": round(time.process_time() - began, 1)}


def facts_of(bundle: Bundle, task: str, kind: str) -> dict[str, object]:
    from polyhead.tasks.kinds import kind_of

    declared = bundle.tasks[task].task
    metric = kind_of(declared).default_metric(declared)
    simple = bundle.baselines(task, "test")
    scores = bundle.scores(task)
    return {
        "kind": kind,
        "metric": metric,
        "score": scores["splits"]["test"][metric],
        "linear": simple["linear"][metric],
        "constant": simple["constant"][metric],
        "chosen": scores.get("chosen"),
    }


def demo() -> dict[str, object]:
    """Processor seconds of `polyhead demo` on one thread: on a quiet core it takes no longer."""
    with tempfile.TemporaryDirectory() as folder:
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        arguments = [sys.executable, "-m", "polyhead", "demo", "--folder", f"{folder}/demo-bundle"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(arguments, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=True)
        after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - began
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"processor_seconds": round(used, 1), "wall_seconds_beside_other_work": round(wall, 1)}


def restated(rows: list[dict[str, Any]]) -> list[Claim]:
    """The claims of these rows and of the packaged sample as it is."""
    return claims(rows, sample_rows("messages"), sample_rows("pairs"))


def claims(rows: list[dict[str, Any]], messages: list[dict[str, Any]], pairs: list[dict[str, Any]]) -> list[Claim]:
    alike = near_duplicates(messages, pairs)
    tasks = len(read_project(Path(str(importlib.resources.files("polyhead.sample") / "polyhead.toml"))).tasks)
    claimed = [
        at_least("messages", "messages of the packaged sample, written by hand", 600, len(messages), "messages"),
        at_least("pairs", "pairs of the packaged sample, written by hand", 250, len(pairs), "pairs"),
        at_least("tasks", "tasks of the packaged sample, of four kinds, one over pairs", 8, tasks, "tasks"),
        Claim(
            id="front-door.sample-near-duplicates",
            text="rows of the packaged sample that are too much alike",
            target=0,
            value=len(alike),
            unit="couples",
            holds=not alike,
            note="; ".join(f"{one} and {other} {why}" for one, other, why in alike),
        ),
    ]
    if folds := fold_rows(rows):
        gains = over_linear(rows)
        by_fold = [
            statistics.mean(100 * (facts["score"] - facts["linear"]) for facts in row["tasks"].values())
            for row in folds
        ]
        text = f"default training on the packaged sample less the best linear head, mean of {len(gains)} tasks"
        claimed.append(
            judged(
                "front-door.sample-over-linear",
                f"{text} in {len(folds)} folds, which are the draws",
                estimate(by_fold),
                target=0,
                note=", ".join(f"{name} {gain:+.1f}" for name, gain in gains.items()),
            )
        )
    for row in (row for row in rows if row["what"] == DEMO):
        seconds = row["processor_seconds"]
        text = "`polyhead demo` on one thread, after installation: eight tasks trained, scored and answered"
        claimed.append(
            Claim(
                id="front-door.sample-demo",
                text=text,
                target=120,
                value=seconds,
                unit="processor seconds",
                holds=seconds <= 120,
            )
        )
    return claimed


def at_least(name: str, text: str, target: int, value: int, unit: str) -> Claim:
    return Claim(
        id=f"front-door.sample-{name}", text=text, target=target, value=value, unit=unit, holds=value >= target
    )


if __name__ == "__main__":
    main()
