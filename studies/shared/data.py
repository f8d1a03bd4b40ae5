"""The real data sets that studies use, by the name of their folder; kept beside the project, never part of it."""

from __future__ import annotations

from functools import cache
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from polyhead.errors import DataError
from polyhead.project.tables import TaskEntry
from polyhead.values import Value

if TYPE_CHECKING:
    from polyhead.data.read import Examples
    from polyhead.project.recipes import Training
    from polyhead.project.strategies import Strategy
    from polyhead.train.data.prepared import Prepared, Split

PAIR = {"pair": "joined", "text": "text_a", "text_b": "text_b"}
FORMS: dict[str, dict[str, Any]] = {
    "single_text": {"kind": "single_label"},
    "pair": {"kind": "single_label", **PAIR},
    "regression": {"kind": "regression", **PAIR},
    "tagging": {"kind": "tagging", "tokens": "tokens", "tags": "tags"},
    "multiple_choice": {"kind": "multiple_choice", "text": "question"},
    "span": {"kind": "span", "text": "question", "text_b": "context"},
    "summarization": {"kind": "summarization", "text": "document", "label": "summary"},
}


class Set(Value):
    """A data set as a task: its folder, the split that is reported, and the metric, where not the kind's first."""

    folder: str
    name: str = ""  # of the task; left out, the folder's
    test: str = "test"
    metric: str | None = None
    range: tuple[float, float] | None = None
    group: str = ""  # of related tasks

    @property
    def task(self) -> str:
        """The task's name."""
        return self.name or self.folder


def entry_of(data: FilePath, dataset: Set) -> TaskEntry:
    """The set as a declared task; raises DataError where its folder is missing."""
    folder = data / dataset.folder
    try:
        facts = msgspec.json.decode((folder / "meta.json").read_bytes())
    except OSError as error:
        raise DataError(
            f"no data set '{dataset.folder}' in {data}",
            got=error.strerror,
            do="give the folder that holds the data sets",
        ) from None
    return TaskEntry(
        name=dataset.task,
        train=str(folder / "train.jsonl.gz"),
        test=str(folder / f"{dataset.test}.jsonl.gz"),
        labels=tuple(facts.get("labels") or ()),
        metric=dataset.metric,
        range=dataset.range,
        **FORMS[facts["kind"]],
    )


def prepared_of(
    data: FilePath,
    dataset: Set,
    *,
    train: int,
    validation: int,
    test: int | None = None,
    strategy: Strategy,
    training: Training,
) -> Prepared:
    """Training and validation rows drawn from the train file by a fixed shuffle.

    Of the reported split at most `test` rows, evenly spaced; None: it is whole.
    """
    from polyhead.train.data.prepared import Prepared, Split

    entry = entry_of(data, dataset)
    drawn, reported = _read(entry, train, validation)
    count = len(reported.targets)
    if test is not None and test < count:
        reported = reported.take(sorted({round(i) for i in np.linspace(0, count - 1, test)}))
    return Prepared(
        task=entry.task(),
        strategy=strategy,
        training=training,
        team=None,
        train=drawn[0],
        validation=drawn[1],
        test=Split(name="test", examples=reported),
    )


@cache
def train_rows(data: FilePath, dataset: Set) -> int:
    """Rows of the set's train file."""
    facts = msgspec.json.decode((data / dataset.folder / "meta.json").read_bytes())
    return int(facts["sizes"]["train"])


@cache
def _read(entry: TaskEntry, train: int, validation: int) -> tuple[tuple[Split, Split], Examples]:
    from polyhead.data.read import read
    from polyhead.train.runs import stream

    task = entry.task()
    examples = read(entry.source(entry.train, FilePath()), task)
    assert entry.test is not None
    test = read(entry.source(entry.test, FilePath()), task)
    order = np.random.default_rng(stream(0, "subset", entry.name)).permutation(len(examples.targets))
    held, used = order[:validation], order[validation:][:train]
    return (drawn("train", examples, used), drawn("validation", examples, held)), test


def drawn(name: str, examples: Examples, members: np.ndarray) -> Split:
    """Some rows of a file, in its order, as a split."""
    from polyhead.train.data.prepared import Split

    return Split(name=name, examples=examples.take(sorted(members.tolist())))
