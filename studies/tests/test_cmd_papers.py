"""`python -m studies du2020`: the printed numbers of the paper."""

import json

import pytest

from polyhead.values import to_json
from studies.tests.cells import rows
from studies.tests.commands import run, shell


def test_storage_prints_the_table_of_the_paper():
    told = json.loads(run("du2020", "storage", "--json", "-").out)
    assert [row["float16"] for row in told["rows"]] == [2048, 102_400, 2_457_600]
    done = run("du2020", "storage")
    assert "2.34M / 1.17M / 150K" in done.out


def test_figure4_prints_the_numbers_of_the_paper():
    told = json.loads(run("du2020", "figure4", "--json", "-").out)
    at_14 = {row["scheme"]: round(row["gflops"]) for row in told["rows"] if row["tasks"] == 14}
    assert at_14["frozen_first"] == 31
    assert at_14["distilled"] == 61
    assert told["break_even"] == 8
    assert "from 8 tasks on" in run("du2020", "figure4").out


def test_figure4_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    done = run("du2020", "figure4", "--tasks", "3", "--plot", tmp_path / "f.svg")
    assert done.code == 0, done.err
    assert (tmp_path / "f.svg").read_text().startswith("<?xml")
    assert "at no number of tasks shown" in done.out


def test_a_plot_that_cannot_be_written_is_refused(tmp_path):
    run("du2020", "figure4", "--plot", tmp_path / "no" / "f.svg").refuses("cannot write")
    run("du2020", "figure4", "--plot", tmp_path / "f.nonsense").refuses(".svg", code=2)


def test_drawing_without_matplotlib_says_what_to_install(tmp_path):
    words = ["du2020", "figure4", "--plot", tmp_path / "f.svg"]
    done = shell(words, before="import sys; sys.modules['matplotlib'] = None")
    done.refuses("pip install 'polyhead[plots]'")
    assert not (tmp_path / "f.svg").exists()


@pytest.mark.parametrize("words", [[], ["du2020"], ["du2020", "figure9"]])
def test_unknown_papers_and_figures_are_a_wrong_command_line(words):
    assert run(*words).code == 2


def test_table2_is_the_storage_table_and_can_be_weighed():
    told = json.loads(run("du2020", "table2", "--measured", "--json", "-").out)
    counted, weighed = (told[name][1]["float16"] for name in ("rows", "measured"))
    assert counted == 102_400 < weighed < 1.01 * counted
    assert "On disk" in run("du2020", "table2", "--measured").out


@pytest.mark.parametrize("name", ["table1", "table3", "table4"])
def test_without_runs_the_way_to_make_them_is_named(name, tmp_path):
    done = run("du2020", name, cwd=tmp_path)
    assert done.code == 0, done.err
    assert "python -m studies du2020 run-leave-out" in done.out
    told = json.loads(run("du2020", name, "--json", "-", cwd=tmp_path).out)
    assert len(told["published"]["lines"] if name != "table1" else told["published"]) == (
        14 if name == "table1" else 19
    )


def test_tables_3_and_4_print_both_scales_and_which_orderings_hold(tmp_path):
    file = tmp_path / "rows.json"
    made = [row for row in rows() if row["block"] != "e"]
    for row in made:
        row["test"] -= 0.06 * (row["name"] == "AVG/MHA 1bit")
    file.write_bytes(to_json({"rows": made}))
    lines = run("du2020", "table3", "--rows", file).out.splitlines()
    (ours,) = [line for line in lines if line.startswith("c  COMB/MHA") and "99.0" in line]
    assert ours.split()[3:] == ["99.0", "74.0", "84.0", "89.0"]
    assert sum(line.strip().startswith("held") for line in lines) == 11 + 10
    (lost,) = [line for line in lines if line.strip().startswith("NOT HELD")]
    assert "-6.4" in lost and "1 bit" in lost
    assert "Orderings, in points, of 1 of 3 seeds, so that none is shown:" in lines
    assert any(line.startswith("? a, plain trunk, fine-tuned, not known to have converged") for line in lines)
    assert any(line.startswith("‡ the trunk learned from this set") for line in lines)
    assert "  block e, LAST/CLS: sst2, imdb, mnli, mrpc" in lines
    assert any("other 3 tasks" in line for line in lines) and any("Amazon-5" in line for line in lines)
    lines = run("du2020", "table4", "--rows", file).out.splitlines()
    assert any(line.split() == ["c", "AVG/MHA", "104.0", "94.0", "74.0", "84.0", "89.0"] for line in lines)
    told = json.loads(run("du2020", "table1", "--rows", file, "--json", "-").out)
    assert {one["task"] for one in told["study"]} >= {"sst2", "cola"}
