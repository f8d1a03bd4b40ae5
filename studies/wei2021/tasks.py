"""The eight tasks of the study and which of their rows it uses."""

from __future__ import annotations

from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import numpy as np

from polyhead.project.recipes import Training
from polyhead.project.strategies import Branch
from polyhead.project.tables import TaskEntry
from polyhead.values import Value

if TYPE_CHECKING:
    from polyhead.train.data.prepared import Prepared, Split

TRAINING = Training(epochs=3, patience=3, batch=16, learning_rate=2e-4, warmup=0.1)
ROWS = {"cola": 2000, "sst2": 2000, "emotion": 1500}  # sets of short texts take more rows in the same time
OTHER_ROWS = 1000


class Size(Value):
    """How much of each set is used: training rows at most, and rows of train set aside for every choice."""

    train: int | None = None  # None: ROWS, else OTHER_ROWS
    validation: int = 400

    def rows(self, task: str) -> int:
        """Training rows of a task."""
        return self.train or ROWS.get(task, OTHER_ROWS)


def entries(data: str) -> dict[str, TaskEntry]:
    """The tasks. The reported split is test where it has labels, else the published validation split."""
    single = {"text": "text"}
    pair = {"pair": "joined", "text": "text_a", "text_b": "text_b"}
    entailment = ("entailment", "not_entailment")
    declared: dict[str, tuple[str, str, dict[str, Any]]] = {
        "cola": ("glue_cola", "validation", {"labels": ("unacceptable", "acceptable"), "metric": "matthews", **single}),
        "sst2": ("glue_sst2", "test", {"labels": ("negative", "positive"), "metric": "accuracy", **single}),
        "mrpc": ("glue_mrpc", "test", {"labels": ("not_equivalent", "equivalent"), "metric": "accuracy", **pair}),
        "rte": ("glue_rte", "validation", {"labels": entailment, "metric": "accuracy", **pair}),
        "stsb": ("glue_stsb", "test", {"range": (0.0, 5.0), "metric": "pearson", **pair}),
        "qnli": ("glue_qnli", "validation", {"labels": entailment, "metric": "accuracy", **pair}),
        "emotion": (
            "tweeteval_emotion",
            "test",
            {"labels": ("anger", "joy", "optimism", "sadness"), "metric": "macro_f1", **single},
        ),
        "offensive": (
            "tweeteval_offensive",
            "test",
            {"labels": ("not-offensive", "offensive"), "metric": "macro_f1", **single},
        ),
    }
    return {
        name: TaskEntry(
            name=name,
            kind="regression" if "range" in facts else "single_label",
            train=f"{data}/{folder}/train.jsonl.gz",
            test=f"{data}/{folder}/{split}.jsonl.gz",
            **facts,
        )
        for name, (folder, split, facts) in declared.items()
    }


TASKS = tuple(entries(""))


def prepared_for(entry: TaskEntry, size: Size) -> Prepared:
    """Training and validation rows are drawn from the train file by a fixed shuffle, the same for every seed."""
    from polyhead.data.read import read
    from polyhead.train.data.prepared import Prepared, Split
    from polyhead.train.runs import stream

    task = entry.task()
    train = read(entry.source(entry.train, FilePath()), task)
    assert entry.test is not None
    test = read(entry.source(entry.test, FilePath()), task)
    order = np.random.default_rng(stream(0, "subset", entry.name)).permutation(len(train.targets))
    held, used = order[: size.validation], order[size.validation :][: size.rows(entry.name)]
    return Prepared(
        task=task,
        strategy=Branch(),
        training=TRAINING,
        team=None,
        train=_split("train", train, used),
        validation=_split("validation", train, held),
        test=Split(name="test", examples=test),
    )


def _split(name: str, examples: Any, members: np.ndarray) -> Split:

    from polyhead.train.data.prepared import Split

    chosen = sorted(members.tolist())
    return Split(name=name, examples=examples.take([int(i) for i in chosen]))
