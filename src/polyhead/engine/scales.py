"""Products `x W^T` in 8 bits: static scales, computed from a user's texts.

With s a number for each input, `x W^T = (x / s) (W s)^T` (Xiao et al. 2023, SmoothQuant, equations 3 and 4). Then x / s
is kept in 8 bits unsigned with one step and one zero for all of it, W s in 8 bits signed with a step for each output.
Where they take one migration strength for all products, each gets the one here that leaves it the smallest error.

Rounding W shifts every output by the mean of what is read times the error, the same for all texts; it is known when the
graph is built and taken away again (bias correction, Nagel et al. 2019, section 4.2; the mean is that of texts here).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from polyhead.encoder.data import arrays_digest
from polyhead.engine.compile.ops import Build, Compiled, Ops, Runtime, Tensor, side_by_side
from polyhead.errors import BackendError
from polyhead.values import Value

STRENGTHS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0)
SLOT = "slot."  # how the keys of products of poolers and heads begin
SMOOTH, EIGHT, MEAN = ".smooth", ".eight", ".mean"  # how the names of a scale's arrays end
GOLDEN = (5**0.5 - 1) / 2  # its multiples fill [0, 1) evenly, however many there are
LEAST = 1e-5  # of a channel that is always 0
LEAST_DIVISOR = 2.0**-126  # float32 holds smaller numbers with fewer digits, and divides badly by them
# By bits, the largest whole number of weights. With 7, two products share 16 bits: 2 * 255 * 64 = 32,640 < 2^15.
REACH = {8: 127, 7: 64}


class Int8Weights(Value, eq=False):
    """Weights in 8 bits, as a graph multiplies with them."""

    whole: np.ndarray  # int8 (outputs, inputs)
    steps: np.ndarray  # float32 (outputs, 1)
    shift: np.ndarray | None  # float32 (outputs,), to add to the product; None where it is not known


class Scale(Value, eq=False):
    """Divisor of a product's input, and the step and zero point of the quotient's 8 bits."""

    smooth: np.ndarray  # float32 (inputs,)
    step: float
    zero: int  # 0 to 255: stands for 0
    mean: np.ndarray | None = None  # float32 (inputs,), of what is read

    def __post_init__(self) -> None:
        least = float(self.smooth.min(initial=self.step))
        if not (least >= LEAST_DIVISOR and np.isfinite(self.smooth).all() and math.isfinite(self.step)):
            raise BackendError(
                "a product cannot be computed in 8 bits by these scales",
                got=f"divisors from {least:g}, a step of {self.step:g}",
                allowed=f"finite numbers of {LEAST_DIVISOR:g} or more",
                do="find them again with `polyhead tasks quantize`",
            )
        if not 0 <= self.zero <= 255:
            raise BackendError("8 bits hold no such zero point", got=self.zero, allowed="0 to 255")

    @property
    def even(self) -> Scale:
        """The same with a step of 1 and 0 in the middle, so that several products are one: at most a bit is lost."""
        reach = max(-self.low, self.high) / 127
        return Scale(smooth=np.asarray(self.smooth * reach, np.float32), step=1.0, zero=128, mean=self.mean)

    @property
    def low(self) -> float:
        """The smallest value that 8 bits hold."""
        return -self.zero * self.step

    @property
    def high(self) -> float:
        """The largest."""
        return (255 - self.zero) * self.step

    def kept(self, x: np.ndarray) -> np.ndarray:
        """`x / smooth` (..., inputs) through 8 bits and back."""
        places = np.round(x / self.smooth / self.step) + self.zero
        return np.asarray((np.clip(places, 0, 255) - self.zero) * self.step, np.float32)

    def weights(self, weight: np.ndarray, *, bits: int) -> Int8Weights:
        """`W smooth` in so many bits, 7 or 8, with a step for each output and the shift that rounding left."""
        smoothed = np.asarray(weight, np.float32) * self.smooth
        largest = np.maximum(np.abs(smoothed).max(axis=1, keepdims=True), LEAST**2)
        steps = np.asarray(largest / REACH[bits], np.float32)
        whole = np.round(smoothed / steps).astype(np.int8)
        shift = None if self.mean is None else (smoothed - whole * steps) @ (self.mean / self.smooth)
        return Int8Weights(whole=whole, steps=steps, shift=shift)

    def product(self, x: np.ndarray, weight: np.ndarray, *, bits: int) -> np.ndarray:
        """`x W^T` as a graph computes it: (..., inputs) to (..., outputs)."""
        eight = self.weights(weight, bits=bits)
        product = self.kept(x) @ (eight.whole * eight.steps).T
        return product if eight.shift is None else np.asarray(product + eight.shift, np.float32)


Multiply = Callable[[Tensor, np.ndarray, Scale], Tensor]
"""A runtime's `x W^T` in 8 bits with weights (outputs, inputs)."""


