"""What a path ends in: a pool of its last state, and a head."""

from __future__ import annotations

from typing import Literal

import msgspec

from polyhead.errors import ConfigError
from polyhead.plan import Codec, Head, Path, Pool
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task, owner_of
from polyhead.trunk.shape import Architecture

POOLER = "family:pooler"  # owner of the hidden layer that tasks share


def last_state(task: Task, shape: Architecture, positions: Literal["first", "mean", "attention"]) -> Pool:
    """A pool of the last state; a task that is answered by words reads the first sub-token of each."""
    if kind_of(task).per_word:
        return Pool(positions="tokens")
    if positions == "attention":
        return Pool(positions=positions, heads=max(1, shape.width // 64), part=owner_of(task))
    return Pool(positions=positions)


def head_of(task: Task, shape: Architecture, hidden: int | None, *, bias: bool = True, shared: bool = False) -> Head:
    """The head of the task; `hidden` None is the trunk's width, 0 no hidden layer; `shared`: it is the family's."""
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
    """The same path, its head's hidden layer that of all tasks."""
    return Path(nodes=(*path.nodes[:-1], msgspec.structs.replace(path.head, hidden_part=POOLER)))


def narrowed(shape: Architecture, *, multiple_of: int = 1) -> int:
    """204 of 768 (Stickland and Murray 2019), in proportion to the trunk's width."""
    return multiple_of * max(1, round(shape.width * 204 / 768 / multiple_of))


def with_codec(path: Path, codec: Codec) -> Path:
    """The same path with another codec."""
    nodes = [msgspec.structs.replace(node, codec=codec) if isinstance(node, Pool) else node for node in path.nodes]
    return Path(nodes=tuple(nodes))
