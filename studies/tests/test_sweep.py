"""How many layers to average, and codecs before or after the mean: runs on a tiny trunk, tables from made-up rows."""

import importlib
import json
import statistics
from pathlib import Path

import numpy as np
import pytest

from polyhead.errors import DataError
from polyhead.project.recipes import Training
from polyhead.testing import tiny_trunk
from studies.du2020.leave_out import Settings
from studies.du2020.sweep import VARIANTS, Sweep, compared, missing, order, read_sweep, sweep_lines, swept_of
from studies.results import Study
from studies.tests.commands import run
from studies.tests.sets import SETS, write_sets

QUICK = Training(epochs=1, patience=1, batch=8, learning_rate=1e-3, precision="float32")
SMALL = Settings(sets=SETS, rows=24, validation=8, test=10, learning=QUICK, heads=QUICK, full=QUICK)
TASKS = ("one", "two")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def made_up(seeds=(1, 2, 3)):
    """Rows of scores that are drawn once."""
    chance = np.random.default_rng(0)
    return [
        {
            "stage": "sweep",
            "name": name,
            "task": task,
            "rows": 10,
            "seed": seed,
            "validation": float(chance.random()),
            "test": float(chance.random()),
        }
        for seed in seeds
        for name in VARIANTS
        for task in TASKS
    ]


def test_every_variant_has_a_row_a_task_and_what_is_there_is_not_run_again(tmp_path):
    data, said = write_sets(tmp_path / "data"), []
    runs = Sweep(data, tmp_path / "runs", Study(tmp_path / "r.jsonl"), SMALL, trunk=tiny_trunk(), say=said.append)
    for seed in (1, 2):
        runs.run(SETS[0], seed)
    found = swept_of(runs.study.rows)
    assert [(one.name, one.seed) for one in found] == [(name, seed) for seed in (1, 2) for name in VARIANTS]
    assert missing(found) == () and len(said) == 2 * len(VARIANTS)
    assert not list((tmp_path / "runs" / "features").iterdir())
    runs.run(SETS[0], 1)
    assert len(said) == 2 * len(VARIANTS)


def test_variants_are_what_their_names_say():
    """As many layers as the name says, codecs on the side of the mean that it says."""
    for name, one in VARIANTS.items():
        assert (one.layers, one.positions) == ("mean", "attention")
        if name.startswith("m = "):
            assert (f"m = {one.of}", one.codec, one.codec_before_mean) == (name, "float16", False)
        else:
            assert name == f"{one.codec} {'before' if one.codec_before_mean else 'after'}" and one.of == 4


def test_averages_spreads_and_gains_are_those_of_the_naive_count():
    rows = made_up()
    found = swept_of([*rows, {"stage": "trunk"}, *rows[:3]])
    assert len(found) == len(rows)
    score = {(r["name"], r["task"], r["seed"]): 100 * r["test"] for r in rows}
    for line in sweep_lines(found):
        averages = [(score[line.name, "one", s] + score[line.name, "two", s]) / 2 for s in (1, 2, 3)]
        assert line.average == pytest.approx(sum(averages) / 3)
        assert line.deviation == pytest.approx(statistics.stdev(averages))
        assert line.scores["two"] == pytest.approx(sum(score[line.name, "two", s] for s in (1, 2, 3)) / 3)
    gains = [sum(score["sign before", t, s] - score["sign after", t, s] for t in TASKS) / 2 for s in (1, 2, 3)]
    assert order(found, "sign") == pytest.approx(gains)
    assert [line.name for line in sweep_lines(found, split="validation")] == list(VARIANTS)


def test_only_tasks_and_seeds_that_all_variants_have_are_compared():
    rows = [r for r in made_up() if (r["name"], r["task"], r["seed"]) != ("m = 2", "two", 3)]
    found = swept_of(rows)
    assert missing(found) == ("m = 2: two",)
    assert compared(found) == (TASKS, (1, 2))
    assert all(set(line.scores) == set(TASKS) and line.seeds == 2 for line in sweep_lines(found))
    assert len(order(found, "sign")) == 2
    absent = swept_of([r for r in made_up() if (r["task"], r["seed"]) != ("two", 3)])
    assert len(missing(absent)) == len(VARIANTS) and compared(absent) == (TASKS, (1, 2))
    begun = swept_of([r for r in made_up() if r["seed"] == 1] + made_up()[20:23])
    assert compared(begun) == (TASKS, (1,))
    with pytest.raises(DataError, match="no task has runs"):
        sweep_lines(swept_of([r for r in rows if r["name"] != "m = 1"]))
    assert "three" in missing(swept_of(made_up()), tasks=["three"])[0]


def test_rows_of_other_settings_are_not_mixed_in():
    rows = made_up()
    other = [{**row, "digest": "other", "test": 0.0} for row in rows]
    assert swept_of([*other, *rows]) == swept_of(rows)


def test_claims_wait_for_every_task_and_seed(monkeypatch, tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    study = importlib.import_module("studies.du2020.run_sweep")
    for module in (study, importlib.import_module("studies.settings")):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    tasks = [one.task for one in study.SETS]
    rows = [{**row, "task": task} for row in made_up() if row["task"] == "one" for task in tasks]
    study.write_report(rows[:-1])
    assert json.loads((tmp_path / "together_sweep.json").read_text())["claims"] == []
    assert "lacking: sign after" in capsys.readouterr().out
    study.write_report(rows)
    claims = {one["id"]: one for one in json.loads((tmp_path / "together_sweep.json").read_text())["claims"]}
    gains = order(swept_of(rows), "sign")
    assert claims["together.sign-before-mean"]["value"] == pytest.approx(statistics.mean(gains), abs=0.01)
    assert claims["together.uint8-before-mean"]["value"] >= 0


def test_the_command_prints_draws_and_says_what_lacks(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    file, words = tmp_path / "rows.jsonl", ("du2020", "sweep")
    file.write_text("".join(json.dumps(row) + "\n" for row in made_up()[:-1]))
    done = run(*words, "--rows", file, "--plot", tmp_path / "f.svg")
    assert done.code == 0, done.err
    line = next(line for line in sweep_lines(read_sweep([file])) if line.name == "sign before")
    assert f"{line.average:.1f} ±{line.deviation:.1f}" in done.out
    assert "sign after: two" in done.out and (tmp_path / "f.svg").read_text().startswith("<?xml")
    assert "no runs here" in run(*words, cwd=tmp_path).out
    (tmp_path / "empty.jsonl").write_text('{"stage": "trunk"}\n')
    run(*words, "--rows", tmp_path / "empty.jsonl").refuses("holds no run")
