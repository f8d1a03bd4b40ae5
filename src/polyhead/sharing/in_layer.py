"""Strategy `in_layer` (Stickland and Murray 2019): the trunk's layers, with functions of the task's own inside."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

import torch
from torch import nn

from polyhead.errors import ConfigError, PlanError
from polyhead.nn.deltas import Deltas, LayerDelta, ends_of
from polyhead.nn.layer import Dense
from polyhead.plan import Delta, Embed, Layers, Path
from polyhead.project.strategies import Adapter, InLayer
from polyhead.sharing.ends import head_of, last_state, narrowed
from polyhead.tasks.task import Task, owner_of
from polyhead.trunk.shape import Architecture

SHARED = "family:adapters"  # owner of the deltas, or of their encoders and decoders, that tasks share


def in_layer_path(task: Task, strategy: InLayer, *, trunk: str, shape: Architecture) -> Path:
    """`Embed, Layers(trunk, delta)..., Pool, Head`, plain layers where no adapter sits; `trunk` is the digest."""
    return Path(
        nodes=(
            Embed(trunk=trunk),
            *_layers(task, strategy, shape),
            last_state(task, shape, strategy.positions),
            head_of(task, shape, strategy.hidden, shared=strategy.pooler == "shared"),
        )
    )


def _layers(task: Task, strategy: InLayer, shape: Architecture) -> list[Layers]:
    found: list[Layers] = []
    depth = 0
    for adapter in sorted(strategy.adapters, key=lambda one: one.start):
        stop = shape.layers if adapter.stop is None else adapter.stop
        if not adapter.start < stop <= shape.layers:
            raise ConfigError(
                f"task '{task.name}': an adapter sits in layers that the trunk does not have",
                got=f"start = {adapter.start}, stop = {stop}",
                allowed=f"start from 0, stop above it and at most {shape.layers}",
                do="change the range, or leave out stop",
            )
        if depth < adapter.start:
            found.append(Layers(start=depth, stop=adapter.start))
        found.append(Layers(start=adapter.start, stop=stop, delta=_delta(task, adapter, shape)))
        depth = stop
    tied: dict[str, set[int]] = {}  # sizes by the owner of encoder and decoder
    for delta in (node.delta for node in found if node.delta is not None and node.delta.tied):
        tied.setdefault(delta.ends or delta.part, set()).add(delta.size)
    several = next((sizes for sizes in tied.values() if len(sizes) > 1), None)
    if several is not None:
        raise ConfigError(
            f"task '{task.name}': tied adapters have one encoder and one decoder",
            got=f"sizes {sorted(several)}",
            do="give them one size, or set tied = false for all but one",
        )
    return [*found, Layers(start=depth, stop=shape.layers)] if depth < shape.layers else found


def _delta(task: Task, adapter: Adapter, shape: Architecture) -> Delta:
    attends = adapter.delta == "projected_attention"
    tied = adapter.tied
    if tied is None:
        tied = adapter.delta in ("projected_attention", "feed_forward")
    lora = adapter.delta == "lora"
    return Delta(
        kind=adapter.delta,
        part=SHARED if adapter.share == "all" else owner_of(task),
        size=_size(adapter, shape),
        heads=adapter.heads if attends else 1,
        tied=tied,
        ends=SHARED if adapter.share == "ends" else None,
        gelu=adapter.gelu,
        serial=adapter.serial,
        scaled=adapter.scaled,
        alpha=adapter.alpha if lora else 0.0,
        targets=adapter.targets if lora else (),
    )


def _size(adapter: Adapter, shape: Architecture) -> int:
    if adapter.size is not None:
        return adapter.size
    match adapter.delta:
        case "scale":
            return 0
        case "prefix" | "lora":
            return 8
        case "projected_attention":
            return narrowed(shape, multiple_of=adapter.heads)
        case "feed_forward":
            return narrowed(shape, multiple_of=2)
        case _:
            return narrowed(shape)


class Adapters(nn.Module):
    """All deltas of one owner; array names below `delta.` are those of `polyhead.cost`.

    `places` says in which layers this owner has arrays of each delta, encoders and decoders alone where these are its
    and the delta another's. The tied deltas of one owner have one encoder and decoder. `options` say how each starts,
    `shared` are other owners'.
    """

    def __init__(
        self,
        owner: str,
        places: Mapping[Delta, Collection[int]],
        shape: Architecture,
        *,
        options: Mapping[Delta, Adapter] | None = None,
        shared: Mapping[str, Adapters] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self._deltas: dict[Delta, Deltas] = {}  # their maps are registered below, under their own names
        for node, layers in places.items():
            option, ends_alone = (options or {}).get(node, Adapter()), node.part != owner
            made = Deltas(
                node,
                sorted(index for index in layers if not (ends_alone and self._has_pair(index))),
                width=shape.width,
                heads=shape.heads,
                feed_forward=shape.feed_forward,
                norm_epsilon=shape.norm_epsilon,
                dropout=option.dropout,
                generator=generator,
                init=option.init,
                norm_init=option.norm_init,
                ends=self._ends(owner, node, shared or {}),
                ends_alone=ends_alone,
            )
            self._deltas[node] = made
            for name, part in made.named_children():
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
    found: dict[Delta, set[int]] = {}
    for node in (node for path in paths for node in path.layers):
        if node.delta is not None and owner in (node.delta.part, node.delta.ends):
            found.setdefault(node.delta, set()).update(range(node.start, node.stop))
    return found
