"""From a project file to checked examples: training rows of each task, skipped rows, and donors."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath
from typing import Literal

import msgspec
import numpy as np

from polyhead.bundle.format import BUNDLE
from polyhead.bundle.read import Bundle
from polyhead.data.columns import columns_of, no_column
from polyhead.data.read import Examples, read
from polyhead.data.rows import Rows
from polyhead.data.shares import is_stored
from polyhead.data.split import TaskExamples, hold_out, overlapping, split_together, with_weight
from polyhead.encoder.data import TrunkData
from polyhead.errors import ConfigError, EmptyData, MissingColumn
from polyhead.plan import Path
from polyhead.project.generation import decoder_for
from polyhead.project.recipes import Frozen
from polyhead.project.strategies import Strategy
from polyhead.project.strategies.generating import Generating
from polyhead.project.tables import DataFile, Project, TaskEntry, strategy_of, training_of
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.text.question import Question, TaskInput, read_alone
from polyhead.text.tokenize import Input
from polyhead.train.data.prepared import Donor, Prepared, Split
from polyhead.train.data.source import FeatureRequest, FeatureSource
from polyhead.train.data.stored import StoredScores
from polyhead.train.data.task_groups import task_groups
from polyhead.train.data.windows import TextWindows, windowed
from polyhead.train.runs import stream


def prepare(project: Project, folder: FilePath, *, stored: StoredScores | None = None) -> list[Prepared]:
    """Reads every task's files; errors name task, file and row. `stored` are scores to use as soft labels.

    Tasks that are trained together and read the same rows or texts hold out the same ones for validation.
    """
    donors = kept_donors(project, folder)
    whole = {entry.name: _whole(entry, folder, stored) for entry in project.tasks}
    halves = _halves(project, whole)
    prepared = [
        _prepared(project, entry, folder, whole[entry.name].examples, halves.get(entry.name), stored)
        for entry in project.tasks
    ]
    for p in prepared:
        if p.task.name in donors:
            held_out = {split.name: split.digest for split in p.splits if split.name != "train"}
            donors[p.task.name].check_rows(p.task.name, held_out)
    return [msgspec.structs.replace(p, donor=donors.get(p.task.name)) for p in prepared]


def _whole(entry: TaskEntry, folder: FilePath, stored: StoredScores | None) -> TaskExamples:
    path, examples = entry.source(entry.train, folder).path, _examples(entry, "train", folder, stored)
    for key, values in (("group", examples.groups), ("weight", examples.weights)):
        if (column := getattr(entry, key)) is not None and values is None:
            raise no_column(
                path, column, Rows(path).survey().columns, by=f"name it with '{key}' of task '{entry.name}'"
            )
    task = entry.task()
    return TaskExamples(task=task, examples=with_weight(examples, task), path=path)


def _examples(
    entry: TaskEntry, key: Literal["train", "validation", "test"], folder: FilePath, stored: StoredScores | None
) -> Examples:
    """The rows of the file under this key of the entry, with soft labels if the task declares them."""
    try:
        return _rows_of(entry, getattr(entry, key), folder, stored)
    except MissingColumn as error:
        raise error.at(f"task '{entry.name}', {key}") from None


def _rows_of(entry: TaskEntry, file: str | DataFile, folder: FilePath, stored: StoredScores | None) -> Examples:
    task = entry.task()
    if not isinstance(entry.soft, str) or not is_stored(entry.soft):
        return read(entry.source(file, folder), task)
    if stored is None:
        raise ConfigError(
            f"task '{task.name}' learns from scores of a store, and none is given",
            got=f"soft = '{entry.soft}'",
            do="train with --features STORE, over a frozen trunk",
        )
    source = entry.source(file, folder)
    columns_of(source, task)  # errors in the declaration come before missing columns of the store
    return read(source, task, stored=stored.of(task, entry.soft))


def _halves(project: Project, whole: Mapping[str, TaskExamples]) -> dict[str, tuple[Examples, Examples]]:
    """(kept, held out) of the tasks that hold out a share."""
    shares = {e.name: e.validation for e in project.tasks if isinstance(e.validation, float)}
    seeds = {e.name: training_of(project, e).seed for e in project.tasks}
    reading_kept = {e.name for e in project.tasks if strategy_of(project, e).reads_kept_features}
    halves: dict[str, tuple[Examples, Examples]] = {}
    for names in _trained_together(project):
        for group in overlapping([whole[name] for name in names if name in shares]):
            if len(group) == 1:
                name = group[0].task.name
                seed = stream(seeds[name], "split", name)
                halves[name] = hold_out(
                    group[0].examples, shares[name], seed, group[0].task, even_single=name in reading_kept
                )
                continue
            alike: dict[tuple[float, int], list[TaskExamples]] = {}
            for member in group:
                alike.setdefault((shares[member.task.name], seeds[member.task.name]), []).append(member)
            for (share, seed), members in alike.items():
                pairs = split_together(members, share, stream(seed, "split"))
                halves |= {member.task.name: pair for member, pair in zip(members, pairs, strict=True)}
    return halves


def _trained_together(project: Project) -> list[tuple[str, ...]]:
    """The names of all tasks, in lists of those that train the same arrays."""
    # Also for trunks trained one after another, as a task depends on several, and for donors, which are trained
    # likewise.
    if not isinstance(project.recipe, Frozen) or project.donors is not None:
        return [tuple(entry.name for entry in project.tasks)]
    return task_groups({entry.name: strategy_of(project, entry) for entry in project.tasks})


def _prepared(
    project: Project,
    entry: TaskEntry,
    folder: FilePath,
    whole: Examples,
    halves: tuple[Examples, Examples] | None,
    stored: StoredScores | None,
) -> Prepared:
    task, training = entry.task(), training_of(project, entry)
    if halves is not None:
        train, validation = halves
    else:
        assert not isinstance(entry.validation, float)
        train, validation = whole, _examples(entry, "validation", folder, stored)
    test = _examples(entry, "test", folder, stored) if entry.test is not None else None
    for name, examples in (("train", train), ("validation", validation), ("test", test)):
        if examples is not None and not examples.targets:
            raise EmptyData(
                f"task '{task.name}': nothing is left to use in its {name} split",
                got=examples.report,
                do="check the label column and the skipped rows",
            )
    if task.metric is None:
        task = msgspec.structs.replace(task, metric=kind_of(task).fitting_metric(task, whole.targets))
    return Prepared(
        task=task,
        strategy=strategy_of(project, entry),
        training=training,
        team=entry.team,
        train=Split(name="train", examples=train),
        validation=Split(name="validation", examples=validation),
        test=Split(name="test", examples=test) if test is not None else None,
        whole=whole if halves is not None else None,
        finds_threshold="threshold" in kind_of(task).uses and entry.threshold is None,
    )


def with_decoders(prepared: Sequence[Prepared], data: TrunkData) -> list[Prepared]:
    """The tasks; those that write texts with the decoder and the rules of writing that the trunk determines.

    Raises ConfigError if a decoder has no initial arrays or cannot follow the rules, and MissingExtra if its texts
    could not be scored.
    """
    with_rules = list(prepared)
    for index, p in enumerate(with_rules):
        if isinstance(p.strategy, Generating):
            first = p.validation.examples.take([0])
            first.scores(p.task, [references[0] for references in first.targets])  # not after hours of training
            decoder, rules, start = decoder_for(p.strategy.choice, data, task=p.task.name)
            strategy = msgspec.structs.replace(p.strategy, decoder=decoder, start=start)
            task = msgspec.structs.replace(p.task, generation=rules)
            with_rules[index] = msgspec.structs.replace(p, task=task, strategy=strategy)
    return with_rules


def single_inputs(inputs: Sequence[TaskInput], task: Task) -> list[list[Input]]:
    """The texts that the trunk reads for these inputs: for pairs read separately, first and second texts.

    For questions with options, every option's pair, question after question.
    """
    texts = read_alone(inputs)
    if task.pair != "separate":
        return [texts]
    return [[(pair[0],) for pair in texts], [(pair[-1],) for pair in texts]]


def rows_read(examples: Examples) -> list[int]:
    """The row of each text that the trunk reads for these examples: for a question with options, one per option."""
    rows: list[int] = []
    for value, row in zip(examples.inputs, examples.rows, strict=True):
        rows += [row] * (len(value.options) if isinstance(value, Question) and value.options else 1)
    return rows


def arrays_from_donor(strategy: Strategy, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays that the strategy starts from a donor."""
    wanted = strategy.donor_arrays()
    return {name: value for name, value in arrays.items() if wanted and name.startswith(wanted)}


