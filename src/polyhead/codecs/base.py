"""The interface of a codec: how feature vectors become bytes, and how they come back."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Protocol

import numpy as np

from polyhead.errors import StoreError
from polyhead.registry import Registry
from polyhead.values import Value

NO_TOKEN = -1  # the token of a vector that has none


def evenly_spaced(count: int, most: int) -> np.ndarray:
    """At most `most` of the numbers below `count`, evenly spaced, with the first and the last, int64 ascending."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(np.int64))


class Constants(Protocol):
    """Numbers computed from training features, as in a plan's `Codec` node: one per tensor or one per dimension."""

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
    """Decoded values are `numbers @ matrix + shift`, float64; a matrix with fewer than two dimensions is a diagonal."""

    matrix: np.ndarray  # (numbers, width), or one number per tensor or per dimension
    shift: np.ndarray  # one number per tensor or per dimension
    highest: np.ndarray | float = math.inf  # largest number; the lowest is 0 if this is finite
    added: np.ndarray | None = None  # (rows, numbers): one of these rows is added to the numbers from 0 to the largest

    def decoded(self, numbers: np.ndarray) -> np.ndarray:
        """Decodes float32 (..., numbers) to float32 (..., width)."""
        matrix = self.matrix.astype(np.float32)
        values = numbers * matrix if matrix.ndim < 2 else numbers @ matrix
        values += self.shift.astype(np.float32)
        return np.asarray(values)

    def folded(self, values: np.ndarray) -> np.ndarray:
        """(..., width) times the transposed matrix, (..., numbers): the factors to multiply numbers by."""
        return values * self.matrix if self.matrix.ndim < 2 else np.asarray(values @ self.matrix.T)


class FeatureCodec(ABC):
    """An encoding of float32 vectors. `register_codec` adds it under its name.

    The head only ever sees decoded features (Du et al. 2020, quantized encoder features), so stored features and
    features computed live pass through the same two functions.
    """

    name: str
    is_exact: ClassVar[bool] = False  # every float32 number is restored exactly
    is_fine: ClassVar[bool] = False  # numbers change by one part in 1,024 at most
    has_constants: ClassVar[bool] = False  # scale and zero, in the path
    has_arrays: ClassVar[bool] = False  # a table, which the path refers to by its digest
    sample: ClassVar[int] = 256  # training inputs from which these are computed

    @property
    def is_fixed_from_data(self) -> bool:
        """Whether it needs `calibrate` before it is used."""
        return self.has_constants or self.has_arrays

    @property
    def has_graph(self) -> bool:
        """Whether compiled graphs can decode it; else only torch and the reference backend can."""
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
        """Scales and zero points, float64 (columns,) each, computed from training features (rows, columns)."""
        raise StoreError(f"codec '{self.name}' has no constants", do="leave the calibration out")

    def learn(self, values: np.ndarray) -> dict[str, np.ndarray]:
        """The arrays of its table, computed from finite training features (rows, width)."""
        raise StoreError(f"codec '{self.name}' has no arrays", do="leave the calibration out")

    def affine(self, constants: Constants) -> Affine:
        """The map from `numbers` to decoded values: a reader folds it into its own factors."""
        return Affine(matrix=np.ones(1), shift=np.zeros(1))

    def numbers_width(self, width: int, constants: Constants) -> int:
        """Length of one vector in the form of `numbers`."""
        return width

    def numbers(self, raw: np.ndarray, constants: Constants, out: np.ndarray) -> None:
        """Writes uint8 (rows, row_bytes) into `out`, contiguous float32 (rows, numbers), as numbers for `affine`.

        Decoded values by default. Overridden, with `affine`, if the code's own numbers are faster.
        """
        out[...] = self.decode(raw, out.shape[-1], constants)

    def graph(self, ops: Any, x: Any, constants: Constants) -> Any:
        """Decoded values in a compiled graph; `ops` are the operators of `engine.compile.ops.Ops`, `x` is a tensor."""
        raise StoreError(
            f"codec '{self.name}' has no form in compiled graphs",
            do="give it a method `graph`, or answer with a backend that compiles none: reference, torch",
        )


class TokenCodec(FeatureCodec):
    """A codec that also receives each vector's token: its vocabulary id, -1 for no token.

    A mean over tokens and the row of a prompt have no token. The encoded bytes suffice for decoding.
    """

    @abstractmethod
    def encode_tokens(self, values: np.ndarray, tokens: np.ndarray, constants: Constants) -> np.ndarray:
        """`encode`, with int64 (...) tokens; raises StoreError for one beyond the vocabulary."""

    @abstractmethod
    def learn_tokens(self, values: np.ndarray, tokens: np.ndarray, words: np.ndarray) -> dict[str, np.ndarray]:
        """`learn`, with int64 (rows,) tokens and the trunk's word vectors, float32 (vocabulary, any)."""

    @abstractmethod
    def token_inputs(self, tokens: np.ndarray, constants: Constants) -> np.ndarray:
        """The `inputs` of `graph_with_tokens` for int64 (...) tokens, -1 included: float32 (..., any)."""

    @abstractmethod
    def graph_with_tokens(self, ops: Any, x: Any, inputs: Any, constants: Constants) -> Any:
        """Like `graph`, with a tensor of `token_inputs` for the tokens of `x`, or one that all of them share."""

    def encode(self, values: np.ndarray, constants: Constants) -> np.ndarray:
        """Encodes vectors without tokens."""
        return self.encode_tokens(values, np.full(values.shape[:-1], NO_TOKEN, np.int64), constants)

    def learn(self, values: np.ndarray) -> dict[str, np.ndarray]:
        """The arrays for vectors without tokens."""
        return self.learn_tokens(values, np.full(len(values), NO_TOKEN, np.int64), np.zeros((0, 0), np.float32))

    def graph(self, ops: Any, x: Any, constants: Constants) -> Any:
        """Decoded values of vectors without tokens."""
        return self.graph_with_tokens(
            ops, x, ops.constant(self.token_inputs(np.array([NO_TOKEN]), constants)), constants
        )


CODECS: Registry[FeatureCodec] = Registry("codec")
"""The codecs that are registered, by name."""
register_codec = CODECS.register
