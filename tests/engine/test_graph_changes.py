"""Tasks come and go while a backend runs: only what is new is compiled, and no call ever sees half a change."""

import gc
import threading
import weakref

import msgspec
import numpy as np
import pytest

from polyhead import plan
from polyhead.engine.backends.base import ChangingBackend
from polyhead.engine.backends.graph import GraphBackend
from polyhead.engine.backends.reference import ReferenceBackend
from polyhead.engine.compile import groups
from polyhead.errors import BackendError
from polyhead.plan import Embed, Head, Layers, Path, Pool, Prompt
from polyhead.testing import tiny_batch, tiny_owned, tiny_trunk
from polyhead.testing.tiny import delta_path, prompted_path, tiny_deltas
from support.numpy_graphs import NumpyRuntime

TRUNK = tiny_trunk(max_tokens=24)
BATCH = tiny_batch(TRUNK, (7, 3, 5))


def pooled(name, *, stop=2, positions="attention", labels=3, hidden=8, separate=False):
    part = f"task:{name}"
    own = {"heads": 2, "part": part} if positions == "attention" else {}
    head = Head(kind="single_label", width=labels, part=part, hidden=hidden, separate=separate)
    layers = Layers(start=0, stop=stop)
    return Path(nodes=(Embed(trunk=TRUNK.digest), layers, Pool(positions=positions, **own), head))


def branch(name, tap):
    head = Head(kind="single_label", width=3, part=f"task:{name}")
    own = Layers(start=tap, stop=2, weights=f"task:{name}")
    return Path(nodes=(Embed(trunk=TRUNK.digest), Layers(start=0, stop=tap), own, Pool(), head))


def loaded(paths):
    return tiny_owned(paths, TRUNK.architecture)


def changed(task):
    """The same path with other arrays."""
    return msgspec.structs.replace(task, arrays={name: array + 0.25 for name, array in task.arrays.items()})


def running(paths, **settings):
    """A backend of these tasks that has answered all of them once."""
    runtime = NumpyRuntime()
    backend = GraphBackend(runtime, TRUNK, loaded(paths), **settings)
    backend.run(plan.merge(paths), BATCH)
    runtime.compiled.clear()
    return backend, runtime


def attach(backend, name, task):
    """One more task, or another in the place of its namesake."""
    backend.replace({**backend._loaded.arranged.tasks, name: task})


def detach(backend, name):
    backend.replace({other: task for other, task in backend._loaded.arranged.tasks.items() if other != name})


def assert_right(backend, tasks):
    """Each task is answered as the reference answers it."""
    merged = plan.merge({name: task.path for name, task in tasks.items()})
    wanted, found = ReferenceBackend(TRUNK, tasks).run(merged, BATCH), backend.run(merged, BATCH)
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values, atol=2e-5, err_msg=name)


MANY = {f"t{i}": pooled(f"t{i}") for i in range(50)}
KINDS = {
    "pooled": pooled("new"),
    "another form": pooled("new", positions="first", labels=20),
    "branch": branch("new", 1),
    "in the layers": delta_path(TRUNK, "new", *[tiny_deltas("task:new")["lora"]] * 2),
    "isolated prompt": prompted_path(TRUNK, "new", [Prompt(part="task:new", rows=2)], isolated=True),
    "joint prompt": prompted_path(TRUNK, "new", [Prompt(part="task:new", rows=2)]),
}


def test_it_says_that_its_tasks_change():
    assert isinstance(running({"a": pooled("a")})[0], ChangingBackend)


@pytest.mark.parametrize("deterministic", [False, True], ids=["grouped", "deterministic"])
def test_a_pooled_task_beside_fifty_compiles_its_group_alone(deterministic):
    backend, runtime = running(MANY, deterministic=deterministic)
    tasks = loaded({**MANY, "new": pooled("new")})
    attach(backend, "new", tasks["new"])
    assert len(runtime.compiled) == 1 and runtime.compiled[0].endswith(", new")
    assert_right(backend, tasks)
    assert len(runtime.compiled) == 1, "what was attached is ready"


@pytest.mark.parametrize("deterministic", [False, True], ids=["grouped", "deterministic"])
@pytest.mark.parametrize("kind", KINDS)
def test_any_task_comes_and_goes(kind, deterministic):
    before = {name: MANY[name] for name in ("t0", "t1")} | {"b": branch("b", 1)}
    backend, runtime = running(before, deterministic=deterministic)
    tasks = loaded({**before, "new": KINDS[kind]})
    attach(backend, "new", tasks["new"])
    assert_right(backend, tasks)
    detach(backend, "new")
    assert_right(backend, loaded(before))
    with pytest.raises(BackendError, match="'new' is not loaded"):
        backend.run(plan.merge({"new": KINDS[kind]}), BATCH)
    tasks["new"] = changed(tasks["new"])
    attach(backend, "new", tasks["new"])
    assert_right(backend, tasks)


