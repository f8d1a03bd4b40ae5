"""How fast two checkouts answer: the workers of `one_pass.py` of both, over one bundle and the same texts, in turn.

    python -m benchmarks.house_speed BEFORE AFTER       writes results/house_speed.json

BEFORE and AFTER are folders of two checkouts. `one_pass.py` divides the seconds with tasks by those of the bare
trunk, so its ratios are taken of each checkout and compared; a ratio is worse if it grew by more than its spread over
the repeats.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
from pathlib import Path

from benchmarks import one_pass_tasks
from benchmarks.one_pass import BATCH, VARIANTS, in_turn
from benchmarks.one_pass_tasks import FOLDER
from benchmarks.peers.rivals import Worker
from studies.results import Claim
from studies.settings import command, report

SIZES = (0, 1, 21, 100)
RUNS = {"all": "all texts at once", "single": "text by text", "batches": "batches of 32 as they come"}
Row = dict[str, object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--texts", type=int, default=1024)
    parser.add_argument("--single", type=int, default=100, help="texts answered one by one")
    options = parser.parse_args()
    one_pass_tasks.train()
    (FOLDER / "tweets.json").write_text(json.dumps(one_pass_tasks.tweets(options.texts)))
    rows: list[Row] = []
    for variant in VARIANTS:
        rows += timed(options, variant)
    report("house_speed", command=command(), rows=rows, claims=[claim(rows)], lacking=[])


def timed(options: argparse.Namespace, variant: str) -> list[Row]:
    """Every number of tasks with the code of both checkouts, in turn."""
    with contextlib.ExitStack() as stack:
        workers = {
            (when, size): stack.enter_context(worker(checkout, variant, size, when))
            for size in SIZES
            for when, checkout in (("before", options.before), ("after", options.after))
        }
        counts = {"all": options.texts, "batches": options.texts, "single": options.single}
        runs = [(key, how, counts[how]) for how in RUNS for key in workers if how == "all" or key[1] in (0, 21)]
        return [row | {"variant": variant} for row in in_turn(variant, workers, runs, options.repeats)]


def worker(checkout: Path, variant: str, size: int, when: str) -> Worker:
    """The process of a checkout, with its own code."""
    backend, precision = variant.split(":")
    job = {
        "texts": str(FOLDER / "tweets.json"),
        "batch": BATCH,
        "threads": 2,
        "bundle": str(one_pass_tasks.bundle_of(size or 1)),
        "backend": backend,
        "precision": precision,
        "trunk_alone": not size,
    }
    root = checkout.resolve()
    program = [sys.executable, str(root / "benchmarks" / "one_pass_ours.py")]
    log = FOLDER / "logs" / f"house-{when}-{backend}-{precision}-{size}.txt"
    return Worker(program, job, log=log, environment={"PYTHONPATH": str(root / "src")})


def ratios(rows: list[Row], variant: str, when: str, size: int, how: str) -> list[float]:
    """The seconds with tasks over those of the bare trunk in the same repeat, of one checkout."""
    seconds = {
        (row["tasks"], row["repeat"]): float(str(row["seconds"]))
        for row in rows
        if (row["variant"], row["who"], row["how"]) == (variant, when, how)
    }
    repeats = sorted({repeat for tasks, repeat in seconds if tasks == size}, key=str)
    return [seconds[size, repeat] / seconds[0, repeat] for repeat in repeats]


def claim(rows: list[Row]) -> Claim:
    """The claim that no ratio grew by more than its spread."""
    worse, notes = 0, []
    for variant in VARIANTS:
        for how, words in RUNS.items():
            for size in SIZES[1:] if how == "all" else (21,):
                before, after = (ratios(rows, variant, when, size, how) for when in ("before", "after"))
                spread = statistics.stdev(before)
                grown = statistics.median(after) - statistics.median(before)
                worse += grown > spread
                notes.append(
                    f"{variant}, {size} tasks, {words}: {statistics.median(before):.3f} before (spread {spread:.3f}), "
                    f"{statistics.median(after):.3f} after"
                )
    return Claim(
        id="house.speed",
        text="ratios of the seconds with tasks to those of the bare trunk that are worse by more than their spread, "
        f"of {len(notes)}",
        target=0,
        value=worse,
        unit="ratios",
        holds=worse == 0,
        note="; ".join(notes) + ".",
    )


if __name__ == "__main__":
    main()
