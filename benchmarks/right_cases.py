"""Hostile and careless cases: how many stand in the tests, the slowest of them, and the memory that one took.

    python -m benchmarks.right_cases

Runs the tests of each kind of case in a process of its own. Every case asserts its own clear error, that no file
outside of its folder changed, or that no answer is not finite. Here they are counted and timed, and their memory is
read: what the process, or one that it started, grew by during the case at most.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

from studies.results import Claim
from studies.settings import ROOT, answer_help, command, report, say

KINDS = {
    "files of others: folders of pieces": ("tests/test_folders.py", "tests/store/scoring/test_pieces.py"),
    "files of others: links": ("tests/bundle/test_links.py",),
    "code of models": ("tests/formats/hostile/test_hostile_summarizers.py",),
    "numbers that are not finite": ("tests/engine/test_finite.py",),
    "impossible trunks and tokenizers": ("tests/formats/hostile/test_hostile_tokenizers.py",),
    "damaged features": ("tests/store/test_layout.py",),
    "sizes, patterns, pipes": (
        "tests/formats/hostile/test_hostile_sizes.py",
        "tests/deep/nn/test_patterns.py",
        "tests/data/test_limits.py",
    ),
    "forged bundles": ("tests/formats/hostile/test_hostile_bundles.py",),
    "very long texts": ("tests/text/test_prefix.py",),
    "forks": ("tests/engine/test_fork.py",),
    "names that are shown": ("tests/cli/test_shown.py",),
    "commands repeated after a kill": ("tests/cli/test_repeated.py",),
    "arguments of wrong types": ("tests/test_arguments.py",),
}
CASES, SECONDS, MEBIBYTES = 300, 10.0, 1024.0


class Watch:
    """A plugin of pytest: seconds and growth of memory of each case."""

    def __init__(self) -> None:
        self.rows: list[dict] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        began, before = time.perf_counter(), peaks()
        outcome = "failed"
        try:
            result = yield
            outcome = "passed"
            return result
        except pytest.skip.Exception:
            outcome = "skipped"
            raise
        finally:
            after = peaks()
            grown = max(
                after[0] - before[0], after[1] if after[1] > before[1] else 0
            )  # a child's whole peak, where it is a new one
            row = {"case": item.nodeid, "outcome": outcome, "seconds": time.perf_counter() - began}
            self.rows.append(row | {"mebibytes": grown / 1024})


def peaks() -> tuple[int, int]:
    """The largest resident sizes so far, in KiB: of this process, and of any that it waited for."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    own, children = (resource.getrusage(kind).ru_maxrss for kind in kinds)
    return own, children


def cases(files: tuple[str, ...], pipe: Connection) -> None:
    watch = Watch()
    os.chdir(ROOT)
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
        pytest.main(["-q", "-p", "no:cacheprovider", *files], plugins=[watch])
    pipe.send(json.dumps(watch.rows))


def main() -> None:
    rows = []
    context = multiprocessing.get_context("spawn")
    for kind, files in KINDS.items():
        here, there = context.Pipe()
        process = context.Process(target=cases, args=(files, there))
        process.start()
        several = json.loads(here.recv())
        process.join()
        longest = max(several, key=lambda row: row["seconds"])
        widest = max(several, key=lambda row: row["mebibytes"])
        rows.append(
            {
                "kind": kind,
                "cases": len(several),
                "passed": sum(row["outcome"] == "passed" for row in several),
                "skipped": sum(row["outcome"] == "skipped" for row in several),
                "seconds": round(longest["seconds"], 2),
                "slowest": longest["case"],
                "mebibytes": round(widest["mebibytes"]),
                "widest": widest["case"],
            }
        )
        say(str(rows[-1]))
    report("right_cases", command=command(), rows=rows, claims=claims(rows), lacking=[])


def claims(rows: list[dict]) -> list[Claim]:
    """How many there are, whether each passed, and the limits of time and memory."""
    count, passed = sum(row["cases"] for row in rows), sum(row["passed"] for row in rows)
    skipped = sum(row["skipped"] for row in rows)
    slowest, widest = (max(rows, key=lambda row: row[limit]) for limit in ("seconds", "mebibytes"))
    return [
        Claim(
            id="right.cases",
            text="hostile and careless cases that stand in the tests and end as they should",
            target=CASES,
            value=passed,
            unit="cases",
            holds=passed >= CASES and passed + skipped == count,
            note=f"Of {count}; {skipped} skipped here. " + ", ".join(f"{row['kind']} {row['passed']}" for row in rows),
        ),
        Claim(
            id="right.cases_seconds",
            text="the slowest of these cases",
            target=SECONDS,
            value=slowest["seconds"],
            unit="seconds",
            holds=slowest["seconds"] <= SECONDS,
            note=f"{slowest['slowest']}; a case may run several commands.",
        ),
        Claim(
            id="right.cases_memory",
            text="memory that the widest of these cases took",
            target=MEBIBYTES,
            value=widest["mebibytes"],
            unit="MiB",
            holds=widest["mebibytes"] <= MEBIBYTES,
            note=widest["widest"],
        ),
    ]


if __name__ == "__main__":
    answer_help(__doc__)
    main()
