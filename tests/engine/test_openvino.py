"""The openvino runtime: its precisions, its options, and which backend computes where nobody chose."""

import os
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("polyhead.engine.backends.openvino", reason="the openvino extra is not installed")

from polyhead.engine import backends
from polyhead.engine.backends import default_backend, open_backend, open_runtime
from polyhead.engine.backends.openvino import OpenVINORuntime
from polyhead.engine.probes import has_bfloat16
from polyhead.engine.scales import Scales
from polyhead.engine.session import Session
from polyhead.errors import BackendError
from polyhead.plan import merge
from polyhead.project.strategies import Pooled
from polyhead.testing import tiny_batch, tiny_trunk
from polyhead.testing.strategies import tiny_bundle, tiny_paths


def product(ops):
    """`x x^T` for x (rows, 64): a sum of 64 products, in which bfloat16 shows."""
    x = ops.input("x", "float", (-1, 64))
    return {"out": ops.matmul(x, x, transposed=True)}


def computed(runtime):
    x = np.random.default_rng(0).standard_normal((32, 64)).astype(np.float32)
    return np.array(runtime.compile(product, label="p", layers=True)({"x": x})["out"]), x @ x.T


def test_what_compiles_no_graphs_is_no_runtime():
    for name in ("torch", "torch-cuda", "openvin"):
        with pytest.raises(BackendError, match=f"'{name}' compiles no graphs.*openvino, onnxruntime"):
            open_runtime(name)


def test_float32_is_exact_and_bfloat16_rounds():
    found, exact = computed(OpenVINORuntime(precision="float32"))
    np.testing.assert_allclose(found, exact, atol=1e-4)
    if not OpenVINORuntime().has_bfloat16:
        pytest.skip("the processor has no bfloat16")
    found, exact = computed(OpenVINORuntime(precision="bfloat16"))
    assert 1e-3 < np.abs(found - exact).max() < 0.5


def test_default_precision_is_that_of_the_processor(monkeypatch):
    has = OpenVINORuntime().has_bfloat16
    assert OpenVINORuntime().precision == ("bfloat16" if has else "float32")
    monkeypatch.setattr(OpenVINORuntime, "has_bfloat16", False)
    assert OpenVINORuntime().precision == "float32"
    with pytest.raises(BackendError, match="no bfloat16"):
        OpenVINORuntime(precision="bfloat16")


def test_options_reach_openvino():
    """In a process that may use two processors: OpenVINO makes no more streams than it sees of them."""
    code = """
import os
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, range(os.cpu_count()))
from polyhead.engine.backends.openvino import OpenVINORuntime
def product(ops):
    x = ops.input("x", "float", (-1, -1, 8))
    return {"out": ops.add(x, x)}
for streams in (1, 2):
    runtime = OpenVINORuntime(precision="float32", threads=2, streams=streams)
    said = runtime.compile(product, label="p", layers=True).model.get_property
    assert "float32" in str(said("INFERENCE_PRECISION_HINT"))
    print(said("INFERENCE_NUM_THREADS"), said("NUM_STREAMS"), said("PERFORMANCE_HINT"), os.cpu_count())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    alone, several = (line.split() for line in done.stdout.splitlines())
    assert alone[1:3] == ["1", "LATENCY"]
    assert several[1] == several[0] == str(min(2, int(several[3])))


@pytest.mark.parametrize("precision", ["float16", "int4"])
def test_other_precisions_are_refused(precision):
    with pytest.raises(BackendError, match="float32, bfloat16, int8"):
        OpenVINORuntime(precision=precision)


def test_int8_and_scales_go_together():
    for options in ({"precision": "int8"}, {"precision": "float32", "scales": Scales({})}):
        with pytest.raises(BackendError, match="polyhead tasks quantize"):
            OpenVINORuntime(**options)


def test_computing_with_openvino_sends_nothing_keeps_nothing_and_loads_no_torch(tmp_path):
    """Its converter reports its use, over the network and by a file at home; graphs are built without it."""
    code = (
        "import socket, sys, time\n"
        "def refused(*words, **options): print('a connection')\n"
        "socket.socket.connect = socket.create_connection = socket.getaddrinfo = refused\n"
        "import numpy as np\n"
        "from polyhead.engine.backends.openvino import OpenVINORuntime\n"
        "def build(ops): x = ops.input('x', 'float', (-1, 4)); return {'out': ops.add(x, x)}\n"
        "graph = OpenVINORuntime(precision='float32').compile(build, label='g', layers=True)\n"
        "print(graph({'x': np.ones((1, 4), np.float32)})['out'].sum(), 'torch' in sys.modules)"
    )
    home = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=home)
    assert done.stdout.split() == ["8.0", "False"]
    assert not list(tmp_path.rglob("*"))


@pytest.mark.parametrize("how", ["threads=1", "threads=2, streams=2"], ids=["one thread", "a thread a call"])
def test_a_gated_half_with_one_thread_ends_no_process(how):
    """OpenVINO 2026.4 fuses it, gives half its threads to each of two products, and divides by none of them."""
    if not has_bfloat16("openvino"):
        pytest.skip("this processor has no bfloat16")
    code = f"""
