"""Memory over an hour of load, and ten times more requests than the server can answer.

    python -m benchmarks.one_pass_tasks                            once: the tasks
    python -m benchmarks.server_endurance [--minutes 60]           about as many minutes and five more

Memory does not depend on what else the machine does; the overload is measured on an idle one. Requests are tweets of
all lengths, and a tenth of them ask for some of the tasks only.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import threading
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.one_pass_tasks import FOLDER, TASKS, bundle_of, train, tweets
from benchmarks.server_load import CALLERS, Row, load, resident, server
from studies.results import Claim
from studies.settings import command, report, say

NAME, PRECISION = "server_endurance", "int8"
WARM_MINUTES = 3.0  # until which memory is not yet counted
LATE = 5.0  # seconds after which an answer is of no use: the deadline of overloaded requests


def main() -> None:
    options = arguments()
    train()
    bundle, rows = bundle_of(len(TASKS) + 2), list[Row]()
    with server(bundle, "--backend", "openvino", "--precision", PRECISION) as (port, process):
        rows += overload(port, process)
        rows += soak(port, process, minutes=options.minutes, rate=options.rate)
    report(NAME, command=command(), rows=rows, claims=claims(rows), lacking=[])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=100.0, help="requests a second of the hour of load")
    return parser.parse_args()


def bodies_of(name: str, *, deadline: float | None = None) -> Path:
    """A file of request bodies."""
    drawn, file = random.Random(1), FOLDER / f"{name}.jsonl"
    names = [task.name for task in TASKS]
    options = {} if deadline is None else {"options": {"deadline": deadline}}
    lines = []
    for text in tweets(4096):
        asked = {"tasks": drawn.sample(names, drawn.randint(1, 5))} if drawn.random() < 0.1 else {}
        lines.append(json.dumps({"inputs": [text], **asked, **options}) + "\n")
    file.write_text("".join(lines))
    return file


def overload(port: int, process: subprocess.Popen[bytes]) -> list[Row]:
    """What the server can do, ten times that, and the same as at first again."""
    bodies, rows = bodies_of("overload", deadline=LATE), list[Row]()
    load(port, bodies, callers=16, seconds=10)
    before = load(port, bodies, callers=CALLERS, seconds=10)
    calm = load(port, bodies, rate=0.5 * before["a_second"], seconds=10)
    memory, ended = list[int](), threading.Event()

    def watch() -> None:
        while not ended.wait(0.5):
            memory.append(resident(process.pid))

    watching = threading.Thread(target=watch)
    watching.start()
    over = load(port, bodies, rate=10 * before["a_second"], seconds=20)
    ended.set()
    watching.join()
    time.sleep(2)
    after = load(port, bodies, rate=0.5 * before["a_second"], seconds=10)
    rows += [{"what": "saturation", **before}, {"what": "half of it", **calm}]
    rows += [
        {"what": "ten times", "memory": max(memory), "memory_before": memory[0], **over},
        {"what": "afterwards", **after},
    ]
    for row in rows:
        say(json.dumps(row))
    return rows


def soak(port: int, process: subprocess.Popen[bytes], *, minutes: float, rate: float) -> list[Row]:
    """Memory, a row a minute."""
    bodies, rows, began = bodies_of("soak"), list[Row](), time.monotonic()
    while (time.monotonic() - began) / 60 < minutes:
        outcome = load(port, bodies, rate=rate, seconds=60)
        row: Row = {
            "what": "soak",
            "minute": round((time.monotonic() - began) / 60, 1),
            "resident": resident(process.pid),
            "answered": outcome["answered"],
            "sent": outcome["sent"],
            "p99": outcome["milliseconds"]["p99"],
        }
        rows.append(row)
        say(json.dumps(row))
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/tasks") as answer:
        assert answer.status == 200
    return rows


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Memory of the last quarter over that of the first minutes; what came of ten times the load."""
    made = []
    hour = [row for row in rows if row["what"] == "soak" and row["minute"] > WARM_MINUTES]
    if len(hour) >= 4:
        quarter = len(hour) // 4
        first, last = (
            float(np.median([row["resident"] for row in part])) for part in (hour[:quarter], hour[-quarter:])
        )
        growth = 100 * (last / first - 1)
        unanswered = sum(row["sent"] - row["answered"] for row in hour)
        made.append(
            Claim(
                id="server.memory-flat",
                text=f"growth of resident memory over {hour[-1]['minute']:.0f} minutes of load",
                target=5,
                value=round(growth, 2),
                unit="%",
                holds=abs(growth) <= 5 and not unanswered,
                note=f"{first / 2**20:.0f} to {last / 2**20:.0f} MiB; {sum(row['sent'] for row in hour):,} requests, "
                f"{unanswered} without an answer",
            )
        )
    over = next((row for row in rows if row["what"] == "ten times"), None)
    if over is not None:
        calm, after = (next(row for row in rows if row["what"] == what) for what in ("half of it", "afterwards"))
        others = {status: count for status, count in over["statuses"].items() if status not in ("200", "429")}
        slowest = over["milliseconds_from_sending"]["p100"] / 1000
        late = slowest > LATE + 1
        recovered = after["answered"] == after["sent"]
        made.append(
            Claim(
                id="server.overload",
                text="answers to ten times the load that are neither whole and on time nor 429",
                target=0,
                value=sum(others.values()),
                unit="answers",
                holds=not others and not late and recovered and over["memory"] < 1.5 * over["memory_before"],
                note=f"{over['statuses']}; slowest {slowest:.1f} s; {over['unsent']:,} that the "
                f"load generator could not send, on the same cores; memory "
                f"{over['memory_before'] / 2**20:.0f} to {over['memory'] / 2**20:.0f} MiB; 99th percentile at half "
                f"of the load {calm['milliseconds']['p99']:.0f} ms before, {after['milliseconds']['p99']:.0f} after",
            )
        )
    return made


if __name__ == "__main__":
    main()
