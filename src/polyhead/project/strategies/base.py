"""The interface of a strategy: the path of a task, how its tasks are trained, and what they share.

No torch is imported here. A trainer is in the torch half and is named by a string, which a training run resolves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal, TypeVar

import msgspec

from polyhead.codecs import EXACT, HALF
from polyhead.encoder.shape import Architecture
from polyhead.errors import ConfigError
from polyhead.plan import Codec, Delta, Head, Path, Pool
from polyhead.project.recipes import Effort, Training
from polyhead.registry import Registry
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task, owner_of
from polyhead.values import Open

Owners = Sequence[str]
"""Owners of parts, in order."""
LIVE = Codec(name=EXACT)  # states as the trunk returns them

LIVE_TRAINING = Training(epochs=10, patience=3, least_updates=300, batch=16, learning_rate=1e-3, warmup=0.1)
"""Defaults of strategies whose tasks read live states of a frozen trunk: every epoch runs the trunk over all texts, so
there are few of them, at the higher rates that a frozen trunk calls for."""


class DeltaStart(msgspec.Struct, frozen=True, kw_only=True):
    """The initial values of one delta, and its dropout in training."""

    init: Literal["zero", "normal"] = "zero"
    norm_init: Literal["one", "legacy"] = "one"
    dropout: float = 0.1


class HeadCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """One head over kept features: its strategy, and whether it is solved as a linear one or trained in steps."""

    name: str
    strategy: Strategy
    solver: Literal["linear", "steps"]
    words: bool = False  # whether it adds hashed words of the text


def kind_of_strategy(strategy: type[Strategy]) -> str:
    """The tag of a strategy's class."""
    assert issubclass(strategy, msgspec.Struct)
    return str(strategy.__struct_config__.tag)


STRATEGIES: Registry[type[Strategy]] = Registry("strategy", name_of=kind_of_strategy)
"""The strategies that are registered, by name."""


class Strategy(Open):
    """A way of sharing the trunk: a tagged value whose fields are the keys of `strategy = { kind = "...", ... }`.

    A new one is one file: `class Mine(Strategy, Value, tag="mine", tag_field="kind")` with `path`, and deviations from
    the defaults below, then `register_strategy(Mine)`. The defaults are those of a strategy that reads features of a
    frozen trunk. Parts are made from the path alone (`sharing.make_part`), so serving needs no strategy.
    """

    __slots__ = ()

    registered = STRATEGIES
    trainer: ClassVar[str] = "polyhead.train.heads.run:HeadTrainer"
    """`module:Class` of the `train.job.Trainer` that trains its tasks over a frozen trunk."""
    default_training: ClassVar[Training] = Training()
    """The training numbers over a frozen trunk where the project gives none."""
    default_pair: ClassVar[Literal["separate", "joined"]] = "joined"
    """How a pair of whole texts is read over a frozen trunk where the task does not say it."""
    reads_kept_features: ClassVar[bool] = True
    """Whether its heads are trained on features kept of a frozen trunk; few rows are then held out in folds."""
    is_live: ClassVar[bool] = False
    """Whether its tasks change what the trunk's layers read or compute, so that no kept state serves."""
    is_allocated: ClassVar[bool] = False
    """Whether the project's [allocation] decides what each of its tasks keeps."""
    shares_head: ClassVar[bool] = False
    """Whether a joint recipe may give tasks of one kind one part (`recipe.families`)."""
    reaches_inside: ClassVar[bool] = False
    """Whether its arrays reach into the trunk's layers, past the forward pass that gathers sharded weights."""
    donor_fields: ClassVar[tuple[str, ...]] = ()
    """Settings in which a task and its donor must agree."""
    group_fields: ClassVar[tuple[str, ...]] = ()
    """Settings that all tasks of one prompt group have alike."""

    # Settings that only some strategies have.
    isolated: bool = False
    """Whether the text's states are those of the trunk without the task, though the task is live."""
    stop_gradient: bool = False
    """Whether a task's step leaves the other tasks' prompts alone."""
    norm_init: Literal["one", "legacy"] = "one"
    """How the norms of layers of a task's own start."""

    @property
    def under(self) -> Strategy:
        """The strategy that gives the layers: this one, or that under a decoder."""
        return self

    @property
    def kind(self) -> str:
        """The name under which it is registered."""
        return kind_of_strategy(type(self))

    def path(self, task: Task, *, trunk: str, shape: Architecture, group: Owners = (), codec: Codec = LIVE) -> Path:
        """The task's path over the trunk of this digest and shape; raises ConfigError if the task does not fit.

        `group` holds the owners of its prompt group in order, by default only its own; `codec` is that of kept
        features, with its constants.
        """
        raise ConfigError(f"strategy '{self.kind}' has no path", do="define `path` in its class")

    def candidates(self, task: Task, depth: int, effort: Effort = "default") -> tuple[HeadCandidate, ...]:
        """The heads to try over kept features of a trunk of `depth` layers, the simplest first."""
        return (HeadCandidate(name=self.kind, strategy=self, solver="steps"),)

    def heads_of_tokens(self, task: Task) -> tuple[HeadCandidate, ...]:
        """Linear heads on the mean of all tokens, which is made of kept tokens: for a store that has no such means."""
        return ()

    def feature_codec(self) -> tuple[Codec, Literal["tensor", "dimension"]]:
        """The codec of kept features, without constants, and the scope of one set of constants."""
        return Codec(name=HALF), "tensor"

    @property
    def names_codec(self) -> bool:
        """Whether its settings fix the codec of features; else a store used for training decides it."""
        return False

    def settled(self) -> Strategy:
        """The same with a default codec, if its settings leave it open, for parts trained without a store."""
        return self

    def searched(self, depth: int) -> tuple[Strategy, ...]:
        """The strategies between which training over a trunk of `depth` layers searches; none if all is decided."""
        return ()

    def check_used(self, dropouts: str | None) -> None:
        """Raises ConfigError for a setting that nothing reads; `dropouts` names the recipe's own, None for none."""

    def describe(self, path: Path) -> str:
        """Words that a run prints about a trained task next to its scores; "" for none."""
        return ""

    @property
    def is_undecided(self) -> bool:
        """Whether one of several parts is chosen after training, which a joint recipe cannot do."""
        return False

    def bonds(self) -> frozenset[str]:
        """What its tasks share: tasks with a common bond are trained and written in one step."""
        return frozenset()

    @property
    def prompt_group(self) -> str | None:
        """The group of tasks whose prompts share one input; None for none."""
        return None

    @property
    def frequent_rows(self) -> int:
        """The number of prompt rows initialized with word vectors of frequent tokens."""
        return 0

    def donor_arrays(self) -> tuple[str, ...]:
        """Prefixes of the names of arrays that start from a donor."""
        return ()

    def donor(self, task: str, training: Training) -> tuple[Strategy, Training] | None:
        """How the task's donor is trained alone over the frozen trunk; None without donors."""
        return None

    def delta_starts(self, path: Path) -> Iterator[tuple[Delta, DeltaStart]]:
        """The deltas on a path of this strategy, each with its initial values."""
        return iter(())

    @property
    def layer_dropout(self) -> float | None:
        """Dropout inside a task's own layers while they are trained; None: the recipe's."""
        return None


