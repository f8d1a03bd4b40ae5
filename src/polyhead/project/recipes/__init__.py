"""Recipes: which arrays learn, from which tasks, how often and how much. Light: checked values, no tensors.

`frozen` trains parts over a frozen trunk, so that tasks come and go. `donors` does so for prompts, each task in an
input of its own, as a start for other runs. `joint` trains trunk and parts together, which makes another trunk; its
tasks are then a bundle of their own, or are dropped and the trunk serves as a better frozen one. `leave_out` makes such
trunks without some of the tasks, for those. `fine_tune` makes each task a trunk of its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from polyhead.arguments import twice_in
from polyhead.errors import ConfigError
from polyhead.project.numbers import check_least, check_positive, check_shares
from polyhead.project.recipes.joint import (
    ONE_TASK,
    Joint,
    Parallel,
    Sampling,
    SamplingKind,
    Scheme,
    Smoothing,
    TrunkOnly,
    Weighting,
)
from polyhead.values import Value

EPOCHS, PATIENCE = 30, 6  # passes over the rows, where nothing is said
LEAST_UPDATES = 1500  # and at least so many updates: few rows make short passes
PATIENT = 8  # a run of at least so many updates is patient for an eighth of them
ROUND = 25  # updates between two validations, at least, where updates are counted


class Schedule(Value):
    """How long a training run is. A round is what lies between two validations: one or several passes over the rows."""

    passes: int  # in a round
    rounds: int  # at most
    patience: int  # rounds without a better validation score before stopping


class Training(Value):
    """How parts are trained on frozen features: AdamW, linear warm-up and decay, early stopping on validation.

    Where `epochs` is not given, updates count: a run takes 30 passes over the rows, and on few rows as many more as
    1,500 updates need, unless validation says stop. The same holds for `least_updates` that are given.
    """

    seed: int = 1
    epochs: int | None = None  # passes over the rows, at most; None: 30
    patience: int | None = None  # epochs without a better validation score before stopping; None: 6
    least_updates: int | None = None  # None: 1,500 where `epochs` is not given, else 0
    batch: int = 32
    learning_rate: float = 3e-4  # best of 2e-4 to 1e-3 on two validation splits (docs/project/log.md)
    weight_decay: float = 0.01
    warmup: float = 0.06  # share of all steps
    dropout: float = 0.1  # on the pooled vector and before the output layer; as heads of RoBERTa have it
    class_weights: bool = False  # balanced: n / (labels * n of the label)
    clip: float = 1.0  # global norm of the gradients
    precision: Literal["auto", "float32", "bfloat16"] = "auto"  # of the frozen trunk; auto: bfloat16 where native

    def __post_init__(self) -> None:
        check_positive("training.", self, "epochs", "patience", "batch", "learning_rate", "clip")
        check_least("training.", self, {"least_updates": 0, "weight_decay": 0})
        check_shares("training.", self, "dropout", "warmup")

    @property
    def most_epochs(self) -> int:
        """Passes over the rows at most, where these alone count."""
        return EPOCHS if self.epochs is None else self.epochs

    def schedule(self, steps: int, *, passes: int | None = None) -> Schedule:
        """The length of a run whose pass over the rows takes `steps` updates.

        `passes` are those of a round; None: as many as it takes to `ROUND` updates, where updates count.
        """
        least = self.least_updates
        if least is None:
            least = LEAST_UPDATES if self.epochs is None else 0
        if passes is None:
            passes = max(1, math.ceil(min(least, ROUND) / max(steps, 1)))
        updates = passes * max(steps, 1)
        patience = PATIENCE if self.patience is None else self.patience
        return Schedule(
            passes=passes,
            rounds=max(math.ceil(self.most_epochs / passes), math.ceil(least / updates)),
            patience=max(math.ceil(patience / passes), math.ceil(least / PATIENT / updates)),
        )


class Frozen(Value, tag="frozen", tag_field="kind"):
    """Parts only: the trunk stays as it is, and so do the answers of all other tasks."""


class Donors(Value, tag="donors", tag_field="kind"):
    """Each prompted task alone over the frozen trunk, as a start for runs in which prompts stand in one input.

    Epochs and rate are the strategy's `donor_epochs` and `donor_learning_rate` (paper 002, single-task prompts).
    """


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
            twice = twice_in(grouped)
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


class SearchPoint(Value):
    """What one fine-tuning of a search takes; `dropout` is that inside the layers and that around the head."""

    learning_rate: float = 1e-4
    epsilon: float = 1e-8  # Adam's
    dropout: float = 0.1

    def __post_init__(self) -> None:
        check_positive("search: ", self, "learning_rate", "epsilon")
        check_shares("search: ", self, "dropout")


class SearchGrid(Value):
    """Every combination is tried, in this order; the paper names the three numbers and not their values."""

    learning_rates: tuple[float, ...] = (5e-5, 1e-4, 2e-4)
    epsilons: tuple[float, ...] = (1e-8, 1e-6)
    dropouts: tuple[float, ...] = (0.0, 0.1)

    def __post_init__(self) -> None:
        if not self.candidates:
            raise ConfigError(
                "a search needs a candidate",
                got="none",
                allowed="at least one value of each number",
                do="fill the lists of [recipe.search], or leave them out",
            )

    @property
    def candidates(self) -> tuple[SearchPoint, ...]:
        """All of them."""
        grid = itertools.product(self.learning_rates, self.epsilons, self.dropouts)
        return tuple(SearchPoint(learning_rate=r, epsilon=e, dropout=d) for r, e, d in grid)


class FineTune(Value, tag="fine_tune", tag_field="kind"):
    """Each task alone fine-tunes the whole trunk, once for every candidate of a small fixed search.

    The second stage of Aghajanyan et al. 2021: the trunk is a pre-trained or a pre-finetuned one. The candidate with
    the best validation score is kept (ties: the first), and each becomes a bundle of its own, named after its task, in
    the project's folder of bundles. With `head = "kept"` a task starts from the part that the task of its name has in
    the bundle whose trunk this is, and head and trunk learn at once.
    """

    search: SearchGrid = SearchGrid()
    head: Literal["fresh", "kept"] = "fresh"
    head_rate: float = 1.0  # learning rate of the part over that of the trunk
    head_epochs: int = 0  # before: a fresh part learns alone over the frozen trunk
    head_learning_rate: float = 1e-3  # of those epochs
    tokens: int | None = None  # of a batch at most, padding included; None: `batch` alone bounds it
    smoothing: Smoothing | None = None
    validation_rows: int | None = None  # read after every epoch; None: all
    checkpointing: bool = False  # layers are computed again in the backward pass: less memory, a third more time

    def __post_init__(self) -> None:
        if self.head == "kept" and self.head_epochs:
            raise ConfigError(
                "recipe.head_epochs is for fresh parts; a kept one has its start",
                got=self.head_epochs,
                do="leave head_epochs out, or set head = 'fresh'",
            )
        _ = self.joint  # checks the other numbers

    @property
    def joint(self) -> Joint:
        """The recipe of one candidate: one task, heads of their own."""
        return Joint(
            families=(),
            micro_batches=1,
            head_rate=self.head_rate,
            head_epochs=self.head_epochs,
            head_learning_rate=self.head_learning_rate,
            tokens=self.tokens,
            smoothing=self.smoothing,
            validation_rows=self.validation_rows,
            checkpointing=self.checkpointing,
        )


Recipe = Frozen | Donors | Joint | LeaveOut | FineTune

__all__ = [
    "ONE_TASK",
    "SearchPoint",
    "Donors",
    "FineTune",
    "Frozen",
    "Joint",
    "LeaveOut",
    "Parallel",
    "Recipe",
    "Round",
    "Sampling",
    "SamplingKind",
    "Scheme",
    "Schedule",
    "SearchGrid",
    "Smoothing",
    "Training",
    "TrunkOnly",
    "Weighting",
]
