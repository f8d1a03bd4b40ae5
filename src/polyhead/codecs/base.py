"""What a codec is: one file that says how feature vectors become bytes, and how they come back."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Protocol

import numpy as np

from polyhead.errors import StoreError
from polyhead.registry import Registry
from polyhead.values import Value

NO_TOKEN = -1  # whose a vector is that is no token's


class Constants(Protocol):
    """Numbers fixed from training features, as a plan's `Codec` node holds them: one a tensor or one a dimension."""

    @property
    def scale(self) -> tuple[float, ...]:
        """Positive numbers."""

    @property
    def zero(self) -> tuple[float, ...]:
        """As many finite numbers."""

    @property
    def arrays(self) -> str:
        """The digest of a table (`codecs.tables`); empty where the codec has none."""


class Affine(Value, eq=False):
    """Decoded values are `numbers @ matrix + shift`, float64; a matrix of less than two dimensions is a diagonal."""

    matrix: np.ndarray  # (numbers, width), or one number a tensor or one a dimension
    shift: np.ndarray  # one number a tensor or one a dimension
    highest: np.ndarray | float = math.inf  # of the numbers; the lowest is 0 where this is finite
    added: np.ndarray | None = None  # (rows, numbers): one of these rows is added to numbers from 0 to the highest

    def decoded(self, numbers: np.ndarray) -> np.ndarray:
        """float32 (..., numbers) as float32 (..., width)."""
        matrix = self.matrix.astype(np.float32)
        values = numbers * matrix if matrix.ndim < 2 else numbers @ matrix
        values += self.shift.astype(np.float32)
        return np.asarray(values)

    def folded(self, values: np.ndarray) -> np.ndarray:
        """(..., width) multiplied by the transposed matrix, (..., numbers): what numbers are to be multiplied by."""
        return values * self.matrix if self.matrix.ndim < 2 else np.asarray(values @ self.matrix.T)


class FeatureCodec(ABC):
    """A way to write float32 vectors. `register_codec` makes it known by its name.

    The head only ever sees decoded features (Du et al. 2020, quantized encoder features), so what is stored and what
    is computed live pass through the same two functions.
    """

    name: ClassVar[str]
    is_exact: ClassVar[bool] = False  # every float32 number comes back as it was
    is_fine: ClassVar[bool] = False  # numbers move by one part in 1,024 at most
    has_constants: ClassVar[bool] = False  # scale and zero, in the path
    has_arrays: ClassVar[bool] = False  # a table, which the path names by its digest
    sample: ClassVar[int] = 256  # training inputs from which these are fixed

    @property
    def is_fixed_from_data(self) -> bool:
        """Whether it needs `calibrate` before it is used."""
        return self.has_constants or self.has_arrays

    @property
    def has_graph(self) -> bool:
        """Whether compiled graphs can decode it; else torch and the reference alone answer from it."""
        return type(self).graph is not FeatureCodec.graph

    @abstractmethod
    def row_bytes(self, width: int) -> int:
        """Bytes of one encoded vector."""

    @abstractmethod
    def encode(self, values: np.ndarray, constants: Constants) -> np.ndarray:
        """Contiguous float32 (..., width) without NaN as uint8 (..., row_bytes); values out of range are clipped."""

    @abstractmethod
    def decode(self, raw: np.ndarray, width: int, constants: Constants) -> np.ndarray:
        """Contiguous uint8 (..., row_bytes) as float32 (..., width), a new array."""

    def calibrate(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scales and zero points, float64 (columns,) each, fixed from training features (rows, columns)."""
        raise StoreError(f"codec '{self.name}' has no constants", do="leave the calibration out")

    def learn(self, values: np.ndarray) -> dict[str, np.ndarray]:
        """The arrays of its table, fixed from finite training features (rows, width)."""
        raise StoreError(f"codec '{self.name}' has no arrays", do="leave the calibration out")

    def affine(self, constants: Constants) -> Affine:
        """How `numbers` become decoded values: a reader folds it into what it multiplies them by."""
        return Affine(matrix=np.ones(1), shift=np.zeros(1))

    def numbers_width(self, width: int, constants: Constants) -> int:
        """How many numbers of `numbers` one vector is."""
        return width

    def numbers(self, raw: np.ndarray, constants: Constants, out: np.ndarray) -> None:
        """Writes uint8 (rows, row_bytes) into `out`, contiguous float32 (rows, numbers), up to what `affine` says.

        By default the decoded values. Overridden, with `affine`, where the numbers of the code itself are quicker.
        """
        out[...] = self.decode(raw, out.shape[-1], constants)

    def graph(self, ops: Any, x: Any, constants: Constants) -> Any:
        """Decoded values in a compiled graph; `ops` are the operators of `engine.compile.ops.Ops`, `x` is a tensor."""
        raise StoreError(
            f"codec '{self.name}' has no form in compiled graphs",
            do="give it a method `graph`, or answer with a backend that compiles none: reference, torch",
        )


class TokenCodec(FeatureCodec):
    """A codec that is told of each vector whose it is: the number of its token in the vocabulary, -1 for no token.

    A mean over tokens and the row of a prompt are no token's. What is written says by itself how it is read, so that
    decoding is told nothing.
    """

    @abstractmethod
    def encode_tokens(self, values: np.ndarray, tokens: np.ndarray, constants: Constants) -> np.ndarray:
        """`encode`, with int64 (...) tokens; raises StoreError for one beyond the vocabulary."""

    @abstractmethod
    def learn_tokens(self, values: np.ndarray, tokens: np.ndarray, words: np.ndarray) -> dict[str, np.ndarray]:
        """`learn`, with int64 (rows,) tokens and the trunk's word vectors, float32 (vocabulary, any)."""

    @abstractmethod
    def said(self, tokens: np.ndarray, constants: Constants) -> np.ndarray:
        """What `graph_said` is given of int64 (...) tokens: float32 (..., any), of no token as of any."""

    @abstractmethod
    def graph_said(self, ops: Any, x: Any, said: Any, constants: Constants) -> Any:
        """`graph`, with a tensor of what is `said` of the tokens of `x`, which may stand for all of them."""

    def encode(self, values: np.ndarray, constants: Constants) -> np.ndarray:
        """Vectors that are no token's."""
        return self.encode_tokens(values, np.full(values.shape[:-1], NO_TOKEN, np.int64), constants)

    def learn(self, values: np.ndarray) -> dict[str, np.ndarray]:
        """The arrays for vectors that are no token's."""
        return self.learn_tokens(values, np.full(len(values), NO_TOKEN, np.int64), np.zeros((0, 0), np.float32))

    def graph(self, ops: Any, x: Any, constants: Constants) -> Any:
        """Of vectors that are no token's."""
        return self.graph_said(ops, x, ops.constant(self.said(np.array([NO_TOKEN]), constants)), constants)


CODECS: Registry[FeatureCodec] = Registry("codec")
"""The codecs that are registered, by name."""
register_codec = CODECS.register
