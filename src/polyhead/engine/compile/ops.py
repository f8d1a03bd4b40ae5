"""The operators that graphs are built from: what a runtime must be able to say, and nothing else.

A graph is built once, by code that calls these, from a plan and a bundle's arrays; no torch, no tracing. Numbers are
float32 where nothing else is said; a runtime may compute them in a lower precision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

Tensor = Any  # a value in a graph that is being built: what the runtime's library calls a node or an output
InputKind = Literal["int", "float"]  # int64, float32
Size = int | Tensor  # a known number, or one that is read from another tensor's shape
# Entered around each part of building a graph. A server rests after each, since Python runs one thread at a time.
PART: ContextVar[Callable[[], AbstractContextManager[None]]] = ContextVar("polyhead_part", default=nullcontext)


class Ops(Protocol):
    """Operators over tensors. Shapes broadcast as in numpy."""

    def input(self, name: str, kind: InputKind, shape: Sequence[int]) -> Tensor:
        """An input of the graph; -1 stands for a size that each run gives."""

    def constant(self, array: np.ndarray) -> Tensor:
        """An array of weights (float32) or indices (int64)."""

    def size(self, x: Tensor, axis: int) -> Tensor:
        """The size of an axis, for `reshape`."""

    def reshape(self, x: Tensor, shape: Sequence[Size]) -> Tensor:
        """The same numbers in another shape; one size may be -1."""

    def transpose(self, x: Tensor, order: Sequence[int]) -> Tensor:
        """Axes in another order."""

    def concat(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        """Parts one after another."""

    def slice(self, x: Tensor, axis: int, start: int, stop: Size) -> Tensor:
        """A piece of an axis; a `stop` past its end is the end."""

    def gather(self, table: Tensor, places: Tensor) -> Tensor:
        """Rows of a table (rows, ...) at places of any shape."""

    def matmul(self, a: Tensor, b: Tensor, *, transposed: bool = False) -> Tensor:
        """`a b`, or `a b^T`, over the last two axes."""

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """`a + b`."""

    def subtract(self, a: Tensor, b: Tensor) -> Tensor:
        """`a - b`."""

    def multiply(self, a: Tensor, b: Tensor) -> Tensor:
        """`a * b`."""

    def divide(self, a: Tensor, b: Tensor) -> Tensor:
        """`a / b`."""

    def total(self, x: Tensor, axis: int) -> Tensor:
        """The sum over an axis, which is kept with size 1."""

    def root(self, x: Tensor) -> Tensor:
        """The square root."""

    def absolute(self, x: Tensor) -> Tensor:
        """The absolute value."""

    def maximum(self, a: Tensor, b: Tensor) -> Tensor:
        """The larger of each two."""

    def minimum(self, a: Tensor, b: Tensor) -> Tensor:
        """The smaller of each two."""

    def gelu(self, x: Tensor) -> Tensor:
        """`x (1 + erf(x / sqrt 2)) / 2`."""

    def gelu_tanh(self, x: Tensor) -> Tensor:
        """`x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2`."""

    def silu(self, x: Tensor) -> Tensor:
        """`x / (1 + exp(-x))`."""

    def tanh(self, x: Tensor) -> Tensor:
        """The hyperbolic tangent."""

    def relu(self, x: Tensor) -> Tensor:
        """`max(x, 0)`."""

    def round(self, x: Tensor) -> Tensor:
        """To the nearest whole number, halves to even."""

    def halved(self, x: Tensor) -> Tensor:
        """Through float16 and back."""

    def signed(self, x: Tensor) -> Tensor:
        """1 for x >= 0, else -1."""

    def softmax(self, x: Tensor) -> Tensor:
        """Over the last axis."""

    def norm(self, x: Tensor, gain: np.ndarray, bias: np.ndarray, epsilon: float) -> Tensor:
        """Layer norm over the last axis; epsilon inside the root."""

    def attention(self, query: Tensor, key: Tensor, value: Tensor, added: Tensor, scale: float) -> Tensor:
        """`softmax(scale Q K^T + added) V`; (rows, heads, tokens, width) each, `added` broadcasts to the scores."""


def side_by_side(matrices: Sequence[np.ndarray]) -> np.ndarray:
    """Matrices as one array for one product, (matrices, ...); one alone as it is."""
    return matrices[0] if len(matrices) == 1 else np.stack(matrices)


def slots_product(ops: Ops, x: Tensor, matrices: Sequence[np.ndarray], *, apart: int) -> Tensor:
    """`x W` with a matrix for each part of x, (parts, rows, inputs) to (parts, rows, outputs).

    Operators with a method `slots` may compute it otherwise, in 8 bits; then so many parts, those of one slot, by
    themselves, so that none has a part in another's bits. 0 leaves that open.
    """
    operator = getattr(ops, "slots", None)
    product: Tensor = (
        ops.matmul(x, ops.constant(side_by_side(matrices))) if operator is None else operator(x, matrices, apart=apart)
    )
    return product


Outputs = Mapping[str, Tensor]
Build = Callable[[Ops], Outputs]


class Compiled(Protocol):
    """A graph that runs; it may be called from several threads at once."""

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs by name; they hold until the same thread calls again. Arrays that are given are not changed."""


@runtime_checkable
class Runtime(Protocol):
    """A library that compiles graphs."""

    name: str
    precision: str  # of the layers
    tolerance: float  # largest absolute difference of outputs from the reference backend
    fills: bool  # whether rows and positions may be filled up, so that it sees few shapes

    def compile(self, build: Build, *, label: str, layers: bool, exact: bool = False) -> Compiled:
        """The graph that `build` makes, compiled; `label` names it in errors and caches.

        `layers` says whether it runs the encoder's layers, which alone may be quantized, or poolers and heads. One
        that is `exact` computes in float32 whatever the precision: a decoder, whose next token may hang on a rounding.
        """
