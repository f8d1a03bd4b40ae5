"""The test suite as `make test-all` runs it: on this processor, and the tests of precision once more, capped to AVX2.

    python -m benchmarks.right_tests

The commands are read from the Makefile. A test that fails is named in the note.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from studies.results import Claim, hardware
from studies.settings import RESULTS, ROOT, command, report, say


def main() -> None:
    rows = []
    for line in recipe("test-all"):
        words = shlex.split(line)
        own = dict(word.split("=", 1) for word in words if re.fullmatch(r"[A-Z_]+=.*", word))
        arguments = [word for word in words if word not in {f"{k}={v}" for k, v in own.items()}][1:]
        is_capped = any("MAX_CPU_ISA" in name for name in own)
        rows.append({"processor": hardware(), "capped": is_capped, **run(arguments, own)})
        say(str(rows[-1]))
    rows = [*others(hardware()), *rows]
    report("right_tests", command=command(), rows=rows, claims=claims(rows), lacking=[])


def others(here: str) -> list[dict]:
    """The rows of other machines that are in the results: each machine replaces its own."""
    written = RESULTS / "right_tests.json"
    rows = json.loads(written.read_text(encoding="utf-8"))["rows"] if written.exists() else []
    return [row for row in rows if row["processor"] != here]


def recipe(target: str) -> list[str]:
    """The lines of a target of the Makefile, with its variables filled in."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    values = dict(re.findall(r"^(\w+)\s*[:?]?=\s*(.*)$", text, re.MULTILINE))
    (lines,) = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", text, re.MULTILINE)
    return [re.sub(r"\$\((\w+)\)", lambda variable: values[variable[1]], line).strip() for line in lines.splitlines()]


def run(arguments: list[str], own: dict[str, str]) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "told.xml")
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, *arguments, "-q", f"--junitxml={report}"], cwd=ROOT, env=os.environ | own, check=False
        )
        seconds = time.perf_counter() - began
        cases = list(ElementTree.parse(report).iter("testcase"))
    failed = [
        f"{case.get('classname')}::{case.get('name')}"
        for case in cases
        if any(child.tag in ("failure", "error") for child in case)
    ]
    skipped = sum(any(child.tag == "skipped" for child in case) for case in cases)
    return {"tests": len(cases), "failed": failed, "skipped": skipped, "seconds": round(seconds, 1)}


def claims(rows: list[dict]) -> list[Claim]:
    """None fails, in either run, on any of the machines."""
    texts = {
        False: ("right.tests", "tests that fail, on all processors together"),
        True: ("right.tests_avx2", "tests of precision that fail, capped to AVX2, on all processors together"),
    }
    claims_of_runs = []
    for is_capped, (id, text) in texts.items():
        runs = [row for row in rows if row["capped"] == is_capped]
        failed = sum(len(row["failed"]) for row in runs)
        note = "; ".join(
            f"{row['processor']}: of {row['tests']:,}, {row['skipped']} skipped, in {row['seconds']:.0f} seconds"
            + "".join(f", {name}" for name in row["failed"])
            for row in runs
        )
        claims_of_runs.append(
            Claim(id=id, text=text, target=0, value=failed, unit="tests", holds=not failed, note=note + ".")
        )
    return claims_of_runs


if __name__ == "__main__":
    main()