class Scales:
    """The scale of each product, by the digest of its weights: the same wherever a graph is cut.

    `digest` is the SHA-256 of the file that they were read from, or of their arrays where they lie in none.
    """

    def __init__(self, known: Mapping[str, Scale], *, digest: str | None = None) -> None:
        self.known = dict(known)
        self.digest = arrays_digest(self.arrays) if digest is None else digest

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """What a file of them holds."""
        arrays: dict[str, np.ndarray] = {}
        for digest, scale in self.known.items():
            arrays[digest + SMOOTH] = scale.smooth
            arrays[digest + EIGHT] = np.array([scale.step, scale.zero], np.float32)
            if scale.mean is not None:
                arrays[digest + MEAN] = scale.mean
        return arrays

    def of(self, weight: np.ndarray) -> Scale | None:
        """The scale of the product with these weights (outputs, inputs); None where none was found."""
        return self.known.get(weight_digest(weight))

    def of_slots(self, matrices: Sequence[np.ndarray]) -> list[Scale | None]:
        """The scale of the product with each of these matrices (inputs, outputs) of poolers and heads."""
        return [self.known.get(slot_digest(matrix.T)) for matrix in matrices]

    @property
    def has_slots(self) -> bool:
        """Whether there are some of poolers and heads."""
        return any(digest.startswith(SLOT) for digest in self.known)

    @property
    def of_layers(self) -> Scales:
        """The scales of layers only."""
        return Scales({digest: scale for digest, scale in self.known.items() if not digest.startswith(SLOT)})

    def product(self, ops: Ops, x: Tensor, weights: np.ndarray, multiply: Multiply) -> Tensor | None:
        """`x W^T` with weights (outputs, inputs) by their scale; None if they have none.

        Of weights (groups, outputs, inputs) each group is a product of its own: one has one step for what it reads.
        """
        scales = [scale for scale in map(self.of, weights if weights.ndim == 3 else [weights]) if scale is not None]
        if weights.ndim == 2:
            return multiply(x, weights, scales[0]) if scales else None
        if len(scales) < len(weights):
            return None
        parts = [ops.slice(x, 0, group, group + 1) for group in range(len(weights))]
        return ops.concat(list(map(multiply, parts, weights, scales)), 0)


