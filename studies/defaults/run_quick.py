"""Effort `quick`, linear heads alone, beside the default on the same labelled rows: points lost and seconds.

    python -m studies defaults run-quick [--sets trec6,cr] [--sizes 8,64,1500,all] [--report]

The sets, sizes and draws of `run.py`, whose rows in results/heads_defaults.json are the default's. Seconds are without
encoding, which both share. Writes results/minute_quick.json. Goes on where it stopped: rows are in
runs/minute_quick.jsonl, or else in the results.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from studies.defaults.run import DRAWS, SETS, SIZES, learned, project_of
from studies.defaults.run import NAME as DEFAULTS
from studies.results import Claim, Study
from studies.settings import RESULTS, checked_names, command, parsed, report, resumed, say, study_arguments

NAME = "minute_quick"
MOST_LOST = 1.0  # points, on average
SMALL = ("8", "64")


def main() -> None:
    parser = study_arguments(__doc__, f"{NAME}.jsonl")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--sizes", default=",".join(SIZES))
    options = parsed(parser)
    if not options.report:
        study = resumed(options.rows[0], NAME)
        sets, sizes = checked_names(options.sets, SETS, "set"), checked_names(options.sizes, SIZES, "size")
        for size, draw, name in ((size, draw, name) for size in sizes for draw in DRAWS for name in sets):
            say(str(study.row(lambda a=(name, size, draw): quick(*a), set=name, size=size, draw=draw)))
        return
    rows = [row for file in options.rows for row in Study(file).rows]
    pairs = list(paired(rows))
    lacking = [
        f"{name}, {size}: {count} of {len(DRAWS)} draws"
        for size in SIZES
        for name in SETS
        if (count := sum((row["set"], row["size"]) == (name, size) for row, _ in pairs)) < len(DRAWS)
    ]
    report(NAME, command=command(), rows=rows, claims=list(claims(pairs)), lacking=lacking)


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


def paired(rows: list[dict]) -> Iterator[tuple[dict, dict]]:
    """Each row with the default's of the same set, size and draw."""
    before = json.loads((RESULTS / f"{DEFAULTS}.json").read_text(encoding="utf-8"))["rows"]
    defaults = {(row["set"], row["size"], row["draw"]): row for row in before}
    for row in rows:
        if (default := defaults.get((row["set"], row["size"], row["draw"]))) is not None:
            yield row, default


def claims(pairs: list[tuple[dict, dict]]) -> Iterator[Claim]:
    """For each size the mean of what the linear heads lose."""
    for size in SIZES:
        mine = [(row, default) for row, default in pairs if row["size"] == size]
        lost = {
            name: statistics.mean(100 * (d["default"] - q["quick"]) for q, d in mine if q["set"] == name)
            for name in SETS
            if any(q["set"] == name for q, _ in mine)
        }
        if not lost:
            continue
        mean, whole = statistics.mean(lost.values()), len(mine) == len(SETS) * len(DRAWS)
        seconds = [statistics.median(each["seconds"] for each in several) for several in zip(*mine, strict=True)]
        worst = sorted(lost, key=lambda name: -lost[name])[:3]
        yield Claim(
            id=f"minute.quick_{size}",
            text=f"points of the test score that effort quick loses to the default, mean of {len(lost)} sets, "
            + ("all rows" if size == "all" else f"{size} rows" + (" a label" if size in SMALL else "")),
            target=MOST_LOST,
            value=round(mean, 2),
            unit="points",
            holds=whole and mean <= MOST_LOST,
            note=f"most: {', '.join(f'{name} {lost[name]:+.1f}' for name in worst)}; seconds without encoding: "
            f"{seconds[0]:.1f} beside {seconds[1]:.1f} (medians; the default's were taken beside other work)"
            + ("" if whole else ". Not all sets have three draws."),
        )


if __name__ == "__main__":
    main()
