"""pca1, pca2, pca4: 1, 2 and 4 bits a dimension on average, spent on principal components by their variance.

Transform coding (Huang and Schultheiss 1963): `y = V^T (x - m)`, V the eigenvectors of the covariance of training
features; a uniform quantizer of 0, 1, 2 or more bits encodes each y. If the components differ much in variance, this
loses less than equally distributed bits (decision 35).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from polyhead.codecs.base import Affine, Constants, FeatureCodec, evenly_spaced
from polyhead.codecs.tables import Table, table_named
from polyhead.errors import StoreError

# Mean squared error of the best uniform quantizer of a Gaussian of variance 1, by its bits (Max 1960).
ERRORS = (1.0, 0.3634, 0.1188, 0.03744, 0.01154, 0.003495, 0.001041, 0.0003035, 0.00008714)
STEPS = (1.0, 1.596, 0.9957, 0.586, 0.3352, 0.1881, 0.1041, 0.0569, 0.0308)  # the steps of these quantizers
ROUNDS, ROWS = 10, 8192  # rounds of fitting a component's step to its values, and sampled values of each component
LARGEST = np.float32(65504.0)  # values beyond are clipped
LARGEST_SPAN = 2.0**10  # steps in the largest value: float32 must distinguish decoded values
AT_ONCE = 4096  # vectors transformed at a time, in float64


class _Code(msgspec.Struct, frozen=True, eq=False):
    """A table in the form used for encoding and decoding. n components, ordered by variance."""

    turn: np.ndarray  # (width, n) float64: components, in units of steps
    offset: np.ndarray  # (n,) float64
    top: np.ndarray  # (n,) float32: the highest level
    bits: np.ndarray  # (n,) int64
    back: np.ndarray  # (n, width) float32
    shift: np.ndarray  # (width,) float32


class Components(FeatureCodec):
    """`q = clip(round(V^T (x - m) / s + z), 0, 2^b - 1)` and `x = m + V s (q - z)`, with n <= width components kept.

    Table: `mean` (width,), `basis` (n, width), and per component `step`, `zero` and `bits` (n,). Vectors are written
    bit by bit: the highest bit of each component, then the next bit of those with two, and so on. Summands are rounded
    to a grid on which float32 sums are exact, so that every backend decodes the same numbers.
    """

    has_arrays = True
    sample = 1024

    def __init__(self, bits: int) -> None:
        """`bits` per dimension on average."""
        self.name, self.mean_bits = f"pca{bits}", bits

    def row_bytes(self, width: int) -> int:
        """Bytes of one encoded vector."""
        return -(-width * self.mean_bits // 8)

    def encode(self, values: np.ndarray, constants: Constants) -> np.ndarray:
        """float32 (..., width) as uint8 (..., row_bytes)."""
        width = values.shape[-1]
        code, flat = self._code(constants, width), values.reshape(-1, width)
        raw = np.empty((len(flat), self.row_bytes(width)), np.uint8)
        for start in range(0, len(flat), AT_ONCE):
            # In float64 a vector's levels do not depend on the other vectors in the product.
            rows = np.clip(flat[start : start + AT_ONCE], -LARGEST, LARGEST).astype(np.float64)
            levels = np.clip(np.rint(rows @ code.turn + code.offset), 0, code.top).astype(np.uint8)
            pack_bits(levels, code.bits, raw[start : start + AT_ONCE])
        return raw.reshape(*values.shape[:-1], -1)

    def decode(self, raw: np.ndarray, width: int, constants: Constants) -> np.ndarray:
        """uint8 (..., row_bytes) as float32 (..., width)."""
        code = self._code(constants, width)
        levels = levels_of(raw.reshape(-1, raw.shape[-1]), code.bits).astype(np.float32)
        values: np.ndarray = levels @ code.back + code.shift
        return values.reshape(*raw.shape[:-1], width)

    def affine(self, constants: Constants) -> Affine:
        """Maps levels, one per component, back to features: products with levels need half as many numbers."""
        code = _code_of(constants.arrays)
        highest = code.top.astype(np.float64)
        return Affine(matrix=code.back.astype(np.float64), shift=code.shift.astype(np.float64), highest=highest)

    def numbers_width(self, width: int, constants: Constants) -> int:
        """How many components there are."""
        return len(self._code(constants, width).bits)

    def numbers(self, raw: np.ndarray, constants: Constants, out: np.ndarray) -> None:
        """The levels of the components."""
        out[...] = levels_of(raw, _code_of(constants.arrays).bits)

    def learn(self, values: np.ndarray) -> dict[str, np.ndarray]:
        """The table, from training features (rows, width)."""
        flat = np.clip(values, -LARGEST, LARGEST).astype(np.float64)
        mean = flat.mean(axis=0)
        flat -= mean
        variance, basis = principal(flat.T @ flat / len(flat))
        least = max(np.abs(mean).max() / LARGEST_SPAN, np.abs(flat).max() / LARGEST_SPAN, np.finfo(np.float32).tiny)
        bits = allocated(np.where(variance > least**2, variance, 0), self.mean_bits * values.shape[-1])
        basis, bits = basis[bits > 0], bits[bits > 0]
        step, zero = fitted(flat[evenly_spaced(len(flat), ROWS)] @ basis.T, bits, least=least)
        return {"mean": mean, "basis": basis, "step": step, "zero": zero, "bits": bits.astype(np.float64)}

    def graph(self, ops: Any, x: Any, constants: Constants) -> Any:
        """Two products with constants, and rounding between them."""
        code = _code_of(constants.arrays)
        near = ops.minimum(ops.maximum(x, ops.constant(np.array(-LARGEST))), ops.constant(np.array(LARGEST)))
        turned = ops.matmul(near, ops.constant(code.turn.astype(np.float32)))
        levels = ops.round(ops.add(turned, ops.constant(code.offset.astype(np.float32))))
        kept = ops.minimum(ops.maximum(levels, ops.constant(np.zeros(1, np.float32))), ops.constant(code.top))
        return ops.add(ops.matmul(kept, ops.constant(code.back)), ops.constant(code.shift))

    def _code(self, constants: Constants, width: int) -> _Code:
        code = _code_of(constants.arrays)
        if len(code.shift) != width or int(code.bits.sum()) > width * self.mean_bits:
            raise StoreError(
                f"codec '{self.name}' has other arrays than vectors of width {width} need",
                got=f"arrays of width {len(code.shift)} and {int(code.bits.sum())} bits",
                do="fix them from training features with `calibrate`",
            )
        return code


def principal(moments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Variances and components (components, width) of a matrix of second moments, the largest first."""
    variance, vectors = np.linalg.eigh(moments)
    basis = vectors[:, ::-1].T
    heaviest = np.take_along_axis(basis, np.abs(basis).argmax(axis=1)[:, None], axis=1)
    return np.maximum(variance[::-1], 0), basis * np.where(heaviest < 0, -1.0, 1.0)  # one of v and -v


