"""Files of a task that writes: from the trunk's states to keys and values, and one step of its decoder.

A step reads the last token of each row, and keys and values of those before it, which a runner joins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from polyhead.encoder.data import TrunkData
from polyhead.encoder.decoder import POSITIONS, Decoder
from polyhead.encoder.shape import WORD_VECTORS
from polyhead.engine.backends.base import LoadedTask
from polyhead.engine.backends.onnx.ops import OnnxOps
from polyhead.engine.compile.decoder import KeptKeys, begin_graph, step_graph
from polyhead.engine.compile.heads import STATES, states
from polyhead.engine.compile.ops import InputKind, Tensor
from polyhead.engine.export.graphs import BuiltGraph, Shape, built, ready_to_pool
from polyhead.tasks.task import Task

TOKENS, AT, HIDDEN_PLACES = "decoder_ids", "position", "added"
Run = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]


class _StepOps(OnnxOps):
    """Reads tokens' ids and their position, and sees all tokens before."""

    def __init__(self, decoder: Decoder, words: np.ndarray, positions: np.ndarray) -> None:
        super().__init__()
        ids = super().input(TOKENS, "int", ("texts", "beams"))
        at = self.add(super().input(AT, "int", (1,)), self.constant(np.array([decoder.first_position])))
        read = self.add(self.gather(self.constant(words), ids), self.gather(self.constant(positions), at))
        seen = self.constant(np.zeros((1, 1, 1, 1), np.float32))
        self._bound: dict[str, Tensor] = {"read": read, "before": seen}

    def input(self, name: str, kind: InputKind, shape: Sequence[int | str]) -> Tensor:
        if name in self._bound:
            return self._bound[name]
        if name == HIDDEN_PLACES:
            return super().input(name, kind, ("texts", 1, 1, "tokens"))
        rows, many = ("texts", "tokens") if name.startswith("given_") else ("rows", "before")
        return super().input(name, kind, (rows, shape[1], many, shape[3]))


def begin_file(trunk: TrunkData, loaded: LoadedTask, task: Task, decoder: Decoder) -> BuiltGraph:
    """The task's own layers, then keys and values of the states, and which of these are padding."""
    ops, form = ready_to_pool(trunk, loaded, task)
    keep = ops.input("keep", "float", (-1, -1))
    ops.bound["states"] = ops.reshape(states(ops, form)[STATES], (-1, ops.size(keep, 1), form.width))
    outputs = dict(begin_graph(decoder, loaded.arrays)(ops))
    inner = form.width // decoder.heads
    shapes: dict[str, Shape] = dict.fromkeys(outputs, ("texts", decoder.heads, "tokens", inner))
    outputs[HIDDEN_PLACES] = ops.node("Unsqueeze", keep, ops.whole(1, 2))
    return built(ops, outputs, shapes | {HIDDEN_PLACES: ("texts", 1, 1, "tokens")}, task.name)


def step_file(trunk: TrunkData, loaded: LoadedTask, task: Task, decoder: Decoder) -> BuiltGraph:
    """One token of each row: `scores` (texts, beams, vocabulary), and its own keys and values."""
    words, arrays = trunk.arrays[WORD_VECTORS], loaded.arrays
    ops = _StepOps(decoder, words, arrays[POSITIONS])
    outputs = dict(step_graph(decoder, arrays, words)(ops))
    inner = words.shape[1] // decoder.heads
    shapes: dict[str, Shape] = dict.fromkeys(outputs, ("rows", decoder.heads, 1, inner))
    return built(ops, outputs, shapes | {"scores": ("texts", "beams", len(words))}, task.name)


class ExportedSteps:
    """A `DecoderStep` by a task's two files; `values` are what the first reads of these texts."""

    def __init__(self, values: Mapping[str, np.ndarray], *, begin: Run, step: Run) -> None:
        self._values, self._begin, self._step = values, begin, step

    def begin(self, states: np.ndarray, mask: np.ndarray) -> KeptKeys:
        """Keys and values of the texts; `states` are not read: the files compute their own."""
        text_arrays = dict(self._begin(self._values))
        return KeptKeys(given=text_arrays, added=text_arrays.pop(HIDDEN_PLACES), own={})

    def step(self, ids: np.ndarray, cache: KeptKeys) -> tuple[np.ndarray, KeptKeys]:
        """See `DecoderStep`."""
        states = cache.own
        if not states:
            sizes = {name.removeprefix("given_"): array.shape for name, array in cache.given.items()}
            states = {name: np.zeros((ids.size, size[1], 0, size[3]), np.float32) for name, size in sizes.items()}
        read = {TOKENS: ids, AT: np.array([cache.length]), HIDDEN_PLACES: cache.added, **cache.given, **states}
        outputs = self._step(read)
        states = {name: np.concatenate([array, outputs[f"new.{name}"]], axis=2) for name, array in states.items()}
        return outputs["scores"], msgspec.structs.replace(cache, own=states, length=cache.length + 1)
