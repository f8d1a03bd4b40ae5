"""`polyhead papers du2020`: the printed numbers of the paper."""

import json

import pytest

from cli.commands import run, shell


def test_storage_prints_the_table_of_the_paper():
    told = json.loads(run("papers", "du2020", "storage", "--json", "-").out)
    assert [row["float16"] for row in told["rows"]] == [2048, 102_400, 2_457_600]
    done = run("papers", "du2020", "storage")
    assert "2.34M / 1.17M / 150K" in done.out


def test_figure4_prints_the_numbers_of_the_paper():
    told = json.loads(run("papers", "du2020", "figure4", "--json", "-").out)
    at_14 = {row["scheme"]: round(row["gflops"]) for row in told["rows"] if row["tasks"] == 14}
    assert at_14["frozen_first"] == 31
    assert at_14["distilled"] == 61
    assert told["break_even"] == 8
    assert "from 8 tasks on" in run("papers", "du2020", "figure4").out


def test_figure4_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    done = run("papers", "du2020", "figure4", "--tasks", "3", "--plot", tmp_path / "f.svg")
    assert done.code == 0, done.err
    assert (tmp_path / "f.svg").read_text().startswith("<?xml")
    assert "at no number of tasks shown" in done.out


def test_a_plot_that_cannot_be_written_is_refused(tmp_path):
    run("papers", "du2020", "figure4", "--plot", tmp_path / "no" / "f.svg").refuses("cannot write")
    run("papers", "du2020", "figure4", "--plot", tmp_path / "f.nonsense").refuses(".svg", code=2)


def test_drawing_without_matplotlib_says_what_to_install(tmp_path):
    words = ["papers", "du2020", "figure4", "--plot", tmp_path / "f.svg"]
    done = shell(words, before="import sys; sys.modules['matplotlib'] = None")
    done.refuses("pip install 'polyhead[plots]'")
    assert not (tmp_path / "f.svg").exists()


@pytest.mark.parametrize("words", [["papers"], ["papers", "du2020"], ["papers", "du2020", "figure9"]])
def test_unknown_papers_and_figures_are_a_wrong_command_line(words):
    assert run(*words).code == 2
