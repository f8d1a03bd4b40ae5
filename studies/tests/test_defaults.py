"""Studies of the default beside SetFit, on spans, choices and many rows: what rows claim, and what they say lacks."""

import importlib
import json
import math

import pytest

from benchmarks import many_rows, words_cost
from studies.defaults import run_calibration, run_cascade, run_efforts, run_pairs, run_setfit
from studies.defaults.table import setfit_table


def setfit_row(name, size, draw, ours, theirs, *, steps=10, whole=10):
    methods = {
        run_setfit.OURS: {"accuracy": ours, "seconds": 4.0},
        run_setfit.THEIRS: {"accuracy": theirs, "seconds": 40.0, "steps": steps, "steps_of_a_pass": whole},
        run_setfit.REGRESSION: {"accuracy": 0.5, "seconds": 1.0},
    }
    return {"set": name, "size": size, "draw": draw, "rows": 48, "methods": methods, "run_seconds": 60.0}


def pairs_row(name, size, draw, default, advised, constant):
    methods = {
        run_pairs.DEFAULT: {"score": default, "seconds": 4.0},
        run_pairs.ADVISED: {"score": advised, "seconds": 40.0},
        run_pairs.CONSTANT: {"score": constant},
    }
    return {"set": name, "size": size, "draw": draw, "methods": methods, "run_seconds": 60.0}


def test_the_gain_over_setfit_is_a_mean_of_sets_and_counts_those_ahead():
    """By set 10 and -2 points: mean 4, one ahead; of the other eight sets there is no row, so nothing holds."""
    rows = [setfit_row("cr", "8", draw, 0.8, 0.7) for draw in (1, 2, 3)]
    rows += [setfit_row("subj", "8", draw, 0.7, 0.72, steps=500, whole=5230) for draw in (1, 2, 3)]
    mean, ahead = run_setfit.claims(rows)
    assert mean.id == "heads.setfit_8" and mean.value == pytest.approx(4) and not mean.holds
    assert ahead.value == 1 and "cr +10.0, subj -2.0" in ahead.note
    assert "SetFit 71.0 in 40.0 s" in mean.note and "cut by max_steps: subj 500 of 5,230" in mean.note


def test_the_readme_shows_sets_that_have_every_draw():
    """Ours 80 and 60, SetFit 70 and 70; subj has one draw, and does not count, nor do seconds beside other work."""
    rows = [setfit_row("cr", "8", draw, 0.8, 0.7) for draw in (1, 2, 3)]
    rows += [setfit_row("sst5", "8", draw, 0.5 + draw / 20, 0.7) for draw in (1, 2, 3)]
    rows += [setfit_row("subj", "8", 1, 0.1, 0.9)]
    rows[0]["methods"]["default"]["seconds"], rows[0]["beside_other_work"] = 900.0, True
    accuracy, seconds = setfit_table(rows)[2:]
    assert accuracy == "| 8 a label | accuracy, 2 sets | 50.0 | **70.0** | **70.0** |"
    assert seconds == "| 8 a label | seconds to train, median of 5 runs | 1.0 | 40.0 | 4.0 |"
    assert setfit_table(rows[-1:])[2:] == []


def test_the_default_is_trained_anew_and_nothing_else(monkeypatch):
    row = {"set": "cr", "size": "8", "draw": 2, **setfit_row("cr", "8", 2, 0.8, 0.7)}
    monkeypatch.setattr(run_setfit, "labelled", lambda source, size, draw: [source.folder, size, draw])
    monkeypatch.setattr(run_setfit, "read", lambda source, split: split)
    monkeypatch.setattr(run_setfit, "default", lambda *given: {"accuracy": 0.9, "of": given})
    changed = run_setfit.again(row)
    assert changed["methods"].pop(run_setfit.OURS) == {"accuracy": 0.9, "of": ("cr", ["cr", "8", 2], "test", 2)}
    assert set(changed.pop("default_of")) == {"date", "hardware"}
    del row["methods"][run_setfit.OURS]
    assert changed == row


