"""The recipe "donors": each prompted task alone over the frozen trunk, kept for other runs."""

from __future__ import annotations

import msgspec

from polyhead.errors import ConfigError, UnknownTask
from polyhead.project.recipes import Training
from polyhead.project.tables import strategy_of
from polyhead.train.data.leaks import without_leaks
from polyhead.train.data.prepare import donor_task
from polyhead.train.job import FrozenTrunk
from polyhead.train.training import TrainingRun


def donors(run: TrainingRun) -> FrozenTrunk:
    """The donor stage of paper 002 (section 3, single-task prompts over a frozen backbone) as a bundle of its own.

    Each task learns prompt, pooler and head in an input of its own, for its strategy's `donor_epochs` at its
    `donor_learning_rate`. As under a joint recipe no text on which one of the project's tasks is evaluated is trained
    on; tasks without prompts are read for that alone. On the processor a joint run of the same tasks, seed and
    `[training]` so starts as if it had trained the donors itself. Raises ConfigError where no task has prompts.
    """
    project = run.project
    prompted = [e.name for e in project.tasks if strategy_of(project, e).donor(e.name, Training()) is not None]
    if not prompted:
        raise ConfigError(
            "recipe 'donors' trains prompts and the poolers that read them",
            got="no task with prompts",
            allowed="tasks with strategy 'prompted'",
            do="give a task this strategy, or leave the recipe out",
        )
    if unknown := sorted({*run.only, *run.options.retrain} - set(prompted)):
        raise UnknownTask("the project declares no such task with prompts", got=unknown, allowed=prompted)
    prepared, leaks = without_leaks(run.prepared)
    for line in leaks.lines():
        run.events.line(line)
    if others := [p.task.name for p in prepared if p.task.name not in prompted]:
        run.events.line(f"{', '.join(others)}: without prompts, so read for their texts alone")
    names = run.only or prompted
    tasks = tuple(entry for entry in project.tasks if entry.name in names)
    run = msgspec.structs.replace(run, project=msgspec.structs.replace(project, tasks=tasks))
    return FrozenTrunk(run, [donor_task(p) for p in prepared if p.task.name in names])
