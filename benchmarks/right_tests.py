"""The test suite as `make test` runs it: on this processor, and the tests of precision once more, capped to AVX2.

    python -m benchmarks.right_tests

The commands are read from the Makefile. A test that fails is named in the note.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from studies.results import Claim
from studies.settings import ROOT, command, report, say


def main() -> None:
    rows = []
    for line in recipe():
        words = shlex.split(line)
        own = dict(word.split("=", 1) for word in words if re.fullmatch(r"[A-Z_]+=.*", word))
        arguments = [word for word in words if word not in {f"{k}={v}" for k, v in own.items()}][1:]
        rows.append({"capped": any("MAX_CPU_ISA" in name for name in own), **run(arguments, own)})
        say(str(rows[-1]))
    report("right_tests", command=command(), rows=rows, claims=claims(rows), lacking=[])


def recipe() -> list[str]:
    """The lines of the Makefile's target `test`, with its variables filled in."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    values = dict(re.findall(r"^(\w+)\s*[:?]?=\s*(.*)$", text, re.MULTILINE))
    (lines,) = re.findall(r"^test:.*\n((?:\t.*\n)+)", text, re.MULTILINE)
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
    """None fails, in either run."""
    texts = {
        False: ("right.tests", "tests that fail on this processor"),
        True: ("right.tests_avx2", "tests of precision that fail on it capped to AVX2"),
    }
    claims_of_runs = []
    for row in rows:
        id, text = texts[row["capped"]]
        claims_of_runs.append(
            Claim(
                id=id,
                text=text,
                target=0,
                value=len(row["failed"]),
                unit="tests",
                holds=not row["failed"],
                note=f"Of {row['tests']:,}, {row['skipped']} skipped, in {row['seconds']:.0f} seconds. "
                + ", ".join(row["failed"]),
            )
        )
    return claims_of_runs


if __name__ == "__main__":
    main()
