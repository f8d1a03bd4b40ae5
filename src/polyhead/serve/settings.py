"""What a server allows, and what it does where a request leaves it open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta

from polyhead.engine.queue import QueueLimits
from polyhead.errors import ConfigError
from polyhead.serve.labels import Renamed
from polyhead.values import Value

Unknown = Literal["refuse", "similarity"]
MIB = 2**20


class RequestLimits(Value):
    """The most that one request may hold. What is beyond is refused before any text is read."""

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
    """What a caller's connection may take of the server. Whoever is slower is closed, also when reading its answer."""

    open: Annotated[
        int, Meta(description="Connections that may be open at once.", ge=1, extra={"option": "--connections"})
    ] = 1000
    header_seconds: Annotated[float, Meta(description="Seconds for a request's headers to come.", ge=0.001)] = 10.0
    body_seconds: Annotated[
        float, Meta(description="Seconds for its body to come, and for a pause in reading.", ge=0.001)
    ] = 30.0
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

    def __post_init__(self) -> None:
        if not self.timeout > 0:
            raise ConfigError("'timeout' of a server is too small", got=self.timeout, allowed="more than 0 seconds")
        if self.workers < 1:
            raise ConfigError("'workers' of a server is too small", got=self.workers, allowed="1 or more")
        for name in ("watch_seconds", "drain_seconds", "cache_bytes"):
            if getattr(self, name) < 0:
                raise ConfigError(f"'{name}' of a server is negative", got=getattr(self, name), allowed="0 or more")
