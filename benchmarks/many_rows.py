"""50,000 rows of one task: minutes of `polyhead train`, bytes that it keeps, and the score, beside another checkout.

    python -m benchmarks.many_rows --before ../before [--rows 50000] [--draws 1]     writes results/heads_many_rows.json

The task is TweetEval's sentiment: its train and validation splits, and as many rows of the test split as these lack,
which the test does without. Both checkouts train the same file from nothing, in turn, with their own code and every
setting at its default. Bytes kept are those of the run's folder of features. Goes on where it stopped: rows are in
runs/heads_many_rows.jsonl. The checkout before took an hour or more where heads were not stopped early.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from polyhead.files import replace_file
from polyhead.progress import duration
from studies.evidence import estimate, judged
from studies.results import Claim, Study
from studies.settings import DATA, ROOT, RUNS, command, report, resumed, say, say_left
from studies.shared.rows import paired

NAME = "heads_many_rows"
FOLDER = "tweeteval_sentiment"
WHO = BEFORE, AFTER = "before", "after"
MEASURED = ("run_seconds", "bytes", "accuracy")
TIME, BYTES, POINTS = 0.5, 0.1, 0.0
PROJECT = """bundle = "bundle"

[trunk]
name = "minilm"
max_tokens = 128

[training]
seed = {draw}

[[tasks]]
name = "task"
kind = "single_label"
labels = {labels}
train = "train.jsonl"
test = "test.jsonl"
"""
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="folder of another checkout, relative or absolute")
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--draws", type=int, default=1)
    parser.add_argument("--file", type=Path, default=RUNS / f"{NAME}.jsonl", help="of finished runs")
    parser.add_argument("--report", action="store_true", help="write the results from the rows, train nothing")
    options = parser.parse_args()
    study = resumed(options.file, NAME) if options.file == RUNS / f"{NAME}.jsonl" else Study(options.file)
    checkouts = {AFTER: ROOT} | ({BEFORE: options.before} if options.before else {})
    jobs = [(draw, who) for draw in range(1, options.draws + 1) for who in checkouts]
    for number, (draw, who) in enumerate(() if options.report else jobs, start=1):
        training = (checkouts[who], options.rows, draw)
        say(str(study.row(partial(trained, *training), rows=options.rows, draw=draw, who=who)))
        say_left(study.rows, done=number, total=len(jobs))
    mine = [row for row in study.rows if row["rows"] == options.rows]
    lacking = [f"runs of the checkout {who}" for who in WHO if not any(row["who"] == who for row in mine)]
    report(NAME, command=command(), rows=mine, claims=claims(mine), lacking=lacking)


def trained(checkout: Path, rows: int, draw: int) -> Row:
    """One run of `polyhead train` with the checkout's code, from nothing."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        count, tests = write_files(home, rows, draw)
        environment = os.environ | {"PYTHONPATH": str(checkout.resolve() / "src")}
        words = [sys.executable, "-m", "polyhead", "train", "polyhead.toml", "--json", "trained.json"]
        began = time.perf_counter()
        done = subprocess.run(words, cwd=home, env=environment, capture_output=True, text=True)
        seconds = time.perf_counter() - began
        if done.returncode:
            raise SystemExit(f"polyhead train of {checkout} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        notes = msgspec.json.decode(next((home / "bundle").glob("tasks/task/*/scores.json")).read_bytes())
        return {
            "train_rows": count,
            "test_rows": tests,
            "run_seconds": round(seconds, 1),
            "bytes": bytes_of(home / "bundle-cache"),
            "bundle_bytes": bytes_of(home / "bundle"),
            "accuracy": notes["splits"]["test"]["accuracy"],
            "chosen": notes.get("chosen"),
        }


def write_files(home: Path, rows: int, draw: int) -> tuple[int, int]:
    """The project file, its training rows in an order of the draw, and the test rows that are left."""
    train, validation, test = (split_rows(split) for split in ("train", "validation", "test"))
    whole = train + validation
    lent = max(0, rows - len(whole))
    order = np.random.default_rng(0).permutation(len(test))  # of every draw: one test
    whole += [test[index] for index in order[:lent]]
    chosen = [whole[index] for index in np.random.default_rng(draw).permutation(len(whole))[:rows]]
    held = [test[index] for index in order[lent:]]
    for name, several in (("train", chosen), ("test", held)):
        (home / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in several), encoding="utf-8")
    labels = json.loads((DATA / FOLDER / "meta.json").read_text(encoding="utf-8"))["labels"]
    replace_file(home / "polyhead.toml", PROJECT.format(draw=draw, labels=json.dumps(labels)).encode())
    return len(chosen), len(held)


def split_rows(split: str) -> list[dict]:
    with gzip.open(DATA / FOLDER / f"{split}.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def bytes_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Time and bytes over those of before, and points lost; none where either has no run."""
    of = {who: {what: [float(str(row[what])) for row in rows if row["who"] == who] for what in MEASURED} for who in WHO}
    if not all(several["bytes"] for several in of.values()):
        return []
    means = {who: {what: statistics.mean(values) for what, values in several.items()} for who, several in of.items()}
    before, after = means[BEFORE], means[AFTER]
    by_draw = {
        who: {int(str(r["draw"])): 100 * float(str(r["accuracy"])) for r in rows if r["who"] == who} for who in WHO
    }
    lost = estimate(paired(by_draw[BEFORE], by_draw[AFTER]).values())
    draws = f"{len(of[AFTER]['bytes'])} and {len(of[BEFORE]['bytes'])} runs"
    sizes = [f"{means[who]['bytes'] / 1e6:,.0f} MB" for who in (AFTER, BEFORE)]
    times = [duration(means[who]["run_seconds"]) for who in (AFTER, BEFORE)]
    scores = [f"{100 * means[who]['accuracy']:.2f}" for who in (AFTER, BEFORE)]
    ratios = {what: after[what] / before[what] for what in ("run_seconds", "bytes")}
    facts = (
        ("time", "time of training over that of before", TIME, ratios["run_seconds"], "ratio", times),
        ("bytes", "bytes of kept features over those of before", BYTES, ratios["bytes"], "ratio", sizes),
    )
    told = f"{scores[0]} and {scores[1]} before; {draws}"
    about = f"{rows[0]['train_rows']:,} rows of one task: test accuracy lost to before"
    points = judged("heads.many_rows_points", about, lost, target=POINTS, side="most", digits=3, note=told)
    return [
        Claim(
            id=f"heads.many_rows_{id}",
            text=f"{rows[0]['train_rows']:,} rows of one task: {text}",
            target=target,
            value=round(value, 3),
            unit=unit,
            holds=value <= target,
            note=f"{shown[0]} and {shown[1]} before; {draws}",
        )
        for id, text, target, value, unit, shown in facts
    ] + [points]


if __name__ == "__main__":
    main()
