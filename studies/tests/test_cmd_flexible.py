"""`python -m studies wei2021`: the paper's numbers, then ours where there are runs."""

import json

import pytest

from polyhead.values import to_json
from studies.tests.commands import run

PAPER = ("wei2021",)


@pytest.fixture
def rows(tmp_path):
    """A results file of two tasks, three seeds, a trunk of three layers and teachers of two."""
    found = []
    for seed in (1, 2, 3):
        for task, base in (("rte", 0.60), ("cola", 0.40)):

            def row(method, layers, score, tap=0, init="", *, seed=seed, task=task, base=base):
                value = base + score + seed / 1000
                found.append(
                    {
                        "task": task,
                        "seed": seed,
                        "method": method,
                        "init": init,
                        "layers": layers,
                        "tap": tap,
                        "metric": "accuracy",
                        "validation": value,
                        "test": value - 0.1,
                    }
                )

            row("full", 3, 0.06)
            for layers, score in ((1, 0.0), (2, 0.05), (3, 0.04)):
                row("branch", layers, score, tap=3 - layers)
            row("student", 1, 0.03, tap=1, init="teacher")
            row("student", 1, 0.01, tap=1, init="pretrained")
    path = tmp_path / "rows.json"
    path.write_bytes(to_json({"rows": found}))
    return path


@pytest.mark.parametrize("name", ["table1", "table2", "table5", "figure2"])
def test_without_runs_the_way_to_make_them_is_named(name, tmp_path):
    done = run(*PAPER, name, cwd=tmp_path)
    assert done.code == 0, done.err
    assert "python -m studies wei2021 run" in done.out
    assert not json.loads(run(*PAPER, name, "--json", "-", cwd=tmp_path).out).get("study")


def test_runs_are_found_in_the_results_folder(rows, tmp_path):
    (tmp_path / "results").mkdir()
    rows.rename(tmp_path / "results" / "branches_quality.json")
    assert "3 seeds" in run(*PAPER, "table1", cwd=tmp_path).out


def test_runs_may_stand_in_several_files(rows, tmp_path):
    """As processes that share a study leave them."""
    found = json.loads(rows.read_text())["rows"]
    parts = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for i, part in enumerate(parts):
        part.write_text("".join(json.dumps(row) + "\n" for row in found[i::2]))
    together = run(*PAPER, "table1", "--rows", parts[0], "--rows", parts[1])
    assert together.code == 0 and together.out == run(*PAPER, "table1", "--rows", rows).out


def test_table1_marks_what_is_near_the_best(rows):
    lines = run(*PAPER, "table1", "--rows", rows, "--statistic", "mean").out.splitlines()
    printed = next(line for line in lines if line.startswith("L = 5 "))
    assert "91.0*" in printed and "90.1 " in printed
    ours = [line for line in lines if "±" in line]  # L = 1 to 3, full fine-tuning
    assert ours[1].split() == ["L", "=", "2", "35.2", "±0.1*", "55.2", "±0.1*"]
    (chosen,) = [line for line in lines[-12:] if line.startswith("chosen")]
    assert chosen.count("L = 2") == 2 and lines[-1] == "no ratio is made from what is marked so"
    assert ours[-1].split()[3:] == ["±0.1?", ours[-1].split()[4], "±0.1?"]  # without epochs nothing is known


def test_table2_prints_both_scales(rows):
    done = run(*PAPER, "table2", "--rows", rows)
    assert "KD-1: average printed 77.4, counted 77.7" in done.out
    told = json.loads(run(*PAPER, "table2", "--rows", rows, "--json", "-").out)
    assert [line["layers"] for line in told["published"]["lines"]][-5:] == [15, 23, 31, 67, 33]
    ours = {line["name"]: line["layers"] for line in told["study"]["lines"]}
    assert (ours["full fine-tuning"], ours["student-1"], ours["without distillation"]) == (6, 3, 5)
    assert ours["mixed, c = 1"] == 5  # 2 points for a layer more
    dear = json.loads(run(*PAPER, "table2", "--rows", rows, "--c", "3", "--json", "-").out)
    assert dear["study"]["lines"][-1]["layers"] == 3
    assert dear["published"]["lines"][-1]["layers"] == 18


