"""Prepared tasks: examples by split, and the facts that determine the trained part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from polyhead.data.read import Examples
from polyhead.encoder.data import arrays_digest
from polyhead.errors import ConfigError
from polyhead.project.recipes import Training
from polyhead.project.strategies import Strategy
from polyhead.tasks.task import Task, kind_of
from polyhead.text.question import read_alone
from polyhead.train.data.windows import reads_windows

TRAINER = 5  # incremented when the same declaration and data would train another part


FOLDED_BELOW, FOLDS = 1000, 5  # labelled rows, and the folds in which fewer are held out
FEW = 16  # average rows per label up to which the labels' words are a prior of linear heads
MANY_TOKENS = 2**18  # of the rows learned from: float16 states of more than these exceed 200 MB at width 384
TOKEN_BYTES, LONG_TEXT = 4, 512  # of text, about; tokens of a text that count at most


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """The examples of one split, and its name in reports."""

    name: str
    examples: Examples

    @property
    def digest(self) -> str:
        """SHA-256, in hex, of inputs and targets in order."""
        return self.examples.digest


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A task with everything that it is trained on."""

    task: Task
    strategy: Strategy
    training: Training
    team: str | None
    train: Split
    validation: Split
    test: Split | None
    whole: Examples | None = None  # train and validation together, if the latter is a held-out share
    donor: Donor | None = None  # a donor trained by an earlier run; None: no donor, or this run trains it
    columns: tuple[str, ...] = ()  # digests of a store's features for its heads; (): features of texts
    finds_threshold: bool = False  # whether held-out rows choose from which probability labels are given

    @property
    def folded(self) -> bool:
        """Whether each labelled row is held out once: with few rows, a held-out share says too little."""
        few = self.whole is not None and len(self.whole.targets) < FOLDED_BELOW
        return few and self.strategy.reads_kept_features

    @property
    def reads_label_words(self) -> bool:
        """Whether rows are few and labels are words, one of which answers one text."""
        task, kind = self.task, kind_of(self.task)
        if not self.strategy.reads_kept_features or self.columns or task.pair != "none":
            return False
        few = len((self.whole or self.train.examples).targets) <= FEW * len(task.labels)
        are_words = all(any(map(str.isalpha, label)) for label in task.labels)
        return few and kind.loss == "cross_entropy" and are_words

    @property
    def weighs_branches(self) -> bool:
        """Whether effort 'best' weighs branches against the task's heads, where texts can be encoded."""
        training = self.training
        return training.effort == "best" and len(self.strategy.candidates(self.task, 1, training.effort)) > 1

    @property
    def has_many_tokens(self) -> bool:
        """Whether kept states of tokens have a byte a number, since there are so many, and no codec is named."""
        if not self.strategy.reads_kept_features or self.strategy.names_codec or self.columns:
            return False
        return self.tokens > MANY_TOKENS

    @property
    def tokens(self) -> int:
        """The number of tokens, about, of the training and validation rows, from the bytes of their texts."""
        rows = (texts for split in (self.train, self.validation) for texts in read_alone(split.examples.inputs))
        return sum(min(len(text.encode()) // TOKEN_BYTES, LONG_TEXT) for texts in rows for text in texts)

    @property
    def splits(self) -> tuple[Split, ...]:
        """Train, validation, and test if present."""
        return (self.train, self.validation) + ((self.test,) if self.test else ())

    def scores(self, outputs: Mapping[str, Sequence[np.ndarray]]) -> dict[str, dict[str, float]]:
        """Every metric of splits, from the outputs for each of their rows."""
        splits = {split.name: split.examples for split in self.splits}
        return {name: splits[name].scores(self.task, split_outputs) for name, split_outputs in outputs.items()}

    def fingerprint(self) -> dict[str, object]:
        """What determines the trained part, in addition to the trunk; with an equal fingerprint nothing is retrained.

        Test rows are not included: no part is trained on them or chosen by them.
        """
        donor = {} if self.donor is None else {"donor": self.donor.digest}
        columns = {"columns": list(self.columns)} if self.columns else {}
        words = {"label_words": True} if self.reads_label_words else {}
        tokens = {"many_tokens": True} if self.has_many_tokens else {}
        threshold = {"finds_threshold": True} if self.finds_threshold else {}
        balanced = {"balanced_shares": True} if self.training.class_weights and self.train.examples.shares else {}
        by_spans = self.strategy.reads_kept_features and kind_of(self.task).default_metric(self.task) == "span_f1"
        spans = {"penalty_by_spans": True} if by_spans else {}
        training = msgspec.to_builtins(self.training)
        windows = {"windows": True} if reads_windows(self.task) and not kind_of(self.task).per_word else {}
        return (donor | columns | words | tokens | threshold | windows | balanced | spans) | {
            "trainer": TRAINER,
            "task": msgspec.to_builtins(self.task),
            "strategy": msgspec.to_builtins(self.strategy if self.columns else self.strategy.settled()),
            "training": {key: value for key, value in training.items() if key != "minutes" or value is not None},
            "data": split_rows([self.train, self.validation]),
        }


def split_rows(splits: Sequence[Split]) -> dict[str, dict[str, object]]:
    """The number of rows of each split, and their digest."""
    return {s.name: {"rows": len(s.examples.targets), "sha256": s.digest} for s in splits}


class Donor(msgspec.Struct, frozen=True, kw_only=True):
    """Arrays that a task takes from its donor, and the origin of the donor."""

    arrays: dict[str, np.ndarray]  # prompt.weight (rows, width), head.hidden.weight (hidden, width) and its bias
    trunk: str  # digest of the trunk below it
    held_out: dict[str, str]  # SHA-256 of the rows that it was not trained on, by split: validation, test

    @property
    def digest(self) -> str:
        """Digest of the arrays alone."""
        return arrays_digest(self.arrays)

    def check_rows(self, task: str, splits: Mapping[str, str]) -> None:
        """Raises ConfigError if the task is evaluated on other rows than its donor; `splits`: their SHA-256."""
        for split, digest in splits.items():
            if self.held_out.get(split) != digest:
                raise ConfigError(
                    f"task '{task}': its donor may have trained on rows of its {split} split",
                    got=f"other {split} rows than the donor's" if split in self.held_out else "a donor without them",
                    do=f"give {split} rows by a file in both projects, or train the donors with the same files, tasks "
                    "and seed",
                )
