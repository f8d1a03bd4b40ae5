"""Graphs of layers: a step's, or those of several siblings at once; the embedding; prompts beside their text."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from polyhead.engine.compile.deltas import BesideText, Function
from polyhead.engine.compile.encoder import Arrays, Inside, Run, distinct, embed
from polyhead.engine.compile.ops import Build, Ops, Tensor
from polyhead.plan import TRUNK, Layers
from polyhead.trunk.shape import Architecture


class Span(msgspec.Struct, frozen=True):
    """Layers of one lane, or of several that are alike but for their arrays."""

    nodes: tuple[Layers, ...]  # a lane each
    inputs: tuple[int, ...]  # which input each lane begins with
    keep: tuple[int, ...]  # n: the state after n layers; -n: the mean of the last n
    begins: bool = False  # with the embedding

    @property
    def label(self) -> str:
        """For errors."""
        node = self.nodes[0]
        owners = {one.weights if one.delta is None else one.delta.part for one in self.nodes}
        return f"layers {node.start} to {node.stop - 1} of {', '.join(sorted(owners))}"


def span_graph(span: Span, shape: Architecture, arrays: Mapping[str, Arrays]) -> Build:
    """Outputs `state.n`, the lanes' rows one after another; inputs `hidden.0`, ... and `added`, or the embedding's.

    Lanes over weights of one owner run as one, so that what they share is one product; so do narrow ones. Lanes with
    whole layers of their own run one after the other: their products stacked are slower by far (decision 22).
    """

    def build(ops: Ops) -> dict[str, Tensor]:
        node, lanes = span.nodes[0], len(span.nodes)
        added = ops.input("added", "float", (-1, 1, -1, -1))
        if span.begins:
            hidden = embed(ops, arrays[TRUNK], shape)
        else:
            width = shape.width if node.enter or node.width is None else node.width
            inputs = [ops.input(f"hidden.{i}", "float", (-1, -1, width)) for i in span.inputs]
            if node.width is None and len({one.weights for one in span.nodes}) > 1:
                return _in_turn(ops, span, inputs, added, shape, arrays)
            hidden = inputs[0] if lanes == 1 else ops.concat(inputs, 0)
        if lanes > 1:
            added = ops.concat([added] * lanes, 0)
        states = _run(span.nodes, shape, arrays).states(ops, hidden, added)
        return {f"state.{number}": _state(ops, states, number) for number in span.keep}

    return build


def _in_turn(
    ops: Ops, span: Span, inputs: Sequence[Tensor], added: Tensor, shape: Architecture, arrays: Mapping[str, Arrays]
) -> dict[str, Tensor]:
    """Each lane's layers by themselves; their states beside each other."""
    lanes = [
        _run([node], shape, arrays).states(ops, hidden, added) for node, hidden in zip(span.nodes, inputs, strict=True)
    ]
    return {f"state.{number}": ops.concat([_state(ops, found, number) for found in lanes], 0) for number in span.keep}


def _run(nodes: Sequence[Layers], shape: Architecture, arrays: Mapping[str, Arrays]) -> Run:
    weights = distinct([arrays[one.weights] for one in nodes])
    return Run(nodes[0], shape, weights, _inside(nodes, shape, arrays))


def embed_graph(shape: Architecture, arrays: Arrays) -> Build:
    """The embedding of texts and prompt rows: output `state.0`."""

    def build(ops: Ops) -> dict[str, Tensor]:
        return {"state.0": embed(ops, arrays, shape, prompted=True)}

    return build


def beside_graph(node: Layers, shape: Architecture, arrays: Arrays) -> Build:
    """One layer for rows `hidden.0` beside the text `hidden.1`, which they see: output `state.1`."""

    def build(ops: Ops) -> dict[str, Tensor]:
        hidden, text = (ops.input(f"hidden.{i}", "float", (-1, -1, shape.width)) for i in range(2))
        inside = {node.start: BesideText(text, arrays, node.start)}
        added = ops.input("added", "float", (-1, 1, -1, -1))
        return {"state.1": Run(node, shape, [arrays], inside).states(ops, hidden, added)[0]}

    return build


def _inside(nodes: Sequence[Layers], shape: Architecture, arrays: Mapping[str, Arrays]) -> dict[int, Inside]:
    node, deltas = nodes[0], [one.delta for one in nodes if one.delta is not None]
    if node.delta is None:
        return {}
    own = [arrays[delta.part] for delta in deltas]
    ends = [arrays[delta.ends or delta.part] for delta in deltas]
    return {
        index: Function(node.delta, index, own, ends, epsilon=shape.norm_epsilon)
        for index in range(node.start, node.stop)
    }


def _state(ops: Ops, states: Sequence[Tensor], number: int) -> Tensor:
    if number > 0:
        return states[number - 1]
    total = functools.reduce(ops.add, states[number:])
    return ops.multiply(total, ops.constant(np.array(-1.0 / number, np.float32)))