def test_all_sets_and_draws_above_setfit_hold():
    rows = [setfit_row(name, "16", draw, 0.8, 0.7) for name in run_setfit.NAMES for draw in (1, 2, 3)]
    assert [(claim.value, claim.holds) for claim in run_setfit.claims(rows)] == [(10, True), (10, True)]


def test_steps_of_a_pass_are_those_of_all_pairs_listed(monkeypatch):
    """Pairs of different texts one by one; the rarer of the two kinds is drawn as often as the other."""
    monkeypatch.syspath_prepend(str(run_setfit.HERE))
    labels = ("a",) * 5 + ("b",) * 3 + ("c",)
    pairs = [labels[i] == labels[j] for i in range(len(labels)) for j in range(i)]
    drawn = 2 * max(sum(pairs), len(pairs) - sum(pairs))
    steps_of = importlib.import_module("setfit_train").steps_of
    assert steps_of(labels, batch=4) == math.ceil(drawn / 4)


def test_pairs_are_held_against_one_answer_and_what_advise_finds():
    """copa is 10 points above one answer, squad half a point; advise adds 5 and 15, so 10 on average."""
    rows = [pairs_row("copa", "500", draw, 0.6, 0.65, 0.5) for draw in (1, 2, 3)]
    rows += [pairs_row("squad_v1", "500", draw, 0.065, 0.215, 0.06) for draw in (1, 2, 3)]
    poor, gain = run_pairs.claims(rows)
    assert poor.value == 1 and not poor.holds and gain.value == pytest.approx(10)
    assert "copa default 60.0, advise 65.0, constant 50.0" in poor.note and "82.6 (Aghajanyan et al. 2021" in poor.note