def allocated(variance: np.ndarray, bits: int, *, most: int = len(ERRORS) - 1) -> np.ndarray:
    """Bits of each component, at most `most`, int64 (n,): each bit goes where the mean squared error falls most."""
    component_bits = np.zeros(len(variance), np.int64)
    gains = -np.diff(ERRORS[: most + 1], append=ERRORS[most])  # gain of the next bit; none after the last
    for _ in range(bits):
        gain = variance * gains[component_bits]
        best = int(gain.argmax())
        if gain[best] <= 0:
            break
        component_bits[best] += 1
    component_bits[0] = max(component_bits[0], 1)  # values that are all equal
    return component_bits


def fitted(values: np.ndarray, bits: np.ndarray, *, least: float) -> tuple[np.ndarray, np.ndarray]:
    """Step (at least `least`) and zero of each component, (n,), that minimize the error on these values (rows, n).

    Starts from those of a Gaussian and alternates: the levels of the values, then the linear fit from levels to values
    (Lloyd 1982, with equidistant levels).
    """
    top, spread = np.exp2(bits) - 1, values.std(axis=0)
    step = np.where(spread > 0, spread * np.array(STEPS)[bits], 1.0)
    zero = top / 2
    for _ in range(ROUNDS):
        levels = np.clip(np.rint(values / step + zero), 0, top)
        centre = levels.mean(axis=0)
        spread = ((levels - centre) ** 2).mean(axis=0)
        slope = ((levels - centre) * values).mean(axis=0) / np.where(spread > 0, spread, 1)
        step = np.maximum(np.where((spread > 0) & (slope > 0), slope, step), least)
        zero = centre - values.mean(axis=0) / step
    return step, zero


