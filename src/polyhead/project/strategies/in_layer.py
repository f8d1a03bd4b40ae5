"""Strategy `in_layer` (Stickland and Murray 2019): the trunk's layers, with a task's own functions inside."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar, Literal

from polyhead.encoder.shape import Architecture
from polyhead.errors import ConfigError
from polyhead.plan import ADDED, Codec, Delta, DeltaKind, Dense, Embed, GeluPlace, Layers, Path
from polyhead.project.numbers import check_least, check_positive, check_shares
from polyhead.project.strategies.base import LIVE, DeltaStart, LiveStrategy, Owners, head_of, last_state, narrowed
from polyhead.tasks.task import Task, owner_of
from polyhead.values import Value, check_unused

SHARED = "family:adapters"  # owner of the deltas, or of their encoders and decoders, that tasks share


class Adapter(Value):
    """One function that a task adds to a range of the trunk's layers; see `plan.Delta` for the kinds."""

    delta: DeltaKind = "projected_attention"
    start: int = 0
    stop: int | None = None  # None: the trunk's depth
    size: int | None = None  # None: 204 of 768, scaled to the trunk's width; 0 for `scale`; 8 rows or ranks
    heads: int = 6  # of projected attention, as in the released code
    tied: bool | None = None  # one encoder and decoder for all layers; None: all kinds but low rank
    # shared by all tasks with this strategy: encoders and decoders, or everything
    share: Literal["nothing", "ends", "all"] = "nothing"
    gelu: GeluPlace = "none"
    serial: bool = False
    scaled: bool = False  # the added term is multiplied by 2 sigmoid(r)
    alpha: float = 16.0  # of `lora`
    targets: tuple[Dense, ...] = ("attention.query", "attention.value")  # of `lora`
    # initial decoder: zero (the trunk unchanged), or N(0, 0.02) as in the paper's code
    init: Literal["zero", "normal"] = "zero"
    norm_init: Literal["one", "legacy"] = "one"  # of a serial norm: gain N(0, 0.02), as in the released code
    dropout: float = 0.1  # inside projected attention, and on prefixes, in training

    def __post_init__(self) -> None:
        check_least("adapters: ", self, {"start": 0, "size": 0, "heads": 1})
        if self.stop is not None and self.stop <= self.start:
            raise ConfigError("adapters: layers must run upward", got=f"[{self.start}, {self.stop})")
        check_shares("adapters: ", self, "dropout")
        self._check_size()
        settings = {
            "tied": self.tied or False,
            "share = 'ends'": self.share == "ends",
            "serial": self.serial,
            "scaled": self.scaled,
            "gelu": self.gelu != "none",
        }
        if self.delta not in ADDED and any(settings.values()):
            raise ConfigError(
                f"adapters: '{self.delta}' has no encoder and decoder that this would change",
                got=[name for name, is_set in settings.items() if is_set],
                do="leave these out",
            )
        kind, unused = f"'{self.delta}'", dict[str, str]()
        if self.delta != "projected_attention":
            unused["heads"] = f"{kind} has no heads of its own"
        if self.delta not in ("projected_attention", "prefix"):
            unused["dropout"] = f"{kind} drops nothing"
        if self.delta in ("scale", "prefix"):
            unused["init"] = f"{kind} has no decoder"
        if not self.serial:
            unused["norm_init"] = "only a serial adapter has a norm"
        if self.delta != "lora":
            unused |= dict.fromkeys(("alpha", "targets"), "they are of 'lora'")
        check_unused("adapters: ", self, unused)
        if self.delta == "lora":
            check_positive("adapters: ", self, "alpha")
            if not self.targets or len(set(self.targets)) < len(self.targets):
                raise ConfigError(
                    "adapters: targets are dense maps, each once", got=self.targets or "none", allowed="one or more"
                )

    def _check_size(self) -> None:
        if self.size is None:
            return
        wrong = {
            "scale": (self.size != 0, "0, or left out: 'scale' has none"),
            "feed_forward": (self.size < 1 or self.size % 2, "an even number, 2 or more"),
            "projected_attention": (
                self.size < 1 or self.size % self.heads,
                f"a multiple of heads = {self.heads}, such as {6 * self.heads}",
            ),
        }
        refused, allowed = wrong.get(self.delta, (self.size < 1, "1 or more"))
        if refused:
            raise ConfigError(
                f"adapters: '{self.delta}' cannot have this size",
                got=self.size,
                allowed=allowed,
                do="change size, or leave it out",
            )


