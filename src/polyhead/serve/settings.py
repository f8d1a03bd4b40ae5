"""What a server allows, and what it does where a request leaves it open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from polyhead.engine.queue import QueueLimits
from polyhead.errors import ConfigError
from polyhead.serve.labels import Renamed
from polyhead.values import Value

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
