"""Word vectors of many words: a session reads them in the bundle's file, and neither copies it nor keeps its pages."""

import gc
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from polyhead.bundle.create import write_bundle
from polyhead.bundle.files import map_of, read_arrays, write_arrays
from polyhead.bundle.read import Bundle
from polyhead.encoder.shape import WORD_VECTORS
from polyhead.engine.backends import open_runtime
from polyhead.engine.compile.program import Graphs, Recipe
from polyhead.engine.session import Session
from polyhead.plan import Pool
from polyhead.testing import tiny_path, tiny_tasks, tiny_trunk
from polyhead.testing.strategies import add_tiny

WORDS = 1_000_000
TABLE = WORDS * 16 * 4  # bytes
RUNTIMES = [
    pytest.param(name, marks=pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"no {name}"))
    for name in ("openvino", "onnxruntime")
]

SESSIONS = """
import sys
from pathlib import Path

from polyhead.engine.compile.compiled import COMPILED
from polyhead.engine.session import Session
from polyhead.machine import trim

def resident():
    trim()
    return int(open("/proc/self/statm").read().split()[1]) * 4096

COMPILED.path, sizes = Path(sys.argv[2]), []
for bundle in sys.argv[3:]:
    session = Session(bundle, backend=sys.argv[1], precision="float32")
    for text in ("where is my order?", "the lamp is broken", "a"):
        session.predict([text])
    sizes.append(resident())
print(sizes[1] - sizes[0])
"""


def bundle_of(root, words):
    """A bundle of one task on a tiny trunk with so many words."""
    trunk, task = tiny_trunk(), tiny_tasks()[0]
    if words > trunk.architecture.vocabulary:
        table = np.random.default_rng(0).standard_normal((words, 16), np.float32)
        shape = msgspec.structs.replace(trunk.architecture, vocabulary=words)
        trunk = msgspec.structs.replace(trunk, architecture=shape, arrays={**trunk.arrays, WORD_VECTORS: table})
    write_bundle(root, trunk)
    add_tiny(root, trunk, task, tiny_path(task, trunk, pool=Pool()), seed=1)
    return root


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells of memory")
@pytest.mark.parametrize("name", RUNTIMES)
def test_a_session_does_not_grow_by_its_word_vectors(name, tmp_path):
    """It grew by two to four times their bytes: pages read to be checked, what graphs copied, graphs that were kept."""
    bundles = [bundle_of(tmp_path / str(words), words) for words in (1, WORDS)]
    for _ in ("compiled", "kept"):
        command = [sys.executable, "-c", SESSIONS, name, tmp_path / "graphs", *bundles]
        grown = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        assert grown < TABLE / 4


def resident(ending):
    """Bytes in memory of mapped files whose names end so."""
    sizes, is_read = [], False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match("[0-9a-f]+-[0-9a-f]+ ", line):
            is_read = line.endswith(ending)
        elif is_read and line.startswith("Rss:"):
            sizes.append(1024 * int(line.split()[1]))
    return sum(sizes)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells of memory")
@pytest.mark.parametrize("name", RUNTIMES)
@pytest.mark.parametrize("kept", [False, True], ids=["compiled", "kept"])
def test_the_first_call_gives_back_what_it_read(tmp_path, folder, name, kept):
    """Weights are packed by the first call with them, which comes long after all graphs of a server are compiled."""
    matrix = np.random.default_rng(0).standard_normal((2048, 2048), np.float32)
    write_arrays(tmp_path / "matrix.weights", {"matrix": matrix})
    arrays = read_arrays(tmp_path, "matrix.weights")

    def inner(ops):
        x = ops.input("x", "float", (-1, -1, 2048))
        product = ops.matmul(x, ops.constant(arrays["matrix"]), transposed=True)
        return {"out": ops.gelu(ops.add(product, ops.constant(np.ones(2048, np.float32))))}

    recipe = Recipe(
        key="product", build=inner, label="product", layers=True, digest=lambda: "product" if kept else None
    )
    for _ in range(2):
        graphs = Graphs(open_runtime(name, precision="float32"))
        graphs.hold([], [], list(arrays.values()))
        graph = graphs.graph(recipe)
        graph.ready()
        graph({"x": np.ones((1, 3, 2048), np.float32)})
        assert resident((".weights", ".compiled")) < matrix.nbytes / 4


@pytest.mark.parametrize("name", RUNTIMES)
def test_arrays_that_a_caller_attached_stay_as_they_are(tmp_path, name):
    """Also where they lie in a file, and the caller has written into his copy."""
    root, task = bundle_of(tmp_path / "bundle", 1), tiny_tasks()[0]
    bundle = Bundle.open(root)
    arrays = bundle.part(task.name)
    for array in arrays.values():
        array += 1
    changed = {key: array.copy() for key, array in arrays.items()}
    session = Session(root, backend=name, precision="float32")
    session.attach(bundle.record(task.name), arrays)
    session.predict(["where is my order?"])
    assert all(np.array_equal(arrays[key], changed[key]) for key in changed)


@pytest.mark.parametrize("name", RUNTIMES)
def test_answers_from_the_file_are_those_from_memory(tmp_path, name):
    root, trunk, texts = bundle_of(tmp_path / "bundle", 1), tiny_trunk(), ["where is my order?", "a"]
    mapped, memory = Bundle.open(root), Bundle.open(root)
    memory.trunk = lambda: trunk
    for bundle, in_file in ((mapped, True), (memory, False)):
        assert all((map_of(array) is not None) == in_file for array in bundle.trunk().arrays.values())
    first, second = (
        Session(bundle, backend=name, precision="float32").outputs("mood", texts) for bundle in (mapped, memory)
    )
    assert np.array_equal(first, second)


@pytest.mark.parametrize("name", RUNTIMES)
@pytest.mark.parametrize("place", [0, 8])
def test_a_graph_keeps_the_file_that_it_reads(tmp_path, name, place):
    """Wherever in it the arrays begin, and when nobody else has them any more."""
    rng = np.random.default_rng(0)
    table, matrix = (rng.standard_normal(size).astype(np.float32) for size in ((500, 48), (32, 48)))
    for size in range(1, 10):  # the header's length follows from the names'
        write_arrays(tmp_path / str(size), {"m" * size: matrix, "t" * size: table})
        arrays = list(read_arrays(tmp_path, str(size)).values())
        if arrays[1].ctypes.data % 16 == place:
            break
    assert arrays[1].ctypes.data % 16 == place

    def product(ops):
        rows = ops.gather(ops.constant(arrays[1]), ops.input("ids", "int", (-1, -1)))
        return {"out": ops.matmul(rows, ops.constant(arrays[0]), transposed=True)}

    graph = open_runtime(name, precision="float32").compile(product, label="product", layers=True)
    arrays.clear()
    gc.collect()
    (tmp_path / str(size)).unlink()
    ids = rng.integers(0, 500, (2, 7))
    for _ in range(3):
        np.testing.assert_allclose(graph({"ids": ids})["out"], table[ids] @ matrix.T, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", RUNTIMES)
def test_a_graph_copies_arrays_in_memory(name):
    """Whoever gave them may write to them: ONNX Runtime then answered with what was written."""
    table = np.random.default_rng(0).standard_normal((500, 48)).astype(np.float32)
    given, ids = table.copy(), np.arange(14).reshape(2, 7)

    def rows(ops):
        return {"out": ops.gather(ops.constant(given), ops.input("ids", "int", (-1, -1)))}

    graph = open_runtime(name, precision="float32").compile(rows, label="rows", layers=True)
    given[:] = 0
    np.testing.assert_array_equal(graph({"ids": ids})["out"], table[ids])
