"""The files of an export as ONNX graphs, from the same builders that the backends compile.

One file runs the trunk's layers that tasks share; a task's file runs what is its own, from the trunk's states or, under
prompts, from the text. What builders ask for is computed inside a file from what a user has: token ids, a mask,
segments, places of words."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec
import numpy as np
import onnx
from onnx import TensorProto

from polyhead.codecs import NO_TOKEN
from polyhead.encoder.data import TrunkData
from polyhead.encoder.relative import buckets_of
from polyhead.encoder.shape import Architecture
from polyhead.engine.backends.base import LoadedTask
from polyhead.engine.backends.onnx.ops import OnnxOps
from polyhead.engine.compile.arrangement import Read, slot_form, states_read
from polyhead.engine.compile.encoder import HIDDEN, LayerRun, embed
from polyhead.engine.compile.heads import answers, compared_outputs, folded, token_inputs_of
from polyhead.engine.compile.maps import Arrays
from polyhead.engine.compile.ops import InputKind, Tensor
from polyhead.plan import TRUNK, Layers, Path, Plan, Pool, Positions, join_layers, merge
from polyhead.plan.cost import WORD_WEIGHTS
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task

Shape = tuple[int | str, ...]
_STATE = "state_"


class BuiltGraph(msgspec.Struct, frozen=True):
    """A model whose larger arrays stand beside it, by name."""

    model: onnx.ModelProto
    arrays: dict[str, np.ndarray]


def trunk_graph(trunk: TrunkData, depths: Collection[int]) -> BuiltGraph:
    """The text to the states at these depths, `state_6` (rows, tokens, width); 0 is what the first layer reads."""
    shape = trunk.architecture
    ops = TextOps(shape, first=shape.first_position)
    states = [embed(ops, trunk.arrays, shape)]
    if deepest := max(depths):
        run = LayerRun([Layers(start=0, stop=deepest)], shape, {TRUNK: trunk.arrays})
        states += run.states(ops, states[0], ops.input("added", "float", (-1, 1, -1, -1)))
    named = {_state(depth): states[depth] for depth in sorted(depths)}
    return _built(ops, named, dict.fromkeys(named, ("rows", "tokens", shape.width)), "trunk")


def depths_read(path: Path) -> list[int]:
    """Depths of the trunk's states that the task's own file reads, in order; none under prompts."""
    path = join_layers(path)
    if path.embed.prompts:
        return []
    own = own_layers(path)
    shared = own[0].start if own else path.depth
    return sorted({*(depth for depth in _pooled_depths(path) if depth <= shared), *([shared] if own else [])})


def own_layers(path: Path) -> tuple[Layers, ...]:
    """The layers that the task's own file runs: all but the trunk's plain ones that it begins with."""
    layers = join_layers(path).layers
    is_shared = bool(layers) and layers[0].weights == TRUNK and layers[0].delta is None
    return layers[1:] if is_shared and not path.embed.prompts else layers


def longest_read(path: Path, trunk: TrunkData) -> int:
    """The number of tokens of a text that the task's files read: some positions are for its prompts."""
    shifted = sum(prompt.rows for prompt in path.embed.prompts) if path.embed.shift else 0
    return min(trunk.settings.max_tokens, trunk.architecture.max_tokens - shifted)


