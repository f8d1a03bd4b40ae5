"""Sees what the products of layers read while a session answers: a runtime around another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from polyhead.engine.compile.ops import Build, Compiled, Ops, Runtime, Tensor
from polyhead.engine.quantize.scales import ObservedRange, Scales, scales_of

OUTPUT = "read."  # how the outputs begin that a watched graph has beside its own


class ObservingRuntime:
    """A runtime whose graphs of layers also give what their products `x W^T` with constant weights read.

    Padding is seen as any token is: where that matters, ask for one text at a time.
    """

    fills = False  # padding would be watched too

    def __init__(self, runtime: Runtime, *, rows: int) -> None:
        """Of each value that a graph gives, so many rows are kept."""
        self.name, self.precision, self.tolerance = runtime.name, runtime.precision, runtime.tolerance
        self._runtime, self._rows = runtime, rows
        self._seen: list[ObservedRange] = []

    def compile(self, build: Build, *, label: str, layers: bool) -> Compiled:
        """The graph, watched where it runs layers."""
        if not layers:
            return self._runtime.compile(build, label=label, layers=False)
        reads: list[_Read] = []

        def watched(ops: Ops) -> dict[str, Tensor]:
            watching: Any = _WatchingOps(ops)
            outputs = dict(build(watching))
            reads.extend(watching.reads.values())
            return outputs | {f"{OUTPUT}{i}": one.value for i, one in enumerate(reads)}

        graph = self._runtime.compile(watched, label=label, layers=True)
        seen = [one.seen() for one in reads]
        self._seen += [each for groups in seen for each in groups]
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


class _WatchingOps:
    """Operators that also remember which values are multiplied with weights; all else is the inner ones'."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops
        self._constants: dict[int, tuple[Tensor, np.ndarray]] = {}
        self.reads: dict[tuple[int, int], _Read] = {}

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


class _Watched:
    """A compiled graph that notes what its products read, and gives what it gave unwatched."""

    def __init__(self, graph: Compiled, seen: Sequence[Sequence[ObservedRange]], rows: int) -> None:
        self._graph, self._seen, self._rows = graph, seen, rows

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        outputs = self._graph(inputs)
        for number, groups in enumerate(self._seen):
            x = outputs.pop(f"{OUTPUT}{number}")
            for group, one in enumerate(groups):
                one.add(x if len(groups) == 1 else x[group], rows=self._rows)
        return outputs