@pytest.mark.parametrize("kind", KINDS)
def test_a_namesake_with_other_arrays_answers_by_them(kind):
    tasks = loaded({"t0": MANY["t0"], "b": branch("b", 1), "new": KINDS[kind]})
    backend, runtime = running({name: task.path for name, task in tasks.items()})
    for _ in range(2):
        tasks["new"] = changed(tasks["new"])
        attach(backend, "new", tasks["new"])
        assert_right(backend, tasks)
    runtime.compiled.clear()
    attach(backend, "new", msgspec.structs.replace(tasks["new"], arrays=dict(tasks["new"].arrays)))
    assert not runtime.compiled, "the same arrays are not compiled again"
    assert_right(backend, tasks)


def test_who_leaves_a_group_compiles_nothing_and_who_follows_takes_the_seat():
    backend, runtime = running(MANY)
    detach(backend, "t5")
    assert not runtime.compiled
    rest = {name: path for name, path in MANY.items() if name != "t5"}
    assert_right(backend, loaded(rest))
    assert not runtime.compiled
    tasks = loaded({**rest, "new": pooled("new")})
    attach(backend, "new", tasks["new"])
    assert len(runtime.compiled) == 1 and "t4, new, t6" in runtime.compiled[0]
    assert_right(backend, tasks)


MIXED = {
    "few": pooled("few", hidden=16),
    "many": pooled("many", hidden=16, labels=40),
    "other": pooled("other", hidden=16, labels=5),
    "similar": pooled("similar", hidden=16, separate=True),
}


@pytest.mark.parametrize("gone", MIXED)
def test_heads_of_several_forms_share_a_graph_which_stays_when_one_leaves(gone):
    backend, runtime = running(MIXED)
    assert_right(backend, loaded(MIXED))
    detach(backend, gone)
    rest = {name: path for name, path in MIXED.items() if name != gone}
    assert_right(backend, loaded(rest))
    assert not runtime.compiled, "the graph knows the one that left, and where the others' outputs stand"
    graphs = [call.graph.recipe.label for call in backend._loaded.full if call.answers]
    assert len(graphs) == 1 and backend._loaded.arranged.groups[0].slots[0].tokens
    tasks = loaded({**rest, "new": pooled("new", hidden=16, labels=70)})
    attach(backend, "new", tasks["new"])
    assert_right(backend, tasks)
    graphs = [call.graph.recipe.label for call in backend._loaded.full if call.answers]
    assert len(graphs) == 1 and gone not in graphs[0].replace("poolers", "")


def test_few_of_many_are_asked_without_the_heads_of_the_rest(monkeypatch):
    monkeypatch.setattr(groups, "BEGIN", 0)  # beside which the weights of a tiny trunk would never count
    backend, runtime = running(MIXED)
    few = {"similar": MIXED["similar"]}
    wanted = ReferenceBackend(TRUNK, loaded(MIXED)).run(plan.merge(few), BATCH)
    np.testing.assert_allclose(backend.run(plan.merge(few), BATCH)["similar"], wanted["similar"], atol=1e-5)
    assert runtime.compiled == ["poolers and heads of similar"]
    most = {name: path for name, path in MIXED.items() if name != "similar"}
    backend.run(plan.merge(most), BATCH)
    assert len(runtime.compiled) == 1, "most of the slots are asked, so the graph of all runs"


def test_several_change_at_once():
    backend, runtime = running({name: MANY[name] for name in ("t0", "t1", "t2")})
    tasks = loaded({name: MANY[name] for name in ("t1", "t2", "t3")})
    tasks["t2"] = changed(tasks["t2"])
    backend.replace(tasks)
    assert_right(backend, tasks)
    assert len(runtime.compiled) == 1
    backend.replace({})
    with pytest.raises(BackendError):
        backend.run(plan.merge({"t1": MANY["t1"]}), BATCH)


def test_what_cannot_be_compiled_leaves_all_as_it_was():
    before = {name: MANY[name] for name in ("t0", "t1")}
    backend, runtime = running(before)
    tasks = loaded({**before, "new": pooled("new")})
    runtime.broken = "new"
    with pytest.raises(RuntimeError, match="cannot compile"):
        attach(backend, "new", tasks["new"])
    assert_right(backend, loaded(before))
    assert not runtime.compiled
    runtime.broken = None
    attach(backend, "new", tasks["new"])
    assert_right(backend, tasks)


