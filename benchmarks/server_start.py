"""How long `polyhead serve` takes until it is ready, with 21 tasks: the first time, and with graphs compiled before.

    python -m benchmarks.one_pass_tasks      once: the tasks
    python -m benchmarks.server_start        an idle machine, nothing else running

Ready is when a request is answered by all tasks. The processor's seconds stand beside those of the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from benchmarks.one_pass_tasks import FOLDER, bundle_of, train
from benchmarks.server_load import SUFFIX, TASKS, Row, resident, server
from benchmarks.server_queue import computed
from studies.results import Claim
from studies.settings import command, report, say

MOST = 3.0  # seconds
LATER = "later"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, help="in place of the tasks of one_pass_tasks")
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    if options.bundle is None:
        train()
    FOLDER.mkdir(parents=True, exist_ok=True)
    bundle = bundle_of(TASKS) if options.bundle is None else options.bundle
    rows = list(started(bundle, options.precision, options.repeats))
    report(f"server_start{SUFFIX}", command=command(), rows=rows, claims=[claim(rows)], lacking=[])


def started(bundle: Path, precision: str, repeats: int) -> Iterator[Row]:
    """A start with an empty folder for compiled graphs, then starts that find them there."""
    with tempfile.TemporaryDirectory() as kept:
        os.environ["XDG_CACHE_HOME"] = kept
        for turn in range(repeats + 1):
            began = time.perf_counter()
            with server(bundle, "--backend", "openvino", "--precision", precision) as (port, process):
                body = json.dumps({"inputs": ["where is my order?"]}).encode()
                request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/predict", body)
                with urllib.request.urlopen(request) as answer:
                    answers = json.load(answer)["results"][0]["answers"]
                row = {
                    "what": LATER if turn else "first",
                    "seconds": round(time.perf_counter() - began, 3),
                    "processor": computed(process.pid),
                    "memory": resident(process.pid),
                    "tasks": len(answers),
                    "precision": precision,
                }
            say(json.dumps(row))
            yield row


def claim(rows: list[Row]) -> Claim:
    """The median of the later starts."""
    first, later = (
        [row["seconds"] for row in rows if (row["what"] == LATER) == is_later] for is_later in (False, True)
    )
    value = statistics.median(later)
    return Claim(
        id=f"fast.start{SUFFIX.replace('_', '-')}",
        text="from the command line until a server of 21 tasks has answered",
        target=MOST,
        value=round(value, 2),
        unit="seconds",
        holds=value <= MOST,
        note=f"median of {len(later)}, {min(later):.2f} to {max(later):.2f}; {first[0]:.2f} where nothing was compiled "
        "before",
    )


if __name__ == "__main__":
    main()
