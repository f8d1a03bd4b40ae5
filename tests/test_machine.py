"""Processors that a container allows, and progress where the output is a file."""

import io
import os

import pytest

from polyhead import progress
from polyhead.machine import processors
from polyhead.progress import ProgressDisplay

ALL = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"cpu.max": "100000 100000\n"}, 1),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu.max": "\n"}, None),
        ({}, None),
    ],
    ids=["one", "half", "one and a half", "no limit", "one, version 1", "no limit, version 1", "empty", "no files"],
)
def test_no_more_processors_than_the_control_group_allows(tmp_path, files, quota):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    assert processors(tmp_path) == (ALL if quota is None else min(ALL, quota))


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_file_gets_a_line_now_and_then(clock):
    out = io.StringIO()
    display = ProgressDisplay(out)
    for second in range(30):
        clock[0] = 100.0 + second
        display.show(f"{second} done")
        display.show("")
    assert out.getvalue() == "2 done\n12 done\n22 done\n"


def test_a_terminal_gets_each_line_in_the_place_of_the_last(clock):
    out = Terminal()
    display = ProgressDisplay(out)
    display.show("a long line")
    display.show("short")
    display.show("")
    assert out.getvalue() == "\ra long line\rshort      \r     \r"


def test_lines_that_stay_are_written_at_once():
    out = io.StringIO()
    ProgressDisplay(out).line("begun")
    assert out.getvalue() == "begun\n"


def test_without_a_stream_nothing_is_shown():
    display = ProgressDisplay(None)
    display.line("begun")
    display.show("half")


def test_training_in_python_says_how_far_it_is(tmp_path, capsys):
    """It was silent for two minutes."""
    import polyhead
    from support import tiny_project

    project = tiny_project.project(tmp_path, "mood")
    polyhead.train_project(project, folder=tmp_path)
    told = capsys.readouterr()
    assert told.err.startswith("training 1 task into ") and "mood: validation accuracy" in told.err
    assert not told.out
    from polyhead.train.events import Events

    polyhead.train_project(project, folder=tmp_path, events=Events())
    assert not capsys.readouterr().err