def task_graph(trunk: TrunkData, loaded: LoadedTask, task: Task) -> BuiltGraph:
    """The task's own layers, pooler and head: `logits`, and `scores` or `value` where the kind has them row by row.

    Of a task over pairs read separately: `features` (rows, width) of one text.
    """
    shape, path = trunk.architecture, _alone(join_layers(loaded.path))
    prompts = sum(prompt.rows for prompt in path.embed.prompts)
    ops = TextOps(
        shape,
        first=shape.first_position + (prompts if path.embed.shift else 0),
        prompts=prompts,
        isolated=path.embed.isolated,
    )
    states = _states(ops, path, trunk, loaded)
    for number, depth in enumerate(_pooled_depths(path)):
        ops.bound[f"state.{number}"] = states[depth]
    plan = merge({task.name: path})
    form = slot_form(plan, _read(plan), path, shape, shared=False)
    ops.read(form.pool.positions, _own_rows(path), window=form.window)
    if (of_tokens := token_inputs_of(form.pool)) is not None:
        ops.bind_tokens(of_tokens(np.arange(NO_TOKEN, shape.vocabulary)))
    pooler = {} if path.pool.part is None else _owners(loaded, trunk)[path.pool.part]
    slot = folded(path, loaded.arrays, _hidden(loaded), pooler, width=form.width)
    out = answers(ops, form, [slot], ["out"])["out"]
    if path.head.separate:
        features = ops.reshape(out, (-1, form.width))
        return _built(ops, {"features": features}, {"features": ("rows", form.width)}, task.name)
    if kind_of(task).per_word:
        logits = ops.reshape(out, (-1, ops.size(ops.words(), 1), path.head.width))
        return _answering(ops, task, logits, ("rows", "words", path.head.width))
    logits = ops.reshape(out, (-1, path.head.width))
    if path.head.words:
        logits = ops.add(logits, _hashed_words(ops, loaded.arrays[WORD_WEIGHTS]))
    return _answering(ops, task, logits, ("rows", path.head.width))


def _hashed_words(ops: OnnxOps, weights: np.ndarray) -> Tensor:
    """What the words of each row add, (rows, outputs): their values times their columns' weights (columns, outputs)."""
    columns = ops.input(COLUMNS, "int", ("rows", "features"))
    values = ops.input(VALUES, "float", ("rows", "features"))
    read = ops.gather(ops.constant(weights), columns)  # (rows, features, outputs)
    return ops.reshape(ops.matmul(ops.node("Unsqueeze", values, ops.whole(1)), read), (-1, weights.shape[1]))


def pair_graph(loaded: LoadedTask, task: Task) -> BuiltGraph:
    """Features `first` and `second` (rows, width) of both texts to the task's answer."""
    ops, head = OnnxOps(), loaded.path.head
    logits = compared_outputs(ops, head, loaded.arrays, _hidden(loaded))
    return _answering(ops, task, logits, ("rows", head.width))


def _states(ops: TextOps, path: Path, trunk: TrunkData, loaded: LoadedTask) -> dict[int, Tensor]:
    """The states that the file has, by depth: those that it is given and those that it computes."""
    shape, arrays, states = trunk.architecture, _owners(loaded, trunk), dict[int, Tensor]()
    for depth in depths_read(path):
        states[depth] = ops.input(_state(depth), "float", ("rows", "tokens", shape.width))
    if path.embed.prompts:
        rows = [arrays[prompt.part]["prompt.weight"] for prompt in path.embed.prompts]
        none = np.zeros((1, shape.embedding_width or shape.width), np.float32)
        ops.bound["prompts"] = ops.constant(np.concatenate([none, *rows]))
        states[0] = embed(ops, trunk.arrays, shape, prompted=True)
    for node in own_layers(path):
        run = LayerRun([node], shape, arrays, by_row=bool(path.embed.prompts))
        states_after = run.states(ops, states[node.start], ops.input("added", "float", (-1, 1, -1, -1)))
        states |= dict(enumerate(states_after, node.start + 1))
    return states


def _answering(ops: OnnxOps, task: Task, logits: Tensor, shape: Shape) -> BuiltGraph:
    outputs = {"logits": logits}
    how, half = kind_of(task).scores, ops.constant(np.array(0.5, np.float32))
    if how == "softmax":
        outputs["scores"] = ops.softmax(logits)
    elif how == "sigmoid":
        outputs["scores"] = ops.add(ops.multiply(ops.tanh(ops.multiply(logits, half)), half), half)
    elif how == "range":
        assert task.range is not None  # its kind checks it
        low, high = (ops.constant(np.array(end, np.float32)) for end in task.range)
        value = ops.add(low, ops.multiply(logits, ops.subtract(high, low)))
        outputs["value"] = ops.minimum(ops.maximum(value, low), high)
    return _built(ops, outputs, dict.fromkeys(outputs, shape), task.name)


def _built(ops: OnnxOps, outputs: dict[str, Tensor], shapes: dict[str, Shape], label: str) -> BuiltGraph:
    model = ops.graph(outputs, label=label, shapes=shapes)
    return BuiltGraph(model, ops.arrays)


