"""The test suite as `make test` runs it, beside another process that never rests.

    python -m benchmarks.silent_busy

The commands are read from the Makefile. A test that fails is named in the note.
"""

from __future__ import annotations

import re
import shlex

from benchmarks.right_snippet import busy
from benchmarks.right_tests import recipe, run
from studies.results import Claim
from studies.settings import answer_help, command, report, say


def main() -> None:
    rows = []
    with busy():
        for line in recipe("test"):
            words = shlex.split(line)
            own = dict(word.split("=", 1) for word in words if re.fullmatch(r"[A-Z_]+=.*", word))
            arguments = [word for word in words if word not in {f"{name}={value}" for name, value in own.items()}][1:]
            rows.append({"capped": any("MAX_CPU_ISA" in name for name in own), **run(arguments, own)})
            say(str(rows[-1]))
    report("silent_busy", command=command(), rows=rows, claims=claims(rows), lacking=[])


def claims(rows: list[dict]) -> list[Claim]:
    """No test fails."""
    failed = [name for row in rows for name in row["failed"]]
    tests, skipped = sum(row["tests"] for row in rows), sum(row["skipped"] for row in rows)
    return [
        Claim(
            id="silent.busy",
            text="tests of `make test` that fail beside a process that keeps one of two cores busy",
            target=0,
            value=len(failed),
            unit="tests",
            holds=not failed,
            note=f"Of {tests:,}, {skipped} of them skipped. {'Failed: ' + ', '.join(failed) if failed else ''}".strip(),
        )
    ]


if __name__ == "__main__":
    answer_help(__doc__)
    main()
