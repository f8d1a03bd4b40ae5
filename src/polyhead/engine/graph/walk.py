"""One run of a program: calls of graphs one after another, answers as they come; what fails for a task fails alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from polyhead.engine.backends.base import Stage, TokenBatch
from polyhead.engine.graph.kept import Graph
from polyhead.engine.graph.program import Call, Program, Values

AT_ONCE = 32  # texts that poolers and heads take in one call of their graph
BY_TEXT = ("places", "keep", "share")  # of what they read, what has a row for each text


class Walk:
    """A batch on its way through a program. With `apart` the same thread may run others between two stages."""

    def __init__(
        self, program: Program, batch: TokenBatch, *, count: Callable[[int], None], apart: bool = False
    ) -> None:
        self._program, self._batch, self._count, self._apart = program, batch, count, apart
        self._values: Values = {}
        self._failed: dict[str, Exception] = {}
        self._left = program.layers

    def stages(self) -> Iterator[Stage]:
        """What becomes known, call by call."""
        program, told = self._program, 0
        for root in program.roots:
            try:
                self._values |= root.values(self._batch)
            except Exception as error:
                if set(root.tasks) == set(program.tasks):
                    raise
                self._fail(root.tasks, error)
        for call in program.calls:
            outputs = self._run(call) if not self._failed.keys() >= set(call.tasks) else {}
            self._left -= call.layers
            if outputs or len(self._failed) > told:
                new = dict(list(self._failed.items())[told:])
                told = len(self._failed)
                yield Stage(outputs=outputs, failed=new, layers_left=self._left)

    def _run(self, call: Call) -> dict[str, np.ndarray]:
        """Keeps the call's states and gives its answers; what cannot be run as a whole runs in parts."""
        try:
            return self._called(call)
        except Exception as error:
            if call.is_shared:
                raise
            parts = call.alone()
            if not parts:
                self._fail(call.tasks, error)
            found: dict[str, np.ndarray] = {}
            for part in parts:
                found |= self._run(part)
            return found

    def _called(self, call: Call) -> dict[str, np.ndarray]:
        inputs = {name: self._values[key] for name, key in call.inputs}
        self._count(call.layers)
        if call.answers:
            places = dict(call.inputs)["places"]
            out = _answered(
                call.graph, inputs, by_text=not places[-1]
            )  # of prompt rows each slot reads its own
            return {one.task: out[one.slot][..., : one.width] for one in call.answers}
        outputs = call.graph(inputs)
        copied = self._apart or call.graph in self._program.repeated
        for name, keys in call.states:
            state = np.array(outputs[name]) if copied else outputs[name]
            lanes = state.reshape(len(keys), -1, *state.shape[1:])
            self._values.update(zip(keys, lanes, strict=True))
        return {}

    def _fail(self, tasks: tuple[str, ...], error: Exception) -> None:
        for name in tasks:
            self._failed.setdefault(name, error)


def _answered(graph: Graph, inputs: Mapping[str, np.ndarray], *, by_text: bool) -> np.ndarray:
    """A group's outputs, (slots, texts, ...): some texts after others, for what lies between takes memory for each."""
    texts = len(inputs["places"])
    if texts <= AT_ONCE or not by_text:
        return np.array(graph(inputs)["out"])
    found: list[np.ndarray] = []
    for start in range(0, texts, AT_ONCE):
        some = {name: inputs[name][start : start + AT_ONCE] for name in BY_TEXT if name in inputs}
        found.append(np.array(graph({**inputs, **some})["out"]))
    return np.concatenate(found, axis=1)
