"""The head of a task over pairs read separately, from the features of both texts."""

from __future__ import annotations

import numpy as np

from polyhead.engine.compile.encoder import Arrays, dense
from polyhead.engine.compile.ops import Ops, Tensor
from polyhead.plan import Head


def compared_outputs(ops: Ops, head: Head, own: Arrays, hidden: Arrays) -> Tensor:
    """The head on [u, v, |u - v|, u * v], (rows, labels); u and v are scaled to the length sqrt(width).

    Inputs: `first` and `second` (rows, width).
    """
    width = (hidden["head.hidden.weight"] if head.hidden else own["head.output.weight"]).shape[1] // 4
    u, v = (_scaled(ops, ops.input(name, "float", (-1, width)), width) for name in ("first", "second"))
    out = ops.concat([u, v, ops.absolute(ops.subtract(u, v)), ops.multiply(u, v)], 1)
    if head.hidden:
        out = dense(ops, out, [hidden], "head.hidden")
        out = {"tanh": ops.tanh, "relu": ops.relu, "gelu": ops.gelu}[head.activation](out)
    return dense(ops, out, [own], "head.output")


def _scaled(ops: Ops, x: Tensor, width: int) -> Tensor:
    length = ops.root(ops.total(ops.multiply(x, x), 1))
    length = ops.maximum(length, ops.constant(np.array(1e-12, np.float32)))
    return ops.multiply(ops.divide(x, length), ops.constant(np.array(width**0.5, np.float32)))
