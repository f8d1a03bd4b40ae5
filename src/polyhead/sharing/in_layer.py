"""The deltas that an owner has inside the trunk's layers (Stickland and Murray 2019)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

import torch
from torch import nn

from polyhead.errors import PlanError
from polyhead.nn.deltas import Deltas, ends_of
from polyhead.nn.layer import Dense, LayerDelta
from polyhead.plan import Delta, Path
from polyhead.strategies.base import DeltaStart
from polyhead.trunk.shape import Architecture


class Adapters(nn.Module):
    """All deltas of one owner; array names below `delta.` are those of `polyhead.cost`.

    `places` says in which layers this owner has arrays of each delta, encoders and decoders alone where these are its
    and the delta another's. The tied deltas of one owner have one encoder and decoder. `starts` say how each starts,
    `shared` are other owners'.
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
        self._deltas: dict[Delta, Deltas] = {}  # their maps are registered below, under their own names
        for node, layers in places.items():
            start, ends_alone = (starts or {}).get(node, DeltaStart()), node.part != owner
            deltas = Deltas(
                node,
                sorted(index for index in layers if not (ends_alone and self._has_pair(index))),
                width=shape.width,
                heads=shape.heads,
                feed_forward=shape.feed_forward,
                norm_epsilon=shape.norm_epsilon,
                dropout=start.dropout,
                generator=generator,
                init=start.init,
                norm_init=start.norm_init,
                ends=self._ends(owner, node, shared or {}),
                ends_alone=ends_alone,
            )
            self._deltas[node] = deltas
            for name, part in deltas.named_children():
                if name in self._modules:
                    raise PlanError(
                        "one owner has two different adapters in one layer",
                        got=f"{list(places)} in layer {name}",
                        do="give tasks that share their adapters the same ones, or let them share nothing",
                    )
                self.add_module(name, part)

    def _has_pair(self, index: int) -> bool:
        return isinstance(self._modules.get(str(index)), nn.ModuleDict)

    def ends(self, node: Delta, index: int) -> dict[str, Dense]:
        """This owner's encoder and decoder for that delta in layer `index`."""
        return ends_of(self if node.tied else self.get_submodule(str(index)))

    def _ends(
        self, owner: str, node: Delta, shared: Mapping[str, Adapters]
    ) -> Callable[[int], Mapping[str, Dense]] | None:
        """What gives the encoder and decoder of a layer; None where the delta is to make its own."""
        if node.ends in (None, owner):
            return partial(self.ends, node) if node.tied and "encoder" in self._modules else None
        if node.ends not in shared:
            raise PlanError(
                "a delta's encoder and decoder are missing", got=f"none of '{node.ends}'", allowed=list(shared)
            )
        return partial(shared[node.ends].ends, node)

    def at(self, delta: Delta, index: int) -> LayerDelta:
        """That delta in layer `index`; raises PlanError where this owner has none."""
        if delta not in self._deltas:
            raise PlanError("no part here owns a delta in these layers", got=delta)
        return self._deltas[delta].at(index)


def places_of(paths: Iterable[Path], owner: str) -> dict[Delta, set[int]]:
    """In which layers this owner has arrays of each delta, or an encoder and decoder for it."""
    places: dict[Delta, set[int]] = {}
    for node in (node for path in paths for node in path.layers):
        if node.delta is not None and owner in (node.delta.part, node.delta.ends):
            places.setdefault(node.delta, set()).update(range(node.start, node.stop))
    return places