def donor_task(prepared: Prepared) -> Prepared:
    """The task in the form in which its donor is trained, alone over the frozen trunk."""
    donor = prepared.strategy.donor(prepared.task.name, prepared.training)
    assert donor is not None
    return msgspec.structs.replace(prepared, strategy=donor[0], training=donor[1], donor=None)


def kept_donors(project: Project, folder: FilePath) -> dict[str, Donor]:
    """Donors of the project's tasks from its bundle of donors, by task; empty if each run trains its own.

    Raises ConfigError if there is no such bundle, or a task's donor is missing or was trained differently.
    """
    strategies = {entry.name: strategy_of(project, entry) for entry in project.tasks}
    wanted = {name: strategy for name, strategy in strategies.items() if strategy.donor_arrays()}
    if project.donors is None or not wanted:
        return {}
    place = (folder / os.path.expanduser(project.donors)).resolve()
    if place == (folder / project.bundle).resolve():
        raise ConfigError(
            "'donors' and 'bundle' are one folder: tasks would replace what they start from",
            got=place,
            do="give the bundle another name",
        )
    if not (place / BUNDLE).is_file():
        raise ConfigError(
            "'donors' names no bundle",
            got=place,
            allowed="the folder of a bundle that a project with recipe 'donors' made, relative to the project file",
            do="train that project first, or leave 'donors' out: each run then trains its own",
        )
    bundle = Bundle.open(place)
    if missing := sorted(set(wanted) - set(bundle.tasks)):
        raise ConfigError(
            f"tasks have no donor in the bundle {place.name}",
            got=missing,
            allowed=sorted(bundle.tasks),
            do="add them to the project that makes the donors, and train it again",
        )
    return {name: _donor(bundle, name, strategy) for name, strategy in wanted.items()}


