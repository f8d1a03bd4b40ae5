"""`python -m studies stickland2019`: the paper's numbers, then ours where there are runs."""

import json

import pytest

from polyhead.values import to_json
from studies.tests.adapters import questions, rows
from studies.tests.commands import run

pytest.importorskip("torch")
PAPER = ("stickland2019",)
WITH_ROWS = ("table2", "table3", "ablations", "curves", "squad")
DRAWN = ("table3", "ablations", "curves")


@pytest.fixture
def study(tmp_path):
    path = tmp_path / "rows.json"
    path.write_bytes(to_json({"rows": [*rows(), *questions()]}))
    return path


def line_of(out, *starts):
    """The words of the last line that starts with one of these."""
    return [line.split() for line in out.splitlines() if line.startswith(starts)][-1]


@pytest.mark.parametrize("name", WITH_ROWS)
def test_without_runs_the_way_to_make_them_is_named(name, tmp_path):
    done = run(*PAPER, name, cwd=tmp_path)
    assert done.code == 0, done.err
    assert "python -m studies stickland2019 run" in done.out
    told = json.loads(run(*PAPER, name, "--json", "-", cwd=tmp_path).out)
    assert not told.get("study", told.get("curves"))


def test_table1_counts_the_formulas_anew():
    out = run(*PAPER, "table1").out
    assert line_of(out, "PALs (204)")[-5:] == ["14,492,160", "14,492,160", "1.133", "1.171", "1.094"]
    assert run(*PAPER, "params").out == out
    told = json.loads(run(*PAPER, "table1", "--json", "-").out)
    assert all(row["value"] == row["counted"]["own"] for row in told["rows"])


def test_table2_prints_the_nine_columns_and_ours_by_task(study):
    out = run(*PAPER, "table2", "--rows", study).out
    printed = [line.split() for line in out.splitlines() if line.startswith("PALs (204)")]
    assert printed[0][-2:] == ["80.4", "80.40"] and printed[1][2:4] == ["63.0", "±0.6"]
    assert printed[1][-6:] == ["1.090", "×", "6", "48", "1.070", "×"]
    told = json.loads(run(*PAPER, "table2", "--rows", study, "--split", "validation", "--json", "-").out)
    pals = next(line for line in told["study"] if line["method"] == "pals")
    assert pals["tasks"]["cola"]["mean"] == pytest.approx(68.0)


def test_table3_prints_both_scales_with_what_a_method_costs(study):
    out = run(*PAPER, "table3", "--rows", study).out
    printed = [line.split() for line in out.splitlines() if line.startswith("PALs (204)")]
    assert printed[0][2:6] == ["1.13", "×", "1.133", "×"] and printed[0][-2:] == ["81.70", "±0.20"]
    assert printed[1][2:] == ["1.090", "×", "6", "48", "1.070", "×", "-", "-", "66.50", "±0.58"]
    assert "3 seeds" in out and "BERT layer on top of each of eight tasks is 1.52 times" in out


def test_ablations_are_compared_with_pals(study):
    out = run(*PAPER, "ablations", "--rows", study).out
    shown = line_of(out, "LHUC")
    assert shown[-11:-3] == ["64.50", "±0.58", "-2.00", "±0.00", "3", "trunk", "and", "parts"] and shown[-2] == "of"
    assert any(line.split()[2:3] == ["round-robin"] for line in out.splitlines())


def test_curves_and_questions_are_tables_too(study):
    out = run(*PAPER, "curves", "--rows", study).out
    assert line_of(out, "rte")[-4:] == ["79.0", "±1.0", "89.0", "±1.0"]
    out = run(*PAPER, "squad", "--rows", study).out
    assert "82.774 ±0.006" in out
    costs = ["1.000", "×", "6", "12", "0.500", "×"]  # of the two tasks, not of the eight
    assert line_of(out, "Shared")[-9:] == ["50.00", "±0.58", "3", *costs]


def test_curves_of_a_method_that_the_study_lacks_are_refused(study):
    done = run("stickland2019", "curves", "--rows", study, "--methods", "pals, nonsense")
    done.refuses("the study has no nonsense", "low-rank", code=2)


def test_costs_are_those_of_the_paper():
    out = run(*PAPER, "costs").out
    assert line_of(out, "PALs (276, top)")[3:] == [
        *("1.132", "×"),
        *("12", "23.5", "1.050"),
        *("54", "109.4", "0.612"),
        *("132", "269.1", "0.574"),
    ]


@pytest.mark.parametrize("name", DRAWN)
def test_figures_are_drawn(name, study, tmp_path):
    pytest.importorskip("matplotlib")
    assert run(*PAPER, name, "--rows", study, "--plot", tmp_path / "f.svg").code == 0
    assert (tmp_path / "f.svg").read_text().startswith("<?xml")
    run(*PAPER, name, "--plot", tmp_path / "g.svg", cwd=tmp_path).refuses("no runs to draw", code=2)
    run(*PAPER, name, "--rows", study, "--plot", "f.nonsense").refuses(".svg", code=2)


def test_a_study_that_is_not_whole_says_what_is_missing(study):
    told = json.loads(study.read_bytes())
    told["rows"] = [r for r in told["rows"] if (r["seed"], r["method"], r.get("task")) != (3, "pals", "rte")]
    study.write_bytes(to_json(told))
    assert "2 of 3 seeds of PALs (204), annealed" in run(*PAPER, "table3", "--rows", study).out
