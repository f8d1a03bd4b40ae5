"""The study's runs with made-up headlines and a tiny trunk: rows that the tables read, each made once."""

import gzip
import shutil

import msgspec
import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from polyhead.deep.examples import module_outputs
from polyhead.deep.model import TextBatch
from polyhead.deep.nn import runtime as numerics
from polyhead.deep.nn.trunk import Trunk
from polyhead.deep.recipes.joint_loop import frequent_tokens, joint_scores, text_examples
from polyhead.plan import merge
from polyhead.plan.cost import layer_evaluations, parameters
from polyhead.project.recipes import Training
from polyhead.testing import tiny_trunk
from studies.huang2022.ca_mtl import Conditional, flops_of
from studies.huang2022.methods import (
    ABLATION,
    DONORS,
    GRID,
    ISOLATED,
    MAIN,
    METHODS,
    MTOP,
    NO_STOP,
    POOLED,
    PREFIX_RATE,
    PRIVATE_POOLERS,
    SHARED_POOLER,
    SINGLE,
)
from studies.huang2022.prefixes import start_at_tokens
from studies.huang2022.runs import MAX_TOKENS, Runs, Scale, _from_random, _scores
from studies.huang2022.study import missing, rows_of
from studies.huang2022.tables import table1
from studies.results import Study
from studies.tests.headlines import write_sets

TASKS = ("politics", "travel")
QUICK = Training(epochs=1, patience=1, batch=8, learning_rate=1e-3, precision="float32")
SCALE = Scale(tasks=TASKS, size=10, test_rows=40, trunk=QUICK, prompts=QUICK, heads=QUICK)


def quick(method):
    """The same method, donors trained for one epoch."""
    if "donors" not in (getattr(method.strategy, "init", ""), getattr(method.strategy, "pooler_init", "")):
        return method
    return msgspec.structs.replace(method, strategy=msgspec.structs.replace(method.strategy, donor_epochs=1))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_sets(tmp_path_factory.mktemp("data"))


@pytest.fixture
def runs(data, tmp_path):
    study = Study(tmp_path / "rows.jsonl")
    return Runs(data, tmp_path / "rows", study, scale=SCALE, trunk=tiny_trunk(max_tokens=MAX_TOKENS))


def test_every_method_makes_rows_that_the_tables_read(runs):
    for method in MAIN:
        runs.run(quick(method), 1)
    rows = rows_of(runs.study.rows)
    assert len(rows) == len(MAIN) * len(TASKS)
    names = [method.name for method in MAIN]
    assert missing(rows, names, seeds=[1]) == ()
    assert missing(rows, names) == tuple(f"1 of 5 seeds of {method.title}" for method in MAIN)
    assert all(0 <= getattr(row, name) <= 1 for row in rows for name in ("validation", "test", "recall"))
    assert [line.seeds for line in table1(rows).lines] == [1] * len(MAIN)
    before = list(runs.study.rows)
    for method in MAIN:
        runs.run(quick(method), 1)
    assert runs.study.rows == before


def test_what_a_method_costs_is_what_its_plan_costs(runs):
    """Two tasks on two layers: one pass where the encoder runs once for both, else two."""
    shape, passes = runs.plain.architecture, {"single": 2, "p-tuning": 2, "p-tuning-v2": 2, "ca-mtl": 2}
    for method in MAIN:
        costs = runs.costs(method)
        assert costs["passes"] == passes.get(method.name, 1), method.name
        assert costs["layers"] == shape.layers * costs["passes"]
    trunk = sum(array.size for array in runs.plain.arrays.values())
    width = shape.width
    head = width**2 + width + 2 * width + 2
    assert runs.costs(SINGLE)["parameters"] == 2 * (trunk + head)
    assert runs.costs(SHARED_POOLER)["parameters"] == trunk + width**2 + width + 2 * (2 * width + 2)
    assert runs.costs(MTOP)["parameters"] == trunk + 2 * (head - 2 + 2 * width)
    plan = merge(runs.paths(ISOLATED))
    assert (runs.costs(ISOLATED)["layers"], runs.costs(ISOLATED)["parameters"]) == (
        layer_evaluations(plan),
        parameters(plan, shape),
    )