def test_arrays_that_are_missing_or_not_those_of_others_are_refused():
    paths = {name: pooled(name) for name in ("a", "b")}
    ends = {name: delta_path(TRUNK, name, *[tiny_deltas(f"task:{name}")["attention-ends"]] * 2) for name in "cd"}
    backend, _ = running({**paths, **ends})
    tasks = loaded({**paths, **ends})
    others = {owner: {n: a + 1 for n, a in some.items()} for owner, some in tasks["d"].others.items()}
    with pytest.raises(BackendError, match="other arrays of 'family:ends'"):
        attach(backend, "d", msgspec.structs.replace(tasks["d"], others=others))
    with pytest.raises(BackendError, match="not loaded as its path has them"):
        backend.replace({"d": msgspec.structs.replace(tasks["d"], others={})})
    short = {name: array for name, array in tasks["a"].arrays.items() if name != "head.output.weight"}
    with pytest.raises(BackendError, match="head.output.weight of task:a: none"):
        attach(backend, "a", msgspec.structs.replace(tasks["a"], arrays=short))
    assert_right(backend, tasks)


def test_graphs_of_nobody_are_dropped():
    """A tap at layer 1 cuts the trunk; without it the pieces go, and the whole is compiled again."""
    backend, runtime = running({"t0": MANY["t0"]})
    tasks = loaded({"t0": MANY["t0"], "new": branch("new", 1)})
    attach(backend, "new", tasks["new"])
    trunk = [label for label in runtime.compiled if label.endswith("of trunk")]
    assert trunk == ["layers 0 to 0 of trunk", "layers 1 to 1 of trunk"]
    detach(backend, "new")
    assert known_of(backend) == ["layers 0 to 1 of trunk", "poolers and heads of t0"]


def known_of(backend):
    return sorted(graph.recipe.label for graph in backend._graphs._known.values())


def test_graphs_of_groups_as_they_were_are_dropped():
    backend, _ = running({"t0": MANY["t0"], "b0": branch("b0", 1)})
    for number in range(1, 5):
        attach(backend, f"t{number}", loaded(MANY)[f"t{number}"])
        attach(backend, f"b{number}", loaded({"b": branch(f"b{number}", 1)})["b"])
    groups = [label for label in known_of(backend) if "heads of t" in label]
    assert groups == ["poolers and heads of t0, t1, t2, t3, t4"]
    stacks = [label for label in known_of(backend) if "task:b" in label]
    assert stacks == ["layers 1 to 1 of task:b0", "layers 1 to 1 of task:b0, task:b1, task:b2, task:b3, task:b4"]


def test_graphs_hold_no_layer_that_no_task_needs():
    runtime, deep = NumpyRuntime(), tiny_trunk(layers=6, max_tokens=24)
    path = pooled("low", stop=2)
    path = Path(nodes=(Embed(trunk=deep.digest), *path.nodes[1:]))
    GraphBackend(runtime, deep, loaded({"low": path})).run(plan.merge({"low": path}), BATCH)
    layer = sum(array.size for name, array in deep.arrays.items() if name.startswith("layers.0."))
    embedding = sum(array.size for name, array in deep.arrays.items() if name.startswith("embeddings."))
    assert runtime.compiled == ["layers 0 to 1 of trunk", "poolers and heads of low"]
    assert abs(runtime.weights["layers 0 to 1 of trunk"] - 2 * layer - embedding) < 10


def test_calls_in_other_threads_see_the_tasks_before_or_those_after():
    """A task is replaced again and again by two versions of it while others ask: each answer is one of two."""
    paths = {"a": pooled("a"), "b": branch("b", 1)}
    backend, _ = running(paths)
    versions = [loaded(paths), {name: changed(task) for name, task in loaded(paths).items()}]
    merged = plan.merge(paths)
    known = [ReferenceBackend(TRUNK, tasks).run(merged, BATCH) for tasks in versions]
    failures, ended, met, seen = [], threading.Event(), threading.Event(), set()

    def ask():
        while not ended.is_set():
            try:
                found = backend.run(merged, BATCH)
                near = [all(np.abs(found[n] - one[n]).max() < 1e-4 for n in paths) for one in known]
                assert any(near), "half of one, half of the other"
                seen.add(near.index(True))
                met.set()
            except Exception as error:
                failures.append(error)
                return

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for turn in range(12):
        backend.replace(versions[(turn + 1) % 2])
        for _ in range(3):  # of three answers by two threads one began after the change
            met.clear()
            assert met.wait(10), failures
    ended.set()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert seen == {0, 1}


def test_calls_go_on_while_a_task_is_compiled():
    backend, runtime = running({"a": pooled("a")})
    runtime.wait.clear()
    tasks = loaded({"a": pooled("a"), "new": pooled("new")})
    adding = threading.Thread(target=attach, args=(backend, "new", tasks["new"]))
    adding.start()
    for _ in range(3):
        assert_right(backend, loaded({"a": pooled("a")}))
    assert adding.is_alive()
    runtime.wait.set()
    adding.join()
    assert_right(backend, tasks)


