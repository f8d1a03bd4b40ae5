"""Graphs in plain numpy, computed when they are called, by which all that is not a runtime's own is tested fast."""

import threading

import numpy as np
from scipy.special import erf


class Node:
    def __init__(self, function, *args):
        self.function, self.args = function, args


class NumpyOps:
    def __init__(self):
        self.inputs, self.weights = [], 0

    def input(self, name, kind, shape):
        self.inputs.append(name)
        dtype = {"int": np.int64, "float": np.float32}[kind]

        def given(values):
            array = values[name]
            assert array.dtype == dtype and array.ndim == len(shape), (name, array.dtype, array.shape, shape)
            assert all(size in (-1, found) for size, found in zip(shape, array.shape, strict=True)), (name, shape)
            return array

        return Node(given)

    def constant(self, array):
        self.weights += array.size
        return Node(lambda values: array)

    def _of(self, function, *args):
        return Node(None, function, *args)

    def size(self, x, axis):
        return self._of(lambda a: a.shape[axis], x)

    def reshape(self, x, shape):
        return self._of(lambda a, *sizes: a.reshape([int(size) for size in sizes]), x, *shape)

    def transpose(self, x, order):
        return self._of(lambda a: a.transpose(order), x)

    def concat(self, parts, axis):
        return self._of(lambda *arrays: np.concatenate(arrays, axis), *parts)

    def slice(self, x, axis, start, stop):
        return self._of(lambda a: np.moveaxis(np.moveaxis(a, axis, 0)[start:stop], 0, axis), x)

    def gather(self, table, places):
        return self._of(lambda rows, at: rows[at], table, places)

    def matmul(self, a, b, *, transposed=False):
        return self._of(lambda x, y: x @ (np.swapaxes(y, -1, -2) if transposed else y), a, b)

    def add(self, a, b):
        return self._of(np.add, a, b)

    def subtract(self, a, b):
        return self._of(np.subtract, a, b)

    def multiply(self, a, b):
        return self._of(np.multiply, a, b)

    def divide(self, a, b):
        return self._of(np.divide, a, b)

    def total(self, x, axis):
        return self._of(lambda a: a.sum(axis, keepdims=True), x)

    def root(self, x):
        return self._of(np.sqrt, x)

    def absolute(self, x):
        return self._of(np.abs, x)

    def maximum(self, a, b):
        return self._of(np.maximum, a, b)

    def minimum(self, a, b):
        return self._of(np.minimum, a, b)

    def gelu(self, x):
        return self._of(lambda a: (a * (1 + erf(a / np.float32(2**0.5))) / 2).astype(np.float32), x)

    def gelu_tanh(self, x):
        return self._of(lambda a: a * (1 + np.tanh((2 / np.pi) ** 0.5 * (a + 0.044715 * a**3))) / 2, x)

    def silu(self, x):
        return self._of(lambda a: a / (1 + np.exp(-a)), x)

    def tanh(self, x):
        return self._of(np.tanh, x)

    def relu(self, x):
        return self._of(lambda a: np.maximum(a, 0), x)

    def round(self, x):
        return self._of(np.rint, x)

    def halved(self, x):
        return self._of(lambda a: a.astype(np.float16).astype(np.float32), x)

    def signed(self, x):
        return self._of(lambda a: np.where(a >= 0, np.float32(1), np.float32(-1)), x)

    def softmax(self, x):
        return self._of(_softmax, x)

    def norm(self, x, gain, bias, epsilon):
        self.weights += gain.size + bias.size

        def normed(a):
            centred = a - a.mean(-1, keepdims=True)
            return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon) * gain + bias

        return self._of(normed, x)

    def attention(self, query, key, value, added, scale):
        return self._of(
            lambda q, k, v, more: _softmax(q @ np.swapaxes(k, -1, -2) * np.float32(scale) + more) @ v,
            query,
            key,
            value,
            added,
        )


def _softmax(a):
    exp = np.exp(a - a.max(-1, keepdims=True))
    return exp / exp.sum(-1, keepdims=True)


class NumpyRuntime:
    """Counts: `compiled` names the graphs, `calls` those that ran; a graph whose name holds `broken` is refused."""

    name, precision, tolerance, fills = "numpy", "float32", 1e-4, True

    def __init__(self):
        self.compiled, self.calls, self.broken, self.weights, self.buffers = [], [], None, {}, {}
        self.wait = threading.Event()
        self.wait.set()

    def compile(self, build, *, label, layers, exact=False):
        assert self.wait.wait(20)
        if self.broken is not None and self.broken in label:
            raise RuntimeError(f"cannot compile {label}")
        ops = NumpyOps()
        outputs = build(ops)
        self.compiled.append(label)
        self.weights[label] = ops.weights

        def run(inputs):
            self.calls.append(label)
            assert set(ops.inputs) == set(inputs), (label, ops.inputs, list(inputs))
            known = {}
            found = {name: _value(node, inputs, known) for name, node in outputs.items()}
            return _held(self.buffers.setdefault((id(ops), threading.get_ident()), {}), found)

        return run


def _held(buffers, found):
    """The outputs in the thread's own memory, over those of its last call, as real runtimes have it."""
    for name, array in found.items():
        if name not in buffers or buffers[name].size < array.size:
            buffers[name] = np.empty(array.size, np.float32)
        buffers[name][: array.size] = array.ravel()
    return {name: buffers[name][: array.size].reshape(array.shape) for name, array in found.items()}


def _value(node, inputs, known):
    if not isinstance(node, Node):
        return node
    if id(node) not in known:
        if node.function is not None:
            known[id(node)] = node.function(inputs)
        else:
            function, *args = node.args
            known[id(node)] = function(*(_value(arg, inputs, known) for arg in args))
    return known[id(node)]
