"""Compares the server's latencies with those of an ideal queue, at 10 % to 90 % of saturation.

    python -m benchmarks.one_pass_tasks      once: the tasks
    python -m benchmarks.server_queue        an idle machine, nothing else running

The engine is timed alone: batches of several sizes, right after another one and after a rest, and all texts in one
call. `benchmarks/ideal_queue.py` then answers the very arrivals that the load generator sends, the same texts at the
same moments, without any cost of its own. The generator shares the machine with the server; how much of a processor
each takes stands beside every rate.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ideal_queue import BatchCost, latencies
from benchmarks.one_pass_tasks import FOLDER, bundle_of, train, tweets
from benchmarks.open_loop import poisson, quantiles
from benchmarks.server_load import CALLERS, LEAST, SUFFIX, TASKS, Row, load, paused, server
from polyhead.machine import processors
from studies.results import Claim
from studies.settings import command, report, say

SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)  # of saturation
HALF = 0.5
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
TIMES, OF_ENGINE = 1.5, 0.9  # the claims' targets
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    options = arguments()
    if options.bundle is None:
        train()
    bundle = bundle_of(TASKS) if options.bundle is None else options.bundle
    texts = tweets(options.texts)
    bodies = FOLDER / "bodies.jsonl"
    bodies.parent.mkdir(parents=True, exist_ok=True)
    bodies.write_text("".join(json.dumps({"inputs": [text]}) + "\n" for text in texts))
    rows: list[Row] = []
    with server(bundle, "--backend", "openvino", "--precision", options.precision) as (port, process):
        load(port, bodies, callers=16, seconds=5)  # what is compiled and cached at first
        for turn in range(options.repeats):
            more = ("--draws", f"{options.draws}", "--batches", *map(str, BATCHES))
            alone = paused(process, bundle, options.precision, texts, *more)
            lengths = alone.pop("lengths")
            cost = BatchCost.of(alone.pop("batches"))
            known = {"turn": turn, "precision": options.precision}
            rows.append({**known, "what": "engine", **alone, **batch_times(cost)})
            say(json.dumps(rows[-1]))
            full = with_processors(process.pid, port, bodies, callers=CALLERS, seconds=options.seconds)
            rows.append({**known, "what": "saturation", **full})
            say(json.dumps(rows[-1]))
            for share in options.shares:
                rate = share * full["a_second"]
                seconds = max(options.seconds, LEAST / rate)
                ideal = ideal_of(cost, lengths, rate=rate, seconds=seconds)
                served = with_processors(process.pid, port, bodies, rate=rate, seconds=seconds)
                rows.append({**known, "what": "queue", "share": share, "ideal": ideal, **served})
                say(said(rows[-1]))
    report(f"server_queue{SUFFIX}", command=command(), rows=rows, claims=list(claims(rows)), lacking=[])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, help="in place of the tasks of one_pass_tasks")
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--shares", nargs="*", type=float, default=SHARES, help="of saturation")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each rate")
    parser.add_argument("--texts", type=int, default=2048)
    parser.add_argument("--draws", type=int, default=20, help="timed batches of each size")
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


def batch_times(cost: BatchCost) -> Row:
    """Milliseconds of batches, by their texts."""
    both = {"warm": cost.warm, "cold": cost.cold}
    return {
        name: {f"{size}": round(1000 * s, 3) for size, s in zip(cost.texts, seconds, strict=True)}
        for name, seconds in both.items()
    }


def ideal_of(cost: BatchCost, lengths: Sequence[int], *, rate: float, seconds: float) -> Row:
    """Quantiles of the best queue for what the load generator sends at this rate."""
    moments = list(poisson(rate, seconds, seed=0))
    tokens = [lengths[number % len(lengths)] for number in range(len(moments))]
    return quantiles(latencies(moments, tokens, cost.seconds, most=cost.texts[-1]))


def with_processors(pid: int, port: int, bodies: Path, *, seconds: float, **how: Any) -> Row:
    """A run of the load generator, and how many processors it and the server kept busy."""
    before = computed(pid)
    row = load(port, bodies, seconds=seconds, **how)
    row["busy"] = {
        "server": round((computed(pid) - before) / row["seconds"], 3),
        "generator": round(row["processor"] / row["seconds"], 3),
        "processors": processors(),
    }
    return row


def computed(pid: int) -> float:
    """Processor seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def said(row: Row) -> str:
    """A rate in a line."""
    own, ideal, busy = row["milliseconds"], row["ideal"], row["busy"]
    return (
        f"{row['share']:.0%}, {row['rate']:.0f} a second: median {own['p50']:.1f} ms, 99th percentile "
        f"{own['p99']:.1f}; the best queue's {ideal['p50']:.1f} and {ideal['p99']:.1f}; processors: server "
        f"{busy['server']}, load generator {busy['generator']} of {busy['processors']}"
    )


def claims(rows: Sequence[Row]) -> Iterator[Claim]:
    """The 99th percentile at half of saturation over the best queue's, and saturation over the engine's rate."""
    own = SUFFIX.replace("_", "-")
    halves = [row for row in rows if row["what"] == "queue" and row["share"] == HALF]
    if halves:
        times = [row["milliseconds"]["p99"] / row["ideal"]["p99"] for row in halves]
        yield Claim(
            id=f"fast.queue{own}",
            text="99th percentile at half of saturation over that of the best queue for the same arrivals, 21 tasks",
            target=TIMES,
            value=round(statistics.median(times), 3),
            unit="times",
            holds=bool(statistics.median(times) <= TIMES),
            note=f"median of {len(times)}, {min(times):.2f} to {max(times):.2f}; "
            + said(sorted(halves, key=lambda row: row["milliseconds"]["p99"])[len(halves) // 2]),
        )
    served = np.array([row["a_second"] for row in rows if row["what"] == "saturation"])
    alone = np.array([row["a_second"] for row in rows if row["what"] == "engine"])
    ratios, share = served / alone, statistics.median(r["busy"]["generator"] for r in rows if r["what"] == "saturation")
    yield Claim(
        id=f"fast.saturation{own}",
        text="texts a second at saturation, one a request, over those of the engine in process, 21 tasks",
        target=OF_ENGINE,
        value=round(float(np.median(ratios)), 3),
        unit="ratio",
        holds=bool(np.median(ratios) >= OF_ENGINE),
        note=f"median of {len(ratios)}, {ratios.min():.3f} to {ratios.max():.3f}; {np.median(served):.0f} and "
        f"{np.median(alone):.0f} a second; the load generator takes {share:.2f} of {processors()} processors meanwhile",
    )


if __name__ == "__main__":
    main()