def test_flops_are_those_of_the_plan_and_of_the_conditions_that_torch_counts(runs):
    """A trunk a task is as many passes; CA-MTL adds to each of its passes what torch counts beyond a plain one."""
    shape, several = runs.plain.architecture, len(TASKS)
    heads = 2 * shape.width**2 + 2 * shape.width * 2
    trunk, tokens = Trunk.from_data(runs.plain).eval(), 15
    made = Conditional(TASKS, shape, tokens=MAX_TOKENS, generator=torch.Generator().manual_seed(1)).eval()
    ids = torch.ones(1, tokens, dtype=torch.int64)
    batch = TextBatch(ids=ids, mask=ids.bool(), segments=torch.zeros_like(ids))
    with torch.no_grad(), FlopCounterMode(display=False) as with_conditions:
        made(trunk, TASKS[0], batch)
    row = 8 * shape.width**2 + 4 * shape.width * shape.feed_forward
    layer = row * tokens + 4 * tokens**2 * shape.width
    added = with_conditions.get_total_flops() - shape.layers * layer
    assert flops_of(shape, tokens) == added
    plain = shape.layers * layer
    assert runs.costs(SINGLE)["over_plain"] == pytest.approx(several * (1 + heads / plain), abs=1e-3)
    ca_mtl = next(method for method in MAIN if method.name == "ca-mtl")
    ends = several * heads / plain
    assert runs.costs(ca_mtl)["over_plain"] == pytest.approx(several * (1 + added / plain) + ends, abs=2e-3)


def test_prefixes_learn_at_their_own_rate_and_all_else_at_the_trunks(runs):
    method = METHODS["p-tuning-v2"]
    loop = runs._loop(method, [runs.prepared(method, task, 1) for task in TASKS], runs.folder / "none.checkpoint")
    names = [name for name, _ in loop.loss.named_parameters()]
    fast = {name for name in names if loop.rate(name) * QUICK.learning_rate == pytest.approx(PREFIX_RATE)}
    layers = range(runs.plain.architecture.layers)
    assert fast == {
        f"model.model.part_{task}.delta.{layer}.{one}"
        for task in range(len(TASKS))
        for layer in layers
        for one in ("key", "value")
    }
    assert {loop.rate(name) for name in names if name not in fast} == {1.0}


def test_prefixes_start_as_what_the_trunk_has_for_frequent_tokens(runs):
    """Attention to a prefix is then attention to these tokens: the trunk reads them before a text as it would there."""
    loop = runs._loop(
        METHODS["p-tuning-v2"],
        [runs.prepared(METHODS["p-tuning-v2"], task, 1) for task in TASKS],
        runs.folder / "none.checkpoint",
    )
    start_at_tokens(loop)
    trunk, width = Trunk.from_data(runs.plain), runs.plain.architecture.width
    for task, prepared in loop.prepared.items():
        tokens = torch.tensor(frequent_tokens(prepared, loop.tokenizer, 8))
        known = {int(t) for e in loop.tokenizer.encode(prepared.train.examples.inputs) for t in e.ids}
        assert set(tokens.tolist()) <= known
        states = trunk(tokens[None], torch.ones(1, 8, dtype=torch.bool))
        for index, layer in enumerate(trunk.layers):
            own = loop.module.model.parts[task].delta.get_submodule(str(index))
            for name in ("key", "value"):
                dense = getattr(layer.attention, name)
                expected = states.layer(index)[0] @ dense.weight.T + dense.bias
                assert getattr(own, name).shape == (8, width)
                np.testing.assert_allclose(getattr(own, name).detach(), expected.detach(), atol=1e-5)


def test_a_frozen_method_leaves_the_trunk_alone_and_others_learn_it(runs):
    before = runs.plain.digest
    for method in (ISOLATED, POOLED):
        runs.run(method, 1)
        assert runs.study.rows[-1]["learned"] == "no trunk"
    assert runs.plain.digest == before
    runs.run(quick(MTOP), 1)
    assert runs.study.rows[-1]["learned"] == "one trunk"


def test_donors_are_trained_once_for_all_methods_and_give_what_the_method_takes(runs):
    taken = {}
    for name in ("mtop", "donors-random", "random-donors"):
        method = quick(METHODS[name])
        prepared = [runs.prepared(method, task, 1) for task in TASKS]
        loop = runs._loop(method, prepared, runs.folder / "none.checkpoint")
        start = {k: v.clone() for k, v in loop.module.model.parts["travel"].state_dict().items()}
        runs._start(loop, method)
        now = loop.module.model.parts["travel"].state_dict()
        taken[name] = {k for k, v in now.items() if not torch.equal(v, start[k])}
    assert taken == {
        "mtop": {"prompt.weight", "head.hidden.weight", "head.hidden.bias"},
        "donors-random": {"prompt.weight"},
        "random-donors": {"head.hidden.weight", "head.hidden.bias"},
    }
    assert len(list((runs.folder / "donors").iterdir())) == len(TASKS)


def test_a_run_that_was_stopped_after_its_training_does_not_train_again(runs, monkeypatch):
    runs.run(SHARED_POOLER, 1)
    del runs.study.rows[-1]
    monkeypatch.setattr(Runs, "_learn", lambda *given: pytest.fail("it was trained again"))
    runs.run(SHARED_POOLER, 1)
    assert {row.task for row in rows_of(runs.study.rows)} == set(TASKS)


