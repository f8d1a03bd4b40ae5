"""From a project file to checked examples: what each task will train on, and what was skipped and why."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from polyhead.bundle.manifest import FIRST_KEYS
from polyhead.errors import EmptyData
from polyhead.project import Project, TaskEntry, strategy_of, training_of
from polyhead.recipe import Frozen, Training
from polyhead.strategy import Pooled, Strategy
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.read import Examples, read
from polyhead.tasks.split import Undivided, overlapping, split, split_together
from polyhead.tasks.task import Task
from polyhead.text.question import Given, Question, read_alone, texts_of
from polyhead.text.tokenise import Input
from polyhead.train.donor import Donor, kept_donors
from polyhead.train.feed import stream
from polyhead.train.units import units_of
from polyhead.train.windows import reads_windows

TRAINER = 2  # counted up when the same declaration and data would train another part

FOLDED_BELOW = 1000  # labelled rows


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """The examples of one split and the name under which scores are reported."""

    name: str
    examples: Examples

    @property
    def digest(self) -> str:
        """SHA-256, in hex, of inputs and targets in order."""
        total = hashlib.sha256()
        for given, target in zip(self.examples.inputs, self.examples.targets, strict=True):
            texts = [text.encode("utf-8", "surrogatepass").hex() for text in texts_of(given)]
            parts = [texts, len(given.options)] if isinstance(given, Question) else texts
            total.update(msgspec.json.encode(parts))
            total.update(np.ascontiguousarray(target).tobytes())
        for words in self.examples.words or []:
            total.update(np.ascontiguousarray(words).tobytes())
        return total.hexdigest()


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A task with everything it trains on."""

    task: Task
    strategy: Strategy
    training: Training
    team: str | None
    train: Split
    validation: Split
    test: Split | None
    whole: Examples | None = None  # train and validation together, where the latter is a share held out
    donor: Donor | None = None  # that a run before this one trained; None: none, or this run trains it

    @property
    def folded(self) -> bool:
        """Whether each labelled row is held out once: of few, a share held out says too little."""
        few = self.whole is not None and len(self.whole.targets) < FOLDED_BELOW
        return few and isinstance(self.strategy, Pooled)

    @property
    def splits(self) -> tuple[Split, ...]:
        """Train, validation, and test where there is one."""
        return (self.train, self.validation) + ((self.test,) if self.test else ())

    def fingerprint(self) -> dict[str, object]:
        """What decides the trained part, besides the trunk; equal fingerprints need no second training.

        No part learns from test rows, nor is one chosen by them.
        """
        donor = {} if self.donor is None else {"donor": self.donor.digest}
        return donor | {
            "trainer": TRAINER + reads_windows(self.task),  # at first it read the first window alone
            "task": _told(self.task),
            "strategy": msgspec.to_builtins(self.strategy),
            "training": msgspec.to_builtins(self.training),
            "data": rows_of([self.train, self.validation]),
        }


def rows_of(splits: Sequence[Split]) -> dict[str, dict[str, object]]:
    """How many rows each split has, and their digest."""
    return {s.name: {"rows": len(s.examples.targets), "sha256": s.digest} for s in splits}


def prepare(project: Project, folder: Path) -> list[Prepared]:
    """Reads every task's files; errors name task, file and row.

    Where tasks that are trained together read the same rows or texts, they hold out the same ones for validation.
    """
    donors = kept_donors(project, folder)
    whole = {entry.name: _whole(entry, folder) for entry in project.tasks}
    halves = _halves(project, whole)
    several = [
        _prepared(project, entry, folder, whole[entry.name].examples, halves.get(entry.name))
        for entry in project.tasks
    ]
    for p in several:
        if p.task.name in donors:
            held_out = {split.name: split.digest for split in p.splits if split.name != "train"}
            donors[p.task.name].check_rows(p.task.name, held_out)
    return [msgspec.structs.replace(p, donor=donors.get(p.task.name)) for p in several]


def _whole(entry: TaskEntry, folder: Path) -> Undivided:
    task, source = entry.task(), entry.source(entry.train, folder)
    return Undivided(task=task, examples=read(source, task), path=source.path)


def _halves(project: Project, whole: Mapping[str, Undivided]) -> dict[str, tuple[Examples, Examples]]:
    """(kept, held out) of the tasks that hold a share out."""
    shares = {e.name: e.validation for e in project.tasks if isinstance(e.validation, float)}
    seeds = {e.name: training_of(project, e).seed for e in project.tasks}
    found: dict[str, tuple[Examples, Examples]] = {}
    for names in _trained_together(project):
        for several in overlapping([whole[name] for name in names if name in shares]):
            if len(several) == 1:
                name = several[0].task.name
                seed = stream(seeds[name], "split", name)
                found[name] = split(several[0].examples, shares[name], seed, several[0].task)
                continue
            alike: dict[tuple[float, int], list[Undivided]] = {}
            for one in several:
                alike.setdefault((shares[one.task.name], seeds[one.task.name]), []).append(one)
            for (share, seed), some in alike.items():
                both = split_together(some, share, stream(seed, "split"))
                found |= {one.task.name: pair for one, pair in zip(some, both, strict=True)}
    return found


def _trained_together(project: Project) -> list[tuple[str, ...]]:
    """The names of all tasks, in lists of those that learn the same arrays."""
    # Also trunks that learn one after the other: a task stands on several. And donors, which are trained like that.
    if not isinstance(project.recipe, Frozen) or project.donors is not None:
        return [tuple(entry.name for entry in project.tasks)]
    summaries = [(entry.name,) for entry in project.tasks if entry.kind == "summarization"]
    others = [entry for entry in project.tasks if entry.kind != "summarization"]
    return units_of({entry.name: strategy_of(project, entry) for entry in others}) + summaries


def _prepared(
    project: Project,
    entry: TaskEntry,
    folder: Path,
    whole: Examples,
    halves: tuple[Examples, Examples] | None,
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


def _told(task: Task) -> dict[str, object]:
    """The task's fields; those that early tasks did not have only where they say something."""
    plain: dict[str, object] = msgspec.to_builtins(task)
    fields = msgspec.structs.fields(Task)
    return {f.name: plain[f.name] for f in fields if f.name in FIRST_KEYS[Task] or plain[f.name] != f.default}


def single_inputs(inputs: Sequence[Given], task: Task) -> list[list[Input]]:
    """What the trunk reads for these inputs: themselves, for pairs read separately the first and second texts.

    For questions with options it is every option's pair, one question after the other.
    """
    alone = read_alone(inputs)
    if task.pair != "separate":
        return [alone]
    return [[(pair[0],) for pair in alone], [(pair[-1],) for pair in alone]]