def test_a_call_that_began_before_a_change_ends_as_it_began():
    paths = {"low": pooled("low", stop=1), "high": pooled("high", stop=2)}
    backend, _ = running(paths)
    wanted = backend.run(plan.merge(paths), BATCH)
    stages = backend.stages(plan.merge(paths), BATCH)
    first = next(stages)
    backend.replace(loaded({"low": pooled("low", stop=2)}))
    rest = next(stages)
    assert np.array_equal(first.outputs["low"], wanted["low"])
    assert np.array_equal(rest.outputs["high"], wanted["high"])


def heads_of(backend):
    """The compiled poolers and heads that are known, weakly."""
    known = backend._graphs._known.values()
    return [weakref.ref(graph.compiled) for graph in known if graph.compiled and "heads" in graph.recipe.label]


def test_graphs_of_tasks_that_were_replaced_go_with_the_last_call_that_needs_them():
    """Also those of a plan that is asked for the first time when they are replaced, and of pairs' heads."""
    paths = {"a": pooled("a"), "b": branch("b", 1), "pair": pooled("pair", separate=True)}
    backend, _ = running(paths)
    tasks, moment, features = loaded(paths), backend.now(), np.ones((2, 16), np.float32)
    old = heads_of(backend)
    backend.replace({name: changed(task) for name, task in tasks.items()})
    known, held = dict(backend._graphs._known), backend._graphs._held
    reference = ReferenceBackend(TRUNK, tasks)
    for some in (["a"], ["b"], ["a", "pair"]):
        merged = plan.merge({name: paths[name] for name in some})
        for name, values in reference.run(merged, BATCH).items():
            np.testing.assert_allclose(moment.run(merged, BATCH)[name], values, atol=2e-5)
    found = moment.compared("pair", features, features)
    np.testing.assert_allclose(found, reference.compared("pair", features, features), atol=2e-5)
    assert (backend._graphs._known, backend._graphs._held) == (known, held)
    gc.collect()
    assert old and all(one() is not None for one in old)
    del moment
    gc.collect()
    assert [one() for one in old] == [None] * len(old)


@pytest.mark.parametrize("deterministic", [False, True], ids=["grouped", "deterministic"])
def test_graphs_that_stay_hold_no_arrays_of_tasks_that_were_replaced(deterministic):
    """The layers' graph, which no task is in, held all tasks that were loaded when it was made."""
    paths = {"a": pooled("a"), "b": branch("b", 1)}
    backend, runtime = running(paths, deterministic=deterministic)
    arrays = [*backend._loaded.arranged.tasks["a"].arrays.values()]
    old = [weakref.ref(array) for array in arrays]
    attach(backend, "a", loaded({"a": pooled("a", labels=4)})["a"])
    backend.run(plan.merge(paths | {"a": pooled("a", labels=4)}), BATCH)
    assert not any("layers" in label for label in runtime.compiled)
    del arrays
    gc.collect()
    assert all(array() is None for array in old)


@pytest.mark.parametrize("deterministic", [False, True], ids=["grouped", "deterministic"])
@pytest.mark.parametrize("kind", KINDS)
def test_replaced_graphs_go_at_once(kind, deterministic):
    """A server collects cycles seldom: 55 MB of each change stayed until then."""
    paths = {"a": pooled("a"), "new": KINDS[kind]}
    tasks = loaded(paths)
    gc.disable()
    try:
        backend, _ = running(paths, deterministic=deterministic)
        old = heads_of(backend)
        tasks = {name: changed(task) for name, task in tasks.items()}
        backend.replace(tasks)
        assert_right(backend, tasks)
        assert old and [one() for one in old] == [None] * len(old)
    finally:
        gc.enable()


def test_a_call_of_replaced_tasks_takes_nothing_from_a_change_that_compiles():
    backend, runtime = running({"a": pooled("a")})
    merged, moment = plan.merge({"a": pooled("a")}), backend.now()
    wanted = moment.run(merged, BATCH)["a"]
    backend.replace({"a": changed(loaded({"a": pooled("a")})["a"])})
    compiling, inner = threading.Event(), runtime.compile

    def compiled(*given, **settings):
        compiling.set()
        return inner(*given, **settings)

    runtime.compile = compiled
    runtime.wait.clear()
    tasks = loaded({"a": pooled("a"), "b": branch("b", 1)})
    change = threading.Thread(target=backend.replace, args=(tasks,))
    change.start()
    assert compiling.wait(20)
    assert np.array_equal(moment.run(merged, BATCH)["a"], wanted)
    runtime.wait.set()
    change.join()
    assert_right(backend, tasks)
    known = backend._graphs._known
    assert all(known.get(call.graph.recipe.key) is call.graph for call in backend._loaded.full)
