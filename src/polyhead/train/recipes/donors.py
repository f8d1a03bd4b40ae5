"""`polyhead train` with recipe "donors": each prompted task alone over the frozen trunk, kept for other runs."""

from __future__ import annotations

from pathlib import Path as FilePath

import msgspec

from polyhead.errors import ConfigError
from polyhead.project.recipes import Donors, Frozen, Training
from polyhead.project.tables import Project, strategy_of
from polyhead.train.data.leaks import without_leaks
from polyhead.train.data.prepare import alone, prepare
from polyhead.train.loop.events import Events
from polyhead.train.outcome import Outcome
from polyhead.train.recipes.learned import check_tasks
from polyhead.train.run import train_project


def train_donors(
    project: Project,
    *,
    folder: FilePath,
    cache: FilePath | None = None,
    events: Events | None = None,
    only: tuple[str, ...] = (),
    retrain: tuple[str, ...] = (),
    if_better: bool = False,
) -> Outcome:
    """The donor stage of paper 002 (section 3, single-task prompts over a frozen backbone) as a bundle of its own.

    Each task learns prompt, pooler and head in an input of its own, for its strategy's `donor_epochs` at its
    `donor_learning_rate`. As under a joint recipe no text on which one of the project's tasks is evaluated is trained
    on; tasks without prompts are read for that alone. On the processor a joint run of the same tasks, seed and
    `[training]` so starts as if it had trained the donors itself. Donors that are in the bundle already, trained the
    same way, are kept. Raises ConfigError where no task has prompts.
    """
    assert isinstance(project.recipe, Donors)
    events = events or Events()
    prompted = [e.name for e in project.tasks if strategy_of(project, e).donor(e.name, Training()) is not None]
    if not prompted:
        raise ConfigError(
            "recipe 'donors' trains prompts and the poolers that read them",
            got="no task with prompts",
            allowed="tasks with strategy 'prompted'",
            do="give a task this strategy, or leave the recipe out",
        )
    check_tasks(only, prompted)
    prepared, leaks = without_leaks(prepare(project, folder))
    for line in leaks.lines():
        events.line(line)
    if others := [p.task.name for p in prepared if p.task.name not in prompted]:
        events.line(f"{', '.join(others)}: without prompts, so read for their texts alone")
    donors = [alone(p) for p in prepared if p.task.name in (only or prompted)]
    names = {p.task.name for p in donors}
    stage = msgspec.structs.replace(
        project, recipe=Frozen(), tasks=tuple(entry for entry in project.tasks if entry.name in names)
    )
    return train_project(
        stage, folder=folder, cache=cache, events=events, given=donors, retrain=retrain, if_better=if_better
    )
