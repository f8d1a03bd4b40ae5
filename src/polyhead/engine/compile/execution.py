"""Runs the program of a batch: its graphs are called in order, and a task that fails does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise

import numpy as np

from polyhead.codecs import NO_TOKEN
from polyhead.engine.backends.base import StageResults, TokenBatch
from polyhead.engine.compile.encoder import HIDDEN
from polyhead.engine.compile.heads import token_inputs_of
from polyhead.engine.compile.layout import neighbour_inputs
from polyhead.engine.compile.program import Graph, GraphCall, Program, Values
from polyhead.engine.compile.state_cache import StateCache
from polyhead.plan import PLACE_OF
from polyhead.plan.coding import tokens_of

# Texts, or words, that poolers and heads take in one call of their graph. A runtime keeps what it prepared for each
# number, weights too, so there are few.
TEXTS = (4, 16, 32, 64)
WORDS = (16, 64, 256, 1024, 2048)
PLACES = 4096  # texts times positions of such a call, at most, beyond the least texts
# A call reads all weights, which is taken to cost so many times the least texts or words; and so many positions as much
# as the maps of one text (docs/project/log.md says from what).
CALL, POSITIONS = 10, 90
# Inputs of poolers and heads that have a row for each text, and the value that fills missing rows.
BY_TEXT: Mapping[str, float] = {
    "places": 0,
    "keep": HIDDEN,
    "share": 0.0,
    "tokens": NO_TOKEN,
    "near": 0,
    **dict.fromkeys(PLACE_OF, 0),
}
# An input of a joint graph with a row for each word. `words.1` has a row for each word with one neighbour on each side,
# `near.1` is 1 where such a neighbour exists. Inputs of `PLACE_OF` have one position a text.
WORD = "words"
TokenInputs = Callable[[np.ndarray], np.ndarray]  # `compile.heads.token_inputs_of`
GraphOutputs = dict[str, np.ndarray]  # of a graph of poolers and heads, by name


class Execution:
    """One run of a program on a batch. With `apart` the same thread may run others between two stages.

    With `exact` every product has the shape that the batch gives it. Layers are not run for states that `cache` has.
    """

    def __init__(
        self,
        program: Program,
        batch: TokenBatch,
        *,
        count: Callable[[int], None],
        apart: bool = False,
        exact: bool = False,
        cache: StateCache | None = None,
    ) -> None:
        self._program, self._batch, self._count, self._cache = program, batch, count, cache
        self._apart, self._exact = apart, exact
        self._values: Values = {}
        self._failed: dict[str, Exception] = {}
        self._layers_left = program.layers

    def stages(self) -> Iterator[StageResults]:
        """The outputs of tasks, and the errors of those that failed, stage by stage."""
        program, given_out = self._program, 0
        for root in program.roots:
            try:
                self._values |= root.values(self._batch)
            except Exception as error:
                if set(root.tasks) == set(program.tasks):
                    raise
                self._fail(root.tasks, error)
        known = self._cache.get(program, self._batch) if self._cache is not None else {}
        self._values |= known
        for call in program.calls:
            if known and call.states:
                self._layers_left -= call.layers
                continue
            outputs = self._run(call) if not self._failed.keys() >= set(call.tasks) else {}
            self._layers_left -= call.layers
            if outputs or len(self._failed) > given_out:
                new = dict(list(self._failed.items())[given_out:])
                given_out = len(self._failed)
                yield StageResults(outputs=outputs, failed=new, layers_left=self._layers_left)
        if self._cache is not None and not known:
            self._cache.add(program, self._batch, self._values)

    def _run(self, call: GraphCall) -> dict[str, np.ndarray]:
        """Keeps the call's states and gives its answers; what cannot be run as a whole runs in parts."""
        try:
            return self._called(call)
        except Exception as error:
            if call.is_shared:
                raise
            parts = call.alone()
            if not parts:
                self._fail(call.tasks, error)
            outputs: dict[str, np.ndarray] = {}
            for part in parts:
                outputs |= self._run(part)
            return outputs

    def _called(self, call: GraphCall) -> dict[str, np.ndarray]:
        inputs = {**call.chosen, **{name: self._values[key] for name, key in call.inputs}}
        if call.answers:
            out = self._pooled(call, inputs)
            return {place.task: out[place.output][place.slot][..., : place.width] for place in call.answers}
        outputs = call.graph(inputs)
        self._count(call.layers)
        copied = self._apart or call.graph in self._program.repeated
        for name, keys in call.states:
            state = np.array(outputs[name]) if copied else outputs[name]
            lanes = state.reshape(len(keys), -1, *state.shape[1:])
            self._values.update(zip(keys, lanes, strict=True))
        return {}

    def _pooled(self, call: GraphCall, inputs: Mapping[str, np.ndarray]) -> GraphOutputs:
        """The outputs of a group of poolers and heads; where bits matter, in exactly the shapes of the batch."""
        fill = all(root.shape.fill for root in self._program.roots)
        if call.is_joint:
            return _joint(call, inputs, self._batch, fill=fill)
        of, _, whose = dict(call.inputs)["places"]
        batch, form = self._batch, call.form
        of_tokens = None if form is None else token_inputs_of(form.pool)
        if form is not None and of_tokens is not None:
            tokens = tokens_of(form.pool.stored(), ids=batch.ids, mask=batch.mask, words=batch.words)
            inputs = {**inputs, "tokens": tokens}
        if form is not None:
            inputs = neighbour_inputs(inputs, batch.words >= 0, form.window)
        if self._exact or whose:  # of prompt rows each slot reads its own
            return {name: np.array(out) for name, out in call.graph(_with_tokens(inputs, of_tokens)).items()}
        if of != "words":
            texts, positions = inputs["places"].shape
            is_pooled = "keep" in inputs or "share" in inputs
            lengths = self._batch.mask.sum(axis=1) if is_pooled else np.full(texts, positions)
            return run_graph(call.graph, inputs, TEXTS, lengths, of_tokens=of_tokens, fill=fill)
        is_word = self._batch.words >= 0
        if not is_word.any():
            shape = (len(call.graph.recipe.outputs), *is_word.shape, max(place.width or 0 for place in call.answers))
            return {place.output: np.zeros(shape, np.float32) for place in call.answers}
        return _of_words(call.graph, inputs, is_word, of_tokens, fill=fill)

    def _fail(self, tasks: tuple[str, ...], error: Exception) -> None:
        for name in tasks:
            self._failed.setdefault(name, error)


