"""Options that say which column of a labelled file is whose label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import click

from polyhead.cli.command import option
from polyhead.cli.options import Column
from polyhead.cli.output import note
from polyhead.data import labelled
from polyhead.data.columns import Columns, Source
from polyhead.errors import ConfigError
from polyhead.tasks.task import Task

Labels = Annotated[
    tuple[str, ...],
    option(
        "Column of a task's labels, tags, spans or answers. TASK may be left out if one task is scored. [default: the "
        "column of the task's name; of one task label, tags, spans or answers]",
        "--label",
        metavar="[TASK=]COLUMN",
    ),
]


class LabelledColumns(Columns):
    """The columns that options name; None: those of the task's kind."""

    labels: Labels = ()
    text: Annotated[Column, option("Column of the text, or of the question [default: text, or question].")] = None
    text_b: Annotated[
        Column, option("Column of the second text of a pair, or of the context [default: text_b, or context].")
    ] = None
    tokens: Annotated[
        Column, option("Column of the list of tokens, for tagging with a label for each [default: tokens, if any].")
    ] = None
    choices: Annotated[Column, option("Column of the list of options, for multiple_choice [default: choices].")] = None
    separator: Annotated[
        str | None, option("Text between several labels, tokens or options in one cell.", metavar="TEXT")
    ] = None
    overlaps: Annotated[
        Literal["longest", "skip"] | None,
        option("Labelled spans that overlap: keep the longest, or leave the row out."),
    ] = None
    empty: Annotated[
        Literal["none", "skip"] | None,
        option(
            "What an empty label cell says: none of the labels, or that the row is not labelled. [default: none for "
            "multi_label, else skip]"
        ),
    ] = None

    @property
    def roles(self) -> dict[str, str]:
        """The columns of texts that are named, by role."""
        return {role: name for role, name in (("text", self.text), ("text_b", self.text_b)) if name}

    @property
    def is_named(self) -> bool:
        """Whether anything is said of columns."""
        return self != LabelledColumns()


def labelled_sources(
    tasks: Mapping[str, Task], names: Sequence[str], file: str, columns: LabelledColumns
) -> dict[str, Source]:
    """Where each task's labels are; what is guessed is printed on standard error."""
    labels: dict[str | None, str] = {}
    for value in columns.labels:
        task, mark, column = value.partition("=")
        is_named = bool(mark) and task in (names or tasks)
        labels[task if is_named else None] = column if is_named else value
    try:
        return labelled.sources_of(tasks, names, file, columns, labels, say=note)
    except ConfigError as error:
        if "argument" in error.facts:
            raise click.BadParameter(f"{error.what}: {error.do}", param_hint="'--label'") from None
        raise