@pytest.mark.parametrize("name", ["shared-pooler", "p-tuning", "ca-mtl", "mtop", "isolated-joint"])
def test_texts_that_are_read_once_for_all_tasks_score_as_those_that_each_task_reads(runs, name):
    method = quick(METHODS[name])
    prepared = [runs.prepared(method, task, 1) for task in TASKS]
    loop = runs._loop(method, [_from_random(p) for p in prepared], runs.folder / "none.checkpoint")
    loop.learn()
    found = _scores(loop, prepared)
    for p in prepared:
        for split, scores in joint_scores(loop, p).items():
            assert found[p.task.name][split] == pytest.approx(scores)
    alone = module_outputs(
        loop.module.bound("travel"), text_examples(prepared[1].test.examples, prepared[1].task, loop.tokenizer)
    )
    both = module_outputs(
        loop.module.bound(*TASKS), text_examples(prepared[0].test.examples, prepared[0].task, loop.tokenizer)
    )
    np.testing.assert_allclose(np.stack(both)[:, 2:], np.stack(alone), atol=1e-5)


def test_other_headlines_give_other_files_rows_and_donors(data, tmp_path):
    several = shutil.copytree(data, tmp_path / "data")
    made = []
    for _ in range(2):
        runs = Runs(several, tmp_path / "rows", Study(tmp_path / "r.jsonl"), scale=SCALE, trunk=tiny_trunk())
        runs.run(quick(MTOP), 1)
        made.append(
            (
                runs._files,
                runs.settings(MTOP),
                len(runs.study.rows),
                len(list((tmp_path / "rows" / "donors").iterdir())),
            )
        )
        file = several / "huffpost41" / "train.jsonl.gz"
        lines = gzip.decompress(file.read_bytes()).decode().splitlines()
        file.write_bytes(gzip.compress("\n".join(line.replace("travel ", "travels ") for line in lines).encode()))
    (files, settings, rows, donors), other = made
    assert files != other[0] and settings != other[1] and other[2:] == (2 * rows, 2 * donors)
    assert {p.name for p in files.iterdir()} == {p.name for p in other[0].iterdir()}


def test_the_device_that_computes_is_asked_for_its_precision(data, tmp_path, monkeypatch):
    monkeypatch.setattr(numerics, "has_native_bfloat16", lambda device: device == "cuda")
    scale = msgspec.structs.replace(SCALE, trunk=Training(), prompts=Training(), heads=Training())
    named = {"scale": scale, "trunk": tiny_trunk(), "device": "cuda"}
    runs = Runs(data, tmp_path, Study(tmp_path / "r.jsonl"), **named)
    assert [runs.precision(m) for m in (MTOP, ISOLATED, POOLED)] == ["bfloat16", "bfloat16", "float32"]
    here = Runs(data, tmp_path, Study(tmp_path / "r.jsonl"), **{**named, "device": "cpu"})
    assert here.precision(MTOP) == "float32" and here.settings(MTOP) != runs.settings(MTOP)
    assert here.settings(POOLED) == runs.settings(POOLED)


def test_the_ablation_changes_one_thing_at_a_time():
    assert {n: (m.strategy.init, m.strategy.pooler_init) for n, m in ABLATION.items() if n > 1} == {
        2: ("random", "random"),
        3: ("frequent", "random"),
        4: ("donors", "random"),
        5: ("random", "donors"),
        6: ("donors", "donors"),
        7: ("donors", "donors"),
    }
    assert NO_STOP.strategy == msgspec.structs.replace(DONORS, stop_gradient=False)
    assert all(method.strategy.stop_gradient for number, method in ABLATION.items() if number not in (0, 1, 6))
    as_shared = msgspec.structs.replace(PRIVATE_POOLERS, shared_pooler=True)
    assert as_shared == msgspec.structs.replace(SHARED_POOLER, name=as_shared.name, title=as_shared.title)
    assert {(m.strategy.rows, m.strategy.shared) for m in GRID.values()} == set(GRID)
    assert len({method.name for method in MAIN}) == len(MAIN) == 10


def test_two_parts_of_the_study_have_every_run_once_and_half_of_the_work_each(monkeypatch):
    from studies.huang2022 import run as study

    for names, most in ((study.JOBS, 0.15), (("main", "ablation"), 0.15)):
        jobs = study.jobs_of(names, study.MAIN_SEEDS)
        both = [[one for job in jobs[part::2] for one in job] for part in (0, 1)]
        runs = [(method.name, seed) for part in both for method, seed in part]
        assert {(m.name, s) for m in MAIN for s in range(1, 6)} <= set(runs)
        assert {(ABLATION[n].name, s) for n in (0, *range(2, 8)) for s in (1, 2, 3)} <= set(runs)
        seeds = [{seed for method, seed in part if method not in GRID.values()} for part in both]
        assert not seeds[0] & seeds[1]  # methods of one seed share donors, which lie beside the rows
        learning = [sum(method.way != "frozen" for method, _ in part) for part in both]
        assert abs(learning[0] - learning[1]) <= most * sum(learning), learning
    assert [m for job in study.jobs_of(["main"], [2]) for m in job] == [(m, 2) for m in MAIN]
