"""Strategy `prompted` (concatenated task prompts, MTOP): trained rows before the text, and a pooler that reads them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from polyhead.errors import ConfigError
from polyhead.plan import Embed, Layers, Path, Pool, Prompt
from polyhead.project.strategies import Prompted, Strategy
from polyhead.sharing.ends import head_of
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task, owner_of
from polyhead.trunk.shape import Architecture


def prompted_path(task: Task, strategy: Prompted, *, trunk: str, shape: Architecture, group: Sequence[str]) -> Path:
    """`Embed(prompts), Layers(0, N, trunk), Pool(own rows), Head`; `trunk` is the trunk's digest.

    `group` holds the owners of the group's tasks in the project's order, this one's among them (`prompt_groups`); an
    isolated task has its own prompt alone. The output layer has no bias, as the paper counts. A task that is
    answered by words reads those of the text, which see the group's prompts.
    """
    owner = owner_of(task)
    if kind_of(task).per_word:
        if strategy.isolated:
            raise ConfigError(
                f"task '{task.name}' is answered by words, which see no isolated prompt",
                allowed="a task over whole texts, or isolated = false",
                do="choose another strategy for it",
            )
        pool = Pool(positions="tokens")
    else:
        pool = Pool(positions="prompt", part=owner)
    owners = (owner,) if strategy.isolated else tuple(group)
    if owner not in owners:
        raise ConfigError(f"task '{task.name}' is missing from its own prompt group", got=list(owners))
    shared = (Prompt(part=shared_prompt(strategy.group), rows=strategy.shared),) if strategy.shared else ()
    embed = Embed(
        trunk=trunk,
        prompts=(*shared, *(Prompt(part=one, rows=strategy.rows) for one in owners)),
        isolated=strategy.isolated,
        shift=strategy.shift,
    )
    head = head_of(task, shape, strategy.hidden, bias=False)
    return Path(nodes=(embed, Layers(start=0, stop=shape.layers), pool, head))


def shared_prompt(group: str) -> str:
    """Owner of a group's task-agnostic rows."""
    return f"family:prompts:{group}"


def prompt_groups(tasks: Sequence[tuple[Task, Strategy]]) -> dict[str, tuple[str, ...]]:
    """For each task the owners of its prompt group in the given order; its own alone where it has none.

    Raises ConfigError where tasks of a group differ in what makes their one input.
    """
    groups: dict[str, list[tuple[Task, Prompted]]] = {}
    for task, strategy in tasks:
        if isinstance(strategy, Prompted) and not strategy.isolated:
            groups.setdefault(strategy.group, []).append((task, strategy))
    found: dict[str, tuple[str, ...]] = {task.name: (owner_of(task),) for task, _ in tasks}
    for group, members in groups.items():
        for name in ("rows", "shared", "shift"):
            values = {task.name: getattr(strategy, name) for task, strategy in members}
            if len(set(values.values())) > 1:
                raise ConfigError(
                    f"the tasks of prompt group '{group}' stand in one input, so they have one strategy.{name}",
                    got=values,
                    do="give them the same, or groups of their own",
                )
        owners = tuple(owner_of(task) for task, _ in members)
        found.update({task.name: owners for task, _ in members})
    return found


class PromptRows(nn.Module):
    """Trained rows that stand before the text as word vectors: `weight` (rows, embedding width).

    Start as N(0, 0.02), drawn again beyond two standard deviations; without a generator at zero, to be filled.
    """

    def __init__(self, rows: int, shape: Architecture, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, shape.embedding_width or shape.width))
        if generator is not None:
            nn.init.trunc_normal_(self.weight, std=0.02, a=-0.04, b=0.04, generator=generator)
