"""Seconds of a certified change of a task on an idle server: the first change, and those after it.

    python -m benchmarks.one_pass_tasks      once: the tasks
    python -m benchmarks.server_change       an idle machine

Of 22 tasks one is updated over HTTP, again and again: 64 probes of each task are proven, and the server has taken the
new version over when it answers. The first change starts a process, which compiles graphs and runs the encoder for all
probes; later changes use the same process.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence

import numpy as np

from benchmarks.one_pass_tasks import train
from benchmarks.server_changes import LEVELS, UPDATED, bundle, changed, upload
from benchmarks.server_load import Row, server
from studies.results import Claim
from studies.settings import command, report, say

NAME, LONGEST = "server_change", 3.0  # seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=9, help="after the first")
    parser.add_argument("--repeats", type=int, default=3, help="servers, one after another")
    parser.add_argument("--precision", default="int8")
    options = parser.parse_args()
    train()
    uploads, rows = {UPDATED: [upload(UPDATED, level) for level in LEVELS]}, list[Row]()
    for turn in range(options.repeats):
        root = bundle()
        arguments = ("--backend", "openvino", "--precision", options.precision, "--admin", "--no-keys")
        with server(root, *arguments) as (port, _):
            drawn = random.Random(turn)
            for number in range(1 + options.changes):
                row = changed(port, root, uploads, drawn, {}, names=[UPDATED])
                rows.append({"turn": turn, "change": number, **row})  # the same upload again changes nothing
                say(f"change {number}: {row['operation']}, {row['seconds']:.1f} s {row['error']}")
    report(NAME, command=command(), rows=rows, claims=claims(rows), lacking=[])


def claims(rows: Sequence[Row]) -> list[Claim]:
    """The median of the changes after the first of each server; what the first takes stands in the note."""
    failed = sum(bool(row["error"]) for row in rows)
    changes = [row for row in rows if row["is_changed"]]
    first, after = (
        np.array([row["seconds"] for row in changes if (row["change"] == 0) is is_first]) for is_first in (True, False)
    )
    return [
        Claim(
            id="server.certified-change",
            text="seconds of a certified change of one of 22 tasks, of a process that has made one before",
            target=LONGEST,
            value=round(float(np.median(after)), 2),
            unit="s",
            holds=bool(np.median(after) <= LONGEST) and not failed,
            note=f"median of {len(after)}, {after.min():.1f} to {after.max():.1f}; the first of a process takes "
            f"{np.median(first):.1f} (median of {len(first)}); {failed} failed",
        )
    ]


if __name__ == "__main__":
    main()
