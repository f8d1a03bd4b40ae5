"""Layers that differ in their arrays alone run as one graph, and give what each gives alone."""

import msgspec
import numpy as np
import pytest

from polyhead import plan
from polyhead.engine.backends.graph import GraphBackend
from polyhead.engine.backends.reference import ReferenceBackend
from polyhead.engine.compile import program
from polyhead.engine.compile.arrangement import LANES
from polyhead.plan import Embed, Head, Layers, Path, Pool, Prompt, cost
from polyhead.testing import tiny_batch, tiny_owned, tiny_trunk
from polyhead.testing.tiny import delta_path, on_top_path, prompted_path, tiny_deltas
from support.numpy_graphs import NumpyRuntime

TRUNK = tiny_trunk(max_tokens=24)
BATCH = tiny_batch(TRUNK, (7, 3, 1, 5))
FORMS = list(tiny_deltas("task:x"))


def branch(name, tap, *, heads=None):
    own = Layers(start=tap, stop=3, weights=f"task:{name}", heads=heads)
    shared = (Layers(start=0, stop=tap),) if tap else ()
    head = Head(kind="single_label", width=3, part=f"task:{name}")
    return Path(nodes=(Embed(trunk=TRUNK.digest), *shared, own, Pool(positions="mean"), head))


def apart(name, rows=2):
    return prompted_path(TRUNK, name, [Prompt(part=f"task:{name}", rows=rows)], isolated=True)


def joint(names):
    prompts = [Prompt(part="family:prompts:all", rows=1)]
    prompts += [Prompt(part=f"task:{name}", rows=1 + i % 3) for i, name in enumerate(names)]
    return {name: prompted_path(TRUNK, name, prompts) for name in names}


def siblings(make, count):
    return {f"t{i}": make(f"t{i}") for i in range(count)}


def in_layers(form):
    return lambda name: delta_path(TRUNK, name, *[tiny_deltas(f"task:{name}")[form]] * 2)


SETS = {
    **{form: siblings(in_layers(form), 3) for form in FORMS},
    "branches": siblings(lambda name: branch(name, 1), LANES + 3),
    "branches without shared layers": siblings(lambda name: branch(name, 0, heads=4), 2),
    "on top": siblings(lambda n: on_top_path(TRUNK, n, Layers(start=2, stop=3, width=8, enter=True, leave=True)), 3),
    "isolated": siblings(apart, 4),
    "joint": joint(["a", "b", "c", "d"]),
    "some layers": siblings(lambda n: delta_path(TRUNK, n, None, tiny_deltas(f"task:{n}")["low-rank"]), 3),
    "cut by another's": {
        **siblings(in_layers("bottleneck"), 2),
        "low": branch("low", 1),
        "plain": delta_path(TRUNK, "plain", None, None),
    },
    "unlike": {form: delta_path(TRUNK, form, *[tiny_deltas(f"task:{form}")[form]] * 2) for form in FORMS},
    "all": {
        **siblings(in_layers("lora-everywhere"), 2),
        **{f"b{i}": branch(f"b{i}", i % 2) for i in range(5)},
        **{f"a{i}": apart(f"a{i}", 1 + i) for i in range(3)},
        **joint(["j", "k"]),
        "plain": delta_path(TRUNK, "plain", None, None),
    },
}


def backend_of(paths, **settings):
    runtime = NumpyRuntime()
    return GraphBackend(runtime, TRUNK, tiny_owned(paths, TRUNK.architecture), **settings), runtime


def assert_near(found, wanted, *, atol=2e-5):
    assert set(found) == set(wanted)
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values, atol=atol, err_msg=name)


@pytest.mark.parametrize("deterministic", [False, True], ids=["stacked", "deterministic"])
@pytest.mark.parametrize("name", SETS)
def test_siblings_give_what_the_reference_gives_and_count_their_layers(name, deterministic):
    paths = SETS[name]
    backend, _ = backend_of(paths, deterministic=deterministic)
    merged = plan.merge(paths)
    wanted = ReferenceBackend(TRUNK, tiny_owned(paths, TRUNK.architecture)).run(merged, BATCH)
    assert_near(backend.run(merged, BATCH), wanted)
    assert backend.layers_run == cost.layer_evaluations(merged)


