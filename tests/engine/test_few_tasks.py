"""A call that asks few of many tasks reads no weights but theirs, and answers as a call of all does."""

import random

import numpy as np
import pytest

from polyhead import plan
from polyhead.engine.backends import open_runtime
from polyhead.engine.backends.graph import GraphBackend
from polyhead.engine.backends.reference import ReferenceBackend
from polyhead.engine.compile import groups
from polyhead.engine.compile.groups import numbers_of
from polyhead.engine.compile.heads import folded, output_of, pad_slot
from polyhead.plan import Path, Pool
from polyhead.tasks.task import Task
from polyhead.testing import tiny_batch, tiny_loaded, tiny_owned, tiny_trunk
from polyhead.testing.tiny import tiny_path, tiny_widths
from support.numpy_graphs import NumpyRuntime

TRUNK = tiny_trunk()
MANY = 24
BATCHES = [tiny_batch(TRUNK, lengths) for lengths in ((9,), (7, 3, 5, 2, 9, 4))]


def many() -> dict[str, Path]:
    """Attention heads of one form, with outputs of two widths."""
    paths = {}
    for number in range(MANY):
        labels = tuple(f"l{i}" for i in range(40 if number % 3 == 0 else 3))
        task = Task(name=f"task{number}", kind="single_label", labels=labels)
        pool = Pool(positions="attention", heads=2, part=f"task:task{number}")
        paths[task.name] = tiny_path(task, TRUNK, pool=pool)
    return paths


SETS = {
    "every form": lambda: tiny_loaded(TRUNK),
    "every width": lambda: tiny_widths(TRUNK),
    "one form": lambda: tiny_owned(many(), TRUNK.architecture),
}


@pytest.fixture
def free_calls(monkeypatch):
    """To begin a call costs nothing, beside which the weights of a tiny trunk would never count."""
    monkeypatch.setattr(groups, "BEGIN", 0)


def runtime_named(name):
    if name == "numpy":
        return NumpyRuntime()
    pytest.importorskip(name, reason="runs its graphs")
    return open_runtime(name, precision="float32")


def merged(loaded, names):
    return plan.merge({name: loaded[name].path for name in names})


def few_calls(backend, wanted):
    return [call for call in backend._loaded.program(wanted).calls if call.chosen]


@pytest.mark.parametrize("runtime", ["numpy", "openvino", "onnxruntime"])
@pytest.mark.parametrize("which", SETS)
def test_few_tasks_are_answered_as_the_reference_does(which, runtime, free_calls):
    loaded, drawn, gathered = SETS[which](), random.Random(0), 0
    backend, reference = GraphBackend(runtime_named(runtime), TRUNK, loaded), ReferenceBackend(TRUNK, loaded)
    for turn in range(8):
        wanted = merged(loaded, drawn.sample(list(loaded), 1 + turn % 4))
        batch = BATCHES[turn % 2]
        answers, right = backend.run(wanted, batch), reference.run(wanted, batch)
        gathered += len(few_calls(backend, wanted))
        assert list(answers) == list(wanted.tasks)
        for name, outputs in right.items():
            is_read = batch.words >= 0 if loaded[name].path.pool.positions == "tokens" else slice(None)
            assert answers[name].shape == outputs.shape
            np.testing.assert_allclose(answers[name][is_read], outputs[is_read], atol=1e-4, err_msg=name)
    assert gathered >= 8


def test_a_call_computes_with_the_weights_of_the_asked_tasks_alone(free_calls):
    loaded = SETS["one form"]()
    backend = GraphBackend(NumpyRuntime(), TRUNK, loaded)
    names = ["task3", "task20", "task7"]
    (call,) = few_calls(backend, merged(loaded, names))
    (group,) = backend._loaded.arranged.groups
    assert [group.members[slot] for slot in call.chosen["slots"]] == ["task3", "task7", "task20"]
    assert {place.task: place.width for place in call.answers} == {"task3": 40, "task7": 3, "task20": 3}
    assert [len(call.chosen[f"of.{output}"]) for output in ("64", "32")] == [1, 2]


