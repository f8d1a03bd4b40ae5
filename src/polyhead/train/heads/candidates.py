"""The heads that are tried for a task over kept features, the simplest first."""

from __future__ import annotations

from typing import Literal

import msgspec

from polyhead.plan import Codec, Path
from polyhead.project.strategies import Pooled
from polyhead.sharing.pooled import pooled_path
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.trunk.shape import Architecture

MIXES = {2: "last 2 layers", 1: "last layer", 4: "last 4 layers"}
"""Layers whose mean linear heads read. The first was the best, or within a point of it, of five on five sets
(docs/project/log.md)."""

COMPARED_MIXES = {of: MIXES[of] for of in (1, 2, 4)}
"""The same for pairs that are compared: encoders of sentences learned the cosine of their last layer."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One head: its strategy, and whether it is solved for as a linear one, or trained in steps."""

    name: str
    strategy: Pooled
    solver: Literal["linear", "steps"]

    def path(self, task: Task, *, trunk: str, shape: Architecture, codec: Codec) -> Path:
        """The task's path with this head; `trunk` is the trunk's digest."""
        return pooled_path(task, self.strategy, trunk=trunk, shape=shape, codec=codec)


def candidates_of(task: Task, strategy: Pooled, depth: int) -> tuple[Candidate, ...]:
    """The heads to try over a trunk of `depth` layers; one, where the strategy says which."""
    kind = kind_of(task)
    if strategy.positions != "auto":
        return (Candidate(name=strategy.positions, strategy=strategy, solver="steps"),)
    own = msgspec.structs.replace(strategy, positions="attention")
    trained = Candidate(name="hidden layer" if kind.per_word else "attention", strategy=own, solver="steps")
    if kind.loss == "span_cross_entropy":  # two outputs of every word compete with those of all others
        return (trained,)
    if kind.per_word:  # every mix would be another store of all words
        linear = msgspec.structs.replace(own, hidden=0)
        return (Candidate(name="linear", strategy=linear, solver="linear"), trained)
    return (*_linear(task, strategy, depth), trained)


def baseline_of(task: Task) -> Pooled:
    """The head that every other is compared with: linear, on mean vectors."""
    return _mean_of(Pooled(), next(iter(_mixes(task))))


def _mixes(task: Task) -> dict[int, str]:
    return COMPARED_MIXES if task.pair == "separate" else MIXES


def _linear(task: Task, strategy: Pooled, depth: int) -> list[Candidate]:
    return [
        Candidate(name=f"linear, {name}", strategy=_mean_of(strategy, of), solver="linear")
        for of, name in _mixes(task).items()
        if of <= max(depth, 1)
    ]


def _mean_of(strategy: Pooled, of: int) -> Pooled:
    return Pooled(
        layers="mean" if of > 1 else "last",
        of=of if of > 1 else Pooled().of,
        positions="mean",
        hidden=0,
        codec=strategy.codec,
        codec_per=strategy.codec_per,
        codec_before_mean=strategy.codec_before_mean,
    )
