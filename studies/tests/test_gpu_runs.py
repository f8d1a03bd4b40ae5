"""Runs on a card, tried on the processor: rows come as lanes end, go on where they stopped, and end by themselves."""

import json
import math
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace

import pytest
import torch

from studies.gpu import claims, fit, jobs, run, run_report
from studies.gpu.jobs import Bench, Size
from studies.gpu.pack import pack_of
from studies.gpu.packed import write_pack
from studies.results import broken, read_results
from support.tiny_branches import extractor_of, home_in, prepared_of

SHORT = fit.LaneSchedule(epochs=2, patience=1, batch=8)
FEW = {"layers": SHORT, "heads": SHORT, "together": SHORT, "mix_seeds": (1,), "mix_epochs": 1, "mix_batch": 8}
SMALL = Size(seeds=(1, 2), rates=(1e-3, 3e-3), head_rates=(1e-2,), **FEW)
LONG = 3600.0


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    home = home_in(tmp_path_factory.mktemp("home"))
    extractor = extractor_of(home, tmp_path_factory.mktemp("kept"))
    prepared = {name: prepared_of(home, name) for name in ("mood", "same")}
    return pack_of(extractor.data, prepared, prepared)


def rows_of(pack, rows=(), *, seconds=LONG, size=SMALL, dtype=torch.float32):
    """The rows that a run adds, and whether its time ran out."""
    new = []
    bench = Bench(
        pack, rows, new.append, size=size, device="cpu", deadline=fit.Deadline(until=time.monotonic() + seconds)
    )
    bench.dtype = dtype
    try:
        for _, job in jobs.jobs(bench):
            job()
    except fit.TimeIsUp:
        return new, True
    return new, False


def untimed(rows):
    return [
        {k: v for k, v in row.items() if k not in ("seconds", "flops_per_second", "lanes", "flops")} for row in rows
    ]


def by_key(rows):
    return {tuple(row[name] for name in jobs.KEY): row for row in untimed(rows)}


@pytest.fixture(autouse=True, scope="module")
def _held_out():
    """Of these tasks one is fine-tuned from trunks that learned from both; functions fit the tiny trunk's two heads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "PALS", 6)
        patch.setattr(jobs, "HELD_OUT", ("mood",))
        yield


@pytest.fixture(scope="module")
def whole(pack):
    rows, stopped = rows_of(pack)
    assert not stopped
    return rows


def test_every_method_seed_and_rate_has_one_row(whole):
    seeds, rates = 2, 2
    counts = Counter((row["task"], row["method"], row["layers"]) for row in whole)
    starts = {"": seeds * rates, "sets-2": rates, "sets-2-r3f": rates}  # of one seed
    assert Counter(row["init"] for row in whole if (row["task"], row["method"]) == ("mood", "full")) == starts
    for task in ("mood", "same"):
        assert counts[task, "full", 3] == seeds * rates + (2 * rates if task == "mood" else 0)
        assert counts[task, "branch", 3] == seeds * rates
        assert counts[task, "shared", 3] == counts[task, "pals", 3] == rates  # of one seed
        assert counts[task, "student", 1] == counts[task, "student", 2] == 2 * seeds * rates
        assert counts[task, "pooled-attention", 0] == counts[task, "pooled-mean", 0] == seeds
    assert len(by_key(whole)) == len(whole) == sum(counts.values())
    assert all(row["flops_per_second"] > 0 and 1 <= row["best_epoch"] <= row["ended_epoch"] <= 2 for row in whole)


def test_everything_runs_in_a_cards_precision(pack, whole):
    rows, _ = rows_of(pack, dtype=torch.bfloat16)
    assert by_key(rows).keys() == by_key(whole).keys()
    assert all(row["precision"] == "bfloat16" and math.isfinite(row["test"]) for row in rows)


def test_what_is_there_is_not_run_again(pack, whole):
    assert rows_of(pack, whole) == ([], False)


def test_rows_that_are_missing_are_made_again_and_no_others(pack, whole):
    kept = [row for row in whole if not (row["method"] == "student" and row["layers"] == 1 and row["seed"] == 2)]
    again, _ = rows_of(pack, kept)
    assert by_key(again).keys() == by_key(whole).keys() - by_key(kept).keys()


def test_rows_of_another_size_are_other_rows(pack, whole):
    again, _ = rows_of(pack, whole, size=Size(seeds=(1,), rates=(1e-3,), head_rates=(1e-2,), **FEW))
    assert {row["settings"] for row in again}.isdisjoint({row["settings"] for row in whole})


def test_it_ends_when_the_time_is_over(pack):
    new, stopped = rows_of(pack, seconds=0.0)
    assert stopped and not new


def test_the_rate_of_teachers_is_the_best_on_validation_over_seeds(pack):
    def row(seed, rate, validation):
        key = {"method": "branch", "layers": 3, "task": "mood", "init": "", "settings": bench.settings}
        return {**key, "seed": seed, "rate": rate, "validation": validation}

    bench = Bench(pack, [], list, size=SMALL, device="cpu", deadline=fit.Deadline(until=0.0))
    bench.rows += [row(1, 1e-3, 0.9), row(2, 1e-3, 0.1), row(1, 3e-3, 0.6), row(2, 3e-3, 0.5)]
    assert bench.rate_of("branch", 3, "mood", SMALL.rates) == 3e-3


RUN = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("polyhead", "msgspec", "click", "tokenizers", "transformers", "scipy"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
sys.argv = ["run", *sys.argv[1:]]
from studies.gpu.run import main
main()
"""


def started(*arguments):
    command = [sys.executable, "-c", RUN, *map(str, arguments)]
    return subprocess.run(command, cwd=run.ROOT, capture_output=True, text=True, timeout=280)


