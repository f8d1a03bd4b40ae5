"""Recipes: which arrays are trained, on which tasks, how often and how much. Checked values, no tensors.

`frozen` trains parts over a frozen trunk, so that tasks can come and go. `donors` does so for prompts, each task in its
own input, as a start for other runs. `joint` trains trunk and parts together, which makes another trunk; its tasks are
then a separate bundle, or are dropped and the trunk serves as a better frozen one. `leave_out` makes such trunks
without some of the tasks, for those tasks. `fine_tune` gives each task its own trunk.
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

EPOCHS, PATIENCE = 30, 6  # passes over the rows by default
LEAST_UPDATES = 1500  # minimum number of updates: few rows make short passes
PATIENT = 8  # runs of at least this many updates have a patience of an eighth of them
ROUND = 25  # minimum number of updates between two validations, if updates are counted
LONGEST_ROUND = 500  # of updates: with more than 16,000 rows, in batches of 32, a pass has several validations


Effort = Literal["quick", "default", "best"]
"""What is tried: linear heads; also one that is trained in steps; or more such heads, and branches."""


class Schedule(Value):
    """The length of a training run. A round lies between two validations: passes over the rows, or a part of one."""

    updates: int  # in a round
    rounds: int  # at most
    patience: int  # rounds without a better validation score before stopping

    @property
    def most_updates(self) -> int:
        """Updates of a run that nothing stops."""
        return self.updates * self.rounds


class Training(Value):
    """How parts are trained on frozen features: AdamW, linear warm-up and decay, early stopping on validation.

    Without `epochs`, updates count: a run takes 30 passes over the rows, and on few rows as many more as 1,500 updates
    need, unless validation stops it. The same holds for a given `least_updates`. A pass of more than 500 updates counts
    as 500 there, in the limit of 30 and in the patience of 6; the rows may still be read once.
    """

    seed: int = 1
    effort: Effort = "default"  # what is tried with positions 'auto'
    minutes: float | None = None  # of effort 'best', for each task: what would end later is not begun; None: all is
    epochs: int | None = None  # maximum passes over the rows; None: 30
    patience: int | None = None  # epochs without a better validation score before stopping; None: 6
    least_updates: int | None = None  # None: 1,500 without `epochs`, else 0
    batch: int = 32
    learning_rate: float = 3e-4  # best of 2e-4 to 1e-3 on two validation splits (docs/project/log.md)
    weight_decay: float = 0.01
    warmup: float = 0.06  # share of all steps
    betas: tuple[float, float] = (0.9, 0.999)  # of Adam
    epsilon: float = 1e-8  # of Adam
    dropout: float = 0.1  # on the pooled vector and before the output layer, as in heads of RoBERTa
    output_dropout: float | None = None  # before the output layer of a head with a hidden one; None: as `dropout`
    class_weights: bool = False  # balanced: n / (labels * n of the label)
    clip: float = 1.0  # global norm of the gradients
    # precision of the frozen trunk; auto: bfloat16 if native
    precision: Literal["auto", "float32", "bfloat16"] = "auto"

    def __post_init__(self) -> None:
        check_positive("training.", self, "minutes", "epochs", "patience", "batch", "learning_rate", "clip", "epsilon")
        check_least("training.", self, {"least_updates": 0, "weight_decay": 0})
        check_shares("training.", self, "dropout", "warmup")
        if self.output_dropout is not None:
            check_shares("training.", self, "output_dropout")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(
                "training.betas are shares of Adam's means that stay", got=self.betas, allowed="0 to below 1"
            )

    @property
    def dropouts(self) -> tuple[float, float]:
        """Dropout on the pooled vector, and before the output layer."""
        return self.dropout, self.dropout if self.output_dropout is None else self.output_dropout

    @property
    def most_epochs(self) -> int:
        """Maximum passes over the rows, if only passes count."""
        return EPOCHS if self.epochs is None else self.epochs

    def schedule(self, steps: int, *, passes: int | None = None, whole: bool = False) -> Schedule:
        """The length of a run whose passes over the rows have `steps` updates each.

        `passes` are those of a round; None: as many as make `ROUND` updates, if updates count, and of a pass with more
        than `LONGEST_ROUND` an equal part, unless rounds are to be `whole` passes.
        """
        steps, parts = max(steps, 1), 1 if passes or whole else max(1, math.ceil(steps / LONGEST_ROUND))
        least = self.least_updates
        if least is None:
            least = LEAST_UPDATES if self.epochs is None else 0
        if passes is None:
            passes = max(1, math.ceil(min(least, ROUND) / steps))
        updates = passes * steps // parts
        per_epoch, default = parts / passes, (steps if parts == 1 else LONGEST_ROUND) / updates  # rounds of an epoch
        rounds = max(EPOCHS * default, parts) if self.epochs is None else self.epochs * per_epoch
        patience = PATIENCE * default if self.patience is None else self.patience * per_epoch
        return Schedule(
            updates=updates,
            rounds=max(math.ceil(rounds), math.ceil(least / updates)),
            patience=max(math.ceil(patience), math.ceil(least / PATIENT / updates)),
        )


class Frozen(Value, tag="frozen", tag_field="kind"):
    """Parts only: the trunk stays the same, and so do the answers of all other tasks."""


class Donors(Value, tag="donors", tag_field="kind"):
    """Each prompted task alone over the frozen trunk, as a start for runs in which prompts share an input.

    Epochs and rate are the strategy's `donor_epochs` and `donor_learning_rate` (paper 002, single-task prompts).
    """


ALL = "all-tasks"  # the only round that leaves nothing out


class Round(Value):
    """One of several trunks: the tasks it is trained on, and those that then train new parts over it."""

    name: str  # of its bundle
    tasks: tuple[str, ...]  # tasks with parts over it
    learned: tuple[str, ...]  # tasks it is trained on


class LeaveOut(Value, tag="leave_out", tag_field="kind"):
    """The benefit of a trunk for tasks that it was not trained on (Du et al. 2020, both stages).

    Every round leaves out one task, or all tasks of one of `groups`, while the others train a trunk; then the trunk is
    frozen and the tasks left out train new parts over it. With `leave = "nothing"` one trunk is trained on all tasks,
    and each trains a new part over it. A round is a separate bundle, named after what it leaves out, in the project's
    folder of bundles.
    """

    leave: Literal["task", "group", "nothing"] = "task"
    groups: dict[str, tuple[str, ...]] = {}  # for "group": every task in one of them
    learn: TrunkOnly = TrunkOnly()  # how the trunks are trained; their own heads are dropped
    training: Training | None = None  # of the trunks; the project's is that of the new parts

    def __post_init__(self) -> None:
        if (self.leave == "group") != bool(self.groups):
            raise ConfigError(
                "recipe.leave 'group' and recipe.groups belong together",
                got=f"leave '{self.leave}', groups {sorted(self.groups)}",
                do="name the groups and their tasks in [recipe.groups], or leave out one task at a time",
            )

    def rounds(self, tasks: Sequence[str]) -> tuple[Round, ...]:
        """The tasks that each trunk is trained on; raises ConfigError if groups and tasks do not fit."""
        if self.leave == "nothing":
            return (Round(name=ALL, tasks=tuple(tasks), learned=tuple(tasks)),)
        groups = self.groups if self.leave == "group" else {task: (task,) for task in tasks}
        grouped = [task for group in groups.values() for task in group]
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
            Round(name=name, tasks=group, learned=tuple(task for task in tasks if task not in group))
            for name, group in groups.items()
        ]
        for held_out in rounds:
            if not (held_out.tasks and held_out.learned):
                raise ConfigError(
                    f"with '{held_out.name}' left out there must be tasks that remain, and some that are left out",
                    got=f"left out {list(held_out.tasks)}, remaining {list(held_out.learned)}",
                    do="declare more tasks, or other groups",
                )
        return tuple(rounds)

    def learn_in(self, trunk_round: Round) -> TrunkOnly:
        """How a round's trunk is trained: weights and shares by task, without the tasks left out."""
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
        """Names in weights and shares that are not among these tasks."""
        named = {*self.learn.weighting.fixed, *(t for epoch in self.learn.sampling.schedule for t in epoch)}
        return sorted(named - set(tasks))


