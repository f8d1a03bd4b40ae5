"""What a newcomer waits for: the import, the demo, the tests. Wall-clock seconds of the commands themselves."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

from studies.results import Claim, results, write_results
from studies.settings import RESULTS, ROOT, answer_help

IMPORTS = 9


def main() -> None:
    start = median([sys.executable, "-c", "pass"])
    whole = median([sys.executable, "-c", "import polyhead"])
    with tempfile.TemporaryDirectory() as folder:
        demo = seconds([sys.executable, "-m", "polyhead", "demo", "--folder", f"{folder}/demo-bundle"])
    # as `make test` runs them
    tests = seconds([sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile"], OMP_NUM_THREADS="1")
    rows = [
        {"measure": "python", "seconds": start, "repeats": IMPORTS},
        {"measure": "python and import polyhead", "seconds": whole, "repeats": IMPORTS},
        {"measure": "make demo, after installation", "seconds": demo},
        {"measure": "make test, after installation", "seconds": tests},
    ]
    claims = [
        at_most("import-seconds", "import polyhead, without torch, median", 0.3, whole - start),
        at_most("demo-seconds", "make demo after installation: all tasks trained, scored and answered", 120, demo),
        at_most("test-seconds", "make test after installation", 360, tests),
    ]
    command = "python -m benchmarks.first_light_newcomer"
    print(write_results(RESULTS, results("first_light_newcomer", command=command, rows=rows, claims=claims)))


def at_most(name: str, text: str, target: float, value: float) -> Claim:
    return Claim(id=f"first-light.{name}", text=text, target=target, value=value, unit="seconds", holds=value <= target)


def median(command: list[str]) -> float:
    return statistics.median(seconds(command) for _ in range(IMPORTS))


def seconds(command: list[str], **environment: str) -> float:
    began = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-4000:]}")
    return time.perf_counter() - began


if __name__ == "__main__":
    answer_help(__doc__)
    main()
