"""Graphs of shapes that come often: one compiled model, shared weights, the numbers of the graph of any shape."""

import threading

import numpy as np
import pytest

pytest.importorskip("polyhead.engine.backends.openvino", reason="the openvino extra is not installed")

from polyhead.engine.backends.openvino import OpenVINORuntime, shapes
from polyhead.engine.backends.openvino import runtime as runtime_file
from polyhead.engine.backends.openvino.shapes import ShapesSeen, branched
from polyhead.engine.session import Session
from polyhead.project.strategies import Pooled
from polyhead.testing import tiny_trunk
from polyhead.testing.strategies import tiny_bundle, tiny_paths

WEIGHTS = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
LENGTHS = (3, 5, 8)


def build(ops):
    """Two outputs of two inputs: `tanh(x W^T) + y`, and twice that."""
    x, y = ops.input("x", "float", (-1, -1, 16)), ops.input("y", "float", (-1, -1, 1))
    out = ops.add(ops.tanh(ops.matmul(x, ops.constant(WEIGHTS), transposed=True)), y)
    return {"out": out, "twice": ops.add(out, out)}


def given(length, *, rows=1):
    rng = np.random.default_rng(length)
    sizes = {"x": (rows, length, 16), "y": (rows, length, 1)}
    return {name: rng.standard_normal(size).astype(np.float32) for name, size in sizes.items()}


def by_formula(inputs):
    out = np.tanh(inputs["x"] @ WEIGHTS.T) + inputs["y"]
    return {"out": out, "twice": 2 * out}


def assert_right(graph, inputs):
    found = graph(inputs)
    for name, wanted in by_formula(inputs).items():
        np.testing.assert_allclose(found[name], wanted, atol=1e-5)


def settled(graph, *, rounds=10):
    """The graph after calls of many lengths, and after what they began."""
    graph.settle()
    for _ in range(rounds):
        for length in LENGTHS:
            assert_right(graph, given(length))
    for thread in threading.enumerate():
        if thread.name == "polyhead-shapes":
            thread.join(60)
    return graph


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(shapes, "CHANGES", 12)
    monkeypatch.setattr(shapes, "SLOW", ("bfloat16", "float32"))  # not every processor has bfloat16


@pytest.fixture(params=["compiled", "read"])
def graph(request):
    """One that was compiled now, or by another process."""
    runtime = OpenVINORuntime(precision="float32", threads=1)
    graph = runtime.compile(build, label="g", layers=True)
    if request.param == "compiled":
        return graph
    return runtime.imported(memoryview(bytearray(runtime.exported(graph))), build, label="g", layers=True)


def test_lengths_that_come_often_get_graphs_with_the_same_numbers_and_others_are_computed_as_before(few, graph):
    settled(graph)
    assert sorted(known[0] for known in graph._now[1]) == [(1, length, 16) for length in LENGTHS]
    for length in (*LENGTHS, 4, 60, *LENGTHS):
        assert_right(graph, given(length))
    assert_right(graph, given(8, rows=3))


def test_threads_that_called_before_and_new_ones_get_the_new_graphs(few, graph):
    found = []

    def call():
        assert_right(settled(graph), given(5))
        found.append(graph._per_thread.model)

    for _ in range(2):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join(60)
    assert found == [graph.model, graph.model]


def test_a_graph_that_was_not_told_to_settle_stays_as_it_is(few, graph):
    for _ in range(30):
        for length in LENGTHS:
            assert_right(graph, given(length))
    assert graph._now[1] == {}


def test_in_float32_no_graph_settles(monkeypatch):
    monkeypatch.setattr(shapes, "CHANGES", 12)
    graph = OpenVINORuntime(precision="float32").compile(build, label="g", layers=True)
    assert settled(graph)._now[1] == {} and graph._seen is None


def test_where_branches_cannot_be_compiled_calls_go_on(few, graph, monkeypatch, caplog):
    def refused(model, shapes):
        raise RuntimeError("no such operator")

    monkeypatch.setattr(runtime_file, "branched", refused)
    settled(graph)
    assert "no such operator" in caplog.text
    assert graph._now[1] == {}


def test_branches_read_the_weights_of_one_place():
    model, *_ = OpenVINORuntime(precision="float32")._model(build, label="g", layers=True, exact=False)
    sizes = [tuple(array.shape for array in given(length).values()) for length in LENGTHS]
    places, models = set(), [branched(model, sizes)]
    while models:
        for node in models.pop().get_ordered_ops():
            if node.get_type_name() == "If":
                models += [node.get_function(0), node.get_function(1)]
            elif node.get_type_name() == "Constant" and list(node.get_output_shape(0)) == [16, 16]:
                places.add(node.data.ctypes.data)
    assert len(places) == 1


def test_one_shape_again_and_again_is_no_change_and_large_ones_count_nothing(few):
    seen, small = ShapesSeen(), [((1, length, 16),) for length in LENGTHS]
    for _ in range(100):
        assert seen.chosen(small[0]) == []
    for length in range(100):
        assert seen.chosen(((1, 10**6 + length),)) == []
    chosen = [seen.chosen(small[i % 3]) for i in range(20)]
    assert [set(one) for one in chosen if one] == [set(small)]


@pytest.mark.parametrize("deterministic", [False, True], ids=["ordinary", "deterministic"])
def test_answers_of_a_session_stay_and_a_deterministic_one_never_settles(few, tmp_path, deterministic):
    trunk = tiny_trunk()
    tiny_bundle(tmp_path / "b", trunk, tiny_paths(Pooled(positions="attention", heads=2, hidden=8), trunk))
    session, plain = (
        Session(tmp_path / "b", backend=name, deterministic=deterministic) for name in ("openvino", "reference")
    )
    texts = ["the bill " * times for times in (1, 5, 9, 14)]
    before = [session.columns([text]) for text in texts]
    for _ in range(8):
        for text in texts:
            session.predict([text])
    for thread in threading.enumerate():
        if thread.name == "polyhead-shapes":
            thread.join(60)
    graphs = [call.graph.compiled for call in session.backend._loaded.full if call.graph.compiled is not None]
    assert any(graph._now[1] for graph in graphs) is not deterministic
    for text, old in zip(texts, before, strict=True):
        new, reference = session.columns([text]), plain.columns([text])
        for name in old.tasks:
            for mine, same, wanted in zip(old[name].outputs, new[name].outputs, reference[name].outputs, strict=True):
                if deterministic:
                    assert np.asarray(mine).tobytes() == np.asarray(same).tobytes()
                np.testing.assert_allclose(same, wanted, atol=session.backend.tolerance)