def run_graph(
    graph: Graph,
    inputs: Mapping[str, np.ndarray],
    sizes: tuple[int, ...],
    lengths: np.ndarray,
    *,
    of_tokens: TokenInputs | None = None,
    fill: bool = True,
) -> GraphOutputs:
    """A group's outputs, (slots, texts, ...): some texts after others, for what lies between takes memory for each.

    Unless `fill` is False, texts are filled up to one of the `sizes`, positions, of which each text has its length, to
    few numbers. If the codec reads tokens, the graph gets `of_tokens` of them in place of `tokens`.
    """
    blocks: dict[str, list[np.ndarray]] = {}
    for start, stop, room in _pieces(lengths, sizes, fill=fill):
        longest = int(lengths[start:stop].max())
        row = _row_of(inputs) if len(lengths) == 1 and sizes == TEXTS else 0
        filled = _piece(inputs, start, stop, (room, row or _room(longest) if fill else longest), longest)
        for name, out in graph(_with_tokens({**inputs, **filled}, of_tokens)).items():
            out = out[:, : stop - start]
            blocks.setdefault(name, []).append(np.array(out[:, :, :longest] if out.ndim == 4 else out))
    return {name: parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1) for name, parts in blocks.items()}


def _joint(call: GraphCall, inputs: Mapping[str, np.ndarray], batch: TokenBatch, *, fill: bool) -> GraphOutputs:
    """The outputs of groups of several forms that are asked, (slots, texts, ...), some texts after others."""
    lengths, requested = batch.mask.sum(axis=1), {place.output for place in call.answers}
    blocks: dict[str, list[np.ndarray]] = {name: [] for name in requested}
    for start, stop, room in _pieces(lengths, TEXTS, fill=fill):
        longest = int(lengths[start:stop].max())
        row = _row_of(inputs) if len(lengths) == 1 else 0
        filled = _piece(inputs, start, stop, (room, row or _room(longest) if fill else longest), longest)
        is_word = batch.words[start:stop] >= 0 if call.words else np.zeros((stop - start, batch.words.shape[1]), bool)
        for name in inputs:
            of, _, window = name.partition(".")
            if of != WORD:
                continue
            read = neighbour_inputs({"places": inputs[name][start:stop]}, is_word, int(window or 0))
            flat = {key: np.moveaxis(array, -1, 1)[is_word][..., None] for key, array in read.items()}
            count = max(1, len(flat["places"]))
            room = row if row >= count else _words_room(count)
            size = room if fill else count, 1
            filled[name] = _filled(flat["places"], size, 0)
            if window:
                filled[f"near.{window}"] = _filled(flat["near"], size, 0)
        for name, out in call.graph({**inputs, **filled}).items():
            if name in call.words:
                blocks[name].append(np.zeros((len(out), *is_word.shape, out.shape[-1]), out.dtype))
                blocks[name][-1][:, is_word] = out[:, : np.count_nonzero(is_word), 0]
            elif name in requested:
                blocks[name].append(np.array(out[:, : stop - start]))
    return {name: parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1) for name, parts in blocks.items()}


