"""OpenVINO's operators under the names of `engine.compile.ops`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import openvino as ov
import openvino.opset13 as op

from polyhead.bundle.files import map_of
from polyhead.engine.compile.ops import InputKind, Size, Tensor
from polyhead.machine import processor

_KINDS = {"int": np.int64, "float": np.float32}
WHOLE = 16  # float32 numbers that fill a register of AVX-512


class OpenVINOOps:
    """Builds one graph; `inputs` are those that it asked for, each once. `bfloat16`: it is computed in that.

    `halved`: weights are given in bfloat16 too. A compiled graph keeps what it was given beside what it multiplies
    with, so that takes half the memory, and a little more time. `turned`: weights are given turned.
    """

    def __init__(self, *, bfloat16: bool = False, halved: bool = False, turned: bool = False) -> None:
        self._bfloat16, self._halved, self._turned = bfloat16, halved, turned
        self.inputs: dict[str, ov.Node] = {}
        # Equal arrays are one constant, so that a graph holds no weight twice.
        self._constants: dict[int, ov.Node] = {}
        self.arrays: dict[int, np.ndarray] = {}  # by the id of their constant

    add, subtract, multiply, divide = map(staticmethod, (op.add, op.subtract, op.multiply, op.divide))
    maximum, minimum, root, absolute, tanh = map(staticmethod, (op.maximum, op.minimum, op.sqrt, op.abs, op.tanh))

    def input(self, name: str, kind: InputKind, shape: Sequence[int]) -> Tensor:
        if name not in self.inputs:
            self.inputs[name] = op.parameter(list(shape), _KINDS[kind], name=name)
            self.inputs[name].output(0).set_names({name})
        return self.inputs[name]

    def constant(self, array: np.ndarray) -> Tensor:
        node = self._constants.get(id(array))
        if node is None:
            whole = np.ascontiguousarray(array, np.int64 if array.dtype.kind == "i" else np.float32)
            # Arrays of a mapped file are only read, so the graph reads them there; others are copied.
            is_lent = map_of(whole) is not None and whole.flags.writeable
            node = self._constants[id(array)] = op.constant(whole, shared_memory=is_lent)
            self.arrays[id(node)] = array
        return node

    def size(self, x: Tensor, axis: int) -> Tensor:
        return op.gather(op.shape_of(x), _whole(axis), _whole(0))

    def reshape(self, x: Tensor, shape: Sequence[Size]) -> Tensor:
        if all(isinstance(size, int) for size in shape):
            return op.reshape(x, _whole(*shape), False)
        sizes = [_whole(size) if isinstance(size, int) else size for size in shape]
        return op.reshape(x, op.concat(sizes, 0), False)

    def transpose(self, x: Tensor, order: Sequence[int]) -> Tensor:
        return op.transpose(x, _whole(*order))

    def concat(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        return op.concat(list(parts), axis)

    def slice(self, x: Tensor, axis: int, start: int, stop: Size) -> Tensor:
        end = _whole(stop) if isinstance(stop, int) else stop
        return op.slice(x, _whole(start), end, _whole(1), _whole(axis))

    def gather(self, table: Tensor, places: Tensor) -> Tensor:
        weights = self.arrays.get(id(table))
        if self._halved and weights is not None and min(weights.shape[-2:], default=0) > 1:  # biases are no matrices
            return op.convert(op.gather(rounded(weights), places, _whole(0)), "f32")
        return op.gather(table, places, _whole(0))

    def matmul(self, a: Tensor, b: Tensor, *, transposed: bool = False) -> Tensor:
        if self._halved and b.get_type_name() == "Constant":
            return op.convert(op.matmul(op.convert(a, "bf16"), rounded(b.data), False, transposed), "f32")
        if self._turned and transposed and b.get_type_name() == "Constant" and len(b.shape) == 2:
            # OpenVINO's fused gated half ends the process where it has one thread (2026.4: it halves their number).
            return op.matmul(a, op.constant(np.ascontiguousarray(self.arrays[id(b)].T, np.float32)), False, False)
        return op.matmul(a, b, False, transposed)

    def total(self, x: Tensor, axis: int) -> Tensor:
        return op.reduce_sum(x, _whole(axis), True)

    def gelu(self, x: Tensor) -> Tensor:
        return op.gelu(x, "erf")

    def gelu_tanh(self, x: Tensor) -> Tensor:
        return op.gelu(x, "tanh")

    def silu(self, x: Tensor) -> Tensor:
        return op.swish(x)

    def relu(self, x: Tensor) -> Tensor:
        # 0 x is NaN where x is no finite number: OpenVINO's own gives 0 for NaN, and so hides that a task failed.
        return op.add(op.relu(x), op.multiply(x, self._number(0.0)))

    def round(self, x: Tensor) -> Tensor:
        return op.round(x, "half_to_even")

    def halved(self, x: Tensor) -> Tensor:
        if self._bfloat16:  # whose 8 bits float16 holds, but for less than 2^-25 of very small numbers
            return x
        # OpenVINO leaves conversions to float16 and back out of its graphs. So: with u the power of two below |x|
        # (Rump, Ogita and Oishi 2008, Algorithm 3.5), adding and taking away 1.5 * 2^13 u leaves 11 bits, nearest
        # even; and 24 binary places where that is less, as float16 has them. Exact for every |x| up to 65504.
        q = op.multiply(x, self._number(2.0**23 + 1))
        unit = op.abs(op.subtract(q, op.multiply(q, self._number(1 - 2.0**-24))))
        large = op.multiply(op.maximum(unit, self._number(2.0**-14)), self._number(1.5 * 2**13))
        return op.subtract(op.add(x, large), large)

    def signed(self, x: Tensor) -> Tensor:
        return op.select(op.greater_equal(x, self._number(0.0)), self._number(1.0), self._number(-1.0))

    def softmax(self, x: Tensor) -> Tensor:
        return op.softmax(x, -1)

    def norm(self, x: Tensor, gain: np.ndarray, bias: np.ndarray, epsilon: float) -> Tensor:
        if processor().cap and gain.shape[-1] % WHOLE:
            centred = self._centred(x, gain.shape[-1], epsilon)
        else:
            centred = op.mvn(x, _whole(-1), True, epsilon, "inside_sqrt")
        return op.add(op.multiply(centred, self.constant(gain)), self.constant(bias))

    def attention(self, query: Tensor, key: Tensor, value: Tensor, added: Tensor, scale: float) -> Tensor:
        return op.scaled_dot_product_attention(query, key, value, added, self._number(scale))

    def _centred(self, x: Tensor, width: int, epsilon: float) -> ov.Node:
        """The result of `mvn`, by other operators."""
        # OpenVINO's kernel of AVX-512 ends the process on the last numbers of a row that do not fill a register where
        # oneDNN, which writes that piece of it, is capped to less (2026.4, an EPYC with AVX-512 capped to AVX2).
        from_mean = op.subtract(x, op.divide(self.total(x, -1), self._number(width)))
        variance = op.divide(self.total(op.multiply(from_mean, from_mean), -1), self._number(width))
        return op.divide(from_mean, op.sqrt(op.add(variance, self._number(epsilon))))

    def _number(self, value: float) -> ov.Node:
        return op.constant(np.float32(value))


def rounded(weights: np.ndarray) -> ov.Node:
    """These float32 numbers in bfloat16, to the nearest, ties to even.

    OpenVINO's own conversion goes number by number, which takes far longer, and rounds a quarter of them the other way.
    """
    bits = np.ascontiguousarray(weights, np.float32).view(np.uint32)
    upper = ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)
    upper[np.isnan(weights)] = 0x7FC0
    return op.constant(ov.Tensor(upper, upper.shape, ov.Type.bf16), shared_memory=False)


def _whole(*numbers: int) -> ov.Node:
    return op.constant(np.array(numbers, np.int64))
