"""Branches of the package that both tiers of tests run, before the rooms were made and now.

    python -m benchmarks.rooms_coverage before.json after.json

Each file is what `coverage json` writes in a checkout after `make coverage`, or after the same commands in a checkout
that has no such target.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from studies.results import Claim
from studies.settings import report

COMMAND = "make coverage; coverage json -o after.json, in both checkouts; python -m benchmarks.rooms_coverage"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    files = parser.parse_args()
    rows = [row(files.before, "before"), row(files.after, "after")]
    report("rooms_coverage", command=COMMAND, rows=rows, claims=[claim(*rows)], lacking=[])


def row(file: Path, at: str) -> dict[str, object]:
    totals = json.loads(file.read_text(encoding="utf-8"))["totals"]
    branches, covered = totals["num_branches"], totals["covered_branches"]
    return {
        "at": at,
        "branches": branches,
        "covered_branches": covered,
        "branch_coverage_percent": round(100 * covered / branches, 2),
        "lines": totals["num_statements"],
        "covered_lines": totals["covered_lines"],
    }


def claim(before: dict[str, object], after: dict[str, object]) -> Claim:
    """The share of branches is not lower."""
    target, value = float(str(before["branch_coverage_percent"])), float(str(after["branch_coverage_percent"]))
    return Claim(
        id="rooms.coverage",
        text=f"branches that both tiers of tests run; before the rooms were made: {target} %",
        target=target,
        value=value,
        unit="%",
        holds=value >= target,
    )


if __name__ == "__main__":
    main()
