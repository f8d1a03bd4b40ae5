"""Graphs at both ends of a stored value: the trunk's layers up to it, and the poolers and heads that read it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from polyhead.codecs import EXACT
from polyhead.encoder.shape import Architecture
from polyhead.engine.backends.base import FeatureBatch, TokenBatch
from polyhead.engine.backends.prefix import (
    check_feature_batch,
    depth_of,
    is_averaged,
    layers_read,
    pooled_value,
    stored_paths,
)
from polyhead.engine.compile.arrangement import Arrangement, HeadForm, SlotGroup
from polyhead.engine.compile.encoder import HIDDEN, LayerRun, LayerSpan, embed
from polyhead.engine.compile.execution import TEXTS, run_graph
from polyhead.engine.compile.groups import answer_places, slot_outputs, slots_graph
from polyhead.engine.compile.layout import Shape, neighbour_inputs
from polyhead.engine.compile.maps import Arrays
from polyhead.engine.compile.ops import Build, Ops, Tensor
from polyhead.engine.compile.program import Graph, Graphs, InputState, Recipe
from polyhead.errors import BackendError
from polyhead.plan import TRUNK, Codec, Layers, Path


def features(
    arranged: Arrangement, graphs: Graphs, paths: Sequence[Path], batch: TokenBatch
) -> tuple[list[np.ndarray], int]:
    """The stored values of these paths (see `Backend.features`), and how many layers were run."""
    stored, shape = stored_paths(paths), arranged.trunk.architecture
    if not len(batch.ids) or not stored:
        return [np.zeros((0, len(layers_read(path)), shape.width), np.float32) for path in stored], 0
    depth = max(depth_of(path) for path in stored)
    kept = tuple(sorted({number for path in stored for number in _states_of(path, depth)}))
    graph = graphs.graph(
        Recipe(
            key=("features", depth, kept),
            build=_layers_graph(depth, kept, shape, arranged.arrays(TRUNK)),
            label=f"layers 0 to {depth - 1} of features",
            layers=True,
            alone=(arranged.owners[TRUNK].token,),
        )
    )
    reads = [
        "ids",
        "places",
        *(("positions",) if shape.position_table else ()),
        *(("segments",) if shape.segments else ()),
    ]
    if depth:
        reads += ["added", *LayerSpan((Layers(start=0, stop=depth),), (), kept).reads(shape)]
    laid = InputState(
        step=0,
        tasks=(),
        shape=Shape(
            first_position=shape.first_position,
            segments=shape.segments,
            width=shape.width,
            pack=not arranged.deterministic,
            fill=graphs.runtime.fills,
            relative=shape.relative,
            window=shape.window,
            heads=shape.key_heads or shape.heads,
        ),
        most=shape.positions,
        reads=tuple(reads),
        prompts=np.zeros((1, shape.embedding_width or shape.width), np.float32),
    ).values(batch)
    inputs = {name: laid[name, 0, ""] for name in reads}
    places = inputs.pop("places")[batch.mask]
    states = {number: out.reshape(-1, shape.width)[places] for number, out in _numbered(graph(inputs))}
    lengths = batch.mask.sum(axis=1)
    values = []
    for path in stored:
        values.append(pooled_value(path.pool, [states[number] for number in _states_of(path, depth)], lengths))
    return values, depth


def _states_of(path: Path, depth: int) -> list[int]:
    """The states that a path needs of a graph of so many layers: after n layers, or -n for the mean of its last n."""
    numbers = layers_read(path)
    if is_averaged(path.pool) and len(numbers) > 1 and depth_of(path) == depth:
        return [-len(numbers)]
    return numbers


def _numbered(outputs: dict[str, np.ndarray]) -> Iterator[tuple[int, np.ndarray]]:
    for name, out in outputs.items():
        yield int(name.removeprefix("state.")), out


def _layers_graph(depth: int, kept: Sequence[int], shape: Architecture, arrays: Arrays) -> Build:
    """Outputs `state.n`: after n layers, 0 the embedding; of -n the mean of the last n."""

    def build(ops: Ops) -> dict[str, Tensor]:
        states = [embed(ops, arrays, shape)]
        if depth:
            added = ops.input("added", "float", (-1, 1, -1, -1))
            states += LayerRun([Layers(start=0, stop=depth)], shape, {TRUNK: arrays}).states(ops, states[0], added)
        return {f"state.{number}": _state(ops, states, number) for number in kept}

    return build


def _state(ops: Ops, states: Sequence[Tensor], number: int) -> Tensor:
    if number >= 0:
        return states[number]
    total = states[number]
    for state in states[len(states) + number + 1 :]:
        total = ops.add(total, state)
    return ops.multiply(total, ops.constant(np.array(-1.0 / number, np.float32)))


def heads(arranged: Arrangement, graphs: Graphs, tasks: Sequence[str], features: FeatureBatch) -> dict[str, np.ndarray]:
    """Outputs of tasks from the stored value that all of them read (see `Backend.heads`)."""
    for name in tasks:
        if name not in arranged.tasks:
            raise BackendError(f"task '{name}' is not loaded", allowed=list(arranged.tasks))
        check_feature_batch(name, arranged.tasks[name].path, features, arranged.trunk.architecture.width)
    outputs: dict[str, np.ndarray] = {}
    for group in arranged.groups:
        names = [name for name in group.members if name in tasks]
        if names:
            outputs |= _group_outputs(arranged, graphs, group, names, features)
    return {name: outputs[name] for name in tasks}


def _group_outputs(
    arranged: Arrangement, graphs: Graphs, group: SlotGroup[HeadForm, str], names: Sequence[str], features: FeatureBatch
) -> dict[str, np.ndarray]:
    path = arranged.tasks[names[0]].path
    # What was decoded is read as it is.
    exact = Codec(name=EXACT, before_mean=path.pool.codec.before_mean)
    pool = msgspec.structs.replace(group.form.form.pool, codec=exact)
    form = msgspec.structs.replace(group.form.form, pool=pool, mixed=is_averaged(path.pool))
    group = SlotGroup(HeadForm(group.form.read, group.form.prompt, form), group.slots)
    graph = _heads_graph(arranged, graphs, group)
    rows, positions, layers, _ = features.values.shape
    inputs = {f"state.{i}": np.ascontiguousarray(features.values[:, :, i]) for i in range(layers)}
    inputs["places"] = np.arange(rows * positions).reshape(rows, positions)
    if path.pool.positions == "attention":
        inputs["keep"] = np.where(features.mask, np.float32(0.0), np.float32(HIDDEN))
    elif path.pool.positions == "mean":
        inputs["share"] = np.ones((rows, 1, 1), np.float32)
    inputs = dict(neighbour_inputs(inputs, features.mask, form.window))
    places = list(answer_places(arranged, group, names, graph.recipe.outputs))
    if not rows or not positions:
        words = (positions,) if path.pool.positions == "tokens" else ()
        return {place.task: np.zeros((rows, *words, place.width or form.width), np.float32) for place in places}
    lengths = np.full(rows, positions) if path.pool.positions != "attention" else features.mask.sum(axis=1)
    out = run_graph(graph, inputs, TEXTS, lengths)
    return {place.task: out[place.output][place.slot][..., : place.width] for place in places}


def _heads_graph(arranged: Arrangement, graphs: Graphs, group: SlotGroup[HeadForm, str]) -> Graph:
    outputs, tokens = slot_outputs(arranged, group), tuple(token for slot in group.slots for token in slot.tokens)
    key = ("stored heads", group.form.form, tuple(slot.tokens for slot in group.slots))
    label = f"poolers and heads of {', '.join(group.members)} over stored features"
    build = slots_graph(arranged, group, outputs)
    return graphs.graph(Recipe(key=key, build=build, label=label, layers=False, alone=tokens, outputs=outputs))