def test_it_needs_torch_and_numpy_alone_and_writes_rows(pack, tmp_path):
    """A line that a kill cut short stands alone, and is run again."""
    write_pack(tmp_path / "pack", pack)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"method": "fu')
    done = started("--device", "cpu", "--tiny", "--minutes", "4", "--pack", tmp_path / "pack", "--rows", rows)
    assert done.returncode == 0, done.stderr
    assert "all that was asked is run; 20 new rows" in done.stdout
    lines = rows.read_text().splitlines()
    assert len(lines) == 21 and all(json.loads(line)["device"] == "cpu" for line in lines[1:])
    assert len(run.read_rows(rows)) == 20


def test_what_is_lacking_is_said(tmp_path):
    if not torch.cuda.is_available():
        done = started("--pack", tmp_path)
        assert done.returncode == 1 and "no NVIDIA card" in done.stderr and "--device cpu --tiny" in done.stderr
    done = started("--device", "cpu", "--pack", tmp_path)
    assert done.returncode == 1 and "no pack" in done.stderr and "make gpu-pack" in done.stderr


def scored(method, layers, init, *, test, rate=1e-4, validation=0.8, best=3):
    """PackedRows of all tasks and seeds; a point apart from seed to seed."""
    return [
        {
            "task": task,
            "method": method,
            "layers": layers,
            "init": init,
            "seed": seed,
            "rate": rate,
            "validation": validation,
            "test": test + 0.001 * seed,
            "metric": "none",  # no simple answer is known by it
            "best_epoch": best,
            "epochs": 16,
            "train_rows": 5000,
            "settings": "a",
            "whole": True,
        }
        for task in jobs.ORDER
        for seed in jobs.WHOLE.seeds
    ]


def claimed(rows, name):
    (claim,) = [claim for claim in claims.claims(rows) if claim.id == f"evidence.whole-sets-{name}"]
    return claim


def test_a_claim_is_of_the_rates_that_are_best_on_validation():
    attention = scored("pooled-attention", 0, "", test=0.70) + scored(
        "pooled-attention", 0, "", test=0.99, rate=1e-3, validation=0.1
    )
    claim = claimed(attention + scored("pooled-mean", 0, "", test=0.60), "attention")
    assert claim.value == pytest.approx(10.0) and claim.holds and claim.seeds == 5


def test_pre_finetuning_is_compared_on_tasks_held_out_by_seeds_that_both_have():
    rows = (
        scored("full", 6, "", test=0.7)
        + scored("full", 6, "sets-24", test=0.72)
        + scored("full", 6, "sets-6", test=0.6)
    )
    mixed, few, more = (claimed(rows, name) for name in ("mixed", "few", "more"))
    assert (mixed.value, few.value, more.value) == (pytest.approx(2.0), pytest.approx(-10.0), pytest.approx(12.0))
    assert "not known to have converged" in mixed.note and "seeds of" not in mixed.note
    assert "seeds of 3 that both have" in claimed(rows, "r3f").note


def test_what_has_not_run_is_lacking_and_nothing_is_claimed():
    rows = scored("pooled-attention", 0, "", test=0.7) + scored("pooled-mean", 0, "", test=0.6)
    claim = claimed([row for row in rows if row["task"] != "sst2"], "attention")
    assert claim.holds is None and "sst2 0" in claim.note
    assert claimed(rows, "branch").holds is None


@pytest.mark.parametrize(("best", "why"), [(16, "end at the last epoch"), (3, "not known to have converged")])
def test_full_fine_tuning_that_is_behind_must_have_converged(best, why):
    claim = claimed(scored("full", 6, "", test=0.7, best=best) + scored("branch", 3, "", test=0.8), "branch")
    assert claim.holds is None and why in claim.note and claim.value > 1


def test_rows_that_came_back_are_reported(monkeypatch, tmp_path, capsys):
    rows = scored("pooled-attention", 0, "", test=0.7) + scored("pooled-mean", 0, "", test=0.6)
    others = [{**rows[0], "whole": False}, {**rows[0], "settings": "b"}, rows[0]]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*others, *rows]))
    monkeypatch.setattr("studies.settings.RESULTS", tmp_path)
    monkeypatch.setattr("sys.argv", ["run-report", "--rows", str(tmp_path / "rows.jsonl")])
    run_report.main()
    (file,) = read_results(tmp_path)
    assert file.rows == rows and [claim.outcome for claim in file.claims].count("yes") == 1
    assert not any(map(broken, file.claims))
    assert "3 rows left out" in capsys.readouterr().out


def test_rows_of_a_try_are_no_results(monkeypatch, tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"whole": False}) + "\n")
    monkeypatch.setattr("sys.argv", ["run-report", "--rows", str(tmp_path / "rows.jsonl")])
    with pytest.raises(SystemExit, match="measure nothing"):
        run_report.main()


@pytest.mark.slow
def test_rows_are_learned_by_heart(pack):
    """Where they are scored on the rows that they learn from; a constant answer has about half of these."""
    own = {name: replace(one, splits=dict.fromkeys(one.splits, one.splits["train"])) for name, one in pack.sets.items()}
    long = fit.LaneSchedule(epochs=40, patience=40, batch=8)
    size = Size(seeds=(1,), rates=(5e-3,), head_rates=(3e-2,), layers=long, heads=long, together=long, mix_seeds=(1,))
    rows, _ = rows_of(replace(pack, sets={"mood": own["mood"]}, mix={}), size=size)
    scores = {(row["method"], row["layers"], row["init"]): row["test"] for row in rows}
    assert len(scores) == 10 and min(scores.values()) >= 0.7 and scores["full", 3, ""] >= 0.9, scores
