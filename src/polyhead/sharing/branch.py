"""Strategy `branch` (Wei et al. 2021): private layers above a tap of the frozen trunk, a pooler and a head."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from polyhead.errors import ConfigError, PlanError
from polyhead.plan import TRUNK, Codec, Embed, Layers, Path, Pool
from polyhead.project.strategies import Branch
from polyhead.sharing.ends import head_of, last_state
from polyhead.sharing.part import Part
from polyhead.store.codecs import EXACT, HALF
from polyhead.tasks.task import Task, owner_of
from polyhead.trunk.shape import Architecture


def branch_path(task: Task, strategy: Branch, *, trunk: str, shape: Architecture, tap: int, layers: int) -> Path:
    """`Embed, Layers(0, tap, trunk), Layers(tap, tap + layers, part), Pool, Head`; `trunk` is the trunk's digest.

    A tap at k means that private layer k + 1 reads state k; state 0 is the embedding's output.
    """
    if not (tap >= 0 and layers >= 1 and tap + layers <= shape.layers):
        raise ConfigError(
            f"task '{task.name}': no such branch on a trunk of {shape.layers} layers",
            got=f"{layers} private layers above tap {tap}",
            allowed=f"at least one layer, tap + layers at most {shape.layers}",
        )
    shared = (Layers(start=0, stop=tap),) if tap else ()
    private = Layers(start=tap, stop=tap + layers, weights=owner_of(task))
    ends = (last_state(task, shape, strategy.positions), head_of(task, shape, strategy.hidden))
    return Path(nodes=(Embed(trunk=trunk), *shared, private, *ends))


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
    codec = Codec(name=HALF if precision == "bfloat16" else EXACT)
    before = tuple(n for n in path.nodes if isinstance(n, Embed) or _is_shared(n))
    return Path(nodes=(*before, Pool(positions="all", codec=codec)))


def _is_shared(node: object) -> bool:
    return isinstance(node, Layers) and node.weights == TRUNK


class BranchPart(Part):
    """What a branch owns: layers in the place of the trunk's, a pooler where asked for, and a head."""

    def start_from(self, arrays: Mapping[str, np.ndarray], *, head: bool = False) -> None:
        """Takes the private layers' weights from arrays of a trunk or a longer branch, and with `head` the rest too.

        Of a longer branch it takes the bottommost layers (Wei et al. 2021), as they carry the same indices.
        """
        own = self.state_dict()
        wanted = [name for name in own if head or name.startswith("layers.")]
        missing = [name for name in wanted if name not in arrays or arrays[name].shape != own[name].shape]
        if missing:
            raise PlanError("a branch cannot start from these weights", got=f"none that fit for {missing[:3]}")
        self.load_state_dict({**own, **{name: torch.tensor(np.asarray(arrays[name])) for name in wanted}})
