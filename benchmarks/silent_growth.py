"""How the work of every reader of somebody else's files grows with the parts that they hold: n, 2n and 4n.

    python -m benchmarks.silent_growth

Work is counted twice. The calls of functions, Python's and C's, are counted by a profiler: they are the same on every
machine. What C does inside one call, such as a search through a list, is seen by the processor time of the thread
alone; a time counts where it is above a floor, as the least of several. `tests/test_growth.py` checks the same readers.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.growth_readers import READERS
from polyhead.errors import PolyheadError
from studies.results import Claim
from studies.settings import answer_help, command, report, say

NAME = "silent_growth"
# Four times the parts: n log n gives 4 to 5, n^1.5 gives 8, n^2 gives 16.
MOST_CALLS, MOST_SECONDS = 6.0, 9.0
FEW_CALLS, FLOOR = 300, 0.1  # calls and seconds below which a growth is not looked at
TIMES = 5  # a ratio of times above the limit is measured again so often, and the least times count


def read(work: Callable[[], object]) -> str:
    """Runs a reader, and gives the error by which it refuses the file; what is refused was read too."""
    try:
        work()
    except PolyheadError as error:
        return type(error).__name__
    return ""


def calls_of(work: Callable[[], object]) -> int:
    """How many functions are called in this thread."""
    count = 0

    def counted(frame: Any, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        read(work)
    finally:
        sys.setprofile(before)
    return count


def seconds_of(work: Callable[[], object]) -> float:
    """The processor time of this thread."""
    gc.collect()
    began = time.thread_time()
    read(work)
    return time.thread_time() - began


class Growth:
    """The work of one reader at n, 2n and 4n parts."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, (self.n, prepare) = name, READERS[name]
        works = [prepare(_made(folder / f"{times}"), times * self.n) for times in (1, 2, 4)]
        self.refusals = [read(work) for work in works]  # with it what is imported and cached at the first call
        self.calls = [calls_of(work) for work in works]
        self.seconds = [seconds_of(work) for work in works]
        for _ in range(TIMES):
            if self.time_ratio <= MOST_SECONDS:
                break
            self.seconds = [min(before, seconds_of(work)) for before, work in zip(self.seconds, works, strict=True)]

    @property
    def call_ratio(self) -> float:
        """Calls at 4n by those at n; 0 where they are few."""
        return self.calls[2] / max(1, self.calls[0]) if self.calls[2] > FEW_CALLS else 0.0

    @property
    def time_ratio(self) -> float:
        """Seconds at 4n by those at n, or by a fraction of the floor; 0 below the floor."""
        return self.seconds[2] / max(self.seconds[0], FLOOR / 16) if self.seconds[2] > FLOOR else 0.0

    @property
    def is_near_linear(self) -> bool:
        """Whether it grows no faster than n log n, as far as can be told."""
        return self.call_ratio <= MOST_CALLS and self.time_ratio <= MOST_SECONDS

    def row(self) -> dict[str, Any]:
        return {
            "reader": self.name,
            "n": self.n,
            "refused": self.refusals,
            "calls": self.calls,
            "seconds": [round(each, 4) for each in self.seconds],
            "call_ratio": round(self.call_ratio, 2),
            "time_ratio": round(self.time_ratio, 2),
        }


def growth_of(name: str) -> Growth:
    """Measures a reader of READERS in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        return Growth(name, Path(folder))


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def main(names: Sequence[str] = ()) -> None:
    measured = []
    for name in names or READERS:
        measured.append(growth_of(name))
        say(f"{'  ' if measured[-1].is_near_linear else '! '}{measured[-1].row()}")
    if not names:
        fast = [each for each in measured if not each.is_near_linear]
        text = f"of {len(measured)} readers of files and requests those whose work grows faster than n log n"
        claim = Claim(id="silent.growth", text=text, target=0, value=len(fast), unit="readers", holds=not fast)
        report(NAME, command=command(), rows=[each.row() for each in measured], claims=[claim], lacking=[])


if __name__ == "__main__":
    answer_help(__doc__)
    main(sys.argv[1:])
