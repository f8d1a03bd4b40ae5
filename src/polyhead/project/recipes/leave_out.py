"""Trunks that learned from some tasks, frozen under those that they never saw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from polyhead.config import Value
from polyhead.errors import ConfigError
from polyhead.project.recipes.joint import Sampling, TrunkOnly, Weighting
from polyhead.project.recipes.training import Training

ALL = "all-tasks"  # the one round that leaves nothing out


class Round(Value):
    """One trunk of several: which tasks it learns from, and which then learn new parts over it."""

    name: str  # of its bundle
    tasks: tuple[str, ...]  # that stand on it
    learned: tuple[str, ...]  # that it learns from


class LeaveOut(Value, tag="leave_out", tag_field="kind"):
    """What a trunk gives to tasks that it never saw (Du et al. 2020, both stages).

    Every round leaves out one task, or all tasks of one of `groups`, while the others train a trunk; then the trunk is
    frozen and what was left out learns new parts over it. With `leave = "nothing"` one trunk learns from all tasks, and
    each learns a new part over it. A round is a bundle of its own, named after what it leaves out, in the project's
    folder of bundles.
    """

    leave: Literal["task", "group", "nothing"] = "task"
    groups: dict[str, tuple[str, ...]] = {}  # of "group": every task in one of them
    learn: TrunkOnly = TrunkOnly()  # how the trunks learn; their own heads are dropped
    training: Training | None = None  # of the trunks; the project's is that of the new parts

    def __post_init__(self) -> None:
        if (self.leave == "group") != bool(self.groups):
            raise ConfigError(
                "recipe.leave 'group' and recipe.groups belong together",
                got=f"leave '{self.leave}', groups {sorted(self.groups)}",
                do="name the groups and their tasks in [recipe.groups], or leave out one task at a time",
            )

    def rounds(self, tasks: Sequence[str]) -> tuple[Round, ...]:
        """What each trunk learns from, of these tasks; raises ConfigError where groups and tasks do not fit."""
        if self.leave == "nothing":
            return (Round(name=ALL, tasks=tuple(tasks), learned=tuple(tasks)),)
        groups = self.groups if self.leave == "group" else {task: (task,) for task in tasks}
        grouped = [task for several in groups.values() for task in several]
        if sorted(grouped) != sorted(tasks):
            twice = {task for task in grouped if grouped.count(task) > 1}
            raise ConfigError(
                "recipe.groups holds every task of the project once",
                got=f"unknown {sorted(set(grouped) - set(tasks))}, missing {sorted(set(tasks) - set(grouped))}, "
                f"more than once {sorted(twice)}",
                allowed=sorted(tasks),
                do="put each task into one group of [recipe.groups]",
            )
        rounds = [
            Round(name=name, tasks=several, learned=tuple(task for task in tasks if task not in several))
            for name, several in groups.items()
        ]
        for left in rounds:
            if not (left.tasks and left.learned):
                raise ConfigError(
                    f"with '{left.name}' left out there must be tasks that remain, and some that are left out",
                    got=f"left out {list(left.tasks)}, remaining {list(left.learned)}",
                    do="declare more tasks, or other groups",
                )
        return tuple(rounds)

    def learn_in(self, trunk_round: Round) -> TrunkOnly:
        """How a round's trunk learns: weights and shares that are given by task, without those that are left out."""
        weighting, sampling = self.learn.weighting, self.learn.sampling
        if weighting.fixed:
            fixed = {task: weight for task, weight in weighting.fixed.items() if task in trunk_round.learned}
            weighting = Weighting(kind="fixed" if fixed else "none", fixed=fixed, scaled=weighting.scaled)
        if sampling.schedule:
            shares = [
                {t: share for t, share in epoch.items() if t in trunk_round.learned} for epoch in sampling.schedule
            ]
            try:
                sampling = Sampling(kind="schedule", cap=sampling.cap, schedule=tuple(shares))
            except ConfigError as error:
                raise error.at(f"recipe.learn without {list(trunk_round.tasks)}") from None
        return msgspec.structs.replace(self.learn, weighting=weighting, sampling=sampling)

    def unknown(self, tasks: Sequence[str]) -> list[str]:
        """Names in weights and shares that are none of these tasks'."""
        named = {*self.learn.weighting.fixed, *(t for epoch in self.learn.sampling.schedule for t in epoch)}
        return sorted(named - set(tasks))
