"""Tasks whose paths diverge run side by side: the same answers, layers counted once for each that differs."""

import msgspec
import pytest
import torch

from polyhead import plan
from polyhead.deep import model as running
from polyhead.errors import PlanError
from polyhead.plan import TRUNK, Embed, Layers, Path, Pool, cost, merge
from polyhead.plan.passes import legs, passes_of
from polyhead.project.strategies import Adapter, Branch, InLayer, OnTop, Pooled, Prompted
from polyhead.testing import tiny_path, tiny_tasks, tiny_trunk
from support.models import answers, model_of, numbered, paths_of, texts_of

PAL = InLayer(adapters=(Adapter(size=6, heads=2),))
UPPER = InLayer(adapters=(Adapter(size=6, heads=2, start=1),))
LOW = InLayer(adapters=(Adapter(delta="low_rank", size=3),), positions="mean")
PREFIX = InLayer(adapters=(Adapter(delta="prefix", size=2),))
BARE = Pooled(layers="last", positions="first", codec="float32")
STRATEGIES = {
    "in every layer": [PAL],
    "in the upper layer": [UPPER],
    "on top": [OnTop(width=8, heads=2, layers=1)],
    "branches": [Branch(layers=1)],
    "isolated prompts": [Prompted(isolated=True)],
    "one group": [Prompted()],
    "all together": [PAL, LOW, UPPER, PREFIX, BARE, OnTop(form="layer"), Prompted(), Prompted(isolated=True)],
}


@pytest.fixture(scope="module")
def trunk():
    return tiny_trunk()


@pytest.fixture(scope="module")
def texts(trunk):
    return texts_of(trunk)[1]


def mixed(trunk, strategies, count):
    """As many tasks, the strategies in turn."""
    tasks = numbered(count)
    return paths_of(trunk, [strategies[i % len(strategies)] for i in range(count)], *tasks)


def each_alone(model, paths, texts):
    """Every task's outputs from a run of its own."""
    return {name: answers(model, {name: path}, texts)[name] for name, path in paths.items()}


@pytest.mark.parametrize("count", [1, 8, 21])
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_stacked_run_is_every_run_alone_and_counts_what_cost_counts(trunk, texts, name, count):
    paths = mixed(trunk, STRATEGIES[name], count)
    model = model_of(trunk, paths, stacked=True)
    together = answers(model, paths, texts)
    assert model.layers_run == cost.layer_evaluations(merge(paths))
    one_by_one = model_of(trunk, paths)
    for task, value in answers(one_by_one, paths, texts).items():
        torch.testing.assert_close(together[task], value, atol=2e-5, rtol=0)
    assert one_by_one.layers_run == model.layers_run


@pytest.mark.parametrize("name", STRATEGIES)
def test_without_stacks_no_other_task_changes_a_bit(trunk, texts, name):
    """But for a joint prompt group, which is one unit."""
    paths = mixed(trunk, STRATEGIES[name], 12)
    model = model_of(trunk, paths)
    together, alone = answers(model, paths, texts), each_alone(model, paths, texts)
    assert all(torch.equal(together[task], value) for task, value in alone.items())


def passes(model, paths, texts):
    """How many rows each call of each of the trunk's layers reads."""
    rows = []
    for layer in model.trunk.layers:
        layer.register_forward_hook(lambda module, given, out: rows.append(len(given[0])))
    answers(model, paths, texts)
    return rows


def test_divergent_tasks_are_one_pass_over_their_rows_from_where_they_part(trunk, texts):
    rows = len(texts.ids)
    every, upper = mixed(trunk, [PAL], 8), mixed(trunk, [UPPER], 8)
    assert passes(model_of(trunk, every, stacked=True), every, texts) == [8 * rows] * 2
    assert passes(model_of(trunk, upper, stacked=True), upper, texts) == [rows, 8 * rows]
    assert passes(model_of(trunk, every), every, texts) == [rows] * 16


def test_one_prompted_pass_a_task_runs_side_by_side_too(trunk, texts):
    """Groups of one task: other inputs, the same layers and no delta."""
    tasks = numbered(5)
    paths = paths_of(trunk, [Prompted(group=task.name) for task in tasks], *tasks)
    model = model_of(trunk, paths, stacked=True)
    assert passes(model, paths, texts) == [5 * len(texts.ids)] * 2
    assert model.layers_run == 10 == cost.layer_evaluations(merge(paths))


def test_a_long_stack_is_run_in_pieces(trunk, texts, monkeypatch):
    rows, tokens = texts.ids.shape
    paths = mixed(trunk, [PAL, LOW], 7)
    whole = answers(model_of(trunk, paths, stacked=True), paths, texts)
    monkeypatch.setattr(running, "SIDE_BY_SIDE", 3 * rows * tokens)
    pieces = model_of(trunk, paths, stacked=True)
    assert passes(pieces, paths, texts) == [3 * rows] * 2 * 2 + [rows] * 2
    again = answers(pieces, paths, texts)
    for name, value in whole.items():
        torch.testing.assert_close(again[name], value, atol=2e-5, rtol=0)


