"""How fast two checkouts answer, extract and serve, in turn on one machine.

    python -m benchmarks.rooms_speed BEFORE          an idle machine; writes results/rooms_speed.json

BEFORE is the folder of another checkout; the other one is this. Each trains the tasks of `one_pass_tasks.py` once, and
answers with its own code over its own bundles, about the same texts:

- the workers of `one_pass.py`, whose ratios are seconds with tasks over those of the bare trunk;
- `polyhead features extract`, the whole command, whose ratio is seconds over the bare trunk's a text;
- `polyhead serve` under as many callers as saturate it, whose ratio is seconds a request over the bare trunk's a text.

A ratio is worse if it grew by more than its spread over the repeats.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.one_pass import BATCH, VARIANTS, in_turn
from benchmarks.one_pass_tasks import FOLDER, bundle_of, tweets
from benchmarks.peers.rivals import Worker
from benchmarks.server_load import CALLERS, TASKS, load, server
from studies.results import Claim
from studies.settings import ROOT, command, report, say

SIZES = (0, 1, 21, 100)
RUNS = {
    "all": "all texts at once",
    "single": "text by text",
    "batches": "batches of 32 as they come",
    "extract": "features extract",
    "saturation": "requests at saturation",
}
Row = dict[str, object]


def main() -> None:
    options = arguments()
    for checkout in (options.before, ROOT):
        make_bundles(checkout)
    (FOLDER / "tweets.json").write_text(json.dumps(tweets(options.texts)))
    rows: list[Row] = []
    for variant in VARIANTS:
        rows += answered(options, variant)
        for repeat in range(options.repeats + 1):
            for who, checkout in (("before", options.before), ("after", ROOT)):
                known = {"variant": variant, "who": who, "repeat": repeat}
                measured = (extracted(checkout, variant, options), saturated(checkout, variant, options))
                rows += [known | row for row in measured] if repeat else []
            say(f"{variant}, extraction and saturation: {repeat} of {options.repeats}")
    report("rooms_speed", command=command(), rows=rows, claims=claims(rows), lacking=[])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--texts", type=int, default=1024)
    parser.add_argument("--single", type=int, default=100, help="texts answered one by one")
    parser.add_argument("--extract", type=int, default=4096, help="texts of an extraction")
    parser.add_argument("--seconds", type=float, default=6.0, help="of a run at saturation")
    return parser.parse_args()


def answered(options: argparse.Namespace, variant: str) -> list[Row]:
    """Every number of tasks with the code of both checkouts, in turn."""
    with contextlib.ExitStack() as stack:
        workers = {
            (who, size): stack.enter_context(worker(checkout, variant, size, who))
            for size in SIZES
            for who, checkout in (("before", options.before), ("after", ROOT))
        }
        counts = {"all": options.texts, "batches": options.texts, "single": options.single}
        runs = [(key, how, counts[how]) for how in counts for key in workers if how == "all" or key[1] in (0, 21)]
        return [row | {"variant": variant} for row in in_turn(variant, workers, runs, options.repeats)]


def make_bundles(checkout: Path) -> None:
    """Trains the checkout's tasks with its own code, and makes its bundles, where that was not done."""
    program = f"from benchmarks.one_pass_tasks import *; train(); [bundle_of(size) for size in {(*SIZES[1:], TASKS)}]"
    words = [sys.executable, "-c", program]
    subprocess.run(words, cwd=checkout, env=os.environ | {"PYTHONPATH": f"{checkout / 'src'}:{checkout}"}, check=True)


def bundle(checkout: Path, size: int) -> Path:
    """The bundle that the checkout made of so many tasks."""
    return checkout / bundle_of(size).relative_to(ROOT)


