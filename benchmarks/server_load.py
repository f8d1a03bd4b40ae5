"""Requests a second over HTTP: latency against offered load, the most within a limit, and saturation beside the engine.

    python -m benchmarks.one_pass_tasks      once: the tasks
    python -m benchmarks.server_load         an idle machine, nothing else running

Each request is one real tweet that 21 tasks answer (the twenty of `one_pass_tasks` that read one text, and a copy of
one). Server and load generator (`benchmarks/open_loop.py`) share the machine, each in a process of its own. Without
bfloat16 results have a file of their own, and without VNNI too the rate has a target of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.one_pass import BATCH, worker_of
from benchmarks.one_pass_tasks import FOLDER, bundle_of, train, tweets
from benchmarks.server_shapes import bert_base
from polyhead.machine import processor, processors
from studies.results import Claim
from studies.settings import ROOT, command, report, say

TASKS = 22  # of the bundle: one reads pairs, and is not asked
# Results files of processors without bfloat16 end with this; AVX-512 without VNNI counts as AVX2.
SUFFIX = "" if processor().may_have_bfloat16 else "_vnni" if processor().has_wide_sums else "_avx2"
FLOATS = "bfloat16" if processor().may_have_bfloat16 else "float32"
SERVED = (("minilm", "int8"), ("minilm", FLOATS), ("bert-base", FLOATS))
SHARE = {"minilm": 1, "bert-base": 8}  # one in so many of the texts is enough
RATES = (10, 20, 40, 60, 80, 100, 200, 300, 400, 500, 600, 700, 800, 900, 1000, 1100, 1200, 1400)
CALLERS = 128  # at saturation
LIMIT = 32.0  # milliseconds, of the 99th percentile
TARGET = 500 if SUFFIX == "_avx2" else 1000  # requests a second within it
LEAST = 300  # requests of a rate, so that its 99th percentile is not a single one
Row = dict[str, Any]


def main() -> None:
    options = arguments()
    train()
    bodies = FOLDER / "bodies.jsonl"
    texts = tweets(options.texts)
    bodies.write_text("".join(json.dumps({"inputs": [text]}) + "\n" for text in texts))
    rows: list[Row] = []
    shapes = {"minilm": bundle_of(TASKS), "bert-base": bert_base()}
    for shape, precision in options.served:
        known: Row = {"who": f"polyhead serve, {shape}, {precision}", "shape": shape, "precision": precision}
        with server(shapes[shape], "--backend", "openvino", "--precision", precision) as (port, process):
            load(port, bodies, callers=16, seconds=5)  # what is compiled and cached at first
            for turn in range(options.repeats):
                rows.append(
                    {**known, "what": "saturation", "turn": turn, **load(port, bodies, callers=CALLERS, seconds=15)}
                )
                alone = paused(process, shapes[shape], precision, texts[: options.texts // SHARE[shape]])
                rows.append(
                    {**known, "who": f"engine, {shape}, {precision}", "what": "in process", "turn": turn, **alone}
                )
            if shape == "minilm":
                rows.append({**known, "what": "encoder alone", "a_second": encoder_alone(process, precision, texts)})
            rows += curve(port, bodies, known, options)
            rows.append({**known, "what": "memory", "bytes": resident(process.pid)})
        say(json.dumps(rows[-1]))
    report(f"server_load{SUFFIX}", command=command(), rows=rows, claims=claims(rows), lacking=[])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--served", nargs="*", type=lambda word: tuple(word.split(":")), default=SERVED, help="SHAPE:PRECISION"
    )
    parser.add_argument("--rates", nargs="*", type=int, default=RATES, help="requests a second")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each rate")
    parser.add_argument("--texts", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


@contextlib.contextmanager
def server(bundle: Path, *options: str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """A server of its own process on a free port, ready."""
    log = FOLDER / "serve.log"
    with log.open("wb") as errors:
        words = [sys.executable, "-m", "polyhead", "serve", str(bundle), "--port", "0", *options]
        process = subprocess.Popen(
            words, stderr=errors, env=os.environ | {"OMP_NUM_THREADS": str(processors())}, cwd=ROOT
        )
    try:
        port = ready(process, log)
        yield port, process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


def ready(process: subprocess.Popen[bytes], log: Path, *, seconds: float = 300.0) -> int:
    """The port, once the server answers."""
    ended = time.monotonic() + seconds
    while time.monotonic() < ended:
        for line in log.read_text().splitlines():
            if "http://127.0.0.1:" in line:
                port = int(line.partition("http://127.0.0.1:")[2].split()[0].rstrip("/"))
                with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/tasks"):
                    return port
        if process.poll() is not None:
            break
        time.sleep(0.02)
    raise RuntimeError(f"the server did not come up: {log.read_text()[-2000:]}")


def load(
    port: int,
    bodies: Path,
    *,
    rate: float | None = None,
    callers: int | None = None,
    seconds: float,
    path: str = "/v1/predict",
) -> Row:
    """One run of the load generator."""
    how = ["--rate", str(rate)] if rate is not None else ["--callers", str(callers)]
    words = [sys.executable, "-m", "benchmarks.open_loop", "127.0.0.1", str(port), path, str(bodies), *how]
    done = subprocess.run([*words, "--seconds", str(seconds)], cwd=ROOT, capture_output=True, text=True, check=True)
    outcome: Row = json.loads(done.stdout)
    return {"rate": rate, "callers": callers, **outcome}


def curve(port: int, bodies: Path, known: Row, options: argparse.Namespace) -> Iterator[Row]:
    """Latency against offered load, and the highest rate within the limit, found by halving."""
    most, least = None, 0.0
    for rate in options.rates:
        row = {**known, "what": "curve", **load(port, bodies, rate=rate, seconds=max(options.seconds, LEAST / rate))}
        say(json.dumps(row))
        yield row
        if holds(row):
            least = rate
        else:
            most = rate
            break
    while most is not None and most - least > 25:
        rate = (most + least) / 2
        seconds = 2 * max(options.seconds, LEAST / rate)
        row = {**known, "what": "search", **load(port, bodies, rate=rate, seconds=seconds)}
        say(json.dumps(row))
        yield row
        least, most = (rate, most) if holds(row) else (least, rate)
    yield {**known, "what": "highest", "rate": least}


def holds(row: Row) -> bool:
    """Whether every request was answered and the 99th percentile is within the limit."""
    milliseconds = row["milliseconds"]
    return row["sent"] == row["answered"] and milliseconds["p99"] <= LIMIT


def paused(process: subprocess.Popen[bytes], bundle: Path, precision: str, texts: Sequence[str], *more: str) -> Row:
    """The engine in a process of its own over the same texts, while the server stands still."""
    words = [sys.executable, "-m", "benchmarks.server_engine", str(bundle), precision, *more]
    with stopped(process):
        done = subprocess.run(
            words, cwd=ROOT, input=json.dumps(list(texts)), capture_output=True, text=True, check=True
        )
    row: Row = json.loads(done.stdout)
    return row


def encoder_alone(process: subprocess.Popen[bytes], precision: str, texts: Sequence[str]) -> float:
    """Texts a second of the encoder without tasks, median of three runs over padded batches of texts of like length.

    The engine packs several texts into a row, and may do more.
    """
    (FOLDER / "tweets.json").write_text(json.dumps(texts))
    options = argparse.Namespace(threads=processors())
    with stopped(process), worker_of(options, f"openvino:{precision}", 0) as worker:
        worker.run("all", len(texts))
        seconds = [float(worker.run("all", len(texts))["seconds"]) for _ in range(3)]
        return len(texts) / statistics.median(seconds)


@contextlib.contextmanager
def stopped(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """A process stands still meanwhile."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def resident(pid: int) -> int:
    """Bytes of a process in memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def claims(rows: Sequence[Row]) -> list[Claim]:
    """The rate within the limit, and saturation over the engine's own rate, of each shape and precision."""
    made = []
    for shape, precision in dict.fromkeys((str(row["shape"]), str(row["precision"])) for row in rows):
        mine = [row for row in rows if (row["shape"], row["precision"]) == (shape, precision)]
        named = (precision if shape == "minilm" else shape) + SUFFIX.replace("_", "-")
        if shape == "minilm":
            made.append(rate(mine, precision, named))
        made.append(saturation(mine, precision if shape == "minilm" else shape, named))
    return made