def planes(bits: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """For each bit position, the highest first, the components that have this bit: a prefix of all."""
    return [(place, bits[: int((bits > place).sum())]) for place in range(int(bits[0]))]


def pack_bits(levels: np.ndarray, bits: np.ndarray, out: np.ndarray) -> None:
    """Writes uint8 (rows, components) bit by bit into `out`, uint8 (rows, bytes), padded with zeros."""
    bit_planes = [(levels[:, : len(counts)] >> counts - 1 - place) & 1 for place, counts in planes(bits)]
    packed = np.packbits(np.concatenate(bit_planes, axis=1), axis=1)
    out[:, : packed.shape[1]], out[:, packed.shape[1] :] = packed, 0


def levels_of(raw: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """The level of each component, uint8 (rows, components), from uint8 (rows, row_bytes)."""
    unpacked = np.unpackbits(raw, axis=1, count=int(bits.sum()))
    levels, start = unpacked[:, : len(bits)], len(bits)
    for _, counts in planes(bits)[1:]:  # the next bit of the components that have one, which come first
        longer, stop = levels[:, : len(counts)], start + len(counts)
        longer += longer
        longer += unpacked[:, start:stop]
        start = stop
    return np.asarray(levels)


@lru_cache(maxsize=64)
def _code_of(digest: str) -> _Code:
    table = table_named(digest)
    _check(table, digest)
    mean, basis, step, zero = (table[name].astype(np.float64) for name in ("mean", "basis", "step", "zero"))
    bits = table["bits"].astype(np.int64)
    top = np.exp2(bits) - 1
    turn = (basis / step[:, None]).T
    back = basis * step[:, None]
    shift = mean - zero @ back
    # On this grid no partial sum of a decoded value needs more than the 24 digits of float32.
    grid = np.exp2(np.ceil(np.log2(np.max(np.abs(shift) + top @ np.abs(back)))) - 23)
    return _Code(
        turn=turn,
        offset=zero - mean @ turn,
        top=top.astype(np.float32),
        bits=bits,
        back=(np.rint(back / grid) * grid).astype(np.float32),
        shift=(np.rint(shift / grid) * grid).astype(np.float32),
    )


def _check(table: Table, digest: str) -> None:
    """Raises StoreError for a table that does not describe components."""
    names = ("mean", "basis", "step", "zero", "bits")
    if set(table) == set(names):
        mean, basis, *per_component = (table[name] for name in names)
        step, bits = per_component[0], per_component[2]
        if (
            mean.ndim == 1
            and basis.ndim == 2
            and 0 < len(basis) <= basis.shape[1] == len(mean)
            and all(array.shape == (len(basis),) for array in per_component)
            and all(np.isfinite(array).all() for array in table.values())
            and (step >= np.finfo(np.float32).tiny).all()
            and np.isin(bits, range(1, len(ERRORS))).all()
            and (np.diff(bits) <= 0).all()
        ):
            return
    raise StoreError(
        f"table {digest} is not one of components",
        got={name: array.shape for name, array in table.items()},
        allowed="mean (width,), basis (n, width), step, zero and bits (n,), bits from 1 to 8 and falling",
    )