def reads_states(inputs: Collection[str]) -> bool:
    """Whether a file with these inputs goes on from the trunk's states; else it runs the trunk's layers itself."""
    return any(name.startswith(_STATE) for name in inputs)


def _state(depth: int) -> str:
    return f"{_STATE}{depth}"


def _pooled_depths(path: Path) -> Sequence[int]:
    """Depths of the states that the pool reads, in order."""
    plan = merge({"task": path})
    return [_start(plan.steps[step].node) + n for step, n in states_read(plan, _read(plan), mixed=False)]


def _read(plan: Plan) -> Read:
    pool = plan.steps[-2]
    assert isinstance(pool.node, Pool)
    return Read(pool.parent, pool.node, pool.tasks)


def _start(node: object) -> int:
    return node.start if isinstance(node, Layers) else 0


def _own_rows(path: Path) -> tuple[int, int]:
    before = [prompt.rows for prompt in path.embed.prompts]
    own = [prompt.part == path.pool.part for prompt in path.embed.prompts]
    place = own.index(True) if True in own else 0
    return sum(before[:place]), sum(before[: place + 1])


def _alone(path: Path) -> Path:
    """An isolated prompt sees the text and itself: others before the same text are nothing to it."""
    if not path.embed.isolated:
        return path
    own = tuple(prompt for prompt in path.embed.prompts if prompt.part == path.pool.part)
    embed = msgspec.structs.replace(path.embed, prompts=own)
    return Path(nodes=(embed, *path.nodes[1:]))


def _owners(loaded: LoadedTask, trunk: TrunkData) -> dict[str, Arrays]:
    return {**loaded.others, loaded.path.head.part: loaded.arrays, TRUNK: trunk.arrays}


def _hidden(loaded: LoadedTask) -> Arrays:
    shared = loaded.path.head.hidden_part
    return loaded.arrays if shared is None else loaded.others[shared]


IDS, MASK, SEGMENTS, WORDS = "input_ids", "attention_mask", "token_type_ids", "words"
COLUMNS, VALUES = "word_columns", "word_values"  # of hashed words (rows, features); a value of 0 where there is none


