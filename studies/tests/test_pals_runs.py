"""The study's runs with small sets and a tiny trunk: rows that the tables read, each made once; what it is made of."""

from types import SimpleNamespace

import msgspec
import pytest

from polyhead.bundle.read import Bundle
from polyhead.project.recipes import Training
from polyhead.testing import tiny_trunk
from studies.results import Study
from studies.stickland2019 import runs as module
from studies.stickland2019.claims import claims
from studies.stickland2019.methods import METHODS, SAMPLINGS
from studies.stickland2019.runs import FROZEN_RATE, ON_QUESTIONS, Runs, Scale
from studies.stickland2019.study import rows_of, runs_of
from studies.tests.adapters import RATIO, SPREAD, questions, rows
from studies.tests.sets import SETS, learning, letters, texts_of_splits, write_sets

QUICK = Training(epochs=2, patience=2, batch=4, learning_rate=1e-3, precision="float32")
SCALE = Scale(sets=SETS, rows=16, validation=6, steps=2, training=QUICK)
NAMES = [one.task for one in SETS]

ID = "conditioning.adapter-parameters"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_sets(tmp_path_factory.mktemp("data"))


@pytest.fixture
def runs(data, tmp_path):
    study = Study(tmp_path / "rows.jsonl")
    return Runs(data, tmp_path / "rows", study, scale=SCALE, trunk=tiny_trunk())


@pytest.fixture
def kept(monkeypatch):
    """Learned trunks stay where they were written."""
    monkeypatch.setattr(module, "shutil", SimpleNamespace(rmtree=lambda *given, **named: None))


def digest_of(runs, method):
    (folder,) = [one for one in (runs.folder / "trunks").iterdir() if one.name.startswith(f"{method}-annealed-1")]
    return Bundle.open(folder).trunk().digest


def test_a_run_gives_its_curve_and_a_row_a_task_and_is_made_once(runs, monkeypatch):
    runs.run(METHODS["pals"], "annealed", 1)
    (run,), rows = runs_of(runs.study.rows), rows_of(runs.study.rows)
    assert run.tasks == tuple(NAMES) and [epoch.step for epoch in run.curve] == [2, 4]
    assert [row.task for row in rows] == NAMES
    for row in rows:
        assert row.metrics[row.metric] == row.test and row.metric == "accuracy"
        assert (row.layers, row.new_layers, row.learned) == (2 * len(NAMES), 2, "trunk and parts")
        assert row.ratio > 1
    assert not any((runs.folder / "trunks").iterdir())
    before = list(runs.study.rows)
    monkeypatch.setattr(module, "learn", lambda *given, **named: pytest.fail("it was trained again"))
    runs.run(METHODS["pals"], "annealed", 1)
    assert runs.study.rows == before
    del runs.study.rows[-1]  # stopped between the rows of tasks
    runs.run(METHODS["pals"], "annealed", 1)
    assert rows_of(runs.study.rows) == rows


def test_every_method_trains(runs):
    runs.scale = msgspec.structs.replace(SCALE, steps=1, training=msgspec.structs.replace(QUICK, epochs=1))
    for method in METHODS.values():
        runs.run(method, "annealed", 1)
    rows = rows_of(runs.study.rows)
    assert {(row.method, row.task) for row in rows} == {(m, t) for m in METHODS for t in NAMES}
    assert all(-1 <= row.test <= 1 and -1 <= row.validation <= 1 for row in rows)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_sampling_is_the_methods_of_the_run(runs, sampling):
    recipe = runs.recipe(sampling)
    assert recipe.sampling == SAMPLINGS[sampling]
    assert (recipe.micro_batches, recipe.families, recipe.steps) == (1, (), SCALE.steps)


def test_sets_keep_the_proportions_of_their_files_or_have_as_many_rows_each(data, tmp_path):
    data = write_sets(tmp_path / "uneven")
    facts = msgspec.json.decode((data / "moods" / "meta.json").read_bytes())
    facts["sizes"]["train"] = 120  # twice as many as the others
    (data / "moods" / "meta.json").write_bytes(msgspec.json.encode(facts))
    for natural, sizes in ((True, [24, 12, 12]), (False, [16, 16, 16])):
        scale = msgspec.structs.replace(SCALE, natural=natural)
        made = Runs(data, tmp_path, Study(tmp_path / "r.jsonl"), scale=scale, trunk=tiny_trunk())
        prepared = made.prepared(METHODS["shared"], 1)
        assert [len(p.train.examples.targets) for p in prepared] == sizes
        assert [len(p.validation.examples.targets) for p in prepared] == [6, 6, 6]
        assert [len(p.test.examples.targets) for p in prepared] == [16, 16, 16]


def test_a_frozen_trunk_stays_and_another_learns(runs, kept):
    for name in ("pals-frozen", "pals", "pals-scratch"):
        runs.run(METHODS[name], "annealed", 1)
    assert digest_of(runs, "pals-frozen") == runs.plain.digest != digest_of(runs, "pals")
    assert {row.learned for row in rows_of(runs.study.rows) if row.method == "pals-frozen"} == {"parts"}
    assert {p.training.learning_rate for p in runs.prepared(METHODS["pals-frozen"], 1)} == {FROZEN_RATE}
    start = runs._start(1)
    assert start.digest == runs._start(1).digest != runs._start(2).digest
    assert start.tokenizer == runs.plain.tokenizer


