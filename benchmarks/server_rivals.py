"""Requests a second beside rivals behind the same server stack: one model a task, all 21 asked about each text.

    python -m benchmarks.one_pass_tasks                                  once: the tasks
    python benchmarks/peers/environments.py onnxruntime infinity         once: the rivals' environments
    python -m benchmarks.server_rivals                                   an idle machine, nothing else running

Rivals get what favours them: one request for all tasks in place of 21, an empty answer, no limits. Each server is asked
in turn, at saturation and for the highest rate whose 99th percentile stays within 32 ms; Polyhead before and after.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.one_pass import BATCH
from benchmarks.one_pass_tasks import FOLDER, PAIRED, TASKS, bundle_of, train, tweets
from benchmarks.peers.rivals import HERE, OFFLINE, RIVALS, Rival, python_of
from benchmarks.server_load import CALLERS, Row, curve, load, resident, server
from polyhead.bundle.read import Bundle
from polyhead.machine import processors
from polyhead.project.pretrained import find_encoder
from polyhead.tasks.kinds import kind_of
from studies.results import Claim
from studies.settings import command, report, say

NAME, PRECISION, TASKS_OF_ONE_TEXT = "server_rivals", "int8", 22
WORDS = ("ONNX Runtime", "Infinity")


def main() -> None:
    options = arguments()
    train()
    bodies = FOLDER / "bodies.jsonl"
    bodies.write_text("".join(json.dumps({"inputs": [text]}) + "\n" for text in tweets(options.texts)))
    rows: list[Row] = []
    lacking: list[str] = []
    for rival in (rival for rival in RIVALS if rival.name.startswith(WORDS)):
        if not python_of(rival.environment).exists():
            lacking.append(f"{rival.name}: python benchmarks/peers/environments.py {rival.environment}")
            continue
        for who in ("polyhead", rival.name, "polyhead"):
            with started(who, rival) as (port, pid):
                known: Row = {"who": who, "beside": rival.name}
                load(port, bodies, callers=16, seconds=5)
                rows.append(
                    {**known, "what": "saturation", **load(port, bodies, callers=CALLERS, seconds=options.seconds)}
                )
                rows += curve(port, bodies, known, options)
                rows.append({**known, "what": "memory", "bytes": resident(pid)})
                say(json.dumps(rows[-1]))
    report(NAME, command=command(), rows=rows, claims=claims(rows), lacking=lacking)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", nargs="*", type=float, default=(5, 10, 20, 40, 100, 200, 400, 600, 800, 1000, 1400))
    parser.add_argument("--seconds", type=float, default=15.0, help="of each rate")
    parser.add_argument("--texts", type=int, default=4096)
    return parser.parse_args()


@contextlib.contextmanager
def started(who: str, rival: Rival) -> Iterator[tuple[int, int]]:
    """Polyhead's server, or the rival's: its port and its process."""
    if who == "polyhead":
        with server(bundle_of(TASKS_OF_ONE_TEXT), "--backend", "openvino", "--precision", PRECISION) as (port, own):
            yield port, own.pid
        return
    trained = Bundle.open(FOLDER / "trained")
    tasks = [trained.tasks[task.name].task for task in (*TASKS, PAIRED)]
    job = {
        "batch": BATCH,
        "threads": processors(),
        "model": str(find_encoder("minilm")),
        "work": str(FOLDER / "rivals"),
        "tasks": [
            {"name": task.name, "words": task.kind == "tagging", "outputs": kind_of(task).width(task)} for task in tasks
        ],
    }
    words = [str(python_of(rival.environment)), str(HERE / "serving.py"), Path(rival.script).stem]
    with (FOLDER / "rival.log").open("wb") as log:
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=os.environ | OFFLINE
        )
    try:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        address = next(line for line in process.stdout if line.startswith("http://"))
        yield int(address.rpartition(":")[2]), process.pid
    finally:
        process.kill()
        process.wait()


PRECISIONS = {"onnxruntime": "", "infinity": " (torch, float32)"}  # of rivals whose names do not say it


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Polyhead's rate over each rival's: within the limit where a rival has one, and at saturation; and memory."""
    made = []
    for rival in dict.fromkeys(str(row["beside"]) for row in rows):
        beside = [row for row in rows if row["beside"] == rival]

        def values(what: str, key: str, who: str, beside: Sequence[Row] = beside) -> list[float]:
            return [float(row[key]) for row in beside if row["what"] == what and row["who"] == who]

        ours, theirs = (statistics.mean(values("saturation", "a_second", who)) for who in ("polyhead", rival))
        runs = [len(values("saturation", "a_second", who)) for who in ("polyhead", rival)]
        mine, limit = (max(values("highest", "rate", who)) for who in ("polyhead", rival))
        within = (
            f"{mine:.0f} and {limit:.0f} a second within 32 ms"
            if limit
            else f"{mine:.0f} a second within 32 ms, where the rival answers none"
        )
        bytes_ours, bytes_theirs = (max(values("memory", "bytes", who)) for who in ("polyhead", rival))
        name = "onnxruntime" if rival.startswith("ONNX") else "infinity"
        made.append(
            Claim(
                id=f"server.beside-{name}",
                text=f"requests a second at saturation, 21 tasks each, int8, over {rival}{PRECISIONS[name]} behind the "
                "same stack",
                target=15,
                value=round(ours / theirs, 2),
                unit="ratio",
                holds=ours >= 15 * theirs,
                note=f"{ours:.0f} and {theirs:.1f} a second, {runs[0]} runs and {runs[1]}; {within}; "
                f"{bytes_ours / 2**20:.0f} and {bytes_theirs / 2**20:.0f} MiB",
            )
        )
    return made


if __name__ == "__main__":
    main()
