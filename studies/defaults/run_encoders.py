"""The default over MPNet beside the default over minilm: ten sets, three sizes, three draws, one row a run.

    python -m studies defaults run-encoders --mpnet FOLDER [--sets trec6,cr] [--sizes 8,64,1500] [--report]

FOLDER holds all-mpnet-base-v2 as `save_pretrained` writes it. Rows are those of `run.py`, with the trunk's name; both
trunks learn from the same labelled rows and answer the same whole test splits. Writes results/encoders_defaults.json.
Goes on where it stopped: rows are in runs/encoders_defaults.jsonl, or else in the results.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any

from polyhead.project.encoders import MINILM
from studies.defaults.claims import DRAWS, lacking_draws, listed
from studies.defaults.run import run
from studies.evidence import by_draw, judged
from studies.results import Claim, Study
from studies.settings import checked_names, command, parsed, report, resumed, say, study_arguments

NAME, MPNET = "encoders_defaults", "mpnet"
NAMES = ("trec6", "subj", "emotion", "banking77", "cr", "mrpc", "sick_nli", "stsb", "wnut17", "snips_slots")
SIZES = ("8", "64", "1500")


def main() -> None:
    parser = study_arguments(__doc__, f"{NAME}.jsonl")
    parser.add_argument("--sets", default=",".join(NAMES))
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--mpnet", metavar="FOLDER", help="with all-mpnet-base-v2; without it minilm alone is run")
    options = parsed(parser)
    if not options.report:
        study = resumed(options.rows[0], NAME)
        sets, sizes = checked_names(options.sets, NAMES, "set"), checked_names(options.sizes, SIZES, "size")
        trunks = {MINILM: MINILM, **({MPNET: options.mpnet} if options.mpnet else {})}
        for draw, size, name in ((draw, size, name) for draw in DRAWS for size in sizes for name in sets):
            for trunk, place in trunks.items():
                training = partial(run, name, size, draw, place)
                say(str(study.row(training, set=name, size=size, draw=draw, trunk=trunk)))
        return
    rows = [row for file in options.rows for row in Study(file).rows]
    lacking = [
        f"{name}, {size}: {len(found)} of {len(DRAWS)} draws"
        for size in SIZES
        for name in NAMES
        if len(found := gains(rows, name, size)) < len(DRAWS)
    ]
    report(NAME, command=command(), rows=rows, claims=list(claims(rows)), lacking=lacking)


def gains(rows: list[dict[str, Any]], name: str, size: str) -> dict[int, float]:
    """By draw that both trunks have: points of MPNet over minilm."""
    scores = {
        trunk: {
            row["draw"]: row["default"]
            for row in rows
            if (row["set"], row["size"], row["trunk"]) == (name, size, trunk)
        }
        for trunk in (MINILM, MPNET)
    }
    both = sorted(scores[MPNET].keys() & scores[MINILM])
    return {draw: 100 * (scores[MPNET][draw] - scores[MINILM][draw]) for draw in both}


def claims(rows: list[dict[str, Any]]) -> Iterator[Claim]:
    """For each size the mean gain of the larger trunk, and what it costs."""
    for size in SIZES:
        by_set = {name: found for name in NAMES if (found := gains(rows, name, size))}
        if not by_set:
            continue
        seconds = {
            trunk: statistics.median(row["seconds"] for row in rows if (row["size"], row["trunk"]) == (size, trunk))
            for trunk in (MINILM, MPNET)
        }
        absent = [name for name in NAMES if name not in by_set]
        lacks = [f"without {', '.join(absent)}"] if absent else []
        lacks += [few] if (few := lacking_draws(by_set)) else []
        yield judged(
            f"encoders.mpnet_{size}",
            f"test score of the default over MPNet less that over minilm, mean of {len(by_set)} sets, {size} rows",
            by_draw(by_set),
            target=0,
            side="above",
            note=f"{listed(by_set)}; seconds to train, without encoding: {seconds[MPNET]:.0f} beside "
            f"{seconds[MINILM]:.0f} (medians)",
            lacking=", ".join(lacks),
        )