class ObservedRange:
    """Statistics over some texts of a value that one or several products read."""

    def __init__(self, weights: Iterable[np.ndarray], *, digest: Callable[[np.ndarray], str] | None = None) -> None:
        """Weights are (outputs, inputs) each; `digest` None is `weight_digest`."""
        self.weights = {(digest or weight_digest)(weight): weight for weight in weights}
        self.low = self.high = np.zeros(0, np.float32)  # of each input
        self.total, self.count = np.zeros(0), 0  # of all rows: their sum, float64 (inputs,), and number
        self.rows: list[np.ndarray] = []  # (rows, inputs) each: a sample
        self._times = 0  # that something was added

    def add(self, x: np.ndarray, *, rows: int) -> None:
        """Notes what the value (..., inputs) was this time, and keeps so many of its rows, as far apart.

        They begin elsewhere each time: a row of each text would be its first token's.
        """
        flat = np.asarray(x, np.float32).reshape(-1, x.shape[-1])
        if len(flat):
            begin, self._times = GOLDEN * self._times % 1, self._times + 1
            places = (np.arange(rows) + begin) * len(flat) / rows
            sample = flat[np.unique(places.astype(int))] if rows < len(flat) else flat.copy()
            self._widen(flat.min(axis=0), flat.max(axis=0), [sample])
            self._sum(flat.sum(axis=0, dtype=np.float64), len(flat))

    def join(self, other: ObservedRange) -> None:
        """Takes in what another value was that products with the same weights read."""
        self.weights |= other.weights
        if other.rows:
            self._widen(other.low, other.high, other.rows)
            self._sum(other.total, other.count)

    def _widen(self, low: np.ndarray, high: np.ndarray, rows: Sequence[np.ndarray]) -> None:
        self.low = np.minimum(self.low, low) if self.rows else low
        self.high = np.maximum(self.high, high) if self.rows else high
        self.rows += rows

    def _sum(self, total: np.ndarray, count: int) -> None:
        self.total = self.total + total if self.count else total
        self.count += count

    def scale(self) -> Scale:
        """The one of `STRENGTHS` that leaves the products of the sampled rows the smallest squared error."""
        rows, weight = np.concatenate(self.rows), np.concatenate(list(self.weights.values()))
        wanted = rows @ weight.T
        candidates = [self._scale(weight, strength) for strength in STRENGTHS]
        return min(candidates, key=lambda scale: _error(scale, rows, weight, wanted))

    def _scale(self, weight: np.ndarray, strength: float) -> Scale:
        reach = np.maximum(np.maximum(-self.low, self.high), LEAST)
        smooth = reach**strength / np.maximum(np.abs(weight).max(axis=0), LEAST) ** (1 - strength)
        low, high = min(0.0, float((self.low / smooth).min())), max(0.0, float((self.high / smooth).max()))
        step = max(high - low, LEAST) / 255
        return Scale(
            smooth=np.asarray(smooth, np.float32),
            step=step,
            zero=round(-low / step),
            mean=np.asarray(self.total / self.count, np.float32),
        )


def scales_of(seen: Iterable[ObservedRange]) -> Scales:
    """The scales of all products that were seen, one for all that read the same value."""
    apart: list[ObservedRange] = []
    for value in seen:
        same = [other for other in apart if other.weights.keys() & value.weights.keys()]
        for other in same:
            value.join(other)
        apart = [other for other in apart if other not in same] + [value]
    read = [value for value in apart if value.rows]
    return Scales({digest: scale for value in read for scale in [value.scale()] for digest in value.weights})


def weight_digest(weight: np.ndarray) -> str:
    """SHA-256 of weights: their shape and float32 numbers."""
    total = hashlib.sha256(repr(weight.shape).encode())
    total.update(np.ascontiguousarray(weight, dtype="<f4").data)
    return total.hexdigest()


def slot_digest(weight: np.ndarray) -> str:
    """The key of a product of a pooler or head, by folded weights (outputs, inputs).

    Folding may give other last bits elsewhere: the digest is that of the numbers in float16.
    """
    return SLOT + weight_digest(np.asarray(weight, np.float16))


def _error(scale: Scale, rows: np.ndarray, weight: np.ndarray, wanted: np.ndarray) -> float:
    # Of 8 bits on every machine: scales are the bundle's, the width of weights is the processor's.
    return float(np.square(scale.product(rows, weight, bits=8) - wanted).mean())


OUTPUT = "read."  # how the outputs begin that a watched graph has beside its own