def rate(rows: Sequence[Row], precision: str, named: str) -> Claim:
    """The highest rate within the limit."""
    highest = max(row["rate"] for row in rows if row["what"] == "highest")
    notes = [
        f"the encoder alone, without tasks and server, reads {row['a_second']:.0f} texts a second in batches of {BATCH}"
        for row in rows
        if row["what"] == "encoder alone"
    ]
    if highest < TARGET:
        runs = [row for row in rows if row["what"] in ("curve", "search") and row["rate"] > highest]
        notes.insert(0, f"missed: {said(min(runs, key=lambda row: float(row['rate'])))}")
    return Claim(
        id=f"server.rate-{named}",
        text=f"one-text requests a second, 21 tasks each, 99th percentile at most 32 ms, {precision}",
        target=TARGET,
        value=round(highest),
        unit="requests a second",
        holds=bool(highest >= TARGET),
        note="; ".join(notes),
    )


def said(run: Row) -> str:
    """How long a run's requests took."""
    milliseconds = run["milliseconds"]
    return (
        f"at {run['rate']:g} a second the median is {milliseconds['p50']:.0f} ms and the 99th percentile "
        f"{milliseconds['p99']:.0f} ({run['sent']} requests)"
    )


def saturation(rows: Sequence[Row], what: str, named: str) -> Claim:
    """The rate at saturation over the engine's own."""
    served = np.array([row["a_second"] for row in rows if row["what"] == "saturation"])
    alone = np.array([row["a_second"] for row in rows if row["what"] == "in process"])
    highest, ratios = max(row["rate"] for row in rows if row["what"] == "highest"), served / alone
    return Claim(
        id=f"server.saturation-{named}",
        text=f"texts a second at saturation over those of the engine in process, {what}",
        target=0.7,
        value=round(float(np.median(ratios)), 3),
        unit="ratio",
        holds=bool(np.median(ratios) >= 0.7),
        note=f"median of {len(ratios)}, {ratios.min():.3f} to {ratios.max():.3f}; {np.median(served):.0f} and "
        f"{np.median(alone):.0f} a second; within 32 ms {highest:.0f} a second",
    )


if __name__ == "__main__":
    main()
