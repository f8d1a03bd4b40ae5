"""ONNX operators and ONNX Runtime: each operator is numpy's, weights stay where they are, threads do not meet."""

import sys
from concurrent.futures import ThreadPoolExecutor
from math import erf

import numpy as np
import pytest

from support.cases import cases

pytest.importorskip("onnxruntime")

from polyhead.engine.backends import open_backend
from polyhead.engine.backends.onnx import OnnxRuntime
from polyhead.engine.backends.onnx.ops import INLINE, OnnxOps
from polyhead.errors import MissingExtra
from polyhead.testing import tiny_trunk

X = np.linspace(-3, 3, 24, dtype=np.float32).reshape(2, 3, 4)
W = np.cos(np.arange(20, dtype=np.float32)).reshape(5, 4)
GROUPS = np.sin(np.arange(40, dtype=np.float32)).reshape(2, 5, 4)
GAIN, BIAS = np.float32([1.0, 2.0, 0.5, -1.0]), np.float32([0.0, 1.0, 0.0, 3.0])
HALVES = np.float32([[[-2.5, -1.5, -0.5, 0.0], [0.5, 1.5, 2.5, 1e-9], [70000.1, 1.0006, -1.0006, 0.1]]])


def run(build, **inputs):
    """The output of a graph of one operator."""
    kinds = {name: "int" if value.dtype.kind == "i" else "float" for name, value in inputs.items()}

    def whole(ops):
        given = {n: ops.input(n, kinds[n], (-1,) * value.ndim) for n, value in inputs.items()}
        return {"out": build(ops, **given)}

    return OnnxRuntime(threads=1).compile(whole, label="test", layers=True)(inputs)["out"]


def normed(x, gain, bias):
    centred = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return centred * gain + bias


def softmaxed(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


ONE = {
    "gelu": (lambda o, x: o.gelu(x), X * (1 + np.vectorize(erf)(X / 2**0.5)) / 2),
    "tanh": (lambda o, x: o.tanh(x), np.tanh(X)),
    "relu": (lambda o, x: o.relu(x), np.maximum(X, 0)),
    "absolute": (lambda o, x: o.absolute(x), np.abs(X)),
    "root of a square": (lambda o, x: o.root(o.multiply(x, x)), np.abs(X)),
    "total": (lambda o, x: o.total(x, 1), X.sum(1, keepdims=True)),
    "softmax": (lambda o, x: o.softmax(x), softmaxed(X)),
    "transpose": (lambda o, x: o.transpose(x, (2, 0, 1)), X.transpose(2, 0, 1)),
    "slice": (lambda o, x: o.slice(x, 1, 1, 3), X[:, 1:3]),
    "concat": (lambda o, x: o.concat([x, x], 1), np.concatenate([X, X], 1)),
    "reshape by a size": (lambda o, x: o.reshape(x, (-1, o.size(x, 2))), X.reshape(-1, 4)),
    "matmul": (lambda o, x: o.matmul(x, o.constant(W.T)), X @ W.T),
    "matmul transposed": (lambda o, x: o.matmul(x, o.constant(W), transposed=True), X @ W.T),
    "matmul of groups": (lambda o, x: o.matmul(x, o.constant(GROUPS), transposed=True), X @ GROUPS.transpose(0, 2, 1)),
    "norm": (lambda o, x: o.norm(x, GAIN, BIAS, 1e-5), normed(X, GAIN, BIAS)),
    "norm of groups": (
        lambda o, x: o.norm(x, np.stack([GAIN, BIAS])[:, None], np.stack([BIAS, GAIN])[:, None], 1e-5),
        normed(X, np.stack([GAIN, BIAS])[:, None], np.stack([BIAS, GAIN])[:, None]),
    ),
    "arithmetic": (
        lambda o, x: o.subtract(o.maximum(x, o.divide(x, o.constant(np.float32([2])))), o.minimum(x, o.add(x, x))),
        np.maximum(X, X / 2) - np.minimum(X, X + X),
    ),
}


@cases("name", ONE)
def test_operator_is_numpys(name):
    build, wanted = ONE[name]
    np.testing.assert_allclose(run(build, x=X), wanted, rtol=1e-5, atol=1e-5)


def test_rounding_is_to_even_to_float16_and_to_signs():
    np.testing.assert_array_equal(run(lambda o, x: o.round(x), x=HALVES), np.round(HALVES))
    with np.errstate(over="ignore"):
        halved = HALVES.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(run(lambda o, x: o.halved(x), x=HALVES), halved)
    np.testing.assert_array_equal(run(lambda o, x: o.signed(x), x=HALVES), np.where(HALVES >= 0, 1, -1))


def test_gather_takes_rows_of_a_table_at_places_of_any_shape():
    places = np.array([[4, 0], [2, 2]])
    np.testing.assert_array_equal(run(lambda o, p: o.gather(o.constant(W), p), p=places), W[places])


def test_attention_is_the_formula():
    rng = np.random.default_rng(0)
    query, key, value = (rng.standard_normal((2, 3, n, 4)).astype(np.float32) for n in (5, 7, 7))
    added = np.where(rng.random((2, 1, 1, 7)) < 0.3, -1e4, 0).astype(np.float32)
    wanted = softmaxed(0.5 * query @ key.transpose(0, 1, 3, 2) + added) @ value
    found = run(lambda o, q, k, v, a: o.attention(q, k, v, a, 0.5), q=query, k=key, v=value, a=added)
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_weights_are_not_in_the_model_whatever_their_size():
    """A protobuf message holds at most 2 GiB: here it holds none of a weight's bytes, and of two uses one array."""
    weight = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)

    def build(ops):
        x = ops.input("x", "float", (-1, 256))
        for _ in range(2):
            x = ops.matmul(x, ops.constant(weight), transposed=True)
        return {"out": x}

    ops = OnnxOps()
    model = ops.graph(build(ops), label="test")
    assert model.ByteSize() < 2 * INLINE < weight.nbytes
    assert [a.shape for a in ops.arrays.values() if a.nbytes > INLINE] == [(256, 256)]
    given = np.eye(3, 256, dtype=np.float32)
    found = OnnxRuntime().compile(build, label="test", layers=True)({"x": given})["out"]
    np.testing.assert_allclose(found, given @ weight.T @ weight.T, rtol=1e-4, atol=1e-4)


def test_threads_that_call_at_once_get_their_own_answers():
    graph = OnnxRuntime(threads=1).compile(
        lambda ops: {"out": ops.matmul(ops.input("x", "float", (-1, 4)), ops.constant(W), transposed=True)},
        label="test",
        layers=False,
    )
    inputs = [np.full((50, 4), number, np.float32) for number in range(40)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda x: graph({"x": x})["out"], inputs))
    for x, out in zip(inputs, found, strict=True):
        np.testing.assert_allclose(out, x @ W.T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_without_its_packages_the_line_that_installs_them_is_said(package, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("polyhead.engine.backends.onnx")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=f"pip install {package}"):
        open_backend("onnxruntime", tiny_trunk(), {})
