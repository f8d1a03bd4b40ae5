"""What the processor decides: the width of 8-bit weights, bfloat16, and what a cap of oneDNN changes of both."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from polyhead.engine.backends import open_backend, open_runtime
from polyhead.engine.backends.graph import GraphBackend
from polyhead.engine.probes import numerics_of
from polyhead.engine.scales import Scale, Scales, weight_digest
from polyhead.engine.session import Session
from polyhead.errors import BackendError
from polyhead.machine import CAPS, Processor, processor, processor_of
from polyhead.project.strategies import Pooled
from polyhead.testing import tiny_trunk
from polyhead.testing.strategies import tiny_bundle, tiny_paths
from support.cases import cases

ROOT = Path(__file__).parents[2]
FLAGS = {  # of each processor those that matter here, among others
    "haswell": "fma avx avx2 bmi2",
    "skylake-server": "avx2 avx512f avx512dq avx512bw avx512vl",
    "xeon-phi": "avx512f avx512er avx512_4vnniw",
    "cascade-lake": "avx2 avx512f avx512bw avx512_vnni",
    "alder-lake": "avx2 avx_vnni",
    "sapphire-rapids": "avx2 avx512f avx512_vnni avx_vnni avx512_bf16 amx_bf16 amx_int8",
    "zen4": "avx2 avx512f avx512_bf16 avx512_vnni",
    "sierra-forest": "avx2 avx_vnni avx_ne_convert",
}


def told(flags):
    """What Linux tells of a processor with these flags."""
    name = "processor\t: 0\ncpu family\t: 6\nmodel\t\t: 85\nmodel name\t: Some CPU\nvmx flags\t: avx512_vnni\n"
    return f"{name}flags\t\t: fpu sse4_1 {flags}\n\nprocessor\t: 1\n"


@cases(
    ("name", "cap", "bits", "bfloat16"),
    [
        ("haswell", "", 7, False),
        ("skylake-server", "", 7, False),
        ("xeon-phi", "", 7, False),
        ("cascade-lake", "", 8, False),
        ("alder-lake", "", 8, False),
        ("sapphire-rapids", "", 8, True),
        ("zen4", "", 8, True),
        ("sierra-forest", "", 8, True),
        ("zen4", "AVX2", 7, False),
        ("zen4", "avx2", 7, False),
        ("zen4", "AVX2_VNNI", 7, False),  # it has VNNI with AVX-512 alone
        ("zen4", "AVX512_CORE", 7, False),
        ("zen4", "AVX512_CORE_VNNI", 8, False),
        ("zen4", "AVX512_CORE_BF16", 8, True),
        ("zen4", "ALL", 8, True),
        ("sapphire-rapids", "AVX2_VNNI", 8, False),
        ("sierra-forest", "AVX2_VNNI", 8, False),
        ("sierra-forest", "AVX2_VNNI_2", 8, True),
    ],
)
def test_width_and_bfloat16_are_those_of_the_processor_as_it_is_capped(name, cap, bits, bfloat16):
    found = processor_of(told(FLAGS[name]), machine="x86_64", cap=cap)
    assert (found.weight_bits, found.may_have_bfloat16) == (bits, bfloat16)
    assert found.model == "Some CPU"
    capped = f", capped to {cap.upper()}" if cap not in ("", "ALL") else ""
    assert found.label == f"model name Some CPU, cpu family 6, model 85{capped}"


def test_where_nothing_is_told_x86_gets_the_narrow_weights_and_libraries_answer_for_bfloat16():
    windows, mac = processor_of(None, machine="AMD64"), processor_of(None, machine="arm64")
    assert (windows.weight_bits, mac.weight_bits) == (7, 8)
    assert windows.may_have_bfloat16 and mac.may_have_bfloat16
    assert not processor_of(None, machine="AMD64", cap="AVX2").may_have_bfloat16


def test_arm_sums_bytes_in_full_and_says_whether_it_has_bfloat16():
    facts = "processor\t: 0\nFeatures\t: fp asimd asimddp"
    for more, has in (("", False), (" bf16", True)):
        found = processor_of(facts + more + "\n", machine="aarch64")
        assert (found.weight_bits, found.may_have_bfloat16) == (8, has)


# -- sums in 16 bits -------------------------------------------------------------------------------------------------


def in_pairs(x, weights):
    """`x W^T` as x86 without VNNI computes it (vpmaddubsw): of two products each the sum, cut to 16 bits."""
    pairs = x.astype(np.int32)[:, None] * weights.astype(np.int32)[None]  # (rows, outputs, inputs)
    return np.clip(pairs[..., ::2] + pairs[..., 1::2], -(2**15), 2**15 - 1).sum(axis=-1)


@pytest.mark.parametrize(("bits", "is_cut"), [(7, False), (8, True)])
def test_weights_of_seven_bits_are_exact_where_two_products_share_16_bits(bits, is_cut):
    """At the far end of both: 2 * 255 * 64 fits, 2 * 255 * 127 is twice too much."""
    weight = np.array([[3.0, 3.0, -3.0, -3.0], [1.0, 1.0, 1.0, 1.0], [3.0, -3.0, 1.0, 2.0]], np.float32)
    scale = Scale(smooth=np.ones(4, np.float32), step=1.0, zero=0)
    whole, x = scale.weights(weight, bits=bits).whole, np.full((1, 4), 255, np.uint8)
    assert np.abs(whole).max() == (64 if bits == 7 else 127)
    exact = x.astype(np.int64) @ whole.T.astype(np.int64)
    assert (in_pairs(x, whole) != exact).any() == is_cut
    assert not (in_pairs(x, np.full((1, 4), 64)) != 4 * 255 * 64).any()
    assert (in_pairs(x, np.full((1, 4), 65)) != 4 * 255 * 65).all()


def extreme():
    """Weights and inputs all at the far end: of every pair of products the sum is as large as it can be."""
    weight, x = np.full((32, 64), 0.5, np.float32), np.full((1, 20, 64), 25.5, np.float32)
    scale = Scale(smooth=np.ones(64, np.float32), step=0.1, zero=0)
    return weight, x, Scales({weight_digest(weight): scale})


def computed(backend, bits=None):
    """The product of `extreme` in 8 bits; with `bits` weights of that width, whatever the processor."""
    weight, x, scales = extreme()
    runtime = open_runtime(backend, precision="int8", scales=scales)
    if bits is not None:
        runtime.weight_bits = bits

    def build(ops):
        given = ops.input("x", "float", (-1, -1, 64))
        return {"out": ops.matmul(given, ops.constant(weight), transposed=True)}

    compiled = runtime.compile(build, label="product", layers=True)
    return compiled({"x": x})["out"], x @ weight.T, compiled


@pytest.mark.parametrize("backend", ["openvino", "onnxruntime"])
def test_the_largest_sums_are_not_cut_on_this_processor(backend):
    pytest.importorskip(backend, reason="the backend is not installed")
    found, exact, _ = computed(backend)
    np.testing.assert_allclose(found, exact, rtol=0.01)


def test_openvino_has_bfloat16_only_where_the_cap_leaves_it(monkeypatch):
    """It tells of the processor whatever oneDNN may use, and then ended with an error that named no way on."""
    backend = pytest.importorskip("polyhead.engine.backends.openvino")
    made = Processor(machine="x86_64", model="Old CPU", features=frozenset())
    monkeypatch.setattr("polyhead.engine.backends.openvino.runtime.processor", lambda: made)
    assert backend.OpenVINORuntime().precision == "float32"
    with pytest.raises(BackendError, match="no bfloat16.*Old CPU.*float32, int8.*--precision float32"):
        backend.OpenVINORuntime(precision="bfloat16")


def test_torch_takes_float32_for_tasks_of_bfloat16_where_the_processor_has_none(monkeypatch):
    """It emulates bfloat16, many times slower, where the documentation promises what the processor has."""
    pytest.importorskip("torch")
    for features, wanted in ((frozenset(), "float32"), (frozenset({"avx512_bf16"}), "bfloat16")):
        made = Processor(machine="x86_64", features=features)
        monkeypatch.setattr("polyhead.engine.backends.processor", lambda made=made: made)
        found = open_backend("torch", tiny_trunk(), {}, precision=None, trained="bfloat16")
        assert found.precision == wanted
    assert open_backend("torch", tiny_trunk(), {}, precision="bfloat16").precision == "bfloat16"


def test_label_says_the_width_of_weights_in_int8_alone(tmp_path):
    pytest.importorskip("polyhead.engine.backends.openvino")
    trunk = tiny_trunk()
    path = tiny_paths(Pooled(positions="mean"), trunk)["mood"]
    bundle = tiny_bundle(tmp_path / "b", trunk, {"mood": path})
    runtime = open_runtime("openvino", precision="int8", scales=Scales({}))
    assert numerics_of(Session(bundle, backend=runtime)).weight_bits == processor().weight_bits
    assert numerics_of(Session(bundle, backend="openvino", precision="float32")).weight_bits is None
    assert GraphBackend(runtime, trunk, {}).weight_bits == processor().weight_bits


# -- the cap ---------------------------------------------------------------------------------------------------------


def kernels(compiled):
    """The kernel of each node of a graph that OpenVINO compiled."""
    facts = [node.get_rt_info() for node in compiled.model.get_runtime_model().get_ordered_ops()]
    return {one["layerType"].astype(str): one["primitiveType"].astype(str) for one in facts}


@pytest.mark.skipif(
    processor().has_wide_sums, reason="this process may use VNNI; `make test` runs these files in one that may not"
)
def test_in_this_process_weights_of_eight_bits_saturate_and_no_kernel_of_avx512_multiplies():
    """The cap bites: what the other tests of this process see is a processor without VNNI."""
    pytest.importorskip("polyhead.engine.backends.openvino")
    found, exact, compiled = computed("openvino", bits=8)
    assert "avx512" not in kernels(compiled)["FullyConnected"], kernels(compiled)
    assert found.max() < 0.6 * exact.min()
    found, exact, _ = computed("openvino", bits=7)
    np.testing.assert_allclose(found, exact, rtol=0.01)


@pytest.mark.parametrize("width", [1, 16, 33])
def test_a_layer_norm_of_any_width_is_that_of_numpy_where_onednn_is_capped(monkeypatch, width):
    """OpenVINO's own ended the process on rows that are no multiple of 16 numbers."""
    pytest.importorskip("polyhead.engine.backends.openvino")
    made = Processor(machine="x86_64", features=frozenset(), cap="AVX2")
    monkeypatch.setattr("polyhead.engine.backends.openvino.ops.processor", lambda: made)
    rng = np.random.default_rng(0)
    x, gain, bias = (rng.standard_normal(size).astype(np.float32) + 2 for size in ((2, 5, width), width, width))

    def build(ops):
        return {"out": ops.norm(ops.input("x", "float", (-1, -1, width)), gain, bias, 1e-5)}

    runtime = open_runtime("openvino", precision="float32")
    found = runtime.compile(build, label="norm", layers=False)({"x": x})["out"]
    centred = (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(found, centred * gain + bias, atol=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(processor().machine not in ("x86_64", "AMD64"), reason="oneDNN has caps on x86 alone")
@pytest.mark.parametrize("variable", CAPS)
def test_a_capped_process_is_one_without_vnni(variable):
    pytest.importorskip("polyhead.engine.backends.openvino")
    name = "test_in_this_process_weights_of_eight_bits_saturate_and_no_kernel_of_avx512_multiplies"
    environment = {key: value for key, value in os.environ.items() if key not in CAPS} | {variable: "AVX2"}
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    code = f"import engine.test_processor as t; assert t.processor().cap == 'AVX2'; t.{name}()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_make_test_also_runs_precision_tests_in_a_capped_process():
    """With a variable that oneDNN reads, on files that are there, this one among them."""
    makefile = (ROOT / "Makefile").read_text()
    (line,) = [line for line in makefile.splitlines() if "=AVX2 " in line]
    assert line == f"\t{CAPS[0]}=AVX2 $(PYTEST) $(CAPPED)"
    assert re.search(r"^PYTEST := .*-m pytest ", makefile, re.MULTILINE)
    joined = makefile.replace("\\\n", " ")
    files = re.search(r"^CAPPED\s*:=(.*)$", joined, re.MULTILINE)[1].split()
    assert "tests/engine/test_processor.py" in files and len(files) >= 6
    assert all((ROOT / file).is_file() for file in files), files
