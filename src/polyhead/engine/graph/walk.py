"""One run of a program: calls of graphs one after another, answers as they come; what fails for a task fails alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from polyhead.engine.backends.base import Stage, TokenBatch
from polyhead.engine.graph.encoder import HIDDEN
from polyhead.engine.graph.kept import Graph
from polyhead.engine.graph.program import Call, Program, Values

AT_ONCE, WORDS_AT_ONCE = 64, 1024  # texts, or words, that poolers and heads take in one call of their graph
# Of what they read, what has a row for each text, and what stands where there is none.
BY_TEXT: Mapping[str, float] = {"places": 0, "keep": HIDDEN, "share": 0.0}


class Walk:
    """A batch on its way through a program. With `apart` the same thread may run others between two stages.

    With `exact` no product has another shape than the batch gives it.
    """

    def __init__(
        self,
        program: Program,
        batch: TokenBatch,
        *,
        count: Callable[[int], None],
        apart: bool = False,
        exact: bool = False,
    ) -> None:
        self._program, self._batch, self._count = program, batch, count
        self._apart, self._exact = apart, exact
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
            out = self._pooled(call, inputs)
            return {one.task: out[one.slot][..., : one.width] for one in call.answers}
        outputs = call.graph(inputs)
        copied = self._apart or call.graph in self._program.repeated
        for name, keys in call.states:
            state = np.array(outputs[name]) if copied else outputs[name]
            lanes = state.reshape(len(keys), -1, *state.shape[1:])
            self._values.update(zip(keys, lanes, strict=True))
        return {}

    def _pooled(self, call: Call, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """What a group of poolers and heads gives; where bits matter, of exactly the shapes of the batch."""
        of, _, whose = dict(call.inputs)["places"]
        if self._exact or whose:  # of prompt rows each slot reads its own
            return np.array(call.graph(inputs)["out"])
        if of != "words":
            return _answered(call.graph, inputs, AT_ONCE)
        there = self._batch.words >= 0
        if not there.any():
            slots, labels = (
                (1 + max(one.slot for one in call.answers)),
                max(one.width or 0 for one in call.answers),
            )
            return np.zeros((slots, *there.shape, labels), np.float32)
        return _of_words(call.graph, inputs, there)

    def _fail(self, tasks: tuple[str, ...], error: Exception) -> None:
        for name in tasks:
            self._failed.setdefault(name, error)


def _answered(graph: Graph, inputs: Mapping[str, np.ndarray], most: int) -> np.ndarray:
    """A group's outputs, (slots, texts, ...): some texts after others, for what lies between takes memory for each.

    A runtime keeps what it prepared for each shape, so there are few: texts and positions are filled up.
    """
    texts, positions = inputs["places"].shape
    each = -(-texts // -(-texts // most))  # pieces of one size
    found: list[np.ndarray] = []
    for start in range(0, texts, each):
        count = min(texts - start, each)
        size = (_room(count), _room(positions))
        some = {
            name: _filled(inputs[name][start : start + count], size, value)
            for name, value in BY_TEXT.items()
            if name in inputs
        }
        out = graph({**inputs, **some})["out"][:, :count]
        found.append(np.array(out[:, :, :positions] if out.ndim == 4 else out))
    return found[0] if len(found) == 1 else np.concatenate(found, axis=1)


def _of_words(graph: Graph, inputs: Mapping[str, np.ndarray], there: np.ndarray) -> np.ndarray:
    """The same for words, (slots, texts, words, ...), each as a text of one position; 0 for those not `there`."""
    out = _answered(graph, {**inputs, "places": inputs["places"][there][:, None]}, WORDS_AT_ONCE)
    found = np.zeros((len(out), *there.shape, out.shape[-1]), out.dtype)
    found[:, there] = out[:, :, 0]
    return found


def _room(size: int) -> int:
    """The size, or up to a quarter more above eight: four sizes between a power of two and the next."""
    step = 1 << max(0, (size - 1).bit_length() - 3)
    return -(-size // step) * step


def _filled(array: np.ndarray, size: tuple[int, int], value: float) -> np.ndarray:
    """With so many texts and positions, its first and last axes."""
    if (len(array), array.shape[-1]) == size:
        return array
    found = np.full((size[0], *array.shape[1:-1], size[1]), value, array.dtype)
    found[: len(array), ..., : array.shape[-1]] = array
    return found
