"""Strategy `branch` (Wei et al. 2021): private layers above a tap of the frozen trunk, a pooler and a head."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec
from msgspec import UNSET

from polyhead.codecs import EXACT, HALF
from polyhead.encoder.shape import Architecture
from polyhead.errors import ConfigError
from polyhead.plan import TRUNK, Codec, Embed, Layers, Path, Pool, shared_layers
from polyhead.project.numbers import check_least, check_positive, check_shares
from polyhead.project.recipes import Training
from polyhead.project.strategies.base import LIVE, Owners, Strategy, head_of, last_state
from polyhead.tasks.task import Task, owner_of
from polyhead.values import Value, check_unused

BRANCH_TRAINING = Training(epochs=5, patience=3, least_updates=300, learning_rate=2e-4, warmup=0.1)
"""Defaults of branches, trained as the layers of an encoder are: fewer epochs (docs/project/log.md)."""


class Branch(Strategy, Value, tag="branch", tag_field="kind"):
    """Strategy `branch` (Wei et al. 2021): private layers above a tap, each task trained alone on kept states.

    Without `layers` the depth is searched, each depth from `least` to `most` at `seeds` seeds. `students` are shorter
    branches distilled from the trained one; `[allocation]` decides which is kept.
    """

    layers: int | None = None  # private layers; None: searched
    tap: int | None = None  # the private layers start from this state; None: the trunk's depth minus `layers`
    least: int = 1
    most: int | None = None  # None: the trunk's depth
    search: Literal["halving", "grid"] = "halving"
    seeds: int = 1  # per depth of the search
    positions: Literal["first", "mean", "attention"] = "first"
    hidden: int | None = None  # width of the tanh layer, 0 for none; None: the trunk's width
    pooler_init: Literal["checkpoint", "random"] = "checkpoint"  # of a pooler over the first position, where it has one
    dropout: float = 0.1  # inside the private layers, in training; the trunk below has none
    students: tuple[int, ...] = ()  # private layers of each student
    init: Literal["teacher", "pretrained"] = "teacher"  # initial weights of a student
    temperature: float = 2.0  # of distillation
    noisy_teacher: bool = False  # the teacher keeps its dropout, as in the paper's code

    trainer: ClassVar[str] = "polyhead.deep.branch.task:Branched"
    default_training: ClassVar[Training] = BRANCH_TRAINING
    reads_kept_features: ClassVar[bool] = False
    is_allocated: ClassVar[bool] = True
    shares_head: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_least("strategy.", self, {"layers": 1, "tap": 0, "least": 1, "most": 1, "seeds": 1, "hidden": 0})
        if self.tap is not None and self.layers is None:
            raise ConfigError("strategy.tap needs strategy.layers: a search tries every tap", got=self.tap)
        if self.layers is not None:
            check_unused("strategy.", self, dict.fromkeys(("least", "most"), "strategy.layers is the only depth"))
        if self.most is not None and self.most < self.least:
            raise ConfigError("strategy.most is below strategy.least", got=self.most, allowed=self.least)
        check_shares("strategy.", self, "dropout")
        check_positive("strategy.", self, "temperature")
        most = self.layers or self.most
        if any(layers < 1 or (most is not None and layers >= most) for layers in self.students):
            raise ConfigError(
                "strategy.students: a student has fewer private layers than its teacher, at least one",
                got=list(self.students),
                allowed="1 or more" if most is None else f"1 to {most - 1}" if most > 1 else "none",
            )
        if len(set(self.students)) < len(self.students):
            raise ConfigError("strategy.students names a length twice", got=list(self.students))

    def path(self, task: Task, *, trunk: str, shape: Architecture, group: Owners = (), codec: Codec = LIVE) -> Path:
        """The path of a branch of a given depth; raises ConfigError if the depth is to be searched."""
        if self.layers is None:
            raise ConfigError(f"task '{task.name}': the depth of a branch must be decided before it has a path")
        tap = shape.layers - self.layers if self.tap is None else self.tap
        return branch_path(task, self, trunk=trunk, shape=shape, tap=tap, layers=self.layers)

    @property
    def is_undecided(self) -> bool:
        """Whether a depth is searched, or there are students."""
        return self.layers is None or bool(self.students)

    def searched(self, depth: int) -> tuple[Strategy, ...]:
        """A branch of each depth, if none is given."""
        if self.layers is not None:
            return ()
        depths = range(self.least, (self.most or max(self.least, depth)) + 1)
        return tuple(msgspec.structs.replace(self, layers=layers, least=1, most=None) for layers in depths)

    def check_used(self, dropouts: str | None) -> None:
        """Raises ConfigError for a dropout in whose place the recipe's is, and for what only students read."""
        idle = {} if dropouts is None else {"dropout": f"{dropouts} is that of all layers"}
        if not self.students:
            idle |= dict.fromkeys(("init", "temperature", "noisy_teacher"), "only strategy.students have it")
        check_unused("strategy.", self, idle)

    def describe(self, path: Path) -> str:
        """The number of private layers, and their tap."""
        private = private_layers(path)
        return f"{len(private)} private {'layer' if len(private) == 1 else 'layers'} above tap {private.start}"


def as_branch(strategy: Strategy) -> Branch:
    """The strategy; raises for others, since only branches are trained this way."""
    if not isinstance(strategy, Branch):
        raise ConfigError("this strategy has no branches to train", got=strategy.kind, allowed="branch")
    return strategy


def branch_path(task: Task, strategy: Branch, *, trunk: str, shape: Architecture, tap: int, layers: int) -> Path:
    """`Embed, Layers(0, tap, trunk), Layers(tap, tap + layers, part), Pool, Head`; `trunk` is the trunk's digest.

    A tap at k means that private layer k + 1 reads state k; state 0 is the embedding's output. A branch that ends below
    a closing norm has one of its own (decision 58).
    """
    if not (tap >= 0 and layers >= 1 and tap + layers <= shape.layers):
        raise ConfigError(
            f"task '{task.name}': no such branch on a trunk of {shape.layers} layers",
            got=f"{layers} private layers above tap {tap}",
            allowed=f"at least one layer, tap + layers at most {shape.layers}",
        )
    is_open = shape.norm_first and tap + layers < shape.whole_layers  # without the trunk's own closing norm
    private = Layers(start=tap, stop=tap + layers, weights=owner_of(task), closed=is_open or UNSET)
    ends = (last_state(task, shape, strategy.positions), head_of(task, shape, strategy.hidden))
    return Path(nodes=(Embed(trunk=trunk), *shared_layers(tap), private, *ends))


def tap_of(path: Path) -> int:
    """The number of the trunk's own layers before the path's first private one."""
    return max((node.stop for node in path.layers if node.weights == TRUNK), default=0)


def private_layers(path: Path) -> range:
    """Indices of the layers that the path's part owns."""
    tap = tap_of(path)
    return range(tap, max(tap, path.depth))


def tap_path(path: Path, *, precision: str) -> Path:
    """The value at the path's tap, at every position: kept while a branch is trained.

    A bfloat16 trunk's states fit in float16, which has a longer fraction; a float32 trunk's are kept in full.
    """
    codec = Codec(name=HALF if precision == "bfloat16" else EXACT)
    before = tuple(n for n in path.nodes if isinstance(n, Embed) or _is_shared(n))
    return Path(nodes=(*before, Pool(positions="all", codec=codec)))


def _is_shared(node: object) -> bool:
    return isinstance(node, Layers) and node.weights == TRUNK
