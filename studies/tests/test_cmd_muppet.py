"""`python -m studies aghajanyan2021`: the paper's numbers, then ours where there are runs."""

import json

import pytest

from polyhead.values import to_json
from studies.tests.commands import run
from studies.tests.rows import study

PAPER = ("aghajanyan2021",)
WITH_ROWS = ("table3", "table4", "table5", "figure1", "figure2", "figure3")


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.json"
    path.write_bytes(to_json({"rows": study()}))
    return path


@pytest.mark.parametrize("name", WITH_ROWS)
def test_without_runs_the_way_to_make_them_is_named(name, tmp_path):
    done = run(*PAPER, name, cwd=tmp_path)
    assert done.code == 0, done.err
    assert "python -m studies aghajanyan2021 run" in done.out
    json.loads(run(*PAPER, name, "--json", "-", cwd=tmp_path).out)


def test_runs_are_found_in_the_results_folder_and_in_parts(rows, tmp_path):
    (tmp_path / "results").mkdir()
    parts = []
    for seed in (1, 2):
        parts += ["--rows", tmp_path / f"{seed}.json"]
        (tmp_path / f"{seed}.json").write_bytes(to_json({"rows": study((seed,))}))
    assert "2 seeds" in run(*PAPER, "table3", *parts, cwd=tmp_path).out
    rows.rename(tmp_path / "results" / "together_quality.json")
    assert "3 seeds" in run(*PAPER, "table3", cwd=tmp_path).out


def test_table1_sums_families_and_lists_our_sets(rows, tmp_path):
    out = run(*PAPER, "table1", cwd=tmp_path).out
    assert "4,834,000" in out and "26 sets in table 1, 25 in appendix A.1" in out
    assert "training rows at most" in out and "glue_sst2" in out and "together" in out
    told = json.loads(run(*PAPER, "table1", "--rows", rows, "--json", "-").out)
    assert sum(family["sets"] for family in told["published"]) == 46
    assert {f["name"]: f["rows"] for f in told["study"]} == {"classification": 1500, "tagging": 1400}


def test_table3_prints_both_scales_with_gains_and_the_gap_that_is_closed(rows):
    lines = run(*PAPER, "table3", "--rows", rows).out.splitlines()
    assert any(line.startswith("RTE") and "78.7 to 87.8 (+9.1)" in line for line in lines)
    ours = next(line for line in lines if line.startswith("rte"))
    shown = ["60.0 ±0.0", "- -", "64.0 ±1.0", "+4.0 ±1.0", "70.0 ±1.0"]  # the paper's method first, which has no row
    assert ours.split() == ["rte", "accuracy", *" ".join(shown).split()]
    assert any("57 % of it are closed" in line for line in lines)
    assert any("MNLI, QQP, QNLI, SST-2 and SQuAD" in line for line in lines)
    told = json.loads(run(*PAPER, "table3", "--rows", rows, "--split", "validation", "--json", "-").out)
    assert told["study"][0]["plain"]["mean"] == pytest.approx(65.0)
    assert told["gap_closed"]["share"] == pytest.approx(8 / 14)


def test_no_share_is_made_of_a_gap_to_what_has_not_learned(rows, tmp_path):
    """One run of full fine-tuning that ended at the last epoch is enough."""
    found = json.loads(rows.read_text())["rows"]
    next(row for row in found if row["stage"] == "full" and row["task"] == "rte")["best_epoch"] = 3
    (tmp_path / "short.json").write_text(json.dumps({"rows": found}))
    lines = run(*PAPER, "table3", "--rows", tmp_path / "short.json").out.splitlines()
    assert not any("of it are closed" in line for line in lines)
    assert next(line for line in lines if line.startswith("rte")).endswith("70.0 ±1.0!")
    assert any(line.startswith("! full fine-tuning, not converged: rte: 1 of 3 runs end") for line in lines)


def test_what_the_paper_has_and_we_have_not_is_said(rows):
    assert "ANLI needs its training data" in run(*PAPER, "table6").out
    assert "counted 54.99" in run(*PAPER, "table6").out
    assert "Parsing has no kind here" in run(*PAPER, "table5", "--rows", rows).out
    out = run(*PAPER, "table4", "--rows", rows).out
    assert "No encoder-decoder is pre-finetuned here" in out and "78.1 to 74.8 (-3.3)" in out


def test_figures_are_tables_too(rows):
    lines = run(*PAPER, "figure1", "--rows", rows).out.splitlines()
    assert next(line for line in lines if line.startswith("24")).split()[-2:] == ["+4.0", "±1.0"]
    out = run(*PAPER, "figure2", "--rows", rows).out
    line = next(line for line in out.splitlines() if line.startswith("batch"))
    assert line.split() == ["batch", "+2.0", "±1.0", "+1.0,", "+2.0,", "+3.0"]
    assert next(line for line in out.splitlines() if line.startswith("annealed")).split()[1:] == ["-", "-"]
    lines = run(*PAPER, "figure3", "--rows", rows).out.splitlines()
    assert next(line for line in lines if line.startswith("mean")).split() == ["mean", "+8.0", "±1.0", "+4.0", "±1.0"]
    told = json.loads(run(*PAPER, "figure3", "--rows", rows, "--json", "-").out)
    assert set(told["gains"]) == {"100", "1500"}


@pytest.mark.parametrize("name", ["figure1", "figure2", "figure3"])
def test_figures_are_drawn(name, rows, tmp_path):
    pytest.importorskip("matplotlib")
    assert run(*PAPER, name, "--rows", rows, "--plot", tmp_path / "f.svg").code == 0
    assert (tmp_path / "f.svg").read_text().startswith("<?xml")
    run(*PAPER, name, "--plot", tmp_path / "g.svg", cwd=tmp_path).refuses("no runs to draw", code=2)
    run(*PAPER, name, "--rows", rows, "--plot", "f.nonsense").refuses(".svg", code=2)


def test_weights_show_that_a_uniform_guess_loses_one():
    pytest.importorskip("torch")
    out = run(*PAPER, "weights").out
    assert "10.825" in out
    told = json.loads(run(*PAPER, "weights", "--json", "-").out)
    assert {round(guess["scaled"], 4) for guess in told["uniform_guesses"]} == {1.0}


def test_a_study_that_is_not_whole_says_what_is_missing(rows):
    told = json.loads(rows.read_bytes())
    told["rows"] = [r for r in told["rows"] if r["seed"] != 3 or r.get("task") != "rte"]
    rows.write_bytes(to_json(told))
    out = run(*PAPER, "table3", "--rows", rows).out
    assert "2 of 3 seeds of full over the trunk plain, 1500 rows, on rte" in out and "more" in out
