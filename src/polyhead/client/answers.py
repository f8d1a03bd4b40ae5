"""What a server answers, as values; what later servers add to it is left out."""

from __future__ import annotations

from typing import Any

import msgspec


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """The version of a task that answered, and the digest of its arrays; both "" of a task that has none."""

    version: str = ""
    digest: str = ""


class ClientResult(msgspec.Struct, frozen=True, kw_only=True):
    """Answers to one input by task, and for each other asked task why it has none. The receipt is its cost."""

    answers: dict[str, dict[str, Any]] = {}
    receipt: dict[str, Any] = {}
    skipped: dict[str, str] = {}  # tasks that do not fit the input
    failed: dict[str, str] = {}  # tasks that could not be computed
    late: tuple[str, ...] = ()  # tasks that were not done by the deadline


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """One result an input, in order; which version of each task gave them, over which trunk, and the cost of all."""

    results: list[ClientResult]
    versions: dict[str, Version] = {}
    trunk: str = ""
    receipt: dict[str, int] = {}


class StreamPart(msgspec.Struct, frozen=True, kw_only=True):
    """One task's answers to some of the inputs, by their numbers, as soon as they are known."""

    task: str
    answers: dict[int, dict[str, Any]]
    layers_left: int = 0  # that are still run for other tasks


class TaskInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A task that can be asked. `task` holds its kind, labels and the rest of its declaration."""

    name: str
    task: dict[str, Any]
    version: str = ""
    digest: str = ""
    headline: tuple[str, float | None] | None = None  # its score on test rows: metric, value
    card: str = ""  # this and what follows: only of one task that is asked for by name
    scores: Any = None
    path: Any = None


class TaskList(msgspec.Struct, frozen=True, kw_only=True):
    """All tasks that can be asked."""

    tasks: list[TaskInfo]


class Vector(msgspec.Struct, frozen=True, kw_only=True):
    """A vector as little-endian float32 in base64."""

    embedding: str


class VectorList(msgspec.Struct, frozen=True, kw_only=True):
    """A vector for each text, in order."""

    data: list[Vector]
