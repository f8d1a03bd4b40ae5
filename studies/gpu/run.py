"""The studies with whole training sets, on one graphics card: rows as runs end, until the minutes are over.

    make gpu-pack                         here: the pack, in build/gpu
    make gpu                              there: with the pack carried, torch and numpy
    python -m studies gpu report          here: from the rows that came back

It goes on where the rows stop (`runs/gpu.jsonl`, or `--rows FILE`), and needs no network and no installation. `--tiny`
runs a few rows of everything, on any processor.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACK, ROWS = ROOT / "build" / "gpu", ROOT / "runs" / "gpu.jsonl"
TESTS = ("tests/train/test_cuda.py", "tests/conformance")
TESTS_SECONDS, LEAST_MINUTES = 60, 3.0  # the tests are left out where less time is given
CARRIED = ("msgspec", "click", "tokenizers", "pytest")  # what the package's own tests need


def main() -> None:
    options = arguments()
    began = time.monotonic()
    if importlib.util.find_spec("torch") is None:
        raise SystemExit(f"there is no torch for {sys.executable}: install it, or name another with PYTHON=")
    import torch

    from studies.gpu.fit import Deadline, TimeIsUp
    from studies.gpu.jobs import TINY, WHOLE, Bench, jobs
    from studies.gpu.packed import FACTS, read_pack

    if options.device is None and not torch.cuda.is_available():
        raise SystemExit("there is no NVIDIA card here that torch can use: try it with --device cpu --tiny")
    if not (options.pack / FACTS).exists():
        raise SystemExit(
            f"there is no pack in {options.pack}: `make gpu-pack` makes it where the data is; carry it here"
        )
    if options.device != "cpu" and options.minutes >= LEAST_MINUTES:
        run_tests()
    pack, rows = read_pack(options.pack), read_rows(options.rows)
    deadline = Deadline(until=began + 60 * options.minutes)
    size = TINY if options.tiny else WHOLE
    bench = Bench(pack, rows, Writer(options.rows), size=size, device=options.device or "cuda", deadline=deadline)
    chosen = [(what, job) for what, job in jobs(bench) if options.only in what]
    if not chosen:
        raise SystemExit(
            f"no job has '{options.only}' in its name; there are {', '.join(what for what, _ in jobs(bench))}"
        )
    for index, (what, job) in enumerate(chosen, 1):
        before, started = len(bench.rows), time.monotonic()
        try:
            job()
        except TimeIsUp:
            print(f"{what}: stopped, the time is over; {len(bench.rows) - len(rows)} new rows in {options.rows}")
            return
        told(index, what, bench.rows[before:], time.monotonic() - started)
    print(f"all that was asked is run; {len(bench.rows) - len(rows)} new rows in {options.rows}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.0, help="when to end, whatever is done (9)")
    parser.add_argument("--device", help="cpu, or cuda:N; by default the card")
    parser.add_argument("--pack", type=Path, default=PACK, help="folder of the pack (build/gpu)")
    parser.add_argument("--rows", type=Path, default=ROWS, help="where rows are added (runs/gpu.jsonl)")
    parser.add_argument("--only", default="", help="jobs with this in their names: 'rte', 'full', 'pre-finetuning'")
    parser.add_argument("--tiny", action="store_true", help="a few rows, one seed, one rate: to see that it runs")
    return parser.parse_args()


def run_tests() -> None:
    """What the package's own tests say of the card, where the machine has what they import."""
    lacking = [name for name in CARRIED if importlib.util.find_spec(name) is None]
    if lacking:
        print(f"tests on the card are left out: no {', '.join(lacking)} here", flush=True)
        return
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-k", "cuda or card", *TESTS]
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    try:
        subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, timeout=TESTS_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        print(f"tests on the card: stopped after {TESTS_SECONDS} s", flush=True)


class Writer:
    """Adds rows to a file, each on the disk before the next."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists() and not file.read_bytes().endswith(b"\n") and file.stat().st_size:
            file.write_bytes(file.read_bytes() + b"\n")  # of a line that a kill cut short

    def __call__(self, row: dict[str, Any]) -> None:
        with self.file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(row) + "\n")
            out.flush()
            os.fsync(out.fileno())


def read_rows(file: Path) -> list[dict[str, Any]]:
    """The rows of a file, without a line that a kill cut short."""
    rows: list[dict[str, Any]] = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def told(index: int, what: str, rows: list[dict[str, Any]], seconds: float) -> None:
    """A line of a job that ended."""
    speed = max((row["flops_per_second"] for row in rows), default=0)
    made = f"{len(rows)} rows, {seconds:.0f} s, {speed / 1e12:.2f} TFLOP/s at best" if rows else "was there"
    print(f"{index:3d}  {what}: {made}", flush=True)


if __name__ == "__main__":
    main()
