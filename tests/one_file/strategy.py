"""A strategy in one file outside the package: frozen features, and a narrow hidden layer before the output."""

from typing import ClassVar, Literal

from polyhead.errors import ConfigError
from polyhead.plan import Embed, Head, Layers, Path, Pool
from polyhead.project.recipes import Training
from polyhead.project.strategies.base import LIVE, Strategy
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import owner_of
from polyhead.values import Value


class Bottleneck(Strategy, Value, tag="bottleneck", tag_field="kind"):
    """Features of the last `of` layers, their mean over `positions`, a hidden layer of `size`, and the output."""

    of: int = 2
    positions: Literal["first", "mean"] = "mean"
    size: int = 4

    default_training: ClassVar[Training] = Training(least_updates=60, epochs=6)

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError("strategy.size is too small", got=self.size, allowed="1 or more")

    def path(self, task, *, trunk, shape, group=(), codec=LIVE):
        kind = kind_of(task)
        pool = Pool(
            layers="mean",
            of=min(self.of, shape.layers),
            positions="tokens" if kind.per_word else self.positions,
            codec=codec,
        )
        head = Head(
            kind=task.kind,
            width=kind.width(task),
            part=owner_of(task),
            hidden=self.size,
            separate=task.pair == "separate",
        )
        return Path(nodes=(Embed(trunk=trunk), Layers(start=0, stop=shape.layers), pool, head))
