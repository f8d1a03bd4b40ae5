"""Strategy `prompted` (concatenated task prompts, MTOP): trained rows before the text, and a pooler that reads them."""

from __future__ import annotations

import re
from typing import ClassVar, Literal

import msgspec

from polyhead.encoder.shape import Architecture
from polyhead.errors import ConfigError
from polyhead.plan import Codec, Embed, Path, Pool, Prompt, shared_layers
from polyhead.project.numbers import check_least, check_positive
from polyhead.project.recipes import Training
from polyhead.project.strategies.base import LIVE, LiveStrategy, Owners, Strategy, head_of
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task, owner_of
from polyhead.values import Value, check_unused

DONORLESS = "neither prompt nor pooler starts from donors (init, pooler_init = 'donors')"
DONATED = {"prompt.weight": "init", "head.hidden": "pooler_init"}
"""Arrays that can come from a donor, by the beginning of their names, and the setting that takes them."""
_GROUP = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Prompted(LiveStrategy, Value, tag="prompted", tag_field="kind"):
    """Strategy `prompted` (concatenated task prompts, MTOP): trained rows before the text, and a pooler reading them.

    The tasks of one `group` share one input and see each other: they are one unit and are trained together. With
    `isolated` the text sees no prompt and a prompt sees the text and itself, so that tasks can come and go over a
    frozen trunk. Donors are the same prompt, pooler and head trained for the task alone over the frozen trunk.
    """

    group: str = "prompts"  # required unless isolated
    isolated: bool = False
    rows: int = 2  # L_P
    shared: int = 0  # task-agnostic rows before those of the tasks; always trained, never pooled
    shift: bool = False  # positions of the text count the rows before it
    hidden: int | None = None  # width of the tanh pooler; None: the trunk's width
    stop_gradient: bool = True  # a task's step does not change the other tasks' prompts
    init: Literal["random", "frequent", "donors"] = "random"  # of the prompts
    pooler_init: Literal["random", "donors"] = "random"
    donor_epochs: int = 5
    donor_learning_rate: float = 3e-3

    reaches_inside: ClassVar[bool] = True
    group_fields: ClassVar[tuple[str, ...]] = ("rows", "shared", "shift")
    donor_fields: ClassVar[tuple[str, ...]] = (
        "rows",
        "hidden",
        "isolated",
        "shift",
        "donor_epochs",
        "donor_learning_rate",
    )

    def __post_init__(self) -> None:
        check_least("strategy.", self, {"rows": 1, "shared": 0, "hidden": 1, "donor_epochs": 1})
        check_positive("strategy.", self, "donor_learning_rate")
        if not _GROUP.fullmatch(self.group) or ".." in self.group or self.group.endswith("."):
            raise ConfigError(  # a folder is named after a group with shared rows
                "strategy.group cannot have this name",
                got=self.group,
                allowed="a name as tasks have them: 1 to 64 letters, digits, '.', '_', '-'; a letter or digit first",
            )
        if self.isolated:
            reason = "isolated prompts stand in no group"
            check_unused("strategy.", self, {"group": reason, "stop_gradient": "isolated prompts see no other"})
        if not self.donor_arrays():
            unused = dict.fromkeys(("donor_epochs", "donor_learning_rate"), DONORLESS)
            check_unused("strategy.", self, unused)
        if self.isolated and (self.shared or self.shift):
            raise ConfigError(
                "isolated prompts see no other rows than the text, and leave the text where it is",
                got=f"shared = {self.shared}, shift = {str(self.shift).lower()}",
                do="leave these out",
            )

    def path(self, task: Task, *, trunk: str, shape: Architecture, group: Owners = (), codec: Codec = LIVE) -> Path:
        """`Embed(prompts), Layers(0, N, trunk), Pool(own rows), Head`; the output layer has no bias, as in MTOP.

        An isolated task has only its own prompt. A task that answers per word reads the words of the text, which see
        the group's prompts.
        """
        owner = owner_of(task)
        if kind_of(task).per_word:
            if self.isolated:
                raise ConfigError(
                    f"task '{task.name}' is answered by words, which see no isolated prompt",
                    allowed="a task over whole texts, or isolated = false",
                    do="choose another strategy for it",
                )
            pool = Pool(positions="tokens")
        else:
            pool = Pool(positions="prompt", part=owner)
        owners = (owner,) if self.isolated else tuple(group) or (owner,)
        if owner not in owners:
            raise ConfigError(f"task '{task.name}' is missing from its own prompt group", got=list(owners))
        shared = (Prompt(part=shared_prompt(self.group), rows=self.shared),) if self.shared else ()
        embed = Embed(
            trunk=trunk,
            prompts=(*shared, *(Prompt(part=part, rows=self.rows) for part in owners)),
            isolated=self.isolated,
            shift=self.shift,
        )
        head = head_of(task, shape, self.hidden, bias=False)
        return Path(nodes=(embed, *shared_layers(shape.layers), pool, head))

    @property
    def prompt_group(self) -> str | None:
        """The group, unless prompts are isolated."""
        return None if self.isolated else self.group

    def bonds(self) -> frozenset[str]:
        """The prompt group."""
        return frozenset() if self.isolated else frozenset({f"prompts {self.group}"})

    @property
    def frequent_rows(self) -> int:
        """The number of prompt rows initialized with word vectors of frequent tokens."""
        return self.rows if self.init == "frequent" else 0

    def donor_arrays(self) -> tuple[str, ...]:
        """Prefixes of the names of arrays that start from a donor."""
        return tuple(start for start, field in DONATED.items() if getattr(self, field) == "donors")

    def donor(self, task: str, training: Training) -> tuple[Strategy, Training] | None:
        """The donor is alone in its input and starts at random, with the donors' epochs and learning rate."""
        strategy = msgspec.structs.replace(
            self.without_donors(),
            init="random",
            shared=0,
            stop_gradient=True,  # it is the only prompt
            group=self.group if self.isolated else task,
        )
        return strategy, msgspec.structs.replace(
            training, epochs=self.donor_epochs, least_updates=0, learning_rate=self.donor_learning_rate
        )

    def without_donors(self) -> Prompted:
        """The same strategy with a start without donors."""
        plain = Prompted()
        return msgspec.structs.replace(
            self,
            init="frequent" if self.init == "frequent" else "random",
            pooler_init="random",
            donor_epochs=plain.donor_epochs,
            donor_learning_rate=plain.donor_learning_rate,
        )


def shared_prompt(group: str) -> str:
    """Owner of a group's task-agnostic rows."""
    return f"family:prompts:{group}"
