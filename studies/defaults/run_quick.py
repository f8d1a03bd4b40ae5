"""Effort `quick`, linear heads alone, beside the default on the same labelled rows: points lost and seconds.

    python -m studies defaults run-quick [--sets trec6,cr] [--sizes 8,64,1500,all] [--report]

The sets, sizes and draws of `run.py`, whose rows in results/heads_defaults.json are the default's. Seconds are without
encoding, which both share. Writes results/minute_quick.json. Goes on where it stopped: rows are in
runs/minute_quick.jsonl, or else in the results.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from studies.defaults.claims import DRAWS, SIZES, quick_claims
from studies.defaults.run import NAME as DEFAULTS
from studies.defaults.run import SETS, learned, project_of
from studies.results import Claim, Study
from studies.settings import checked_names, command, parsed, report, results_rows, resumed, say, study_arguments

NAME = "minute_quick"
MOST_LOST = 1.0  # points, on average


def main() -> None:
    parser = study_arguments(__doc__, f"{NAME}.jsonl")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--sizes", default=",".join(SIZES))
    options = parsed(parser)
    if not options.report:
        study = resumed(options.rows[0], NAME)
        sets, sizes = checked_names(options.sets, SETS, "set"), checked_names(options.sizes, SIZES, "size")
        for size, draw, name in ((size, draw, name) for size in sizes for draw in DRAWS for name in sets):
            say(str(study.row(partial(quick, name, size, draw), set=name, size=size, draw=draw)))
        return
    rows = [row for file in options.rows for row in Study(file).rows]
    pairs = list(paired(rows))
    lacking = [
        f"{name}, {size}: {count} of {len(DRAWS)} draws"
        for size in SIZES
        for name in SETS
        if (count := sum((row["set"], row["size"]) == (name, size) for row, _ in pairs)) < len(DRAWS)
    ]
    report(NAME, command=command(), rows=rows, claims=restated(rows), lacking=lacking)


def restated(rows: list[dict[str, Any]]) -> list[Claim]:
    """The claims of these rows, beside the default's."""
    return list(quick_claims(list(paired(rows)), most=MOST_LOST))


def quick(name: str, size: str, draw: int) -> dict[str, object]:
    """The test score of the linear heads alone, and seconds."""
    with tempfile.TemporaryDirectory() as folder:
        found = learned(project_of(name, size, draw, Path(folder), effort="quick"), Path(folder))
    return {
        "metric": found["metric"],
        "quick": found["default"],
        "chosen": found["chosen"],
        "seconds": found["seconds"],
    }


def paired(rows: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each row with the default's of the same set, size and draw."""
    defaults = {(row["set"], row["size"], row["draw"]): row for row in results_rows(DEFAULTS)}
    for row in rows:
        if (default := defaults.get((row["set"], row["size"], row["draw"]))) is not None:
            yield row, default


if __name__ == "__main__":
    main()
