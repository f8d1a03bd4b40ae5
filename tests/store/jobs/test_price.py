"""A price says what a job will take, from trials alone."""

import pytest

from polyhead.store.jobs.workers import Unit, UnitResults, priced, spaced_parts, trial_rounds


class Column:
    task = "mood"


class Work:
    """Work of known cost: 1 ms a row, 1 us a byte of a fragment that is opened, 100 bytes a document."""

    columns, tasks = {"c": Column()}, {"mood": None}

    def __call__(self, unit):
        rows = unit.stop - unit.start
        return UnitResults(results={"c": {}}, fragment_bytes=100 * 1000, opening=0.1, computing=0.001 * rows)


class Trials:
    def __init__(self, work, workers):
        self.work, self.workers = work, workers

    def results(self, units):
        return ((unit, self.work(unit)) for unit in units)


def units(fragments, *, rows=1000, size=500):
    return [
        Unit(fragment=f"f{n}", start=start, stop=start + size, digest="d", columns=("c",))
        for n in range(fragments)
        for start in range(0, rows, size)
    ]


@pytest.mark.parametrize(("workers", "seconds"), [(1, 10 * (1.0 + 0.1 + 0.02)), (2, 10 * (1.0 + 2 * 0.1) / 2)])
def test_a_price_adds_what_rows_and_fragments_take_and_shares_it_between_workers(workers, seconds, monkeypatch):
    monkeypatch.setattr("polyhead.store.jobs.workers.row_bytes", lambda column, task: 8)
    price = priced(units(10), Trials(Work(), workers), Work(), dollars_an_hour=36.0)
    assert price.seconds == pytest.approx(seconds)
    assert (price.documents, price.read_bytes, price.written_bytes) == (10_000, 1_000_000, 80_000)
    assert price.dollars == pytest.approx(seconds / 100)
    assert f"{seconds / 100:.2f} dollars, 1 MB to read" in price.lines()[0]


def test_a_price_without_a_rate_names_no_dollars(monkeypatch):
    monkeypatch.setattr("polyhead.store.jobs.workers.row_bytes", lambda column, task: 8)
    price = priced(units(1), Trials(Work(), 1), Work(), dollars_an_hour=None)
    assert price.dollars is None and "dollars" not in price.lines()[0]


class Uneven:
    """Work of two digests, whose documents take 1 s and 1 ms each; the first of one in a process takes 10 s more."""

    columns, tasks = {"c": Column()}, {"mood": None}

    def __init__(self):
        self.seen = set()

    def __call__(self, unit):
        first = 0 if unit.digest in self.seen else 10
        self.seen.add(unit.digest)
        seconds = first + (1.0 if unit.digest == "slow" else 0.001) * (unit.stop - unit.start)
        return UnitResults(results={"c": {}}, computing=seconds)


def test_documents_of_small_and_of_large_units_are_counted_once_and_weigh_alike(monkeypatch):
    """Each small unit counted as documents of its own, and most trials were of small units."""
    monkeypatch.setattr("polyhead.store.jobs.workers.row_bytes", lambda column, task: 8)
    several = [
        Unit(fragment=f"f{n}", start=start, stop=start + size, digest=digest, columns=("c",))
        for n in range(5)
        for digest, size in (("quick", 1000), ("slow", 50))
        for start in range(0, 1000, size)
    ]
    price = priced(several, Trials(Uneven(), 1), Uneven(), dollars_an_hour=None)
    assert price.documents == 5000
    assert 0.5 < price.seconds / 5005 < 1.5


class Slow:
    """Work of so many seconds a row, which remembers the rows of its units."""

    def __init__(self, seconds):
        self.seconds, self.rows = seconds, []

    def __call__(self, unit):
        self.rows.append(unit.stop - unit.start)
        return UnitResults(results={"c": {}}, computing=self.seconds * self.rows[-1])


@pytest.mark.parametrize(
    ("seconds", "fragments", "most", "longest"),
    [
        (1.0, 10, 0.01, 1),  # documents that are written
        (1.0, 1, 0.05, 1),
        (0.05, 1000, 0.001, 4),
        (1e-3, 10, 0.06, 64),
        (1e-5, 1000, 0.06, 4096),
    ],
)
def test_trials_are_a_small_share_of_a_long_job_and_as_large_as_they_may_be(seconds, fragments, most, longest):
    """They were 20,736 documents for each worker, more than many a job of a task that writes has."""
    work, several = Slow(seconds), units(fragments, size=1000)
    assert all(trial_rounds(several, Trials(work, 1)))
    assert sum(work.rows) <= most * 1000 * fragments and max(work.rows) == min(longest, 1000)


def test_trials_are_spread_over_all_units_and_stay_inside_them():
    several = units(7, rows=900, size=450)
    parts = list(spaced_parts(several, 20, 100))
    assert len(parts) == 20 and {part.fragment for part in parts} == {f"f{n}" for n in range(7)}
    assert all(0 <= part.start < part.stop <= 900 and part.stop - part.start == 100 for part in parts)
    assert len({part.start for part in parts}) > 10
    assert [part.stop - part.start for part in spaced_parts(several, 3, 10**6)] == [450] * 3
