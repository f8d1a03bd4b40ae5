"""Tables 2 and 3 on GLUE: runs with small sets and a tiny trunk, claims and tables from made-up rows."""

import json

import msgspec
import numpy as np
import pytest

from polyhead.project.recipes import Training
from polyhead.testing import tiny_trunk
from polyhead.values import to_json
from studies.huang2022 import run_glue
from studies.huang2022.claims import claims, glue_claims, glue_learned
from studies.huang2022.glue import GlueRuns, GlueScale
from studies.huang2022.methods import ABLATION, MAIN, METHODS
from studies.huang2022.study import rows_of
from studies.huang2022.tables import table2, table3
from studies.results import Study
from studies.shared.glue import TITLES
from studies.tests.commands import run
from studies.tests.nhc_rows import row as nhc_row
from studies.tests.nhc_rows import rows as nhc_rows
from studies.tests.sets import letters, texts_of_splits, write
from support import tiny_project

TASKS = ("sst2", "mrpc", "stsb")
QUICK = Training(epochs=2, patience=2, batch=4, learning_rate=1e-3, precision="float32")
SCALE = GlueScale(tasks=TASKS, train=16, held=6, steps=6, trunk=QUICK)
TOP = 70.0  # points of MTOP; the others are one below each other
ANSWERS = {"constant": 0.5, "mean vectors": 0.55, "cosine": 0.6}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Three sets, of which MRPC trains on some texts on which SST-2 is evaluated."""
    root = tmp_path_factory.mktemp("data")
    moods = [{"text": m["text"], "label": m["mood"]} for m in tiny_project.messages(76, 1)]
    pairs = list(zip(tiny_project.messages(76, 2), tiny_project.pairs(76, seed=2), strict=True))
    same = [{"text_a": m["text"], "text_b": p["text_b"], "label": p["same"]} for m, p in pairs]
    for place in range(0, 60, 3):
        same[place]["text_a"] = moods[60 + place // 3 % 16]["text"]
    near = [{**one, "label": float(place % 6)} for place, one in enumerate(same[1:] + same[:1])]
    write(root / "glue_sst2", "single_text", ["bad", "good"], {"train": moods[:60], "test": moods[60:]})
    write(root / "glue_mrpc", "pair", ["no", "yes"], {"train": same[:60], "test": same[60:]})
    write(root / "glue_stsb", "regression", None, {"train": near[:60], "test": near[60:]})
    return root


@pytest.fixture
def runs(data, tmp_path):
    return GlueRuns(data, tmp_path / "r", Study(tmp_path / "r.jsonl"), scale=SCALE, trunk=tiny_trunk(max_tokens=128))


def quick(method):
    if "donors" not in (getattr(method.strategy, "init", ""), getattr(method.strategy, "pooler_init", "")):
        return method
    return msgspec.structs.replace(method, strategy=msgspec.structs.replace(method.strategy, donor_epochs=1))


def test_every_method_makes_rows_that_the_tables_read_once(runs):
    methods = [METHODS[name] for name in run_glue.ORDER]
    for method in methods:
        runs.run(quick(method), 1)
    rows = rows_of(runs.study.rows, tasks=TITLES)
    assert {(row.method, row.task) for row in rows} == {(m.name, task) for m in methods for task in TASKS}
    assert {row.task: row.metric for row in rows} == {"sst2": "accuracy", "mrpc": "accuracy", "stsb": "pearson"}
    assert {line.name for line in table2(rows).lines} == {method.title for method in MAIN[:6]}
    assert len(table3(rows, "test").lines) == len(ABLATION)
    assert {row.passes for row in rows if row.method in ("mtop", "shared-pooler")} == {1}
    assert glue_learned(runs.study.rows).keys() == set(run_glue.ORDER)
    before = list(runs.study.rows)
    for method in methods:
        runs.run(quick(method), 1)
    assert runs.study.rows == before


def test_a_trunk_a_task_has_its_share_of_the_updates_that_all_have_together(runs):
    runs.run(METHODS["shared-pooler"], 1)
    runs.run(METHODS["single"], 1)
    together = next(row for row in runs.study.rows if row["stage"] == "run")
    alone = {row["task"]: row["steps"] for row in runs.study.rows if row["method"] == "single"}
    sizes = {task: runs.size(task) for task in TASKS}
    assert together["steps"] == SCALE.steps * QUICK.epochs
    for task, steps in alone.items():
        assert steps == QUICK.epochs * round(SCALE.steps * sizes[task] / sum(sizes.values()))


def test_no_text_on_which_a_task_is_evaluated_is_trained_on_by_another(runs):
    prepared = {task: runs.prepared(METHODS["mtop"], task, 1) for task in TASKS}
    for task, one in prepared.items():
        evaluated = texts_of_splits(s for other, p in prepared.items() if other != task for s in p.splits[1:])
        assert not {letters(text) for given in one.train.examples.inputs for text in given} & evaluated
    assert runs.size("mrpc") < SCALE.train


def test_simple_answers_are_rows_and_pairs_have_the_untrained_cosine(runs):
    run_glue.simple_answers(runs)
    run_glue.simple_answers(runs)
    there = {row["task"]: set(row["baselines"]) for row in runs.study.rows}
    assert len(runs.study.rows) == len(TASKS)
    assert there == {
        "sst2": {"constant", "mean vectors"},
        "mrpc": {"constant", "mean vectors", "cosine"},
        "stsb": {"cosine", "ridge"},
    }


def test_a_task_without_labels_borrows_entropies_in_ca_mtl(runs):
    method = METHODS["ca-mtl"]
    loop = runs._loop(method, [runs.prepared(method, task, 1) for task in TASKS], runs.folder / "none")
    asked, known = [], loop.loss.feed._uncertainty
    loop.loss.feed._uncertainty = lambda task, batch: asked.append(task) or known(task, batch)
    drawn = {name for update in loop.feed().updates(0) for name, _ in update}
    assert set(asked) == {"sst2", "mrpc"} and drawn <= set(TASKS)
    loop.loss.feed._uncertainty = lambda task, batch: np.full(len(batch.members), float(task == "mrpc"))
    assert {name for update in loop.feed().updates(0) for name, _ in update} <= {"mrpc", "stsb"}


def made_up(*, best_epoch=5, seeds=(1, 2, 3)):
    """All methods on all tasks, each a point below the one before it; a run a seed where they learn together."""
    rows = [{"stage": "simple", "task": task, "metric": "accuracy", "rows": 9, "baselines": ANSWERS} for task in TITLES]
    facts = {"best_epoch": best_epoch, "epochs": 16}
    for place, name in enumerate(dict.fromkeys(("mtop", "single", *run_glue.ORDER))):
        for seed in seeds:
            key = {"method": name, "seed": seed, "settings": "s"}
            if name != "single":
                rows.append({"stage": "run", **key, **facts, "own": dict.fromkeys(TITLES)})
            for task in TITLES:
                made = nhc_row(name, seed, task, TOP + 10 - place + seed / 10)
                kept = {field: value for field, value in made.items() if field not in ("recall", "best_epoch")}
                rows.append(kept | (facts if name == "single" else {}))
    return rows


def test_claims_need_three_seeds_and_a_loser_that_has_converged():
    shown = {claim.id: claim for claim in glue_claims(made_up())}
    assert set(shown) == {
        f"evidence.glue-{name}"
        for name in (
            *("mtop-vs-single", "mtop-mtdnn", "mtop-p-tuning", "mtop-p-tuning-v2", "mtop-ca-mtl"),
            *("gradient-stop", "donors"),
        )
    }
    single = shown["evidence.glue-mtop-vs-single"]
    assert (single.holds, single.value, single.seeds, single.loser) == (True, 1.0, 3, "converged")
    last = next(claim for claim in glue_claims(made_up(best_epoch=16)) if claim.id == single.id)
    assert last.holds is None and "24 of 24 runs end at the last epoch" in last.note
    assert {claim.holds for claim in glue_claims(made_up(seeds=(1, 2)))} == {None}
    assert claims(made_up()) == [] and glue_claims(nhc_rows()) == []


def test_tables_print_ours_beside_the_papers_with_simple_answers_and_marks(tmp_path):
    file = tmp_path / "rows.json"
    file.write_bytes(to_json({"rows": made_up(best_epoch=16)}))
    out = run("huang2022", "table2", "--rows", file).out
    printed, ours = (line.split() for line in out.splitlines() if line.startswith("MTOP  "))
    assert printed[1] == "62.3" and ours[1:9] == ["70.2!"] * 8 and ours[9] == "70.2"
    simple = next(line.split() for line in out.splitlines() if line.startswith("the untrained cosine"))
    assert simple[3:11] == ["60.0"] * 8
    assert "MTOP is not converged on 8 of 8 tasks" in out
    assert json.loads(run("huang2022", "table2", "--rows", file, "--json", "-").out)["study"]["notes"] == []
    out = run("huang2022", "table3", "--rows", file).out
    assert len([line for line in out.splitlines() if line.startswith("(7)")]) == 2
    assert "python -m studies huang2022 run-glue" in run("huang2022", "table2", cwd=tmp_path).out


def test_groups_go_by_worth_and_parts_share_the_seeds():
    jobs = run_glue.jobs_of(run_glue.ORDER, run_glue.SEEDS)
    assert sorted(method.name for job in jobs for method, _ in job) == sorted(run_glue.ORDER * 3)
    assert [(m.name, seed) for m, seed in jobs[0]] == [("shared-pooler", 1), ("mtop", 1), ("single", 1)]
    assert set(run_glue.ORDER) == {m.name for m in (*MAIN[:6], *ABLATION.values())}
    assert run_glue.scale_of(8).trunk.epochs == 8 and run_glue.scale_of(None) == GlueScale()
