"""Every executor does each unit, also when those who work for it are killed."""

import os
import signal
from pathlib import Path

import pytest

from polyhead.errors import ConfigError, JobError, StoreError
from polyhead.store.jobs.executors import EXECUTORS
from polyhead.store.jobs.executors.processes import THREADS

HERE = [pytest.param("inline"), pytest.param("processes", marks=pytest.mark.slow)]


class Squares:
    """Work that leaves a mark and dies the first time it meets one of some units, or always."""

    def __init__(self, folder, *, deadly=(), always=()):
        self.folder, self.deadly, self.always = Path(folder), set(deadly), set(always)

    def __call__(self, unit):
        mark = self.folder / str(unit)
        if unit in self.always or (unit in self.deadly and not mark.exists()):
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return unit * unit


class Threads:
    def __call__(self, unit):
        return [os.environ.get(name) for name in THREADS]


class Failing:
    def __call__(self, unit):
        raise StoreError(f"unit {unit} cannot be done", got=unit, do="nothing")


class Strange(Exception):
    def __init__(self, one, two):
        super().__init__(one)


class Unsendable:
    def __call__(self, unit):
        raise Strange(unit, lambda: None)


def results(name, work, units, workers=2):
    with EXECUTORS[name](work, workers=workers) as executor:
        first = dict(executor.results(units))
        assert dict(executor.results([])) == {}
        again = dict(executor.results(units[:2]))  # by the same workers
    assert again == {unit: first[unit] for unit in units[:2]}
    return first


@pytest.mark.parametrize("name", HERE)
def test_each_unit_has_its_result(name, tmp_path):
    assert results(name, Squares(tmp_path), list(range(11))) == {n: n * n for n in range(11)}


@pytest.mark.slow
def test_units_of_processes_that_are_killed_are_done_by_others(tmp_path):
    work = Squares(tmp_path, deadly=(0, 3, 4, 10))
    assert results("processes", work, list(range(11))) == {n: n * n for n in range(11)}
    assert {path.name for path in tmp_path.iterdir()} == {"0", "3", "4", "10"}


@pytest.mark.slow
def test_a_unit_that_kills_every_process_ends_the_job(tmp_path):
    with (
        EXECUTORS["processes"](Squares(tmp_path, always=(2,)), workers=1) as executor,
        pytest.raises(JobError, match="3 workers ended"),
    ):
        dict(executor.results(range(4)))


@pytest.mark.parametrize("name", HERE)
def test_an_error_of_the_work_is_raised_as_it_is(name):
    with EXECUTORS[name](Failing(), workers=1) as executor, pytest.raises(StoreError, match="unit 7 cannot") as error:
        dict(executor.results([7]))
    assert (error.value.got, error.value.do) == (7, "nothing")


@pytest.mark.slow
def test_an_error_that_cannot_be_sent_comes_in_words():
    with EXECUTORS["processes"](Unsendable(), workers=1) as executor, pytest.raises(JobError, match="Strange: 7"):
        dict(executor.results([7]))


@pytest.mark.slow
def test_processes_multiply_in_one_thread_and_this_one_as_before(monkeypatch):
    monkeypatch.setenv(THREADS[0], "5")
    monkeypatch.delenv(THREADS[1], raising=False)
    with EXECUTORS["processes"](Threads(), workers=1) as executor:
        assert dict(executor.results([0])) == {0: ["1"] * len(THREADS)}
    assert os.environ[THREADS[0]] == "5" and THREADS[1] not in os.environ


@pytest.mark.slow
def test_results_that_nobody_waits_for_end_with_their_processes(tmp_path):
    with EXECUTORS["processes"](Squares(tmp_path), workers=2) as executor:
        for _ in executor.results(range(100)):
            break
        assert dict(executor.results([5])) == {5: 25}


def test_an_executor_that_does_not_exist_names_those_that_do():
    with pytest.raises(ConfigError, match="inline, processes, ray"):
        EXECUTORS.named("threads")


@pytest.mark.slow
def test_units_of_ray_actors_that_are_killed_are_done_by_others(tmp_path):
    pytest.importorskip("ray", reason="the executor 'ray' needs Ray: pip install 'polyhead[ray]'")
    work = Squares(tmp_path, deadly=(0, 4))
    assert results("ray", work, list(range(7))) == {n: n * n for n in range(7)}
    assert {path.name for path in tmp_path.iterdir()} == {"0", "4"}