def test_a_task_alone_has_a_trunk_of_its_own_and_its_share_of_the_updates(tmp_path, kept):
    data = write_sets(tmp_path / "data")
    scale = msgspec.structs.replace(SCALE, steps=6)  # of three sets of as many rows
    made = Runs(data, tmp_path / "rows", Study(tmp_path / "r.jsonl"), scale=scale, trunk=tiny_trunk())
    with learning() as seen:
        made.run(METHODS["single"], "alone", 1)
    assert [[p.task.name for p in prepared] for prepared in seen.values()] == [[name] for name in NAMES]
    trunks = {Bundle.open(one).trunk().digest for one in (made.folder / "trunks").iterdir()}
    assert len(trunks) == len(NAMES) and made.plain.digest not in trunks
    run, *_ = made.study.rows
    assert run["steps"] == 6 * QUICK.epochs and set(run["examples"]) == set(run["own"]) == set(NAMES)
    rows = rows_of(made.study.rows)
    assert {(row.ratio, row.layers, row.share) for row in rows} == {(3.0, 2 * len(NAMES), 1.0)}
    assert [row.learned for row in rows] == ["a trunk a task, and its part"] * len(NAMES)


@pytest.mark.parametrize("method", ["shared", "single"])
def test_no_text_on_which_a_task_is_evaluated_is_trained_on(tmp_path, method):
    data = write_sets(tmp_path / "data", leaking=True)
    made = Runs(data, tmp_path / "rows", Study(tmp_path / "r.jsonl"), scale=SCALE, trunk=tiny_trunk())
    with learning() as seen:
        made.run(METHODS[method], "proportional", 1)
    prepared = [one for several in seen.values() for one in several]
    whole = made.prepared(METHODS[method], 1)
    for one in prepared:
        evaluated = texts_of_splits(s for p in whole if p.task != one.task for s in p.splits[1:])
        trained = {letters(text) for given in one.train.examples.inputs for text in given}
        assert not trained & evaluated, one.task.name
    assert made.study.rows[0]["dropped"] > 0


def test_other_scales_methods_and_samplings_are_other_rows(runs):
    several = {
        runs.settings(METHODS["pals"], "annealed"),
        runs.settings(METHODS["low-rank"], "annealed"),
        runs.settings(METHODS["pals"], "square-root"),
    }
    runs.scale = msgspec.structs.replace(SCALE, rows=17)
    assert len(several | {runs.settings(METHODS["pals"], "annealed")}) == 4
    assert [one.task for one in ON_QUESTIONS.sets] == ["squad", "socialiqa"]


def test_other_data_gives_other_rows(tmp_path):
    found = []
    for leaking in (False, True, False):
        data = write_sets(tmp_path / f"data-{len(found)}", leaking=leaking)
        made = Runs(data, tmp_path, Study(tmp_path / "r.jsonl"), scale=SCALE, trunk=tiny_trunk())
        found.append(made.settings(METHODS["pals"], "annealed"))
    assert found[0] == found[2] != found[1]


def test_the_study_has_its_methods_and_samplings_for_three_seeds():
    from studies.stickland2019 import run as study

    main = study.jobs_of("main", study.MAIN_SEEDS)
    assert len(main) == 30 and len({(j.method.name, j.sampling, j.seed) for j in main}) == 30
    assert {(j.method.name, j.sampling) for j in main if j.sampling != "annealed"} == {
        ("single", "alone"),
        *((method, sampling) for method in ("shared", "pals") for sampling in ("proportional", "square-root")),
    }
    both = {job.method.name for name in ("main", "ablation") for job in study.jobs_of(name, study.MAIN_SEEDS)}
    assert both == set(METHODS)
    assert {job.scale for job in study.jobs_of("questions", [1])} == {ON_QUESTIONS}
    asked = study.chosen(["scale"], ["annealed", "round-robin"], [1, 2])
    assert [(j.method.name, j.sampling, j.seed) for j in asked][:2] == [
        ("scale", "annealed", 1),
        ("scale", "round-robin", 1),
    ]
    with pytest.raises(SystemExit, match="no such method"):
        study.chosen(["scales"], ["annealed"], [1])


def test_means_have_their_spread_and_the_claim_waits_for_all_main_methods(monkeypatch):
    from studies.stickland2019 import run as study

    found = rows_of(rows())
    pals = [m for m in study.means(found) if (m["method"], m["sampling"]) == ("pals", "round-robin")]
    assert [(m["split"], m["mean"], m["standard_error"], m["seeds"]) for m in pals] == [
        ("validation", 67.5, 0.577, len(SPREAD)),
        ("test", 62.5, 0.577, len(SPREAD)),
    ]
    assert {m["above_pals_mean"] for m in pals} == {-4.0}
    assert not [claim for claim in claims(rows()) if claim.id == ID]
    monkeypatch.setattr("studies.stickland2019.claims.MAIN", [METHODS[name] for name in RATIO])
    (claim,) = (claim for claim in claims(rows()) if claim.id == ID)
    assert (claim.value, claim.holds) == (max(RATIO.values()), True)
    two = [{**row, "ratio": 9.0, "method": "pals"} for row in questions()]  # what two other tasks cost
    assert claim in claims([*rows(), *two])


def test_the_papers_formulas_are_what_is_counted_for_any_number_of_tasks():
    from benchmarks import conditioning_costs as costs
    from polyhead.plan import cost, merge
    from polyhead.tasks.task import Task

    assert len(costs.WAYS) == 18
    for way in costs.WAYS:
        for tasks, tokens in ((1, 9), (3, 40)):
            named = [Task(name=f"t{n}", kind="single_label", labels=("a", "b")) for n in range(tasks)]
            plan = merge(costs.paths_of([(task, way.strategy(n)) for n, task in enumerate(named)], "trunk"))
            counted, formula = cost.cost_of(plan, costs.BERT_BASE, tokens), way.counted(tasks, tokens)
            assert counted.layer_evaluations == formula.layers, way.name
            assert counted.flops == formula.flops + tasks * costs.HEAD, way.name