class ObservingRuntime:
    """A runtime whose graphs also give what their products with constant weights read: `x W^T` of layers, and of slots.

    Padding is seen as any token is: where that matters, ask for one text at a time.
    """

    fills = False  # padding would be watched too
    gathers = False  # what slots read is watched in graphs of all slots

    def __init__(self, runtime: Runtime, *, rows: int) -> None:
        """Keeps so many rows of each value that a graph gives."""
        self.name, self.precision, self.tolerance = runtime.name, runtime.precision, runtime.tolerance
        self._runtime, self._rows = runtime, rows
        self._has_slots = bool(getattr(runtime, "eight_bit_slots", False))
        self._seen: list[ObservedRange] = []

    def compile(self, build: Build, *, label: str, layers: bool, exact: bool = False) -> Compiled:
        """The graph, watched unless it is exact."""
        if exact:
            return self._runtime.compile(build, label=label, layers=layers, exact=True)
        reads: list[_Read | _SlotsRead] = []

        def watched(ops: Ops) -> dict[str, Tensor]:
            watching: Any = _WatchingOps(ops)
            outputs = dict(build(watching))
            reads.extend([*watching.reads.values()] if layers else watching.slots_reads if self._has_slots else [])
            return outputs | {f"{OUTPUT}{i}": read.value for i, read in enumerate(reads)}

        graph = self._runtime.compile(watched, label=label, layers=layers)
        seen = [read.seen() for read in reads]
        self._seen += [ranges for groups in seen for ranges in groups]
        return _Watched(graph, seen, self._rows)

    def scales(self) -> Scales:
        """The scales of all products that ran."""
        return scales_of(self._seen)


class _Read:
    """A value while its graph is built, and the weights of the products that read it, of one number of axes."""

    def __init__(self, value: Tensor) -> None:
        self.value, self.weights = value, list[np.ndarray]()

    def seen(self) -> list[ObservedRange]:
        """One for the value, or one for each group of its rows, which weights (groups, outputs, inputs) multiply."""
        if self.weights[0].ndim == 2:
            return [ObservedRange(self.weights)]
        return [ObservedRange(weights) for weights in zip(*self.weights, strict=True)]


class _SlotsRead(NamedTuple):
    """The inputs of slots' products, and their matrices."""

    value: Tensor  # (slots, rows, inputs)
    matrices: Sequence[np.ndarray]

    def seen(self) -> list[ObservedRange]:
        """One for each slot."""
        return [ObservedRange([np.ascontiguousarray(matrix.T)], digest=slot_digest) for matrix in self.matrices]


class _WatchingOps:
    """Operators that also remember which values are multiplied with weights; all else is the inner ones'."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops
        self._constants: dict[int, tuple[Tensor, np.ndarray]] = {}
        self.reads: dict[tuple[int, int], _Read] = {}
        self.slots_reads: list[_SlotsRead] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def constant(self, array: np.ndarray) -> Tensor:
        tensor = self._ops.constant(array)
        self._constants[id(tensor)] = (tensor, array)
        return tensor

    def matmul(self, a: Tensor, b: Tensor, *, transposed: bool = False) -> Tensor:
        _, weight = self._constants.get(id(b), (None, None))
        if transposed and weight is not None:
            self.reads.setdefault((id(a), weight.ndim), _Read(a)).weights.append(weight)
        return self._ops.matmul(a, b, transposed=transposed)

    def slots(self, x: Tensor, matrices: Sequence[np.ndarray], *, apart: int) -> Tensor:
        self.slots_reads.append(_SlotsRead(x, matrices))
        return self._ops.matmul(x, self._ops.constant(side_by_side(matrices)))


class _Watched:
    """A compiled graph that records the inputs of its products; its outputs are unchanged."""

    def __init__(self, graph: Compiled, seen: Sequence[Sequence[ObservedRange]], rows: int) -> None:
        self._graph, self._seen, self._rows = graph, seen, rows

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        outputs = self._graph(inputs)
        for number, groups in enumerate(self._seen):
            x = outputs.pop(f"{OUTPUT}{number}")
            for group, observed in enumerate(groups):
                observed.add(x if len(groups) == 1 else x[group], rows=self._rows)
        return outputs
