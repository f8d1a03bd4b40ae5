"""Branches and full fine-tuning that search their rate: which runs are made, which count, what may be claimed."""

import itertools
import os
import statistics
from pathlib import Path

import msgspec
import pytest

from polyhead.errors import DataError
from polyhead.project import pretrained
from polyhead.testing import tiny_trunk
from studies.results import Study
from studies.wei2021 import searched
from studies.wei2021.searched import DEPTHS, RATES, SearchedRuns, best_rate, chosen, claims, lacking
from studies.wei2021.tasks import TASKS, Size

DATA = Path(os.environ.get("POLYHEAD_DATA", Path(__file__).parents[3] / "shared" / "data"))
SEEDS = (1, 2, 3)
BEST = {1: RATES[2], 2: RATES[1], 3: RATES[0], 6: RATES[1]}  # of every task, by depth
SCORE = {1: 60.0, 2: 70.0, 3: 78.0, 6: 80.0}


def row(task, seed, layers, rate, **changes):
    """A run; its test score is below validation, and the highest at a rate that validation does not choose."""
    points = SCORE[layers] + seed / 10
    far = rate != BEST[layers]
    return {
        "task": task,
        "seed": seed,
        "method": "full" if layers == 6 else "branch",
        "init": "",
        "rate": rate,
        "settings": "a",
        "layers": layers,
        "tap": 6 - layers,
        "metric": "accuracy",
        "validation": (points - 5 * far) / 100,
        "test": (points - 10 + 30 * far) / 100,
        "train_rows": 1000,
        "best_epoch": 6,
        **changes,
    }


def rows_with(**changes):
    rows = []
    for task in TASKS:
        rows.append({"task": task, "method": "simple", "settings": "a", "scores": {"constant": 0.5}})
        for layers in (*DEPTHS, 6):
            rows += [row(task, 1, layers, rate, **changes) for rate in RATES]
            rows += [row(task, seed, layers, BEST[layers], **changes) for seed in SEEDS[1:]]
    return rows


def by_id(rows):
    return {claim.id: claim for claim in claims(rows)}


def test_the_rate_is_the_best_on_validation_under_the_first_seed_and_of_equals_the_lowest():
    rows = [row("rte", 1, 1, rate, validation=0.5) for rate in RATES]
    assert best_rate(rows) == min(RATES)
    better = [*rows[:2], row("rte", 1, 1, RATES[2], validation=0.6), row("rte", 2, 1, RATES[0], validation=0.9)]
    assert best_rate(better) == RATES[2]


def test_only_the_chosen_rate_counts():
    runs = chosen(rows_with())
    assert len(runs) == len(TASKS) * len(SCORE) * len(SEEDS)
    assert {(run.layers, run.test) for run in runs if (run.task, run.seed) == ("rte", 2)} == {
        (layers, (score + 0.2 - 10) / 100) for layers, score in SCORE.items()
    }


@pytest.mark.parametrize(("name", "budget", "tasks"), [("half", 24, 8), ("third", 16, 8), ("half-texts", 12, 4)])
def test_ratios_are_those_of_the_best_mix_within_the_layers_by_seed(name, budget, tasks):
    """Every mix of depths is tried; the frozen layers below the lowest tap are evaluated once for all tasks."""
    mixes = itertools.product(DEPTHS, repeat=tasks)
    best = max((mix for mix in mixes if 6 - min(mix) + sum(mix) <= budget), key=lambda mix: sum(SCORE[n] for n in mix))
    ratios = [statistics.mean(SCORE[n] - 10 + seed / 10 for n in best) / (SCORE[6] - 10 + seed / 10) for seed in SEEDS]
    claim = by_id(rows_with())[f"evidence.searched-{name}"]
    assert claim.value == pytest.approx(statistics.mean(ratios), abs=1e-4)
    assert claim.holds is False and f"within {budget} of {6 * tasks}" in claim.text


def test_no_ratio_is_shown_over_a_baseline_that_ends_at_its_last_epoch_or_is_below_a_simple_answer():
    late = [r | ({"best_epoch": 10} if r.get("layers") == 6 else {}) for r in rows_with(test=0.8)]
    assert by_id(late)["evidence.searched-half"].holds is None
    low = [r | ({"scores": {"constant": 0.5, "cosine": 0.9}} if r["method"] == "simple" else {}) for r in rows_with()]
    assert by_id(low)["evidence.searched-half"].note.count("the untrained cosine, 90.0")


def test_what_is_not_run_is_told_and_nothing_is_claimed_before():
    rows = rows_with()
    assert lacking(rows) == []
    assert lacking(rows[:-1]) == ["4 of 5 runs of 6 layers on offensive"] and claims(rows[:-1]) == []
    pair = next(each for each in rows if each["task"] == "rte")
    without = by_id([each for each in rows if each is not pair])
    assert without.keys() == {"evidence.searched-half-texts"}
    assert "4 tasks of single texts" in without["evidence.searched-half-texts"].text
    assert lacking([*rows[:-1], rows[-2]]) == lacking(rows[:-1])  # a row given twice is one run
    simple = [given for given in rows if (given["task"], given["method"]) != ("rte", "simple")]
    assert lacking(simple) == ["the simple answers to rte"]
    assert len(lacking([])) == len(TASKS) * (1 + len(SCORE))
    other = [*rows, rows[-1] | {"settings": "b"}]
    assert lacking(other) == ["rows of one setting alone"] and claims(other) == []


def test_the_first_seed_is_the_first():
    with pytest.raises(DataError, match="run seed 1 first"):
        best_rate([row("rte", 2, 1, RATES[0])])


@pytest.mark.skipif(not (DATA / "glue_rte").is_dir(), reason="the data sets are not there")
def test_every_rate_learns_under_the_first_seed_and_the_best_under_the_others(tmp_path, monkeypatch):
    trunk = tiny_trunk()
    monkeypatch.setattr(pretrained, "load_trunk", lambda *_, **__: trunk)
    monkeypatch.setattr(searched, "TRAINING", msgspec.structs.replace(searched.TRAINING, epochs=1))
    monkeypatch.setattr(searched, "DEPTHS", (1,))
    size = Size(train=32, validation=16)
    runs = SearchedRuns(DATA, tmp_path / "made", Study(tmp_path / "r.jsonl"), size=size)
    runs.search(["rte"], [1, 2])
    depth = trunk.architecture.layers
    made = [r for r in runs.study.rows if "rate" in r]
    for layers in (1, depth):
        first = {r["rate"]: r["validation"] for r in made if (r["layers"], r["seed"]) == (layers, 1)}
        (second,) = [r for r in made if (r["layers"], r["seed"]) == (layers, 2)]
        assert set(first) == set(RATES) and first[second["rate"]] == max(first.values())
        assert second["test_rows"] == 277 and second["tap"] == (0 if layers == depth else depth - 1)
    (simple,) = [r for r in runs.study.rows if r["method"] == "simple"]
    assert {"constant", "mean vectors", "cosine"} <= set(simple["scores"])
    again = SearchedRuns(DATA, tmp_path / "made", Study(tmp_path / "r.jsonl"), size=size)
    for name in ("_full", "_teacher", "_simple"):
        monkeypatch.setattr(again, name, lambda *_: pytest.fail("a run that is there is made again"))
    again.search(["rte"], [1, 2])