def worker(checkout: Path, variant: str, size: int, who: str) -> Worker:
    """The process of a checkout, with its own code."""
    backend, precision = variant.split(":")
    job = {
        "texts": str(FOLDER / "tweets.json"),
        "batch": BATCH,
        "threads": 2,
        "bundle": str(bundle(checkout, size or 1)),
        "backend": backend,
        "precision": precision,
        "trunk_alone": not size,
    }
    program = [sys.executable, str(checkout / "benchmarks" / "one_pass_ours.py")]
    log = FOLDER / "logs" / f"rooms-{who}-{backend}-{precision}-{size}.txt"
    return Worker(program, job, log=log, environment={"PYTHONPATH": str(checkout / "src")})


@contextlib.contextmanager
def code_of(checkout: Path) -> Iterator[None]:
    """Processes that are started meanwhile run the checkout's package."""
    kept = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(checkout / "src")
    try:
        yield
    finally:
        if kept is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = kept


def extracted(checkout: Path, variant: str, options: argparse.Namespace) -> Row:
    """Seconds of `polyhead features extract` into a new store, from its start to its end."""
    backend, precision = variant.split(":")
    texts, store = FOLDER / "extract.jsonl", FOLDER / "extracted"
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in tweets(options.extract)))
    shutil.rmtree(store, ignore_errors=True)
    words = [sys.executable, "-m", "polyhead", "features", "extract", str(bundle(checkout, 21)), str(texts), str(store)]
    with code_of(checkout):
        began = time.perf_counter()
        subprocess.run([*words, "--backend", backend, "--precision", precision], check=True, capture_output=True)
        seconds = time.perf_counter() - began
    shutil.rmtree(store)
    return {"how": "extract", "tasks": 21, "texts": options.extract, "seconds": seconds}


def saturated(checkout: Path, variant: str, options: argparse.Namespace) -> Row:
    """Requests that a server answers to as many callers as saturate it, of one text and all tasks each."""
    backend, precision = variant.split(":")
    bodies = FOLDER / "bodies.jsonl"
    bodies.write_text("".join(json.dumps({"inputs": [text]}) + "\n" for text in tweets(options.texts)))
    with (
        code_of(checkout),
        server(bundle(checkout, TASKS), "--backend", backend, "--precision", precision) as (port, _),
    ):
        load(port, bodies, callers=CALLERS, seconds=options.seconds / 2)
        outcome = load(port, bodies, callers=CALLERS, seconds=options.seconds)
    return {"how": "saturation", "tasks": 21, "texts": outcome["answered"], "seconds": outcome["seconds"]}


def ratios(rows: list[Row], variant: str, who: str, size: int, how: str) -> list[float]:
    """Seconds a text with tasks over those of the bare trunk in the same repeat, of one checkout."""
    bare = how if how in ("all", "single", "batches") else "all"
    seconds = {
        (row["tasks"], row["how"], row["repeat"]): float(str(row["seconds"])) / int(str(row["texts"]))
        for row in rows
        if (row["variant"], row["who"]) == (variant, who)
    }
    repeats = sorted({repeat for tasks, run, repeat in seconds if (tasks, run) == (size, how)}, key=str)
    return [seconds[size, how, repeat] / seconds[0, bare, repeat] for repeat in repeats]


def claims(rows: list[Row]) -> list[Claim]:
    """That no ratio grew by more than its spread."""
    worse, notes = 0, []
    for variant in VARIANTS:
        for how, words in RUNS.items():
            for size in SIZES[1:] if how == "all" else (21,):
                before, after = (ratios(rows, variant, who, size, how) for who in ("before", "after"))
                spread = max(statistics.stdev(before), statistics.stdev(after))
                grown = statistics.median(after) - statistics.median(before)
                worse += grown > spread
                notes.append(
                    f"{variant}, {size} tasks, {words}: {statistics.median(before):.3f} before, "
                    f"{statistics.median(after):.3f} after (spread {spread:.3f})"
                )
    return [
        Claim(
            id="rooms.speed",
            text="ratios of the seconds with tasks to those of the bare trunk that are worse by more than their "
            f"spread, of {len(notes)}",
            target=0,
            value=worse,
            unit="ratios",
            holds=worse == 0,
            note="; ".join(notes) + ".",
        )
    ]


if __name__ == "__main__":
    main()