def test_table2_takes_the_runs_of_joint_training_from_a_file_of_their_own(rows, tmp_path):
    assert "studies wei2021 run-joint" in run(*PAPER, "table2", "--rows", rows, cwd=tmp_path).out
    found = [
        {"task": task, "seed": seed, "method": method, "layers": 3, "validation": 0.9, "test": 0.8}
        for task in ("rte", "cola")
        for seed in (1, 2, 3)
        for method in ("together", "left-out")
    ]
    (tmp_path / "results").mkdir()
    joint = tmp_path / "results" / "branches_mtdnn.json"
    joint.write_bytes(to_json({"rows": [*found, {"method": "trunk", "seed": 1}]}))
    assert "studies wei2021 run-joint" in run(*PAPER, "table2", "--rows", rows, cwd=tmp_path).out
    (tmp_path / "results" / "branches_quality.json").write_bytes(rows.read_bytes())
    for words, folder in ((["--rows", rows, "--joint", joint], None), ([], tmp_path)):
        out = run(*PAPER, "table2", *words, cwd=folder).out
        assert "studies wei2021 run-joint" not in out
        ours = [line.split() for line in out.splitlines() if line.startswith("MT-DNN") and "80.0" in line]
        assert ours[0][2:7] == ["80.0", "80.0", "80.0", "±0.0", "3"] and ours[1][2:7] == [*ours[0][2:6], "-"]


def test_splits_and_statistics_choose_what_is_shown(rows):
    def average(*words):
        told = json.loads(run(*PAPER, "table2", "--rows", rows, *words, "--json", "-").out)
        return told["study"]["lines"][0]["average"]

    assert average() == pytest.approx(46.2)
    assert average("--split", "validation") == pytest.approx(56.2)
    assert average("--statistic", "max") == pytest.approx(46.3)


def test_table5_takes_any_prices(rows):
    told = json.loads(run(*PAPER, "table5", "--rows", rows, "--c", "0.5, 3", "--json", "-").out)
    names = [line["name"] for line in told["study"]["lines"]]
    assert [name for name in names if name.startswith("rule")] == ["rule, c = 0.5", "rule, c = 3"]
    lines = run(*PAPER, "table5", "--rows", rows).out.splitlines()
    assert any(line.startswith("rule, c = 1") and "7+5*" in line for line in lines)
    assert "overhead printed 20.2, counted 20.8" in "".join(lines)
    for wrong in ("x", "", "-1", "nan", "1,inf"):
        run(*PAPER, "table5", "--c", wrong).refuses("numbers from 0", code=2)


def test_figure2_is_a_table_and_a_drawing(rows, tmp_path):
    done = run(*PAPER, "figure2", "--rows", rows)
    assert "higher median in 2 of 2 comparisons" in done.out
    pytest.importorskip("matplotlib")
    assert run(*PAPER, "figure2", "--rows", rows, "--plot", tmp_path / "f.svg").code == 0
    assert (tmp_path / "f.svg").read_text().startswith("<?xml")
    run(*PAPER, "figure2", "--plot", tmp_path / "g.svg", cwd=tmp_path).refuses("no runs to draw", code=2)
    run(*PAPER, "figure2", "--rows", rows, "--plot", "f.nonsense").refuses(".svg", code=2)


def test_a_study_that_is_not_whole_says_what_is_missing(rows):
    told = json.loads(rows.read_bytes())
    told["rows"] = [row for row in told["rows"] if row["seed"] != 3 or row["layers"] == 1]
    rows.write_bytes(to_json(told))
    done = run(*PAPER, "table1", "--rows", rows)
    assert "2 of 3 runs of full-3 on cola" in done.out and "and 1 more" in done.out


def test_files_without_runs_are_refused(tmp_path):
    (tmp_path / "x.json").write_text("{}")
    run(*PAPER, "table1", "--rows", tmp_path / "x.json").refuses("holds no run")
    run(*PAPER, "table1", "--rows", tmp_path / "none.json").refuses("none.json", code=2)
