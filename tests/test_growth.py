"""Readers of files and requests of others do work that grows no faster than n log n with what these hold.

The readers are those of benchmarks/growth_readers.py, the measures those of benchmarks/silent_growth.py: calls, which a
busy machine does not change, and the processor time of the thread, whose limit is far from both 4 and 16.
"""

import types

import pytest

pytest.importorskip("torch", reason="checkpoints of others are read with torch")
pytest.importorskip("pyarrow", reason="Parquet files are read with pyarrow")
pytest.importorskip("openpyxl", reason="Excel files are read with openpyxl")

from benchmarks import silent_growth
from benchmarks.growth_readers import READERS
from benchmarks.silent_growth import growth_of, read

NAMES = list(READERS)
PARTS = 8  # items; each holds every eighth reader
DEEP = 100_000


def test_there_are_at_least_forty_readers():
    assert len(NAMES) == len(set(NAMES)) >= 40


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_work_grows_no_faster_than_n_log_n(part):
    growths = [growth_of(name) for name in NAMES[part::PARTS]]
    assert [growth.row() for growth in growths if not growth.is_near_linear] == []
    assert len(growths) >= 5


@pytest.mark.parametrize("name", [name for name in NAMES if "levels" in name or "dots" in name])
def test_a_hundred_thousand_levels_are_refused_with_an_error_of_ours(name, tmp_path):
    work = READERS[name][1](tmp_path, DEEP)
    refused = read(work)  # any other error is raised
    assert refused or name in ("lists in cells: levels", "JSON of a request: levels and strings")


def _called(folder, n):
    """Quadratic in calls."""
    return lambda: [len("") for _ in range(n) for _ in range(n)]


def _sorted(folder, n):
    return lambda: sorted(f"{number * 7919 % n}" for number in range(n))


@pytest.mark.slow
def test_what_grows_with_the_square_is_seen_in_its_calls_or_its_time(monkeypatch):
    clock = [0.0]

    def searched(folder, n):
        """Quadratic in one call of C a part: only the clock, which is the test's own, sees it."""
        return lambda: clock.__setitem__(0, clock[0] + n * n * 1e-6)

    made = {"searched": (1000, searched), "called": (50, _called), "sorted": (20_000, _sorted)}
    monkeypatch.setattr(silent_growth, "READERS", made)
    monkeypatch.setattr(silent_growth, "time", types.SimpleNamespace(thread_time=lambda: clock[0]))
    assert {name: growth_of(name).is_near_linear for name in made} == {
        "searched": False,
        "called": False,
        "sorted": True,
    }
