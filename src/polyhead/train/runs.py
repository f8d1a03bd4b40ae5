"""The common base of training runs: process rank, seeds, cache folder, history, and torch when needed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import msgspec

from polyhead.errors import ConfigError, MissingExtra, TrainError
from polyhead.files import refuse_links
from polyhead.values import Value

SUFFIX = ".checkpoint"


class ProcessRank(Value):
    """One process of a training run; `meeting` is the URL where the processes find each other, in torch's form."""

    rank: int = 0
    world: int = 1
    device: str = "cpu"
    meeting: str = "env://"

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise ConfigError("no such process", got=f"rank {self.rank} of {self.world}", allowed="rank 0 to world - 1")

    @property
    def is_first(self) -> bool:
        """Whether this process writes and reports."""
        return self.rank == 0

    def owns(self, index: int) -> bool:
        """Whether this process computes the micro-batch of this index."""
        return index % self.world == self.rank

    def check(self, micro_batches: int) -> None:
        """Raises ConfigError unless every process gets equally many micro-batches of an update."""
        if micro_batches % self.world:
            raise ConfigError(
                "the micro-batches of an update cannot be shared evenly by the processes",
                got=f"{micro_batches} micro-batches, {self.world} processes",
                allowed="a multiple of the processes",
                do="set recipe.micro_batches (with sampling 'all' it is the number of tasks), or start fewer",
            )


class Fitted(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a training run."""

    best_epoch: int = 0
    score: float = 0.0  # best validation score
    history: tuple[dict[str, float], ...] = ()  # one row per epoch: epoch, loss, score, seconds
    examples_seen: int = 0
    seconds: float = 0.0
    steps: int = 0  # updates per epoch

    @property
    def best_update(self) -> int:
        """The number of updates after which the kept weights were reached."""
        return self.best_epoch * self.steps

    @property
    def updates(self) -> int:
        """The number of updates made."""
        return len(self.history) * self.steps


def rank_in(environment: Mapping[str, str], device: str) -> ProcessRank:
    """The process rank from torchrun's RANK, WORLD_SIZE and LOCAL_RANK; without them the only process."""
    try:
        rank, world, local = (
            int(environment.get(name, default))
            for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))
        )
    except ValueError as error:
        raise ConfigError(
            "RANK, WORLD_SIZE and LOCAL_RANK are no numbers", got=error, do="start it with torchrun"
        ) from None
    return ProcessRank(rank=rank, world=world, device=f"cuda:{local}" if device == "cuda" else device)


def stream(seed: int, *names: object) -> int:
    """A separate seed for each use, the same on every machine."""
    content = ":".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(content.encode()).digest()[:4], "big")


def cache_folder(cache: Path, *names: str) -> Path:
    """A folder of the cache; raises TrainError if it, or a folder above it in the cache, is a link."""
    folder = cache.joinpath(*names)
    try:
        refuse_links(folder, root=cache)
        os.listdir(folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise TrainError(
            f"nothing can be kept in {folder}",
            got=f"{error.filename}: {error.strerror}",
            allowed="folders, below the cache without links",
            do="remove it, or name another --cache",
        ) from None
    return folder


def deep(name: str, purpose: str = "a head that is trained in steps") -> Any:
    """The object `module:name` of the torch room; raises MissingExtra, with the purpose, if torch is not installed."""
    return resolved(f"polyhead.deep.{name}", purpose)


def resolved(name: str, purpose: str) -> Any:
    """The object `module:name`; raises MissingExtra, with the purpose, if it needs torch and that is not installed."""
    try:
        return resolve_name(name)
    except MissingExtra as error:
        raise MissingExtra(str(error.facts["package"]), str(error.facts["extra"]), purpose) from None
