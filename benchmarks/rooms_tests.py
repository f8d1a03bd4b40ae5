"""The first tier of tests as `make test` runs it: alone, thrice beside a process that keeps a core busy, and alone.

    python -m benchmarks.rooms_tests

The command is read from the Makefile. In a fresh clone the first run also compiles what tests import, for later runs. A
test that fails is named in the note.
"""

from __future__ import annotations

import contextlib
import re
import shlex

from benchmarks.right_snippet import busy
from benchmarks.right_tests import recipe, run
from studies.results import Claim
from studies.settings import answer_help, command, report, say

MOST, TIMES = 300.0, 3


def main() -> None:
    (line,) = recipe("test")
    words = shlex.split(line)
    own = dict(word.split("=", 1) for word in words if re.fullmatch(r"[A-Z_]+=.*", word))
    arguments = [word for word in words if word not in {f"{name}={value}" for name, value in own.items()}][1:]
    rows = []
    for is_busy in (False, *[True] * TIMES, False):
        with busy() if is_busy else contextlib.nullcontext():
            rows.append({"busy": is_busy, **run(arguments, own)})
        say(str(rows[-1]))
    report("rooms_tests", command=command(), rows=rows, claims=claims(rows), lacking=[])


def claims(rows: list[dict]) -> list[Claim]:
    """It takes few minutes, and no run fails."""
    alone, *beside, again = rows
    failed = sorted({name for row in beside for name in row["failed"]})
    return [
        Claim(
            id="rooms.test_seconds",
            text="`make test` after installation, alone on two cores",
            target=MOST,
            value=alone["seconds"],
            unit="s",
            holds=alone["seconds"] <= MOST and not alone["failed"],
            note=f"{alone['tests']:,} tests, {alone['skipped']} skipped; once more: {again['seconds']} s. "
            + ", ".join(alone["failed"]),
        ),
        Claim(
            id="rooms.test_busy",
            text=f"tests that fail in {len(beside)} runs of `make test` beside a process that keeps one core busy",
            target=0,
            value=sum(len(row["failed"]) for row in beside),
            unit="tests",
            holds=not failed,
            note=", ".join(failed),
        ),
    ]


if __name__ == "__main__":
    answer_help(__doc__)
    main()
