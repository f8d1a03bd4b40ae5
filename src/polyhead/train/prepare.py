"""From a project file to checked examples: what each task will train on, and what was skipped and why."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from polyhead.bundle.manifest import FIRST_KEYS
from polyhead.errors import EmptyData
from polyhead.project import Project, TaskEntry, Training, strategy_of, training_of
from polyhead.strategy import Strategy
from polyhead.tasks.read import Examples, read
from polyhead.tasks.split import split
from polyhead.tasks.task import Task
from polyhead.text.question import Given, Question, read_alone, texts_of
from polyhead.text.tokenise import Input
from polyhead.train.fit import stream
from polyhead.train.windows import reads_windows

TRAINER = 1  # counted up when the same declaration and data would train another part


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

    @property
    def splits(self) -> tuple[Split, ...]:
        """Train, validation, and test where there is one."""
        return (self.train, self.validation) + ((self.test,) if self.test else ())

    def fingerprint(self) -> dict[str, object]:
        """What decides the trained part, besides the trunk; equal fingerprints need no second training."""
        return {
            "trainer": TRAINER + reads_windows(self.task),  # at first it read the first window alone
            "task": _told(self.task),
            "strategy": msgspec.to_builtins(self.strategy),
            "training": msgspec.to_builtins(self.training),
            "data": {s.name: {"rows": len(s.examples.targets), "sha256": s.digest} for s in self.splits},
        }


def prepare(project: Project, folder: Path) -> list[Prepared]:
    """Reads every task's files; errors name task, file and row."""
    return [_prepared(project, entry, folder) for entry in project.tasks]


def _prepared(project: Project, entry: TaskEntry, folder: Path) -> Prepared:
    task, training = entry.task(), training_of(project, entry)
    train = read(entry.source(entry.train, folder), task)
    if isinstance(entry.validation, float):
        train, validation = split(train, entry.validation, stream(training.seed, "split", task.name), task)
    else:
        validation = read(entry.source(entry.validation, folder), task)
    test = read(entry.source(entry.test, folder), task) if entry.test is not None else None
    for name, examples in (("train", train), ("validation", validation), ("test", test)):
        if examples is not None and not examples.targets:
            raise EmptyData(
                f"task '{task.name}': nothing is left to use in its {name} split",
                got=examples.report,
                do="check the label column and the skipped rows",
            )
    return Prepared(
        task=task,
        strategy=strategy_of(project, entry),
        training=training,
        team=entry.team,
        train=Split(name="train", examples=train),
        validation=Split(name="validation", examples=validation),
        test=Split(name="test", examples=test) if test is not None else None,
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
