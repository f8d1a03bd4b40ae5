"""From a project file to checked examples: what each task will train on, and what was skipped and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from polyhead.errors import EmptyData
from polyhead.project.recipes import Frozen
from polyhead.project.tables import Project, TaskEntry, strategy_of, training_of
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.read import Examples, read
from polyhead.tasks.split import TaskExamples, overlapping, split, split_together
from polyhead.tasks.task import Task
from polyhead.text.question import Given, read_alone
from polyhead.text.tokenize import Input
from polyhead.train.data.prepared import Prepared, Split
from polyhead.train.data.units import units_of
from polyhead.train.loop.feed import stream
from polyhead.train.recipes.donor import kept_donors


def prepare(project: Project, folder: Path) -> list[Prepared]:
    """Reads every task's files; errors name task, file and row.

    Where tasks that are trained together read the same rows or texts, they hold out the same ones for validation.
    """
    donors = kept_donors(project, folder)
    whole = {entry.name: _whole(entry, folder) for entry in project.tasks}
    halves = _halves(project, whole)
    several = [
        _prepared(project, entry, folder, whole[entry.name].examples, halves.get(entry.name)) for entry in project.tasks
    ]
    for p in several:
        if p.task.name in donors:
            held_out = {split.name: split.digest for split in p.splits if split.name != "train"}
            donors[p.task.name].check_rows(p.task.name, held_out)
    return [msgspec.structs.replace(p, donor=donors.get(p.task.name)) for p in several]


def _whole(entry: TaskEntry, folder: Path) -> TaskExamples:
    task, source = entry.task(), entry.source(entry.train, folder)
    return TaskExamples(task=task, examples=read(source, task), path=source.path)


def _halves(project: Project, whole: Mapping[str, TaskExamples]) -> dict[str, tuple[Examples, Examples]]:
    """(kept, held out) of the tasks that hold a share out."""
    shares = {e.name: e.validation for e in project.tasks if isinstance(e.validation, float)}
    seeds = {e.name: training_of(project, e).seed for e in project.tasks}
    halves: dict[str, tuple[Examples, Examples]] = {}
    for names in _trained_together(project):
        for several in overlapping([whole[name] for name in names if name in shares]):
            if len(several) == 1:
                name = several[0].task.name
                seed = stream(seeds[name], "split", name)
                halves[name] = split(several[0].examples, shares[name], seed, several[0].task)
                continue
            alike: dict[tuple[float, int], list[TaskExamples]] = {}
            for member in several:
                alike.setdefault((shares[member.task.name], seeds[member.task.name]), []).append(member)
            for (share, seed), members in alike.items():
                both = split_together(members, share, stream(seed, "split"))
                halves |= {member.task.name: pair for member, pair in zip(members, both, strict=True)}
    return halves


def _trained_together(project: Project) -> list[tuple[str, ...]]:
    """The names of all tasks, in lists of those that learn the same arrays."""
    # Also trunks that learn one after the other: a task stands on several. And donors, which are trained like that.
    if not isinstance(project.recipe, Frozen) or project.donors is not None:
        return [tuple(entry.name for entry in project.tasks)]
    summaries = [(entry.name,) for entry in project.tasks if entry.known_kind.owns_model]
    others = [entry for entry in project.tasks if not entry.known_kind.owns_model]
    return units_of({entry.name: strategy_of(project, entry) for entry in others}) + summaries


def _prepared(
    project: Project, entry: TaskEntry, folder: Path, whole: Examples, halves: tuple[Examples, Examples] | None
) -> Prepared:
    task, training = entry.task(), training_of(project, entry)
    if halves is not None:
        train, validation = halves
    else:
        assert not isinstance(entry.validation, float)
        train, validation = whole, read(entry.source(entry.validation, folder), task)
    test = read(entry.source(entry.test, folder), task) if entry.test is not None else None
    for name, examples in (("train", train), ("validation", validation), ("test", test)):
        if examples is not None and not examples.targets:
            raise EmptyData(
                f"task '{task.name}': nothing is left to use in its {name} split",
                got=examples.report,
                do="check the label column and the skipped rows",
            )
    if task.metric is None:
        task = msgspec.structs.replace(task, metric=kind_of(task).fitting_metric(task, train.targets))
    return Prepared(
        task=task,
        strategy=strategy_of(project, entry),
        training=training,
        team=entry.team,
        train=Split(name="train", examples=train),
        validation=Split(name="validation", examples=validation),
        test=Split(name="test", examples=test) if test is not None else None,
        whole=whole if halves is not None else None,
    )


def single_inputs(inputs: Sequence[Given], task: Task) -> list[list[Input]]:
    """What the trunk reads for these inputs: themselves, for pairs read separately the first and second texts.

    For questions with options it is every option's pair, one question after the other.
    """
    alone = read_alone(inputs)
    if task.pair != "separate":
        return [alone]
    return [[(pair[0],) for pair in alone], [(pair[-1],) for pair in alone]]