class SearchPoint(Value):
    """The settings of one fine-tuning run of a search; `dropout` applies inside the layers and around the head."""

    learning_rate: float = 1e-4
    epsilon: float = 1e-8  # Adam's
    dropout: float = 0.1

    def __post_init__(self) -> None:
        check_positive("search: ", self, "learning_rate", "epsilon")
        check_shares("search: ", self, "dropout")


class SearchGrid(Value):
    """Every combination is tried, in this order; the paper names the three settings and not their values."""

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
        """All combinations."""
        grid = itertools.product(self.learning_rates, self.epsilons, self.dropouts)
        return tuple(SearchPoint(learning_rate=r, epsilon=e, dropout=d) for r, e, d in grid)


class FineTune(Value, tag="fine_tune", tag_field="kind"):
    """Each task alone fine-tunes the whole trunk, once for every candidate of a small fixed search.

    The second stage of Aghajanyan et al. 2021: the trunk is a pre-trained or a pre-finetuned one. The candidate with
    the best validation score is kept (ties: the first), and each becomes a separate bundle, named after its task, in
    the project's folder of bundles. With `head = "kept"` a task starts from the part of the same name in the bundle
    with this trunk, and head and trunk train together.
    """

    search: SearchGrid = SearchGrid()
    head: Literal["fresh", "kept"] = "fresh"
    head_rate: float = 1.0  # learning rate of the part relative to that of the trunk
    head_epochs: int = 0  # before: a fresh part is trained alone over the frozen trunk
    head_learning_rate: float = 1e-3  # of those epochs
    tokens: int | None = None  # maximum in a batch, padding included; None: only `batch` limits it
    smoothing: Smoothing | None = None
    validation_rows: int | None = None  # of each task, read after every epoch; None: all
    checkpointing: bool = False  # recompute layers in the backward pass: less memory, a third more time

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
        """The recipe of one candidate: one task with its own head."""
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