@pytest.mark.parametrize(
    ("study", "row"),
    [(run_setfit, setfit_row("cr", "8", 1, 0.8, 0.7)), (run_pairs, pairs_row("copa", "500", 1, 0.6, 0.65, 0.5))],
    ids=["setfit", "pairs"],
)
def test_a_study_reports_from_its_rows_alone(study, row, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("studies.settings.RESULTS", tmp_path)
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    monkeypatch.setattr("sys.argv", ["run", "--report", "--rows", str(tmp_path / "rows.jsonl")])
    study.main()
    assert json.loads((tmp_path / f"{study.NAME}.json").read_text())["rows"] == [row]
    said = capsys.readouterr().out
    assert "lacking: " in said and "all take about" in said


def effort_row(effort, name, draw, score, *, seconds=60.0, chosen="attention"):
    key = {"effort": effort, "set": name, "size": "1500", "draw": draw}
    return {**key, "hardware": "one", "score": score, "seconds": seconds, "chosen": chosen}


def test_efforts_are_compared_with_the_default_of_the_same_rows(monkeypatch):
    """Quick is 2 points below the default, best 1 above it; a row whose default is not there does not count."""
    defaults = [
        {"set": name, "size": "1500", "draw": draw, "default": 0.7, "seconds": 20.0, "hardware": "one"}
        for name in run_efforts.SEARCHED
        for draw in (1, 2, 3)
    ]
    monkeypatch.setattr(run_efforts, "results_rows", lambda name: defaults)
    rows = [effort_row("quick", row["set"], row["draw"], 0.68) for row in defaults]
    rows += [effort_row("best", row["set"], row["draw"], 0.71, chosen=None) for row in defaults]
    rows += [effort_row("best", "subj", 1, 0.1)]
    quick, best, minutes = run_efforts.restated(rows)
    assert (quick.id, quick.value, quick.holds) == ("minute.quick_1500", pytest.approx(2), False)
    assert (best.id, best.value, best.holds) == ("minute.best", pytest.approx(-1), True)
    assert "12 of 12 runs kept a branch" in best.note
    assert (minutes.id, minutes.value, minutes.holds) == ("minute.best_minutes", 1.0, True)


def test_one_run_of_best_that_takes_longer_than_its_minutes_misses_the_target(monkeypatch):
    defaults = [{"set": "cr", "size": "1500", "draw": draw, "default": 0.7} for draw in (1, 2, 3)]
    monkeypatch.setattr(run_efforts, "results_rows", lambda name: defaults)
    rows = [effort_row("best", "cr", draw, 0.7, seconds=301.0 if draw == 2 else 200.0) for draw in (1, 2, 3)]
    best, minutes = run_efforts.restated(rows)
    assert best.holds is None and "without trec6, emotion, irony" in best.note
    assert minutes.holds is False and minutes.value == pytest.approx(5.02)


def test_the_error_of_calibration_is_a_mean_of_ten_sets():
    rows = [
        {"set": name, "draw": draw, "error": 0.03, "unscaled": 0.09}
        for name in run_calibration.NAMES
        for draw in (1, 2, 3)
    ]
    (claim,) = run_calibration.claims(rows)
    assert claim.holds and claim.value == pytest.approx(0.03) and "without the scale 0.090" in claim.note
    (part,) = run_calibration.claims(rows[3:])
    assert part.holds is None and "without trec6" in part.note


def test_many_rows_are_compared_with_the_checkout_before():
    before = {"who": "before", "draw": 1, "train_rows": 50_000, "run_seconds": 1000.0, "bytes": 700e6, "accuracy": 0.65}
    after = {"who": "after", "draw": 1, "train_rows": 50_000, "run_seconds": 400.0, "bytes": 35e6, "accuracy": 0.66}
    values = {claim.id: (claim.value, claim.holds) for claim in many_rows.claims([before, after])}
    assert values == {
        "heads.many_rows_time": (0.4, True),
        "heads.many_rows_bytes": (0.05, True),
        "heads.many_rows_points": (-1.0, None),  # one run shows nothing
    }
    assert many_rows.claims([after]) == []


def test_the_cost_of_words_is_a_ratio_of_one_repeat():
    """A machine that is twice as slow in the second repeat changes no ratio."""
    rows = [
        {"what": "certificate", "kind": kind, "repeat": repeat, "seconds": slow * seconds}
        for repeat, slow in ((1, 1), (2, 2), (3, 1))
        for kind, seconds in ((words_cost.WITHOUT, 2.0), (words_cost.CHOSEN, 2.5), (words_cost.EVERY, 3.0))
    ]
    (claim,) = words_cost.claims(rows)
    assert claim.id == "heads.cost_certificate" and claim.value == pytest.approx(1.25) and not claim.holds
    assert "every 1.500 (1.500 to 1.500)" in claim.note


def cascade_row(name, draw, pair, lost, layers, work):
    return {"set": name, "draw": draw, "pair": pair, "lost": lost, "layers": layers, "work": work}


def test_a_cascade_is_held_to_points_lost_and_to_half_the_layers_or_of_unlike_trunks_half_the_work():
    """minilm alone runs half of MPNet's layers at an eighth of their work, so that pair is held to the work."""
    rows = [cascade_row(name, draw, "static", 0.2, 0.4, 0.4) for name in run_cascade.NAMES for draw in (1, 2, 3)]
    rows += [cascade_row("trec6", draw, "mpnet", 0.9, 0.9, 0.3) for draw in (1, 2, 3)]
    lost, layers, mpnet_lost, work = run_cascade.claims(rows)
    assert [lost.id, layers.id, mpnet_lost.id, work.id] == [
        "encoders.cascade",
        "encoders.cascade_layers",
        "encoders.cascade_mpnet",
        "encoders.cascade_mpnet_work",
    ]
    assert (lost.value, lost.holds, layers.value, layers.holds) == (pytest.approx(0.2), True, pytest.approx(0.4), True)
    assert work.value == pytest.approx(0.3) and not mpnet_lost.holds and not work.holds  # two tasks are not there