class LiveStrategy(Strategy):
    """A strategy whose tasks change the inputs or computation of the trunk's layers, and so read live states."""

    __slots__ = ()

    trainer: ClassVar[str] = "polyhead.deep.recipes.joint:LiveGroups"
    default_training: ClassVar[Training] = LIVE_TRAINING
    reads_kept_features: ClassVar[bool] = False
    is_live: ClassVar[bool] = True


StrategyT = TypeVar("StrategyT", bound=type[Strategy])


def register_strategy(strategy: StrategyT) -> StrategyT:
    """Adds a strategy under its tag (usable as a decorator); raises ConfigError if the tag is missing or taken."""
    if not issubclass(strategy, msgspec.Struct) or strategy.__struct_config__.tag_field != "kind":
        raise ConfigError(
            f"{strategy.__name__} is no strategy that a project file can name",
            do='declare it as class Name(Strategy, Value, tag="name", tag_field="kind")',
        )
    STRATEGIES.register(strategy)
    return strategy


def prompt_groups(tasks: Sequence[tuple[Task, Strategy]]) -> dict[str, tuple[str, ...]]:
    """For each task, the owners of its prompt group in the given order; only its own without a group.

    Raises ConfigError if tasks of a group differ in settings of their common input.
    """
    groups: dict[str, list[tuple[Task, Strategy]]] = {}
    for task, strategy in tasks:
        if strategy.prompt_group is not None:
            groups.setdefault(strategy.prompt_group, []).append((task, strategy))
    owners: dict[str, tuple[str, ...]] = {task.name: (owner_of(task),) for task, _ in tasks}
    for group, members in groups.items():
        for name in dict.fromkeys(name for _, strategy in members for name in strategy.under.group_fields):
            values = {task.name: getattr(strategy.under, name, None) for task, strategy in members}
            if len(set(values.values())) > 1:
                raise ConfigError(
                    f"the tasks of prompt group '{group}' stand in one input, so they have one strategy.{name}",
                    got=values,
                    do="give them the same, or groups of their own",
                )
        owners |= dict.fromkeys((task.name for task, _ in members), tuple(owner_of(task) for task, _ in members))
    return owners


POOLER = "family:pooler"  # owner of the hidden layer that tasks share


def last_state(task: Task, shape: Architecture, positions: Literal["first", "mean", "attention"]) -> Pool:
    """A pool of the last state; a task that answers per word reads the first sub-token of each."""
    if kind_of(task).per_word:
        return Pool(positions="tokens")
    if positions == "attention":
        return Pool(positions=positions, heads=max(1, shape.width // 64), part=owner_of(task))
    return Pool(positions=positions)


def head_of(task: Task, shape: Architecture, hidden: int | None, *, bias: bool = True, shared: bool = False) -> Head:
    """The head of the task; `hidden` None is the trunk's width, 0 no hidden layer; `shared`: by all tasks."""
    if shared and task.pair == "separate":
        raise ConfigError(
            f"task '{task.name}' cannot share its pooler: a pair read separately has a wider one",
            do="set strategy.pooler = 'private', or read the pair joined",
        )
    return Head(
        kind=task.kind,
        width=kind_of(task).width(task),
        part=owner_of(task),
        hidden=shape.width if hidden is None else hidden,
        bias=bias,
        separate=task.pair == "separate",
        hidden_part=POOLER if shared else None,
    )


def with_shared_pooler(path: Path) -> Path:
    """The same path, with the hidden layer of its head shared by all tasks."""
    return Path(nodes=(*path.nodes[:-1], msgspec.structs.replace(path.head, hidden_part=POOLER)))


def narrowed(shape: Architecture, *, multiple_of: int = 1) -> int:
    """204 of 768 (Stickland and Murray 2019), scaled to the trunk's width."""
    return multiple_of * max(1, round(shape.width * 204 / 768 / multiple_of))


def with_codec(path: Path, codec: Codec) -> Path:
    """The same path with another codec; layers that stand side by side are encoded alone by any."""
    if path.pool.layers == "beside":
        codec = msgspec.structs.replace(codec, before_mean=True)
    nodes = [msgspec.structs.replace(node, codec=codec) if isinstance(node, Pool) else node for node in path.nodes]
    return Path(nodes=tuple(nodes))