def _row_of(inputs: Mapping[str, np.ndarray]) -> int:
    """The positions of the one row that a text fills up, 0 where there are more: then all shapes follow from it."""
    rows = {array.shape[:2] for name, array in inputs.items() if name.startswith("state.")}
    rows_positions = rows.pop() if len(rows) == 1 else (0, 0)
    return rows_positions[1] if rows_positions[0] == 1 else 0


def _piece(
    inputs: Mapping[str, np.ndarray], start: int, stop: int, size: tuple[int, int], longest: int
) -> dict[str, np.ndarray]:
    """What poolers read of some of the texts, filled up to so many texts and positions."""
    return {
        name: _filled(inputs[name][start:stop, ..., :longest], (size[0], 1) if name in PLACE_OF else size, value)
        for name, value in BY_TEXT.items()
        if name in inputs
    }


def _words_room(words: int) -> int:
    """Up to how many words are filled up: a power of two up to 256, and two sizes between it and the next above."""
    return max(WORDS[0], 1 << (words - 1).bit_length() if words <= 256 else _room(words))


def _with_tokens(inputs: Mapping[str, np.ndarray], of_tokens: TokenInputs | None) -> Mapping[str, np.ndarray]:
    """The inputs with what a codec says of tokens in their place."""
    if of_tokens is None:
        return inputs
    return {
        **{name: array for name, array in inputs.items() if name != "tokens"},
        "token_inputs": of_tokens(inputs["tokens"]),
    }


def _of_words(
    graph: Graph, inputs: Mapping[str, np.ndarray], is_word: np.ndarray, of_tokens: TokenInputs | None, *, fill: bool
) -> GraphOutputs:
    """The same for words, (slots, texts, words, ...), each as a text of one position; 0 where there is no word."""
    outputs = {}
    names = [name for name in ("places", "tokens", "near") if name in inputs]
    flat = {**inputs, **{name: np.moveaxis(inputs[name], -1, 1)[is_word][..., None] for name in names}}
    lengths = np.ones(len(flat["places"]), np.int64)
    for name, out in run_graph(graph, flat, WORDS, lengths, of_tokens=of_tokens, fill=fill).items():
        outputs[name] = np.zeros((len(out), *is_word.shape, out.shape[-1]), out.dtype)
        outputs[name][:, is_word] = out[:, :, 0]
    return outputs


def _pieces(lengths: np.ndarray, sizes: tuple[int, ...], *, fill: bool = True) -> Iterator[tuple[int, int, int]]:
    """Ranges of texts, and with how many each is computed: the last one is filled up, unless `fill` is False."""
    start, step = 0, sizes[0]
    if not fill:
        yield from (
            (begin, end, end - begin) for begin, end in pairwise([*range(0, len(lengths), sizes[-1]), len(lengths)])
        )
        return
    if len(lengths) <= step:
        # Of one row OpenVINO's products keep their weights in a form of its own, beside that of all other numbers.
        yield 0, len(lengths), 2 if len(lengths) == 1 and sizes == TEXTS else step
        return
    longest = np.maximum.reduceat(lengths, np.arange(0, len(lengths), step))
    longest = np.maximum.accumulate(longest[::-1])[::-1]  # of a part and of those after it
    for room in _rooms(tuple(map(_room, longest.tolist())), sizes):
        yield start, min(start + room, len(lengths)), room
        start += room


@lru_cache(maxsize=1024)
def _rooms(longest: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The number of texts of each call, so that all calls take the least time; each part has `sizes[0]` texts.

    From the last part back: the best calls from a part on are the best choice of the first and the best after it.
    """
    best: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]  # of the parts from the end on
    for place, positions in enumerate(reversed(longest)):
        tries = []
        for size in sizes:
            if size == sizes[0] or size * positions <= PLACES:
                time, after = best[max(0, place + 1 - size // sizes[0])]
                taken = CALL * sizes[0] + size * (1 + positions / POSITIONS)
                tries.append((taken + time, (size, *after)))
        best.append(min(tries))
    return best[-1][1]


def _room(size: int) -> int:
    """The size, or up to half more above four: two sizes between a power of two and the next."""
    step = 1 << max(0, (size - 1).bit_length() - 2)
    return -(-size // step) * step


def _filled(array: np.ndarray, size: tuple[int, int], value: float) -> np.ndarray:
    """With so many texts and positions, its first and last axes."""
    if (len(array), array.shape[-1]) == size:
        return array
    filled = np.full((size[0], *array.shape[1:-1], size[1]), value, array.dtype)
    filled[: len(array), ..., : array.shape[-1]] = array
    return filled
