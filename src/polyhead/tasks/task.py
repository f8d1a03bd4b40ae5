"""A task: a named question about a text, with its kind, labels and metric."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from polyhead.arguments import check_fields
from polyhead.config import Value
from polyhead.errors import BadName, ConfigError

KindName = Literal[
    "single_label", "multi_label", "regression", "tagging", "multiple_choice", "span", "summarization"
]
PairMode = Literal["none", "joined", "separate"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Task(Value):
    """One question. Checked when made: BadName for its name, ConfigError for a field that it cannot use."""

    name: str
    kind: KindName
    labels: tuple[str, ...] = ()  # ordered: label i is output i of the head, for as long as the weights live
    pair: PairMode = (
        "none"  # joined: one input (A, separator, B), always so for span; separate: two, compared
    )
    metric: str | None = None  # None: the kind's default
    threshold: float = 0.5  # multi_label: a label is given from this probability on
    range: tuple[float, float] | None = None  # regression: lowest and highest value
    positive: str | None = None  # single_label: the label of metric 'f1'
    long_texts: Literal["cut", "windows"] = "cut"
    null_answers: bool = False  # span: whether a text may hold no answer
    decoder: Literal["greedy", "constrained"] = "greedy"  # tagging: each word alone, or BIO labels in a row

    def __post_init__(self) -> None:
        from polyhead.tasks.kinds import kind_of  # here, since the kinds are about tasks

        check_fields(self)
        check_name(self.name)
        if self.pair == "none" and (pair := kind_of(self).pair) is not None:
            msgspec.structs.force_setattr(self, "pair", pair)
        kind_of(self).check(self)
        if self.decoder != "greedy" and self.kind != "tagging":
            raise ConfigError(
                f"task '{self.name}': kind '{self.kind}' has no use for 'decoder'",
                got=self.decoder,
                do="remove 'decoder' or choose kind 'tagging'",
            )
        if self.long_texts == "windows" and self.pair == "separate":
            raise ConfigError(
                f"task '{self.name}': texts of a pair that are read separately are not read in windows",
                allowed="long_texts = 'cut', or pair = 'joined'",
            )


def owner_of(task: Task) -> str:
    """The owner of a task's own arrays."""
    return f"task:{task.name}"


def check_name(name: str, what: str = "task") -> None:
    """Raises BadName unless `name` is safe as the name of a folder and of a metric on every system."""
    if not _NAME.fullmatch(name) or ".." in name or name.endswith("."):
        raise BadName(
            f"a {what} cannot have this name",
            got=name,
            allowed="1 to 64 letters, digits, '.', '_', '-'; a letter or digit first; no '..' or final '.'",
        )
