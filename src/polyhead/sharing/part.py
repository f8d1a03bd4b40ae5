"""What owners have: the part that a path ends in, and families, whose arrays several tasks read."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Literal, Self

import torch
from torch import nn

from polyhead.cost.arrays import feed_forward_of
from polyhead.errors import PlanError
from polyhead.nn.layer import Dense, Layer, fill_normal
from polyhead.nn.poolers import xavier
from polyhead.nn.states import States
from polyhead.nn.trunk import run_layer
from polyhead.plan import Delta, Layers, Path
from polyhead.sharing.in_layer import Adapters, places_of
from polyhead.sharing.pooled import PooledPart
from polyhead.sharing.prompted import PromptRows
from polyhead.strategies.base import DeltaStart
from polyhead.trunk.shape import Architecture

LAYERED = ("enter", "layers", "leave", "delta")  # what computes in the trunk's precision


class Family(nn.Module):
    """What an owner has that no path here ends in: prompt rows, deltas, a head's hidden layer.

    So it is with families of several tasks, and with a task whose prompt stands in another's input.
    """

    def __init__(
        self,
        owner: str,
        paths: Sequence[Path],
        shape: Architecture,
        *,
        starts: Mapping[Delta, DeltaStart] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.owner = owner
        self.prompt = _prompt(owner, paths, shape, generator)
        places = places_of(paths, owner)
        self.delta = Adapters(owner, places, shape, starts=starts, generator=generator) if places else None
        self.head = nn.ModuleDict()
        heads = [path.head for path in paths if path.head.hidden_part == owner]
        if heads:
            self.head["hidden"] = Dense(shape.width, heads[0].hidden)
            xavier(self.head, generator)

    @property
    def hidden(self) -> Dense | None:
        """The hidden layer of heads, where this owner has it."""
        hidden = dict(self.head.items()).get("hidden")
        assert hidden is None or isinstance(hidden, Dense)
        return hidden

    def lower(self, dtype: torch.dtype) -> None:
        """Computes as a backend does from now on: what sits in layers in the trunk's precision."""
        _lower(self, dtype)


class Part(PooledPart):
    """What the owner of a path's head has: prompt rows, deltas, layers of its own, and what a pooled part has.

    Its layers are named by their place above the trunk's; `enter` and `leave` map into narrow ones and back. Where the
    pooler reads the first position alone, the last of them computes that position alone.
    """

    def __init__(
        self,
        path: Path,
        shape: Architecture,
        *,
        families: Mapping[str, Family] | None = None,
        starts: Mapping[Delta, DeltaStart] | None = None,
        norm_init: Literal["one", "legacy"] = "one",
        dropout: float = 0.0,
        layer_dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        families, owner = families or {}, path.head.part
        shared = families.get(path.head.hidden_part or "")
        hidden = shared.hidden if shared is not None else None
        super().__init__(path, shape.width, hidden=hidden, dropout=dropout, generator=generator)
        self.prompt = _prompt(owner, [path], shape, generator)
        places = places_of([path], owner)
        ends = {name: family.delta for name, family in families.items() if family.delta is not None}
        self.delta = Adapters(owner, places, shape, starts=starts, shared=ends, generator=generator) if places else None
        own = [node for node in path.layers if node.weights == owner]
        self.first, self.last = (own[0].start, own[-1].stop - 1) if own else (0, -1)
        self.checkpointing = False  # as that of a trunk
        self._narrow = path.stored().pool.positions == "first"
        self.layers = nn.ModuleDict(
            {str(index): _layer(node, shape, layer_dropout) for node in own for index in _range(node)}
        )
        inner = own[0].width or shape.width if own else shape.width
        self.enter = Dense(shape.width, inner) if own and own[0].enter else None
        self.leave = Dense(inner, shape.width) if own and own[-1].leave else None
        if generator is not None:
            for module in (self.layers, self.enter, self.leave):
                if module is not None:
                    fill_normal(module, generator, norm_init=norm_init)

    def run(self, states: States, *, stop: int) -> States:
        """The same states, and those of the part's own layers up to `stop`."""
        hidden = list(states.hidden)
        for index in range(states.depth, stop):
            if str(index) not in self.layers:
                raise PlanError("no part here owns these layers", got=index, allowed=list(self.layers))
            hidden.append(self._through(index, hidden[-1], states))
        return States(hidden=tuple(hidden), mask=states.mask, first=states.first)

    def _through(self, index: int, value: torch.Tensor, states: States) -> torch.Tensor:
        layer = self.layers[str(index)]
        if not torch.is_autocast_enabled(value.device.type):
            value = value.to(next(layer.parameters()).dtype)
        if self.enter is not None and index == self.first:
            value = self.enter(value)
        narrow = int(self._narrow and index == self.last)
        value = run_layer(layer, value, states.mask, first=narrow, again=self.checkpointing)
        if self.leave is not None and index == self.last:
            value = self.leave(value)
        return value

    def lower(self, dtype: torch.dtype) -> None:
        """Computes as a backend does from now on: layers in the trunk's precision, poolers and heads in float32."""
        _lower(self, dtype)

    def served(self, dtype: torch.dtype) -> Self:
        """A copy as a backend runs it."""
        copied = copy.deepcopy(self).eval()
        copied.lower(dtype)
        return copied


def _prompt(
    owner: str, paths: Sequence[Path], shape: Architecture, generator: torch.Generator | None
) -> PromptRows | None:
    rows = [prompt.rows for path in paths for prompt in path.embed.prompts if prompt.part == owner]
    return PromptRows(rows[0], shape, generator=generator) if rows else None


def _range(node: Layers) -> range:
    return range(node.start, node.stop)


def _layer(node: Layers, shape: Architecture, dropout: float) -> Layer:
    return Layer(
        width=node.width or shape.width,
        heads=node.heads or shape.heads,
        feed_forward=feed_forward_of(node, shape),
        norm_epsilon=shape.norm_epsilon,
        dropout=dropout,
        attention=node.attention,
        residual=node.residual,
        hidden_layers=node.hidden_layers,
    )


def _lower(module: nn.Module, dtype: torch.dtype) -> None:
    for name, child in module.named_children():
        if name in LAYERED:
            child.to(dtype)