def test_other_tasks_in_the_next_call_are_other_stacks(trunk, texts):
    paths = mixed(trunk, [PAL], 6)
    model = model_of(trunk, paths, stacked=True)
    whole = answers(model, paths, texts)
    for names in (("t0", "t3"), ("t3", "t0"), ("t4", "t5"), tuple(paths)):
        for name, value in answers(model, {name: paths[name] for name in names}, texts).items():
            torch.testing.assert_close(value, whole[name], atol=2e-5, rtol=0)


def test_a_stack_of_first_positions_is_that_of_whole_layers(trunk, texts):
    paths = mixed(trunk, STRATEGIES["all together"], 16)
    narrow, whole = (answers(model_of(trunk, paths, stacked=True, narrow=on), paths, texts) for on in (True, False))
    for name, value in whole.items():
        torch.testing.assert_close(narrow[name], value, atol=2e-5, rtol=0)


def test_steps_that_run_together_follow_those_that_they_read(trunk):
    merged = merge(mixed(trunk, STRATEGIES["all together"], 16))
    seen = []
    for stage in running.stages(merged, together=True):
        nodes = [merged.steps[index].node for index in stage]
        assert all(merged.steps[index].parent in (*seen, -1) for index in stage)
        assert len(stage) == 1 or {(n.start, n.stop, n.weights) for n in nodes} == {
            (nodes[0].start, nodes[0].stop, TRUNK)
        }
        seen += stage
    walked = [i for i, step in enumerate(merged.steps) if isinstance(step.node, (Embed, Layers))]
    assert sorted(seen) == walked
    assert [[index] for index in walked] == list(running.stages(merged, together=False))


@pytest.mark.parametrize("together", [True, False])
def test_legs_run_every_step_once_and_know_every_task_once(trunk, together):
    merged = merge(mixed(trunk, STRATEGIES["all together"], 16))
    found = legs(merged, together=together)
    assert sorted(task for leg in found for task in leg.tasks) == sorted(merged.tasks)
    assert sum(leg.layers for leg in found) == cost.layer_evaluations(merged)
    apart = passes_of(merged).plan
    seen = []
    for group in (group for leg in found for group in leg.groups):
        assert all(apart.steps[index].parent in (*seen, -1) for index in group)
        seen += group
    assert sorted(seen) == [i for i, s in enumerate(apart.steps) if isinstance(s.node, (Embed, Layers))]


def test_legs_are_the_fewest_layers_first():
    """Six layers: plain tasks pooled after 2 and 4, a branch of one layer over 1, a task of all six."""
    trunk = tiny_trunk(layers=6)
    branch = paths_of(trunk, [Branch(layers=5)], "mood")["mood"]
    own = (Layers(start=0, stop=1), *(msgspec.structs.replace(n, start=1, stop=2) for n in branch.nodes[2:3]))
    low, high, whole = (cut(trunk, name, stop) for name, stop in (("low", 2), ("high", 4), ("whole", 6)))
    paths = {"whole": whole, "high": high, "mood": Path(nodes=(*branch.nodes[:1], *own, *branch.nodes[3:]))}
    found = legs(merge({**paths, "low": low}), together=True)
    assert [(leg.tasks, leg.layers) for leg in found] == [
        (("mood",), 2),
        (("low",), 1),
        (("high",), 2),
        (("whole",), 2),
    ]


def test_many_adapters_that_others_cut_into_pieces_are_as_many_legs():
    """Each group was looked up anew by every way that leads to it: eight adapters and five taps took for ever."""
    trunk = tiny_trunk(layers=6)
    paths = paths_of(trunk, [PAL] * 8, *numbered(8)) | {
        f"p{stop}": cut(trunk, f"p{stop}", stop) for stop in range(1, 6)
    }
    merged = merge(paths)
    found = legs(merged, together=True)
    assert [leg.tasks for leg in found[:5]] == [(f"p{stop}",) for stop in range(1, 6)]
    assert len(found) == 6 and sum(leg.layers for leg in found) == cost.layer_evaluations(merged) == 5 + 8 * 6


def cut(trunk, name, stop):
    """A plain path that reads the states after so many layers."""
    return tiny_path(msgspec.structs.replace(tiny_tasks()[0], name=name), trunk, pool=Pool(positions="mean"), stop=stop)


def test_a_plan_of_some_tasks_reads_their_owners_alone(trunk, texts):
    """A task's arrays may be missing where nobody asks for it."""
    paths = mixed(trunk, [PAL, Prompted(isolated=True)], 4)
    model = model_of(trunk, {name: paths[name] for name in ("t0", "t1")}, stacked=True)
    assert set(answers(model, {"t0": paths["t0"], "t1": paths["t1"]}, texts)) == {"t0", "t1"}
    for name in ("t2", "t3"):
        with pytest.raises(PlanError, match="no part here owns"):
            model.stored(plan.merge({name: paths[name]}), texts)