class InLayer(LiveStrategy, Value, tag="in_layer", tag_field="kind"):
    """Strategy `in_layer` (projected attention layers, Stickland and Murray 2019): the trunk's layers, with adapters.

    Adapters of different kinds may be in different ranges of layers.
    """

    adapters: tuple[Adapter, ...] = (Adapter(),)
    positions: Literal["first", "mean", "attention"] = "first"
    hidden: int | None = None  # width of the tanh pooler, 0 for none; None: the trunk's width
    pooler_init: Literal["checkpoint", "random"] = "checkpoint"  # of a pooler over the first position, where it has one
    pooler: Literal["private", "shared"] = "private"  # shared: one for all tasks with this strategy, as in the paper

    reaches_inside: ClassVar[bool] = True

    def __post_init__(self) -> None:
        spans = sorted((adapter.start, adapter.stop or math.inf) for adapter in self.adapters)
        if not spans or any(a[1] > b[0] for a, b in zip(spans, spans[1:], strict=False)):
            raise ConfigError(
                "strategy.adapters: one or more, each in layers of its own",
                got=[f"[{start}, {stop})" for start, stop in spans] or "none",
            )
        check_least("strategy.", self, {"hidden": 0})
        if self.hidden == 0 and self.pooler == "shared":
            raise ConfigError("strategy.pooler 'shared' needs a hidden layer", got="hidden = 0")

    def path(self, task: Task, *, trunk: str, shape: Architecture, group: Owners = (), codec: Codec = LIVE) -> Path:
        """`Embed, Layers(trunk, delta)..., Pool, Head`, with plain layers outside the adapters' ranges."""
        return Path(
            nodes=(
                Embed(trunk=trunk),
                *_layers(task, self, shape),
                last_state(task, shape, self.positions),
                head_of(task, shape, self.hidden, shared=self.pooler == "shared"),
            )
        )

    def bonds(self) -> frozenset[str]:
        """Shared adapters, and a shared pooler."""
        adapters = {"adapters"} if any(adapter.share != "nothing" for adapter in self.adapters) else set()
        return frozenset(adapters | ({"pooler"} if self.pooler == "shared" else set()))

    def delta_starts(self, path: Path) -> Iterator[tuple[Delta, DeltaStart]]:
        """The delta of each adapter on the path, with its initial values."""
        for node in path.layers:
            for adapter in self.adapters:
                if node.delta is not None and adapter.start <= node.start < (adapter.stop or math.inf):
                    yield (
                        node.delta,
                        DeltaStart(init=adapter.init, norm_init=adapter.norm_init, dropout=adapter.dropout),
                    )


def _layers(task: Task, strategy: InLayer, shape: Architecture) -> list[Layers]:
    nodes: list[Layers] = []
    depth = 0
    for adapter in sorted(strategy.adapters, key=lambda adapter: adapter.start):
        stop = shape.layers if adapter.stop is None else adapter.stop
        if not adapter.start < stop <= shape.layers:
            raise ConfigError(
                f"task '{task.name}': an adapter sits in layers that the trunk does not have",
                got=f"start = {adapter.start}, stop = {stop}",
                allowed=f"start from 0, stop above it and at most {shape.layers}",
                do="change the range, or leave out stop",
            )
        if depth < adapter.start:
            nodes.append(Layers(start=depth, stop=adapter.start))
        nodes.append(Layers(start=adapter.start, stop=stop, delta=_delta(task, adapter, shape)))
        depth = stop
    tied: dict[str, set[int]] = {}  # sizes by the owner of encoder and decoder
    for delta in (node.delta for node in nodes if node.delta is not None and node.delta.tied):
        tied.setdefault(delta.ends or delta.part, set()).add(delta.size)
    sizes_of_end = next((sizes for sizes in tied.values() if len(sizes) > 1), None)
    if sizes_of_end is not None:
        raise ConfigError(
            f"task '{task.name}': tied adapters have one encoder and one decoder",
            got=f"sizes {sorted(sizes_of_end)}",
            do="give them one size, or set tied = false for all but one",
        )
    return [*nodes, Layers(start=depth, stop=shape.layers)] if depth < shape.layers else nodes


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