@pytest.mark.parametrize("name", SETS)
def test_some_of_the_siblings_run_the_layers_of_these_alone(name):
    paths = SETS[name]
    backend, runtime = backend_of(paths)
    whole = backend.run(plan.merge(paths), BATCH)
    for asked in (list(paths)[:1], list(paths)[1:]):
        before = backend.layers_run
        some = plan.merge({one: paths[one] for one in asked})
        assert_near(backend.run(some, BATCH), {one: whole[one] for one in some.tasks})
        assert backend.layers_run - before == cost.layer_evaluations(some)


def calls_of(runtime, backend, paths):
    runtime.calls.clear()
    backend.run(plan.merge(paths), BATCH)
    return [label for label in runtime.calls if label.startswith("layers")]


@pytest.mark.parametrize("form", FORMS)
def test_alike_deltas_are_one_call(form):
    paths = SETS[form]
    backend, runtime = backend_of(paths)
    assert len(calls_of(runtime, backend, paths)) == 1
    backend, runtime = backend_of(paths, deterministic=True)
    assert len(calls_of(runtime, backend, paths)) == cost.layer_evaluations(plan.merge(paths))


def test_many_branches_stand_in_groups_that_are_called_where_all_of_one_are_asked():
    paths = SETS["branches"]
    backend, runtime = backend_of(paths)
    shared, *own = calls_of(runtime, backend, paths)
    assert shared == "layers 0 to 0 of trunk" and len(own) == 2
    most = {name: path for name, path in paths.items() if name != "t0"}
    assert len(calls_of(runtime, backend, most)) == 1 + (LANES - 1) + 1


def test_isolated_prompts_stand_before_one_text_and_joint_ones_before_another():
    paths = {**SETS["isolated"], **SETS["joint"], "plain": delta_path(TRUNK, "plain", None, None)}
    backend, runtime = backend_of(paths)
    assert len(calls_of(runtime, backend, paths)) == 2
    heads = [label for label in runtime.calls if label.startswith("poolers")]
    assert len(heads) == 3, "own rows of a group's tasks are read at once"


def test_a_branch_whose_layers_have_another_shape_runs_alone():
    paths = {"a": branch("a", 1), "b": branch("b", 1), "c": branch("c", 1, heads=4)}
    backend, runtime = backend_of(paths)
    assert len(calls_of(runtime, backend, paths)) == 1 + 2


def test_graphs_of_rare_combinations_are_forgotten(monkeypatch):
    monkeypatch.setattr(program, "RARE", 2)
    paths = SETS["branches"]
    backend, runtime = backend_of(paths)
    whole = backend.run(plan.merge(paths), BATCH)

    def ask(name):
        runtime.compiled.clear()
        found = backend.run(plan.merge({name: paths[name]}), BATCH)
        assert_near(found, {name: whole[name]})
        return len(runtime.compiled)

    assert [ask(name) for name in ("t0", "t1", "t0", "t2", "t0", "t1")] == [1, 1, 0, 1, 0, 1]
    runtime.compiled.clear()
    backend.run(plan.merge(paths), BATCH)
    assert not runtime.compiled, "what all tasks need is never forgotten"


def test_groups_are_one_graph_whichever_of_their_tasks_are_asked():
    paths = siblings(lambda name: branch(name, 1), 3)
    pooled = {f"p{i}": msgspec.structs.replace(delta_path(TRUNK, f"p{i}", None, None)) for i in range(5)}
    backend, runtime = backend_of({**paths, **pooled})
    backend.run(plan.merge({**paths, **pooled}), BATCH)
    runtime.compiled.clear()
    for name in pooled:
        backend.run(plan.merge({name: pooled[name]}), BATCH)
    assert not runtime.compiled