def test_any_choice_is_answered_by_one_graph(free_calls):
    loaded, runtime = SETS["one form"](), NumpyRuntime()
    backend = GraphBackend(runtime, TRUNK, loaded)
    for names in (["task0"], ["task1", "task9"], ["task23", "task6"]):
        backend.run(merged(loaded, names), BATCHES[0])
    assert len([label for label in runtime.compiled if "heads" in label]) == 1


def test_most_of_the_tasks_are_answered_by_the_graph_of_all(free_calls):
    loaded = SETS["one form"]()
    backend = GraphBackend(NumpyRuntime(), TRUNK, loaded)
    assert not few_calls(backend, merged(loaded, list(loaded)[:20]))


def test_calls_are_as_few_as_their_start_costs():
    """Of a tiny trunk all weights are read in less time than a second call begins in."""
    loaded = SETS["every form"]()
    backend = GraphBackend(NumpyRuntime(), TRUNK, loaded)
    wanted = merged(loaded, list(loaded)[::4])
    alone = {id(group) for name in wanted.tasks for group in backend._loaded.arranged.groups if name in group.members}
    heads = [call for call in backend._loaded.program(wanted).calls if call.answers]
    assert len(heads) < len(alone) and not few_calls(backend, wanted)


def test_in_deterministic_mode_answers_have_the_same_bits_whatever_else_is_asked(free_calls):
    loaded = SETS["one form"]()
    backend = GraphBackend(NumpyRuntime(), TRUNK, loaded, deterministic=True)
    every = backend.run(merged(loaded, loaded), BATCHES[1])
    for names in (["task4"], ["task4", "task5", "task23"], ["task23", "task4"]):
        wanted = merged(loaded, names)
        assert not few_calls(backend, wanted)
        for name, outputs in backend.run(wanted, BATCHES[1]).items():
            assert outputs.tobytes() == every[name].tobytes()


def test_where_slots_have_scales_of_their_own_nothing_is_gathered(free_calls):
    loaded, runtime = SETS["one form"](), NumpyRuntime()
    runtime.gathers = False
    assert not few_calls(GraphBackend(runtime, TRUNK, loaded), merged(loaded, ["task4"]))


def test_tasks_that_stay_are_answered_as_others_leave(free_calls):
    loaded = SETS["one form"]()
    backend, names = GraphBackend(NumpyRuntime(), TRUNK, loaded), ["task5", "task8"]
    before = backend.run(merged(loaded, names), BATCHES[1])
    left = {name: task for name, task in loaded.items() if name not in ("task0", "task6")}
    backend.replace(left)
    after = backend.run(merged(left, names), BATCHES[1])
    assert {name: outputs.tobytes() for name, outputs in after.items()} == {
        name: outputs.tobytes() for name, outputs in before.items()
    }


@pytest.mark.parametrize("which", SETS)
def test_the_price_of_a_seat_is_the_number_of_its_folded_weights(which):
    loaded = SETS[which]()
    backend = GraphBackend(NumpyRuntime(), TRUNK, loaded)
    arranged = backend._loaded.arranged
    for name, task in loaded.items():
        path, form = task.path, arranged.group_of[name].form.form
        own, hidden = arranged.arrays(path.head.part), arranged.arrays(path.head.hidden_part or path.head.part)
        slot = pad_slot(folded(path, own, hidden, arranged.arrays(path.pool.part or path.head.part), width=16), form)
        weights = [array for array in (slot.scores, slot.values, slot.first, slot.second) if array is not None]
        assert numbers_of(form, output_of(path.head)) == sum(array.size for array in weights), name


def test_weights_that_are_gathered_are_held_in_bfloat16_where_others_are():
    ov = pytest.importorskip("openvino", reason="builds its graph")
    from polyhead.engine.backends.openvino.ops import OpenVINOOps

    ops, weights = OpenVINOOps(halved=True), np.random.default_rng(0).standard_normal((5, 4, 3)).astype(np.float32)
    taken = ops.gather(ops.constant(weights), ops.input("slots", "int", (-1,)))
    model = ov.Model([ov.opset13.result(taken)], list(ops.inputs.values()), "gathered")
    held = {node.get_element_type().get_type_name() for node in model.get_ops() if node.get_type_name() == "Constant"}
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    (given,) = compiled([np.array([3, 1])]).values()
    np.testing.assert_allclose(given, weights[[3, 1]], rtol=2**-8)
    assert "bf16" in held and "f32" not in held
