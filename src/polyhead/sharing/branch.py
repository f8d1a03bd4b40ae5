"""Strategy `branch` (Wei et al. 2021): private layers above a tap of the frozen trunk, a pooler and a head."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
from torch import nn

from polyhead.architecture import Architecture
from polyhead.errors import ConfigError, PlanError
from polyhead.nn.layer import Layer, fill_normal
from polyhead.nn.states import States
from polyhead.nn.trunk import run_layer
from polyhead.plan import TRUNK, Codec, Embed, Head, Layers, Path, Pool
from polyhead.project import Branch
from polyhead.sharing.pooled import PooledPart
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task, owner_of


def branch_path(
    task: Task, strategy: Branch, *, trunk: str, shape: Architecture, tap: int, layers: int
) -> Path:
    """`Embed, Layers(0, tap, trunk), Layers(tap, tap + layers, part), Pool, Head`; `trunk` is the trunk's digest.

    A tap at k means that private layer k + 1 reads state k; state 0 is the embedding's output.
    """
    if not (tap >= 0 and layers >= 1 and tap + layers <= shape.layers):
        raise ConfigError(
            f"task '{task.name}': no such branch on a trunk of {shape.layers} layers",
            got=f"{layers} private layers above tap {tap}",
            allowed=f"at least one layer, tap + layers at most {shape.layers}",
        )
    owner, kind = owner_of(task), kind_of(task)
    positions: Literal["first", "mean", "attention", "tokens"] = (
        "tokens" if kind.per_word else strategy.positions
    )
    attends = positions == "attention"
    shared = (Layers(start=0, stop=tap),) if tap else ()
    pool = Pool(
        positions=positions,
        heads=max(1, shape.width // 64) if attends else 0,
        part=owner if attends else None,
    )
    head = Head(
        kind=task.kind,
        width=kind.width(task),
        part=owner,
        hidden=shape.width if strategy.hidden is None else strategy.hidden,
        separate=task.pair == "separate",
    )
    private = Layers(start=tap, stop=tap + layers, weights=owner)
    return Path(nodes=(Embed(trunk=trunk), *shared, private, pool, head))


def tap_of(path: Path) -> int:
    """How many of the trunk's own layers the path runs before its first private one."""
    return max((node.stop for node in path.layers if node.weights == TRUNK), default=0)


def private_layers(path: Path) -> range:
    """Indices of the layers that the path's part owns."""
    tap = tap_of(path)
    return range(tap, path.layers[-1].stop if path.layers else tap)


def tap_path(path: Path, *, precision: str) -> Path:
    """The value at the path's tap, every position: what is kept while a branch is trained.

    A bfloat16 trunk's states fit float16, whose fraction is longer; a float32 trunk's are kept whole.
    """
    codec = Codec(name="float16" if precision == "bfloat16" else "float32")
    before = tuple(n for n in path.nodes if isinstance(n, Embed) or _is_shared(n))
    return Path(nodes=(*before, Pool(positions="all", codec=codec)))


def _is_shared(node: object) -> bool:
    return isinstance(node, Layers) and node.weights == TRUNK


class BranchPart(PooledPart):
    """What a branch owns: layers, named by their place in the trunk, a pooler where asked for, and a head.

    Where the pooler reads the first position alone, the last layer computes that position alone.
    """

    def __init__(
        self,
        path: Path,
        shape: Architecture,
        *,
        dropout: float = 0.0,
        layer_dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(path, shape.width, dropout=dropout, generator=generator)
        self._start, self._last = private_layers(path).start, private_layers(path).stop
        self._pool, self.owner = path.stored().pool, path.head.part
        self.checkpointing = False  # as that of a trunk
        self.layers = nn.ModuleDict(
            {
                str(index): Layer(
                    width=shape.width,
                    heads=shape.heads,
                    feed_forward=shape.feed_forward,
                    norm_epsilon=shape.norm_epsilon,
                    dropout=layer_dropout,
                )
                for index in private_layers(path)
            }
        )
        if generator is not None:
            fill_normal(self.layers, generator)

    def start_from(self, arrays: Mapping[str, np.ndarray], *, head: bool = False) -> None:
        """Takes the private layers' weights from arrays of a trunk or a longer branch, and with `head` the rest too.

        Of a longer branch it takes the bottommost layers (Wei et al. 2021), as they carry the same indices.
        """
        own = self.state_dict()
        wanted = [name for name in own if head or name.startswith("layers.")]
        missing = [name for name in wanted if name not in arrays or arrays[name].shape != own[name].shape]
        if missing:
            raise PlanError(
                "a branch cannot start from these weights", got=f"none that fit for {missing[:3]}"
            )
        self.load_state_dict({**own, **{name: torch.tensor(np.asarray(arrays[name])) for name in wanted}})

    def run(self, states: States, *, stop: int) -> States:
        """The same states, and those of the private layers up to `stop`."""
        hidden = list(states.hidden)
        for index in range(states.depth, stop):
            layer = self.layers[str(index)]
            narrow = self._pool.positions == "first" and index == self._last - 1
            value = hidden[-1]
            if not torch.is_autocast_enabled(value.device.type):
                value = value.to(_dtype(layer))
            hidden.append(run_layer(layer, value, states.mask, first=narrow, again=self.checkpointing))
        return States(hidden=tuple(hidden), mask=states.mask, first=states.first)

    def served(self, dtype: torch.dtype) -> BranchPart:
        """A copy as a backend runs it: layers in the trunk's precision, pooler and head in float32."""
        made = copy.deepcopy(self).eval()
        made.layers.to(dtype)
        return made


def _dtype(module: nn.Module) -> torch.dtype:
    return next(module.parameters()).dtype


def make_part(
    path: Path,
    shape: Architecture,
    *,
    dropout: float = 0.0,
    layer_dropout: float = 0.0,
    generator: torch.Generator | None = None,
) -> PooledPart:
    """The module that holds what a path's own part owns."""
    if private_layers(path):
        return BranchPart(path, shape, dropout=dropout, layer_dropout=layer_dropout, generator=generator)
    return PooledPart(path, shape.width, dropout=dropout, generator=generator)


def arrays_of_part(part: nn.Module) -> dict[str, np.ndarray]:
    """Copies of a part's arrays, float32, by name."""
    return {name: value.detach().float().cpu().numpy().copy() for name, value in part.state_dict().items()}