class TextOps(OnnxOps):
    """Asks a user for these four, int64 (rows, tokens) and (rows, words), each only where something needs it.

    Texts may be padded at either end. `prompts` rows stand before the text, whose positions count from `first`; where
    they are `isolated` the text does not see them. What builders call by a name in `bound` is that tensor.
    """

    def __init__(self, shape: Architecture, *, first: int, prompts: int = 0, isolated: bool = False) -> None:
        super().__init__()
        self.bound: dict[str, Tensor] = {}
        self._shape, self._first, self._prompts, self._isolated = shape, first, prompts, isolated
        self._made: Mapping[str, Callable[[], Tensor]] = {
            "ids": self._ids,
            "positions": self._positions,
            "segments": self._segments,
            "text": self._text,
            "which": self._which,
            "added": self._added,
            "turns": self._turns,
            "buckets": self._buckets,
            "reads": self._reads,
            "near": self._near,
            "asks": self._asks,
            "asked": self._asked,
            "back": self._back,
            "placed": self._placed,
            "keep": self._keep,
            "share": self._share,
        }

    def input(self, name: str, kind: InputKind, shape: Sequence[int | str]) -> Tensor:
        """The tensor that is bound under this name or can be computed, else an input of the file."""
        if name not in self.bound and name in self._made:
            self.bound[name] = self._made[name]()
        return self.bound[name] if name in self.bound else super().input(name, kind, shape)

    def read(self, positions: Positions, own: tuple[int, int], *, window: int = 0) -> None:
        """Binds what a pooler over these positions reads; `own` are the rows of its own prompt."""
        words = self._near_words(window) if positions == "tokens" else None
        self.bound["places"] = self._places(positions, own, words, window)
        if window:
            is_read = self.minimum(self.maximum(self.add(words, self._number(1)), self._number(0)), self._number(1))
            self.bound["near"] = self.node("Cast", is_read, to=TensorProto.FLOAT)
        if positions == "prompt":
            rows = own[1] - own[0]
            self.bound["share"] = self.constant(np.full((1, 1, rows), 1 / rows, np.float32))

    def bind_tokens(self, table: np.ndarray) -> None:
        """Binds what a codec says of the tokens that are read, of a table (1 + vocabulary, any), of no token first."""
        tokens = self.gather(self.reshape(self.input("ids", "int", (-1, -1)), (-1,)), self.bound["places"])
        self.bound["token_inputs"] = self.gather(self.constant(table), self.add(tokens, self._number(1)))

    def _places(self, positions: Positions, own: tuple[int, int], words: Tensor, window: int) -> Tensor:
        """Which of all rows' positions, laid end to end, are read: (rows, places), with a window as `words` are."""
        length = self.add(self._tokens(), self._number(self._prompts))
        rows = self.multiply(self._up_to(self.size(self._mask(), 0), (-1, 1, 1) if window else (-1, 1)), length)
        if positions == "prompt":
            return self.add(rows, self.constant(np.arange(*own)))
        if positions == "tokens":
            places = self.maximum(words, self._number(0))
        elif positions in ("attention", "mean"):
            places = self._up_to(self._tokens(), (1, -1))
        else:
            places = self.node("ArgMax", self._mask(), axis=1, keepdims=1)
        return self.add(self.add(rows, self._number(self._prompts)), places)

    def words(self) -> Tensor:
        """The first token of each word, -1 for none: (rows, words)."""
        return self.input(WORDS, "int", ("rows", "words"))

    def _near_words(self, window: int) -> Tensor:
        """The words, or with a window those of each word's neighbours, (rows, 2 window + 1, words); -1 beyond ends."""
        if not window:
            return self.words()
        padded = self.node("Pad", self.words(), self.whole(0, window, 0, window), self._number(-1))
        ends = [*range(-2 * window, 0), np.iinfo(np.int32).max]
        shifted = [self.slice(padded, 1, start, end) for start, end in enumerate(ends)]
        return self.concat([self.node("Unsqueeze", words, self.whole(1)) for words in shifted], 1)

    def _ids(self) -> Tensor:
        return self._behind(self.input(IDS, "int", ("rows", "tokens")))

    def _positions(self) -> Tensor:
        """Positions count up from the first token; padding before the text has the first position."""
        counted = self.node("CumSum", self._mask(), self._number(1))
        return self._behind(self.add(self.maximum(counted, self._number(1)), self._number(self._first - 1)))

    def _segments(self) -> Tensor:
        if self._shape.segments == 1:
            return self.multiply(self._ids(), self._number(0))
        return self._behind(self.input(SEGMENTS, "int", ("rows", "tokens")))

    def _text(self) -> Tensor:
        """1 at a text's positions, 0 at prompt rows: (1, positions, 1)."""
        ones = self.reshape(self.node("Expand", self._number(1.0), self._tokens()), (1, -1))
        return self.node("Unsqueeze", self._behind(ones), self.whole(2))

    def _which(self) -> Tensor:
        """The numbers from 1 of the prompt rows, 0 at a text's positions: (1, positions)."""
        rows = self.constant(np.arange(1, self._prompts + 1)[None])
        zeros = self.reshape(self.node("Expand", self._number(0), self._tokens()), (1, -1))
        return self.concat([rows, zeros], 1)

    def _behind(self, x: Tensor) -> Tensor:
        """The values (rows, tokens) behind as many zeros as there are prompt rows."""
        return self.node("Pad", x, self.whole(0, self._prompts, 0, 0)) if self._prompts else x

    def _added(self) -> Tensor:
        """0 where a position is read, (rows, 1, 1 or positions, positions)."""
        added = self.node("Unsqueeze", self._behind(self.input("keep", "float", (-1, -1))), self.whole(1, 2))
        if not self._isolated:
            return added
        text = self.input("text", "float", (1, -1, 1))
        prompt = self.transpose(self.subtract(self._number(1.0), text), (0, 2, 1))
        hidden = self.multiply(self.node("Unsqueeze", self.multiply(text, prompt), self.whole(1)), self._number(HIDDEN))
        return self.add(added, hidden)

    def _turns(self) -> Tensor:
        """Positions from 0 at the first token; 0 for prompt rows and padding before the text."""
        counted = self.node("CumSum", self._mask(), self._number(1))
        return self._behind(self.subtract(self.maximum(counted, self._number(1)), self._number(1)))

    def _places_in_row(self) -> Tensor:
        """0, 1, ... for prompt rows and tokens, (positions,)."""
        return self._up_to(self.add(self._tokens(), self._number(self._prompts)), (-1,))

    def _buckets(self) -> Tensor:
        """Rows of the table for distances from positions - 1 down, and up, (2, 2 positions - 1)."""
        relative, most = self._shape.relative, self._shape.positions + self._prompts
        assert relative is not None
        table = self.constant(buckets_of(relative, np.arange(-most, most + 1)))
        last = self.subtract(self.add(self._tokens(), self._number(self._prompts)), self._number(1))
        count = self.add(self.multiply(last, self._number(2)), self._number(1))
        up = self.subtract(self._up_to(count, (1, -1)), last)
        distances = self.concat([self.multiply(up, self._number(-1)), up], 0)
        return self.gather(table, self.add(distances, self._number(most)))

    def _reads(self) -> Tensor:
        """All places of each row, which is one block, (rows, positions)."""
        rows, positions = self.size(self._mask(), 0), self.size(self._places_in_row(), 0)
        return self.reshape(self._up_to(self.multiply(rows, positions), (-1,)), (-1, positions))

    def _asks(self) -> Tensor:
        """The prompt rows' places, (rows, prompt rows)."""
        return self.slice(self._reads(), 1, 0, self._prompts)

    def _asked(self) -> Tensor:
        """What is added to their scores."""
        added = self.input("added", "float", (-1, 1, -1, -1))
        return self.slice(added, 2, 0, self._prompts) if self._isolated else added

    def _back(self) -> Tensor:
        """Prompt rows stand behind their row's positions, (rows, positions)."""
        rows, positions = self.size(self._mask(), 0), self.size(self._places_in_row(), 0)
        each = self.add(positions, self._number(self._prompts))
        starts = self.multiply(self._up_to(rows, (-1, 1)), each)
        asked = self.add(self._up_to(self._number(self._prompts), (1, -1)), positions)
        tokens = self.add(self._up_to(self._tokens(), (1, -1)), self._number(self._prompts))
        return self.add(starts, self.concat([asked, tokens], 1))

    def _near(self) -> Tensor:
        """`added` in the window and at prompt rows, else a low number, (rows, 1, positions, positions)."""
        assert self._shape.window is not None
        at = self._places_in_row()
        apart = self.absolute(self.subtract(self.reshape(at, (-1, 1)), self.reshape(at, (1, -1))))
        beyond = self.subtract(apart, self._number(self._shape.window))
        is_far = self.minimum(self.maximum(beyond, self._number(0)), self._number(1))
        far = self.reshape(self.node("Cast", is_far, to=TensorProto.FLOAT), (1, 1, *(self.size(at, 0),) * 2))
        if self._prompts:
            far = self.multiply(far, self._placed())
        return self.add(self.input("added", "float", (-1, 1, -1, -1)), self.multiply(far, self._number(HIDDEN)))

    def _placed(self) -> Tensor:
        """1 where neither is a prompt row, (1, 1, positions, positions)."""
        text = self.input("text", "float", (1, -1, 1))
        return self.node("Unsqueeze", self.multiply(text, self.transpose(text, (0, 2, 1))), self.whole(1))

    def _keep(self) -> Tensor:
        return self.multiply(self.subtract(self._number(1.0), self._float_mask()), self._number(HIDDEN))

    def _share(self) -> Tensor:
        mask = self._float_mask()
        return self.node("Unsqueeze", self.divide(mask, self.total(mask, 1)), self.whole(1))

    def _mask(self) -> Tensor:
        return self.input(MASK, "int", ("rows", "tokens"))

    def _float_mask(self) -> Tensor:
        return self.node("Cast", self._mask(), to=TensorProto.FLOAT)

    def _tokens(self) -> Tensor:
        return self.size(self._mask(), 1)

    def _up_to(self, count: Tensor, shape: tuple[int, ...]) -> Tensor:
        stop = self.node("Squeeze", count)
        return self.reshape(self.node("Range", self._number(0), stop, self._number(1)), shape)

    def _number(self, number: float) -> Tensor:
        return self.constant(np.array(number))
