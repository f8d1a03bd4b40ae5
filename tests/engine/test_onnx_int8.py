"""Layers in 8 bits under ONNX Runtime: the formula of the scales, found on texts by the same runtime."""

from functools import partial

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

from polyhead.engine.backends import open_backend, open_runtime
from polyhead.engine.backends.onnx import OnnxRuntime
from polyhead.engine.scales import Scale, Scales, weight_digest
from polyhead.engine.session import Session
from polyhead.errors import BackendError
from polyhead.evaluate import int8 as calibrate
from polyhead.machine import processor
from polyhead.project.strategies import Pooled
from polyhead.store.jobs.columns import RowInput
from polyhead.testing import tiny_trunk
from polyhead.testing.strategies import tiny_bundle, tiny_paths

TEXTS = [f"{first} {what} {how}" for first in ("my", "the", "where is my") for what in ("lamp", "bill", "phone")
         for how in ("is broken", "was late today", "and the kettle")]  # fmt: skip
ROWS = [RowInput(input=(text,)) for text in TEXTS]
RUNTIMES = partial(open_runtime, "onnxruntime")


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def scales_for(weights):
    """Coarse ones, so that what 8 bits lose is far above what float32 does."""
    found = {}
    for number, weight in enumerate(weights):
        smooth = np.exp(drawn(weight.shape[1], seed=number))
        found[weight_digest(weight)] = Scale(smooth=smooth, step=0.3 + 0.2 * number, zero=128 - number)
    return Scales(found)


def product(weight, x, *, layers=True):
    """`x W^T` by a graph in 8 bits."""

    def build(ops):
        given = ops.input("x", "float", (-1, -1, weight.shape[-1]))
        return {"out": ops.matmul(given, ops.constant(weight), transposed=True)}

    each = weight if weight.ndim == 3 else weight[None]
    runtime = OnnxRuntime(precision="int8", threads=1, scales=scales_for(each))
    return runtime.compile(build, label="product", layers=layers)({"x": x})["out"]


@pytest.mark.parametrize("groups", [1, 3])
def test_product_is_the_formula_of_its_scale(groups):
    """`kept(x) (W s)^T` by numpy; groups of rows with weights of their own have scales of their own."""
    weights, x = drawn(groups, 32, 16), 2 * drawn(groups, 40, 16, seed=1)
    out = product(weights if groups > 1 else weights[0], x)
    for group, scale in enumerate(scales_for(weights).known.values()):
        formula = scale.product(x[group], weights[group], bits=processor().weight_bits)
        exact = x[group] @ weights[group].T
        assert np.abs(out[group] - formula).mean() < 0.05 * np.abs(formula - exact).mean()


def test_a_bias_after_a_product_is_one_sum_with_its_shift():
    """And it is the same number; a product without a bias, or read twice, keeps its own."""
    weight, x, bias = drawn(32, 16), 1 + drawn(1, 40, 16, seed=1), drawn(32, seed=2)
    scale = Scale(smooth=np.ones(16, np.float32), step=0.05, zero=128, mean=x[0].mean(axis=0))

    def build(ops):
        given = ops.input("x", "float", (-1, -1, 16))
        product = ops.matmul(given, ops.constant(weight), transposed=True)
        return {"bare": product, "whole": ops.add(product, ops.constant(bias))}

    runtime = OnnxRuntime(precision="int8", threads=1, scales=Scales({weight_digest(weight): scale}))
    found = runtime.compile(build, label="biased", layers=True)({"x": x})
    np.testing.assert_allclose(found["whole"], found["bare"] + bias, atol=1e-5)
    wanted = scale.product(x[0], weight, bits=runtime.weight_bits)
    np.testing.assert_allclose(found["bare"][0], wanted, atol=1e-3)


def test_poolers_and_heads_stay_in_float32():
    weight, x = drawn(32, 16), drawn(1, 40, 16, seed=1)
    np.testing.assert_allclose(product(weight, x, layers=False), x @ weight.T, atol=1e-5)


def test_scales_found_on_texts_change_answers_little(tmp_path):
    """Calibration and measuring with this runtime alone; a text's bits do not depend on its mates."""
    strategy, trunk = Pooled(layers="mean", of=2, positions="attention", heads=2, hidden=8), tiny_trunk()
    paths = tiny_paths(strategy, trunk)
    bundle = tiny_bundle(tmp_path / "b", trunk, {name: paths[name] for name in ("mood", "topics", "urgency")})
    scales = calibrate.calibrated_scales(bundle, ROWS[:12], RUNTIMES, show=lambda text: None)
    assert len(scales.known) == 6 * trunk.architecture.layers
    changes = calibrate.measured(bundle, ROWS[12:], RUNTIMES, scales, labelled=None, show=lambda text: None)
    assert all(change.agreement.share > 0.8 for change in changes.values()), changes
    texts = [(text,) for text in TEXTS[12:]]
    int8 = Session(bundle, backend=RUNTIMES(precision="int8", scales=scales), deterministic=True)
    coarse, exact = (
        np.concatenate(session.outputs("topics", texts))
        for session in (int8, Session(bundle, backend=RUNTIMES(precision="float32")))
    )
    assert 0 < np.abs(exact - coarse).max() < 0.2 * np.ptp(exact)
    assert int8.outputs("topics", texts[3:4])[0].tobytes() == int8.outputs("topics", texts)[3].tobytes()


def test_precisions_that_it_has_not_are_refused():
    with pytest.raises(BackendError, match="polyhead tasks quantize"):
        OnnxRuntime(precision="int8")
    with pytest.raises(BackendError, match="bfloat16"):
        open_backend("onnxruntime", tiny_trunk(), {}, precision="bfloat16")
