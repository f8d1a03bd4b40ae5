"""The deltas that an owner has inside the trunk's layers (Stickland and Murray 2019)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import cast

import torch
from torch import nn

from polyhead.deep.nn.deltas import KINDS
from polyhead.deep.nn.layer import Dense, LayerDelta
from polyhead.encoder.shape import Architecture
from polyhead.errors import PlanError
from polyhead.plan import Delta, Path
from polyhead.project.strategies.base import DeltaStart


class Adapters(nn.Module):
    """All deltas of one owner; array names below `delta.` are those of `polyhead.plan.cost`.

    `places` lists the layers in which this owner has arrays of each delta, or only encoders and decoders if these are
    its and the delta another's. The tied deltas of one owner have one encoder and decoder for all layers. `shared` are
    other owners' adapters, whose encoders and decoders replace this one's if a delta names them.

    With a generator, encoders and everything between start as N(0, 0.02), biases at 0, and decoders as `starts` says:
    at 0 ("zero": a layer's output equals that without the delta, bit for bit; a prefix and a serial norm change it at
    once) or as N(0, 0.02) too ("normal", as in the code of Stickland and Murray 2019); norms at 1 and 0, or entirely as
    N(0, 0.02) ("legacy", as by mistake in their code). Without a generator matrices are zeros, to be filled.
    """

    def __init__(
        self,
        owner: str,
        places: Mapping[Delta, Collection[int]],
        shape: Architecture,
        *,
        starts: Mapping[Delta, DeltaStart] | None = None,
        shared: Mapping[str, Adapters] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self._deltas: dict[Delta, dict[int, LayerDelta]] = {}  # registered below, under their own names
        for node, layers in places.items():
            start = (starts or {}).get(node, DeltaStart())
            tied_pair: dict[str, nn.Module] = {}
            if node.tied and node.ends in (None, owner) and "encoder" not in self._modules:
                tied_pair |= _pair(node, shape)
                self._register(tied_pair, places)
            if node.part == owner:
                self._deltas[node] = {}
                for index in sorted(layers):
                    tied = self._tied(owner, node, index, shared or {})
                    self._deltas[node][index] = KINDS[node.kind].made(node, shape, tied, start.dropout)
                new_deltas: dict[str, nn.Module] = {str(index): delta for index, delta in self._deltas[node].items()}
            else:
                bare = [] if node.tied else [str(index) for index in sorted(layers)]
                new_deltas = {
                    name: nn.ModuleDict(_pair(node, shape))
                    for name in bare
                    if not isinstance(self._modules.get(name), nn.ModuleDict)
                }
            self._register(new_deltas, places)
            if generator is not None:
                _fill(nn.ModuleDict(tied_pair | new_deltas), generator, start)

    def _register(self, modules: Mapping[str, nn.Module], places: Mapping[Delta, Collection[int]]) -> None:
        for name, module in modules.items():
            if name in self._modules:
                raise PlanError(
                    "one owner has two different adapters in one layer",
                    got=f"{list(places)} in layer {name}",
                    do="give tasks that share their adapters the same ones, or let them share nothing",
                )
            self.add_module(name, module)

    def _tied(self, owner: str, node: Delta, index: int, shared: Mapping[str, Adapters]) -> dict[str, Dense]:
        """The encoder and decoder of a layer's delta that belong to another owner or layer."""
        if node.ends in (None, owner):
            return self.ends(node, index) if node.tied else {}
        if node.ends not in shared:
            raise PlanError(
                "a delta's encoder and decoder are missing", got=f"none of '{node.ends}'", allowed=list(shared)
            )
        return shared[node.ends].ends(node, index)

    def ends(self, node: Delta, index: int) -> dict[str, Dense]:
        """This owner's encoder and decoder for that delta in layer `index`."""
        holder = self if node.tied else self.get_submodule(str(index))
        return {name: cast(Dense, holder.get_submodule(name)) for name in ("encoder", "decoder")}

    def at(self, delta: Delta, index: int) -> LayerDelta:
        """That delta in layer `index`; raises PlanError if this owner has none."""
        by_layer = self._deltas.get(delta, {})
        if index not in by_layer:
            raise PlanError(
                "no part here owns a delta in that layer", got=f"{delta} in layer {index}", allowed=sorted(by_layer)
            )
        return by_layer[index]


def delta_layers(paths: Iterable[Path], owner: str) -> dict[Delta, set[int]]:
    """The layers in which this owner has arrays of each delta, or an encoder and decoder for it."""
    places: dict[Delta, set[int]] = {}
    for node in (node for path in paths for node in path.layers):
        if node.delta is not None and owner in (node.delta.part, node.delta.ends):
            places.setdefault(node.delta, set()).update(range(node.start, node.stop))
    return places


def _pair(node: Delta, shape: Architecture) -> dict[str, nn.Module]:
    return {"encoder": Dense(shape.width, node.size), "decoder": Dense(node.size, shape.width)}


def _fill(deltas: nn.Module, generator: torch.Generator, start: DeltaStart) -> None:
    for name, value in deltas.named_parameters():
        zero = name.endswith("decoder.weight") and start.init == "zero"
        if (value.dim() > 1 and not zero) or (".norm." in name and start.norm_init == "legacy"):
            nn.init.normal_(value, std=0.02, generator=generator)
