"""The README's Python snippet as a newcomer runs it: seconds to the first word and to the answer.

    python -m benchmarks.right_snippet

On two processors with the instructions of AVX2 alone (oneDNN's, torch's and MKL's kernels are capped), beside a
process that keeps one of them busy.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from polyhead.machine import CAPS
from studies.results import Claim
from studies.settings import ROOT, answer_help, command, report, say

REPEATS = 3
CAPPED = dict.fromkeys((*CAPS, "MKL_ENABLE_INSTRUCTIONS"), "AVX2") | {"ATEN_CPU_CAPABILITY": "avx2"}
TARGETS = {"seconds": 60.0, "first": 1.0}


def main() -> None:
    rows = []
    for repeat in range(REPEATS):
        with busy():
            rows.append({"repeat": repeat, **measured(snippet())})
        say(str(rows[-1]))
    report("right_snippet", command=command(), rows=rows, claims=claims(rows), lacking=[])


def snippet() -> str:
    """The first Python block of the README."""
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    if block is None:
        raise SystemExit("the README has no Python snippet")
    return block.group(1)


@contextmanager
def busy() -> Iterator[None]:
    """Another process that never rests."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


def measured(code: str) -> dict[str, Any]:
    """Seconds from the start of Python, and from the call of training, to the first word; and to the end."""
    script = f"import sys, time\nprint('start', file=sys.stderr, flush=True)\n{code}"
    mark = "\nprint('train', file=sys.stderr, flush=True)"
    script = script.replace("\nmodel.fit(", mark + "\nmodel.fit(", 1)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, "-c", script],
            cwd=folder,
            env=os.environ | CAPPED,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None and process.stderr is not None
            times = []
            for line in process.stderr:
                times.append((time.perf_counter() - began, line.strip()))
            answer = process.stdout.read().strip()
        if process.returncode:
            raise SystemExit("\n".join(line for _, line in times))
        if (told := re.findall(r"^# (.+)$", code, re.MULTILINE)) != answer.splitlines():
            raise SystemExit(f"it printed {answer}, and the README says {told}")
        seconds = time.perf_counter() - began
    called = next(at for at, line in times if line == "train")
    first = next(at for at, line in times if at > called and line not in ("start", "train"))
    gaps = [later - earlier for (earlier, _), (later, _) in zip(times, times[1:], strict=False)]
    return {
        "seconds": round(seconds, 2),
        "imported": round(called, 2),
        "first": round(first - called, 2),
        "silence": round(max(gaps), 2),
        "lines": len(times) - 2,
        "answer": answer,
    }


def claims(rows: list[dict]) -> list[Claim]:
    """Claims on the seconds in all, and on those from the call to the first line of progress."""
    texts = {
        "seconds": "the README's Python snippet after installation, two cores with AVX2 alone, one of them busy",
        "first": "the same: from the call of `fit` to the first word of progress",
    }
    medians = {name: statistics.median(row[name] for row in rows) for name in (*texts, "imported", "silence")}
    return [
        Claim(
            id="right.snippet" if name == "seconds" else "right.snippet_first",
            text=text,
            target=TARGETS[name],
            value=medians[name],
            unit="seconds",
            holds=medians[name] <= TARGETS[name],
            note=f"Median of {len(rows)}. Imports take {medians['imported']:.1f} seconds of it; the longest silence is "
            f"{medians['silence']:.1f} seconds.",
        )
        for name, text in texts.items()
    ]


if __name__ == "__main__":
    answer_help(__doc__)
    main()
