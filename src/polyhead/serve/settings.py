"""What a server allows, what it does where a request leaves it open, and the mapping file of questions to tasks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from polyhead.engine.inputs import input_types_of
from polyhead.engine.queue import QueueLimits
from polyhead.errors import ConfigError, suggestion
from polyhead.nesting import toml_of
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.values import Value, to_value

Unknown = Literal["refuse", "similarity"]


class RequestLimits(Value):
    """The most that one request may hold. What is beyond is refused before any text is read."""

    body_bytes: int = 8 * 2**20
    inputs: int = 1024
    characters: int = 1_000_000  # of one text
    all_characters: int = 2_000_000  # of all texts, with a question's for each of its options
    tokens: int = 524_288  # that the encoder would read for it; 1,024 texts of 512
    answers: int = 65_536  # inputs times tasks; and words, times the tasks that label each
    questions: int = 400  # of a decisions API
    options: int = 255  # of one question
    upload_bytes: int = 2**30  # of a task that is uploaded, where tasks may be changed

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                raise ConfigError(f"'{name}' of a server is too small", got=getattr(self, name), allowed="1 or more")


class ConnectionLimits(Value):
    """What a caller's connection may take of the server. Whoever is slower is closed, also when reading its answer."""

    open: int = 1000  # at once, on all ports
    header_seconds: float = 10.0  # from the connection, or the first byte of a request, to the end of its headers
    body_seconds: float = 30.0  # from there to the end of its body; and for reading what is sent, without a pause
    header_bytes: int = 65_536

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not getattr(self, name) > 0:
                raise ConfigError(
                    f"'{name}' of connections is too small", got=getattr(self, name), allowed="more than 0"
                )


class ServeSettings(Value):
    """All that a server is told when it starts."""

    limits: RequestLimits = RequestLimits()
    queue: QueueLimits = QueueLimits()
    connections: ConnectionLimits = ConnectionLimits()
    timeout: float = 30.0  # seconds that a request may take where it names no deadline
    long_texts: Literal["cut", "refuse"] = "cut"  # texts with more tokens than the trunk reads
    default_task: str | None = None  # of requests for one task that name none
    unknown: Unknown = "refuse"  # questions that no task answers
    labels: Mapping[str, Renamed] = {}  # of a decisions API: questions that are answered by a task of another name
    admin: bool = False  # whether tasks may be changed over HTTP
    watch_seconds: float = 1.0  # between two looks at the bundle's folder; 0: it is not watched
    drain_seconds: float = 30.0  # for answers that are under way when the server is told to stop
    workers: int = 1  # processes that answer at the same address
    cache_bytes: int = 0  # of answers and vectors that are kept for texts to come; 0: none

    def __post_init__(self) -> None:
        if not self.timeout > 0:
            raise ConfigError("'timeout' of a server is too small", got=self.timeout, allowed="more than 0 seconds")
        if self.workers < 1:
            raise ConfigError("'workers' of a server is too small", got=self.workers, allowed="1 or more")
        for name in ("watch_seconds", "drain_seconds", "cache_bytes"):
            if getattr(self, name) < 0:
                raise ConfigError(f"'{name}' of a server is negative", got=getattr(self, name), allowed="0 or more")


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
