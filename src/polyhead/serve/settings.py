"""A server's limits and defaults of requests, and the file that maps questions to tasks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from polyhead.engine.inputs import input_types_of
from polyhead.engine.queue import QueueLimits
from polyhead.errors import ConfigError, suggestion
from polyhead.nesting import toml_of
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.values import Value, to_value

Unknown = Literal["refuse", "similarity"]
MIB = 2**20


class RequestLimits(Value):
    """The limits of one request. A larger one is refused before any text is read."""

    body_bytes: Annotated[
        int, Meta(description="MiB of a request's body.", ge=1, extra={"option": "--body-mb", "scale": MIB})
    ] = 8 * MIB
    inputs: Annotated[int, Meta(description="Inputs of a request.", ge=1)] = 1024
    characters: Annotated[int, Meta(description="Characters of one text.", ge=1)] = 1_000_000
    all_characters: Annotated[
        int, Meta(description="Characters of all texts of a request, with a question's for each of its options.", ge=1)
    ] = 2_000_000
    tokens: Annotated[int, Meta(description="Tokens that the encoder reads for one request.", ge=1)] = 524_288
    answers: Annotated[
        int, Meta(description="Inputs times tasks of a request; and its words, times the tasks that label each.", ge=1)
    ] = 65_536
    questions: Annotated[int, Meta(description="Questions of a request to a decisions API.", ge=1)] = 400
    options: Annotated[int, Meta(description="Options of one question.", ge=2)] = 255
    upload_bytes: int = 2**30  # of a task that is uploaded, where tasks may be changed

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                raise ConfigError(f"'{name}' of a server is too small", got=getattr(self, name), allowed="1 or more")


class ConnectionLimits(Value):
    """The limits of a connection. A slower caller is disconnected, also while it reads its answer."""

    open: Annotated[
        int, Meta(description="Connections that may be open at once.", ge=1, extra={"option": "--connections"})
    ] = 1000
    header_seconds: Annotated[float, Meta(description="Seconds for a request's headers to come.", ge=0.001)] = 10.0
    body_seconds: Annotated[
        float,
        Meta(description="Seconds for a body, one more for each 64 KiB received, and for an unread answer.", ge=0.001),
    ] = 30.0
    header_bytes: int = 65_536

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not getattr(self, name) > 0:
                raise ConfigError(
                    f"'{name}' of connections is too small", got=getattr(self, name), allowed="more than 0"
                )


class ServeSettings(Value):
    """All settings of a server at its start."""

    limits: RequestLimits = RequestLimits()
    queue: QueueLimits = QueueLimits()
    connections: ConnectionLimits = ConnectionLimits()
    timeout: Annotated[
        float, Meta(description="Seconds that a request may take; a request may ask for less.", ge=0.001)
    ] = 30.0
    long_texts: Annotated[
        Literal["cut", "refuse"],
        Meta(description="Texts longer than the encoder reads: read their beginning and say so, or refuse."),
    ] = "cut"
    default_task: Annotated[
        str | None,
        Meta(description="The task that requests for one task mean where they name none.", extra={"metavar": "TASK"}),
    ] = None
    unknown: Annotated[
        Unknown,
        Meta(
            description="What a question of a decisions API that no task answers gets: no answer, or one by the "
            "similarity of the text with the words of its options."
        ),
    ] = "refuse"
    labels: Mapping[str, Renamed] = {}  # of a decisions API: questions that are answered by a task of another name
    admin: Annotated[bool, Meta(description="Let admins change tasks over HTTP.")] = False
    watch_seconds: Annotated[
        float, Meta(description="Seconds between two looks whether BUNDLE has changed; 0 never looks.", ge=0)
    ] = 1.0
    drain_seconds: Annotated[
        float, Meta(description="Seconds for answers that are under way when the server is stopped.", ge=0)
    ] = 30.0
    workers: Annotated[
        int,
        Meta(
            description="Processes that answer at the same address, each with its share of the processors.",
            ge=1,
            le=256,
        ),
    ] = 1
    cache_bytes: Annotated[
        int,
        Meta(
            description="MiB of answers and vectors to keep for texts asked again; 0 keeps none.",
            ge=0,
            extra={"option": "--cache-mb", "scale": MIB},
        ),
    ] = 0

    grpc_port: Annotated[
        int | None,
        Meta(
            description="Port of the Open Inference Protocol over gRPC, on the same host; needs the extra grpc.",
            ge=0,
            le=65_535,
            extra={"option": "--grpc", "metavar": "PORT"},
        ),
    ] = None

    def __post_init__(self) -> None:
        if not self.timeout > 0:
            raise ConfigError("'timeout' of a server is too small", got=self.timeout, allowed="more than 0 seconds")
        if self.workers < 1:
            raise ConfigError("'workers' of a server is too small", got=self.workers, allowed="1 or more")
        for name in ("watch_seconds", "drain_seconds", "cache_bytes"):
            if getattr(self, name) < 0:
                raise ConfigError(f"'{name}' of a server is negative", got=getattr(self, name), allowed="0 or more")
        if self.admin and self.workers > 1 and not self.watch_seconds:
            raise ConfigError(
                "one worker makes a change over HTTP, and the others would not see it",
                got=f"--workers {self.workers} --admin --watch-seconds 0",
                do="give --watch-seconds more than 0, or --workers 1",
            )


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
        problem = f"the mapping file {path} cannot be read"
        raise ConfigError(problem, got=error.strerror, do="give the path of a TOML file") from None
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
    if kind.generates or kind.per_word or kind.scores not in ANSWERING:
        return f"a task of kind '{task.kind}' gives no probabilities of a whole text"
    if input_types_of(task) != ("text",):
        return "it reads a pair of texts, and a question is about one text"
    return None
