"""Efforts beside the default on the same labelled rows: points lost, and seconds.

    python -m studies defaults run-efforts [--sets trec6,cr] [--sizes 8,64,1500,all] [--report]
    python -m studies defaults run-efforts --efforts best --sets trec6,emotion,irony,cr --sizes 1500 --threads 1

`quick` is linear heads alone, `best` searches further for five minutes; what that finds depends on the time that it
has, so nothing else should use its cores. The sets, sizes and draws are those of `run.py`, whose rows in
results/heads_defaults.json are the default's. Seconds are without encoding, which all share. Writes
results/minute_efforts.json. Goes on where it stopped: rows are in runs/minute_efforts.jsonl, or else in the results.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from polyhead.project.recipes import Effort
from polyhead.project.tables import with_effort
from studies.defaults.claims import DRAWS, SIZES, best_claims, quick_claims
from studies.defaults.run import NAME as DEFAULTS
from studies.defaults.run import SETS, learned, project_of
from studies.results import Claim
from studies.settings import (
    checked_names,
    command,
    parsed,
    report,
    results_rows,
    resumed,
    rows_of,
    say,
    study_arguments,
)

NAME = "minute_efforts"
MOST_LOST = 1.0  # points, on average
MINUTES_OF_BEST = 5.0  # which a run of effort best is given
MINUTES: dict[Effort, float | None] = {"quick": None, "best": MINUTES_OF_BEST}
SEARCHED = ("trec6", "emotion", "irony", "cr")  # sets of effort best, at 1,500 rows


def main() -> None:
    parser = study_arguments(__doc__, f"{NAME}.jsonl")
    parser.add_argument("--efforts", default="quick")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--sizes", default=",".join(SIZES))
    options = parsed(parser)
    if not options.report:
        study = resumed(options.rows[0], NAME)
        chosen = checked_names(options.efforts, MINUTES, "effort")
        efforts = [effort for effort in MINUTES if effort in chosen]
        sets, sizes = checked_names(options.sets, SETS, "set"), checked_names(options.sizes, SIZES, "size")
        for effort, size, draw, name in itertools.product(efforts, sizes, DRAWS, sets):
            training = partial(trained, effort, name, size, draw)
            say(str(study.row(training, effort=effort, set=name, size=size, draw=draw)))
        return
    rows = rows_of(options.rows)
    wanted = [("quick", size, name) for size in SIZES for name in SETS] + [("best", "1500", name) for name in SEARCHED]
    pairs = list(paired(rows))
    lacking = [
        f"{effort}, {name}, {size}: {count} of {len(DRAWS)} draws"
        for effort, size, name in wanted
        if (count := sum((row["effort"], row["set"], row["size"]) == (effort, name, size) for row, _ in pairs))
        < len(DRAWS)
    ]
    report(NAME, command=command(), rows=rows, claims=restated(rows), lacking=lacking)


def restated(rows: list[dict[str, Any]]) -> list[Claim]:
    """Claims that compare these rows with rows of the default."""
    quick, best = ([pair for pair in paired(rows) if pair[0]["effort"] == effort] for effort in ("quick", "best"))
    return [*quick_claims(quick, most=MOST_LOST), *best_claims(best, sets=SEARCHED, minutes=MINUTES_OF_BEST)]


def trained(effort: Effort, name: str, size: str, draw: int) -> dict[str, object]:
    """The test score with this effort, the head that was kept, and seconds."""
    with tempfile.TemporaryDirectory() as folder:
        project = with_effort(project_of(name, size, draw, Path(folder)), effort, MINUTES[effort])
        row = learned(project, Path(folder))
    return {"score" if key == "default" else key: row[key] for key in ("metric", "default", "chosen", "seconds")}


def paired(rows: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each row with the default's of the same set, size and draw."""
    defaults = {(row["set"], row["size"], row["draw"]): row for row in results_rows(DEFAULTS)}
    for row in rows:
        if (default := defaults.get((row["set"], row["size"], row["draw"]))) is not None:
            yield row, default


if __name__ == "__main__":
    main()
