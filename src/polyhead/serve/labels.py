"""The mapping file of a decisions API: which task answers a question, and which label stands for which option."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from polyhead.engine.inputs import input_types_of
from polyhead.errors import ConfigError, suggestion
from polyhead.nesting import toml_of
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.values import Value, to_value

ANSWERING = ("softmax", "sigmoid", "range")  # of `Kind.scores`: kinds whose answers to a text hold probabilities


class Renamed(Value):
    """One question: the task that answers it, and the label that each of its options stands for."""

    task: str
    labels: dict[str, str] = {}  # by option; of a yes/no question by "true" and "false"


def read_labels(path: Path | str) -> dict[str, Renamed]:
    """The questions of a mapping file, by name or id; raises ConfigError that names the file and the wrong value."""
    path = Path(path)
    try:
        tables = toml_of(path)
    except OSError as error:
        what = f"the mapping file {path} cannot be read"
        raise ConfigError(what, got=error.strerror, do="give the path of a TOML file") from None
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigError(
                f"{path}: '{name}' is no table",
                got=table,
                allowed="a table a question, with the keys 'task' and 'labels'",
                do=f'write [{name}] and, below it, task = "..."',
            )
    return {name: to_value(table, Renamed, source=f"{path}, [{name}]") for name, table in tables.items()}


def check_served_labels(renamed: Mapping[str, Renamed], tasks: Mapping[str, Task]) -> None:
    """Raises ConfigError for a question whose task or label is not there, or whose task answers no question."""
    for name, entry in renamed.items():
        if entry.task not in tasks:
            raise ConfigError(
                f"the mapping file gives question '{name}' to a task that is not in the bundle",
                got=entry.task,
                allowed=sorted(tasks),
                do=suggestion(entry.task, tasks) or "name one of these tasks, or take the question out",
            )
        task = tasks[entry.task]
        if (why := why_no_answers(task)) is not None:
            raise ConfigError(
                f"the mapping file gives question '{name}' to task '{task.name}', which answers no question",
                got=why,
                allowed=sorted(other for other, each in tasks.items() if why_no_answers(each) is None),
                do="name one of these tasks, or take the question out",
            )
        known = {*task.labels}
        for option, label in entry.labels.items():
            if label not in known:
                raise ConfigError(
                    f"the mapping file, question '{name}': option '{option}' stands for a label that task "
                    f"'{task.name}' does not have",
                    got=label,
                    allowed=task.labels or "no labels: the task answers with a number",
                    do=suggestion(label, task.labels) or "name one of its labels",
                )


def why_no_answers(task: Task) -> str | None:
    """Why a task answers no question of a decisions API; None for one that does."""
    kind = kind_of(task)
    if kind.owns_model or kind.per_word or kind.scores not in ANSWERING:
        return f"a task of kind '{task.kind}' gives no probabilities of a whole text"
    if input_types_of(task) != ("text",):
        return "it reads a pair of texts, and a question is about one text"
    return None
