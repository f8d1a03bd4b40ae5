"""The files of an export as ONNX graphs, from the same builders that the backends compile.

One file runs the trunk's layers that tasks share; a task's file runs what is its own, from the trunk's states or, under
prompts, from the text. What builders ask for is computed inside a file from what a user has: token ids, a mask,
segments, places of words."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
import numpy as np
import onnx

from polyhead.codecs import NO_TOKEN
from polyhead.encoder.data import TrunkData
from polyhead.engine.backends.base import LoadedTask
from polyhead.engine.backends.onnx.ops import OnnxOps
from polyhead.engine.compile.arrangement import Read, slot_form, states_read
from polyhead.engine.compile.encoder import LayerRun, embed
from polyhead.engine.compile.heads import SlotForm, answers, compared_outputs, folded, token_inputs_of
from polyhead.engine.compile.maps import Arrays
from polyhead.engine.compile.ops import Tensor
from polyhead.engine.export.text_ops import COLUMNS, VALUES, TextOps
from polyhead.plan import TRUNK, Layers, Path, Plan, Pool, join_layers, merge
from polyhead.plan.cost import WORD_WEIGHTS
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task

Shape = tuple[int | str, ...]
_STATE = "state_"


class BuiltGraph(msgspec.Struct, frozen=True):
    """A model, and its larger arrays by name."""

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
    return built(ops, named, dict.fromkeys(named, ("rows", "tokens", shape.width)), "trunk")


def depths_read(path: Path) -> list[int]:
    """Depths of the trunk's states that the task's own file reads, in order; none under prompts."""
    path = _with_own_prompt(join_layers(path))
    if path.embed.prompts:
        return []
    own_nodes = own_layers(path)
    shared = own_nodes[0].start if own_nodes else path.depth
    return sorted({*(depth for depth in _pooled_depths(path) if depth <= shared), *([shared] if own_nodes else [])})


def own_layers(path: Path) -> tuple[Layers, ...]:
    """The layers that the task's own file runs: all but the trunk's plain ones that it begins with."""
    layers = join_layers(path).layers
    is_shared = bool(layers) and layers[0].weights == TRUNK and layers[0].delta is None
    return layers[1:] if is_shared and not path.embed.prompts else layers


def longest_read(path: Path, trunk: TrunkData) -> int:
    """The number of tokens of a text that the task's files read: some positions are for its prompts."""
    return min(trunk.settings.max_tokens, trunk.architecture.max_tokens - path.embed.shifted)


def task_graph(trunk: TrunkData, loaded: LoadedTask, task: Task) -> BuiltGraph:
    """The task's own layers, pooler and head: `logits`, and `scores` or `value` where the kind has them row by row.

    Of a task over pairs read separately: `features` (rows, width) of one text.
    """
    shape, path = trunk.architecture, loaded.path
    ops, form = ready_to_pool(trunk, loaded, task)
    if (of_tokens := token_inputs_of(form.pool)) is not None:
        ops.bind_tokens(of_tokens(np.arange(NO_TOKEN, shape.vocabulary)))
    pooler = {} if path.pool.part is None else _owners(loaded, trunk)[path.pool.part]
    slot = folded(path, loaded.arrays, _hidden(loaded), pooler, width=form.width)
    out = answers(ops, form, [slot], ["out"])["out"]
    if path.head.separate:
        features = ops.reshape(out, (-1, form.width))
        return built(ops, {"features": features}, {"features": ("rows", form.width)}, task.name)
    if kind_of(task).per_word:
        logits = ops.reshape(out, (-1, ops.size(ops.words(), 1), path.head.width))
        return _answering(ops, task, logits, ("rows", "words", path.head.width))
    logits = ops.reshape(out, (-1, path.head.width))
    if path.head.words:
        logits = ops.add(logits, _hashed_words(ops, loaded.arrays[WORD_WEIGHTS]))
    return _answering(ops, task, logits, ("rows", path.head.width))


def ready_to_pool(trunk: TrunkData, loaded: LoadedTask, task: Task) -> tuple[TextOps, SlotForm]:
    """A graph with the states that the task's pooler reads, and its form."""
    shape, path = trunk.architecture, _with_own_prompt(join_layers(loaded.path))
    prompts = sum(prompt.rows for prompt in path.embed.prompts)
    ops = TextOps(shape, first=shape.first_position + path.embed.shifted, prompts=prompts, isolated=path.embed.isolated)
    states = _states(ops, path, trunk, loaded)
    for number, depth in enumerate(_pooled_depths(path)):
        ops.bound[f"state.{number}"] = states[depth]
    plan = merge({task.name: path})
    form = slot_form(plan, _read(plan), path, shape, shared=False)
    ops.read(form.pool.positions, _own_rows(path), window=form.window)
    return ops, form


def _hashed_words(ops: OnnxOps, weights: np.ndarray) -> Tensor:
    """Each row's hashed words times the `weights` (columns, outputs) of their columns, (rows, outputs)."""
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
    """The file's states by depth: its inputs and those that it computes."""
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
    return built(ops, outputs, dict.fromkeys(outputs, shape), task.name)


def built(ops: OnnxOps, outputs: dict[str, Tensor], shapes: dict[str, Shape], label: str) -> BuiltGraph:
    """The model with these outputs, of these shapes."""
    model = ops.graph(outputs, label=label, shapes=shapes)
    return BuiltGraph(model, ops.arrays)


def reads_states(inputs: Collection[str]) -> bool:
    """Whether a file with these inputs reads the trunk's states; else it runs the trunk's layers itself."""
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
    is_pooled = [prompt.part == path.pool.part for prompt in path.embed.prompts]
    place = is_pooled.index(True) if True in is_pooled else 0
    return sum(before[:place]), sum(before[: place + 1])


def _with_own_prompt(path: Path) -> Path:
    """The path with its own prompt only where prompts are isolated: these do not see each other."""
    if not path.embed.isolated:
        return path
    pooled = tuple(prompt for prompt in path.embed.prompts if prompt.part == path.pool.part)
    embed = msgspec.structs.replace(path.embed, prompts=pooled)
    return Path(nodes=(embed, *path.nodes[1:]))


def _owners(loaded: LoadedTask, trunk: TrunkData) -> dict[str, Arrays]:
    return {**loaded.others, loaded.path.head.part: loaded.arrays, TRUNK: trunk.arrays}


def _hidden(loaded: LoadedTask) -> Arrays:
    shared = loaded.path.head.hidden_part
    return loaded.arrays if shared is None else loaded.others[shared]