import math
import numpy as np
from polyhead.engine.backends.openvino import OpenVINORuntime
draw = np.random.default_rng(0).standard_normal
first, gate, last = (np.float32(draw(size)) for size in ((64, 64), (64, 64), (64, 64)))
def build(ops):
    x = ops.input("x", "float", (-1, -1, 64))
    inner, beside = (ops.matmul(x, ops.constant(each), transposed=True) for each in (first, gate))
    return {{"out": ops.matmul(ops.multiply(ops.gelu(inner), beside), ops.constant(last), transposed=True)}}
x = np.float32(draw((2, 3, 64)))
found = OpenVINORuntime(precision="bfloat16", {how}).compile(build, label="g", layers=True)({{"x": x}})["out"]
inner = x @ first.T
wanted = (inner * (1 + np.vectorize(math.erf)(inner / 2**0.5)) / 2 * (x @ gate.T)) @ last.T
print(np.abs(found - wanted).max() / wanted.std())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, f"{done.returncode} {done.stderr}"
    assert float(done.stdout) < 0.1


# -- which backend computes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("installed", "machine", "expected"),
    [
        (("openvino", "onnxruntime", "onnx", "torch"), "x86_64", "openvino"),
        (("openvino", "onnxruntime", "onnx", "torch"), "aarch64", "onnxruntime"),
        (("onnxruntime", "onnx", "torch"), "x86_64", "onnxruntime"),
        (("onnxruntime", "torch"), "x86_64", "torch"),  # onnx writes the graphs
        (("openvino", "torch"), "arm64", "torch"),
        ((), "x86_64", "reference"),
    ],
)
def test_default_backend_is_the_fastest_that_is_installed(monkeypatch, installed, machine, expected):
    monkeypatch.setattr(backends, "is_installed", lambda package: package in installed)
    monkeypatch.setattr(backends.platform, "machine", lambda: machine)
    assert default_backend() == expected


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    trunk = tiny_trunk()
    paths = tiny_paths(Pooled(positions="mean", hidden=4), trunk)
    return tiny_bundle(tmp_path_factory.mktemp("openvino") / "b", trunk, {"mood": paths["mood"]})


def test_session_computes_in_the_precision_of_training_or_the_processors(bundle):
    """These tasks do not say what they were trained in."""
    assert Session(bundle, backend="openvino").backend.precision == OpenVINORuntime().precision
    trunk, path = bundle.trunk(), bundle.tasks["mood"].path
    for trained in ("float32", "bfloat16"):
        found = open_backend("openvino", trunk, {}, precision=None, trained=trained).precision
        assert found == ("float32" if trained == "float32" else OpenVINORuntime().precision)
    assert open_backend("openvino", trunk, {}, trained="bfloat16", precision="float32").precision == "float32"
    assert path.head.width == 2


@pytest.mark.parametrize("name", ["torch", "onnxruntime", "reference"])
def test_backends_refuse_precisions_that_they_do_not_have(bundle, name):
    with pytest.raises(BackendError, match=f"the {name} backend cannot run the trunk in float16"):
        Session(bundle, backend=name, precision="float16")


def test_session_takes_a_runtime_of_ones_own(bundle):
    session = Session(bundle, backend=open_runtime("openvino", precision="float32"))
    expected = Session(bundle, backend="reference").outputs("mood", [("the lamp",)])
    np.testing.assert_allclose(session.outputs("mood", [("the lamp",)]), expected, atol=1e-4)


def test_several_threads_may_run_one_graph(bundle):
    from concurrent.futures import ThreadPoolExecutor

    from polyhead.engine.loaded import loaded

    backend = open_backend("openvino", bundle.trunk(), {"mood": loaded(bundle, "mood")}, precision="float32")
    plan = merge({"mood": bundle.tasks["mood"].path})
    batches = [tiny_batch(bundle.trunk(), (9, 4, 7), seed=seed) for seed in range(24)]
    alone = [backend.run(plan, batch)["mood"].copy() for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda batch: backend.run(plan, batch)["mood"].copy(), batches))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_setting_that_another_version_of_openvino_lacks_is_left_out(monkeypatch):
    """Of the next graphs too; another fault of compiling is told."""
    from polyhead.engine.backends.openvino import runtime as module

    compile_model, calls, key = module.ov.Core.compile_model, [], module.KEPT_KERNELS[0]

    def older(core, model, device, settings):
        calls.append(key in settings)
        if key in settings:
            raise RuntimeError(f"Option not found: {key}")
        return compile_model(core, model, device, settings)

    monkeypatch.setattr(module.ov.Core, "compile_model", older)
    own = OpenVINORuntime(precision="float32")
    for _ in range(2):
        np.testing.assert_allclose(*computed(own), rtol=1e-5)
    assert calls == [True, False, False]
    monkeypatch.setattr(module.ov.Core, "compile_model", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        computed(own)


def test_few_kernels_are_kept():
    """OpenVINO takes the setting; by default it keeps 5,000 kernels, and memory grows until all are there."""
    own = OpenVINORuntime(precision="float32")
    np.testing.assert_allclose(*computed(own), rtol=1e-5)
    assert own._settings["CPU_RUNTIME_CACHE_CAPACITY"] == 1024  # it was not refused