def _donor(bundle: Bundle, name: str, strategy: Strategy) -> Donor:
    _check_alike(bundle, name, strategy)
    record = bundle.tasks[name]
    data = record.trained_with["data"]
    return Donor(
        arrays=arrays_from_donor(strategy, bundle.part(name)),
        trunk=bundle.digest,
        held_out={split: rows["sha256"] for split, rows in data.items() if split != "train"},
    )


def _check_alike(bundle: Bundle, name: str, strategy: Strategy) -> None:
    """Raises ConfigError for a task that is not a donor as its strategy requires."""
    record, width = bundle.tasks[name], bundle.architecture.width
    settings = record.trained_with.get("strategy", {})
    prompts = record.path.embed.prompts
    if settings.get("kind") != strategy.kind or len(prompts) != 1:
        raise ConfigError(
            f"task '{name}' of the bundle {bundle.root.name} is no donor",
            got=f"strategy '{settings.get('kind', 'unknown')}', {len(prompts)} prompts in its input",
            allowed=f"strategy '{strategy.kind}', alone in its input",
            do="name a bundle that recipe 'donors' made",
        )
    training = record.trained_with["training"]
    donor = {**settings, "donor_epochs": training["epochs"], "donor_learning_rate": training["learning_rate"]}
    pairs = {field: (getattr(strategy, field), donor[field]) for field in strategy.donor_fields}
    pairs["hidden"] = (pairs["hidden"][0] or width, pairs["hidden"][1] or width)
    differing = {field: pair for field, pair in pairs.items() if pair[0] != pair[1]}
    if differing:
        shown = ", ".join(f"{field} = {value} (donor: {of_donor})" for field, (value, of_donor) in differing.items())
        raise ConfigError(
            f"task '{name}' would start from a donor that was trained otherwise (bundle {bundle.root.name})",
            got=shown,
            do="say the same of both, or train the donors anew",
        )


def wanted(prepared: Prepared, path: Path, source: FeatureSource) -> list[FeatureRequest]:
    """Every input, or every window of it, of every split whose features the task needs."""
    return [request for split in prepared.splits for request in wanted_of(prepared, split, path, source)]


def wanted_of(prepared: Prepared, split: Split, path: Path, source: FeatureSource) -> list[FeatureRequest]:
    """The same for one split."""
    return requests_of(prepared.task, split, path, windowed(prepared.task, split.examples, source.tokenizer))


def requests_of(task: Task, split: Split, path: Path, windows: TextWindows | None) -> list[FeatureRequest]:
    """The requests of one split, or of its windows if `windows` has them."""
    words = split.examples.words if kind_of(task).per_word else None
    origin, rows = f"task '{task.name}', {split.name}", rows_read(split.examples)
    return [
        FeatureRequest(path=path, inputs=inputs, words=words, origin=origin, rows=rows).each(windows)
        for inputs in single_inputs(split.examples.inputs, task)
    ]
