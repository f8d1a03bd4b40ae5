"""The eight-task example, raw files to scores, with the real commands: three seeds, the first one timed from nothing.

Seeds 2 and 3 read the features that seed 1 left, so they are not timed.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import time
from functools import partial

from studies.results import Claim, Study, results, write_results
from studies.settings import RESULTS, ROOT, RUNS, answer_help

PROJECT = "examples/tweets/polyhead.toml"
SEEDS = (1, 2, 3)


def main() -> None:
    study = Study(RUNS / "first_light_eight_tasks.jsonl")
    for seed in SEEDS:
        study.row(partial(run, seed), seed=seed)
    rows = [*study.rows, *spreads(study.rows)]
    minutes = study.rows[0]["seconds"] / 60
    claim = Claim(
        id="first-light.eight-tasks-minutes",
        text="eight tasks, 96,514 training examples: raw files to a bundle and to scores of live answers on whole "
        "splits (polyhead train, polyhead evaluate), nothing cached",
        target=20,
        value=minutes,
        unit="minutes",
        holds=minutes <= 20,
    )
    command = "python -m benchmarks.first_light_eight_tasks"
    print(write_results(RESULTS, results("first_light_eight_tasks", command=command, rows=rows, claims=[claim])))


def run(seed: int) -> dict[str, object]:
    bundle, cache = RUNS / f"tweets-{seed}", RUNS / "tweets-cache"
    shutil.rmtree(bundle, ignore_errors=True)
    if seed == SEEDS[0]:
        shutil.rmtree(cache, ignore_errors=True)
    began = time.perf_counter()
    trained = polyhead("train", PROJECT, "--bundle", str(bundle), "--cache", str(cache), "--seed", str(seed))
    between = time.perf_counter()
    scored = polyhead("evaluate", PROJECT, "--bundle", str(bundle))
    timed = {"seconds": time.perf_counter() - began, "train_seconds": between - began}
    return {
        **(timed if seed == SEEDS[0] else {}),
        "passes": trained["extraction"]["passes"],
        "scores": {score["task"]: score["scores"][score["metric"]] for score in scored["scores"]},
        "metrics": {score["task"]: score["metric"] for score in scored["scores"]},
        "test_rows": {score["task"]: score["rows"] for score in scored["scores"]},
    }


def spreads(rows: list[dict]) -> list[dict]:
    rows_of_spreads = []
    for task, metric in rows[0]["metrics"].items():
        values = [row["scores"][task] for row in rows]
        mean, spread = statistics.mean(values), statistics.stdev(values)
        rows_of_spreads.append({"task": task, "metric": metric, "mean": mean, "spread": spread, "seeds": len(values)})
    return rows_of_spreads


def polyhead(*arguments: str) -> dict:
    command = [sys.executable, "-m", "polyhead", *arguments, "--json", "-"]
    done = subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


if __name__ == "__main__":
    answer_help(__doc__)
    main()
