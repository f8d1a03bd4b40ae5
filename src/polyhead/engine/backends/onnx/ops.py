"""ONNX operators under the names of `engine.compile.ops`: a graph is nodes and named arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partialmethod
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from polyhead.engine.compile.ops import InputKind, Size, Tensor

OPSET, IR = 20, 10  # of 2023: `Gelu` is of this set; runtimes from then on read it
INLINE = 1024  # bytes up to which an array stands among the nodes: shapes and numbers, which optimisers read
_KINDS = {"int": TensorProto.INT64, "float": TensorProto.FLOAT}
_TYPES: dict[np.dtype[Any], type] = {np.dtype(kind): kind for kind in (np.int8, np.uint8)}  # kept as they are


class OnnxOps:
    """Builds one graph; a tensor is its name."""

    def __init__(self) -> None:
        self.inputs: dict[str, onnx.ValueInfoProto] = {}
        self.arrays: dict[str, np.ndarray] = {}
        self._nodes: list[onnx.NodeProto] = []
        # Equal arrays are one constant, so that a graph holds no weight twice.
        self._known: dict[object, tuple[object, str]] = {}

    def graph(
        self, outputs: Mapping[str, Tensor], *, label: str, shapes: Mapping[str, Sequence[int | str]] | None = None
    ) -> onnx.ModelProto:
        """The model with these outputs, by name; arrays larger than `INLINE` are named, and lie in `arrays`.

        `shapes` says those of outputs to who looks at the file.
        """
        nodes = [helper.make_node("Identity", [x], [name]) for name, x in outputs.items()]
        read = {name for node in nodes for name in node.input}
        for node in reversed(self._nodes):  # what nothing reads would keep runtimes from fusing what is before it
            if read.intersection(node.output):
                read.update(node.input)
                nodes.insert(0, node)
        self.arrays = {name: array for name, array in self.arrays.items() if name in read}
        graph = helper.make_graph(
            nodes,
            label,
            list(self.inputs.values()),
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, (shapes or {}).get(name)) for name in outputs],
            initializer=[_written(name, array) for name, array in self.arrays.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR)

    def node(self, operator: str, *inputs: Tensor, **attributes: Any) -> Tensor:
        """The output of any operator of the set."""
        name = f"{operator}.{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, list(inputs), [name], name=name, **attributes))
        return name

    add = partialmethod(node, "Add")
    subtract = partialmethod(node, "Sub")
    multiply = partialmethod(node, "Mul")
    divide = partialmethod(node, "Div")
    maximum = partialmethod(node, "Max")
    minimum = partialmethod(node, "Min")
    root = partialmethod(node, "Sqrt")
    absolute = partialmethod(node, "Abs")
    round = partialmethod(node, "Round")
    gelu = partialmethod(node, "Gelu")
    gelu_tanh = partialmethod(node, "Gelu", approximate="tanh")
    tanh = partialmethod(node, "Tanh")
    relu = partialmethod(node, "Relu")

    def input(self, name: str, kind: InputKind, shape: Sequence[int | str]) -> Tensor:
        if name not in self.inputs:
            sizes = [f"{name}.{axis}" if size == -1 else size for axis, size in enumerate(shape)]
            self.inputs[name] = helper.make_tensor_value_info(name, _KINDS[kind], sizes)
        return name

    def constant(self, array: np.ndarray) -> Tensor:
        return self._constant(id(array), array, np.asarray(array))

    def size(self, x: Tensor, axis: int) -> Tensor:
        return self.node("Shape", x, start=axis, end=axis + 1)

    def reshape(self, x: Tensor, shape: Sequence[Size]) -> Tensor:
        if all(isinstance(size, int) for size in shape):
            return self.node("Reshape", x, self.whole(*shape))
        sizes = [self.whole(size) if isinstance(size, int) else size for size in shape]
        return self.node("Reshape", x, self.node("Concat", *sizes, axis=0))

    def transpose(self, x: Tensor, order: Sequence[int]) -> Tensor:
        return self.node("Transpose", x, perm=list(order))

    def concat(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        return self.node("Concat", *parts, axis=axis)

    def slice(self, x: Tensor, axis: int, start: int, stop: Size) -> Tensor:
        end = self.whole(stop) if isinstance(stop, int) else stop
        return self.node("Slice", x, self.whole(start), end, self.whole(axis))

    def gather(self, table: Tensor, places: Tensor) -> Tensor:
        return self.node("Gather", table, places, axis=0)

    def matmul(self, a: Tensor, b: Tensor, *, transposed: bool = False) -> Tensor:
        if transposed:
            array = self.arrays[b]  # weights, which are turned once, here
            b = self._constant((b, "turned"), array, np.swapaxes(array, -1, -2))
        return self.node("MatMul", a, b)

    def silu(self, x: Tensor) -> Tensor:
        return self.multiply(x, self.node("Sigmoid", x))

    def total(self, x: Tensor, axis: int) -> Tensor:
        return self.node("ReduceSum", x, self.whole(axis), keepdims=1)

    def halved(self, x: Tensor) -> Tensor:
        return self.node("Cast", self.node("Cast", x, to=TensorProto.FLOAT16), to=TensorProto.FLOAT)

    def signed(self, x: Tensor) -> Tensor:
        zero, one = (self.constant(np.array(number, np.float32)) for number in (0.0, 1.0))
        less = self.constant(np.array(-1.0, np.float32))
        return self.node("Where", self.node("GreaterOrEqual", x, zero), one, less)

    def softmax(self, x: Tensor) -> Tensor:
        return self.node("Softmax", x, axis=-1)

    def norm(self, x: Tensor, gain: np.ndarray, bias: np.ndarray, epsilon: float) -> Tensor:
        if gain.ndim == 1:
            arrays = (self.constant(gain), self.constant(bias))
            return self.node("LayerNormalization", x, *arrays, axis=-1, epsilon=epsilon)
        ones = self.constant(np.ones(gain.shape[-1], np.float32))
        centred = self.node("LayerNormalization", x, ones, axis=-1, epsilon=epsilon)
        return self.add(self.multiply(centred, self.constant(gain)), self.constant(bias))

    def attention(self, query: Tensor, key: Tensor, value: Tensor, added: Tensor, scale: float) -> Tensor:
        turned = self.transpose(key, (0, 1, 3, 2))
        scores = self.multiply(self.matmul(query, turned), self.constant(np.array(scale, np.float32)))
        return self.matmul(self.softmax(self.add(scores, added)), value)

    def whole(self, *numbers: int) -> Tensor:
        """Integers as a constant (numbers,)."""
        return self._constant(numbers, None, np.array(numbers, np.int64))

    def _constant(self, key: object, owner: object, array: np.ndarray) -> Tensor:
        if key not in self._known:
            kind = _TYPES.get(array.dtype, np.int64 if array.dtype.kind == "i" else np.float32)
            name = f"constant.{len(self.arrays)}"
            self.arrays[name] = np.ascontiguousarray(array, kind).reshape(array.shape)
            self._known[key] = (owner, name)  # the owner is held, so that no other array gets its id
        return self._known[key][1]


def _written(name: str, array: np.ndarray) -> onnx.TensorProto:
    """The tensor with its numbers, or of a larger one without them: they are found by its name."""
    if array.nbytes <= INLINE:
        return numpy_helper.from_array(array, name)
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    tensor = onnx.TensorProto(name=name, data_type=kind, dims=array.shape)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=name)
    return tensor
