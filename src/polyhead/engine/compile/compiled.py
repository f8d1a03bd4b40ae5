"""Compiled graphs, and states of probes, in a folder of the user: a process to come need not compute them again.

A file's name is the digest of all that a graph is made from: the bits of its arrays, the plan's form, this program's
code, the runtime with its version and settings, and the processor. The folder is the user's own, not a bundle's: a
runtime trusts what it reads there, and a bundle may come from anybody. It may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np

from polyhead.bundle.files import release
from polyhead.engine.compile.ops import Build, Compiled, Runtime
from polyhead.files import is_temporary, open_plain, replacing
from polyhead.machine import processors

log = logging.getLogger(__name__)
T = TypeVar("T")

MOST = 2 * 2**30  # bytes of all files; what was read longest ago goes first
LARGEST = MOST // 4  # of one
ENDING, STATES = ".compiled", ".states"
HASHED = 32  # bytes of a file before its content: their SHA-256
ROOMS = ("bundle", "codecs", "encoder", "engine", "plan")  # whose code decides what a graph is


@runtime_checkable
class KeepingRuntime(Protocol):
    """A runtime whose compiled graphs can be written and read again."""

    @property
    def facts(self) -> str:
        """All that decides what it compiles, beside the graph: version, settings, processor."""

    def exported(self, compiled: Compiled, *, most: int) -> list[bytes]:
        """A compiled graph as bytes, in parts that follow each other; ValueError where its weights alone have more."""

    def imported(self, content: memoryview, build: Build, *, label: str, layers: bool) -> Compiled:
        """The graph that these bytes are, which it may go on reading; raises any error where they are none.

        The rest is what `compile` was given when it made them.
        """


class CompiledFolder:
    """Where this process keeps compiled graphs; at first nowhere. A program sets `path`, a library leaves it."""

    def __init__(self) -> None:
        self.path: Path | None = None

    def get(
        self,
        runtime: Runtime,
        digest: Callable[[], str | None],
        build: Build,
        *,
        label: str,
        layers: bool,
        exact: bool = False,
    ) -> Compiled:
        """The graph of this digest: read from the folder, or compiled now and stored there if that is possible."""
        folder, make = self.path, partial(runtime.compile, build, label=label, layers=layers, exact=exact)
        if exact or folder is None or not isinstance(runtime, KeepingRuntime) or (graph_digest := digest()) is None:
            return make()
        file = _file(folder, runtime, graph_digest, ENDING)
        imported = partial(runtime.imported, build=build, label=label, layers=layers)
        kept = _read(file, imported, "no compiled graph (%s): the graph is compiled again")
        if kept is not None:
            return kept
        compiled = make()
        try:
            _write(file, runtime.exported(compiled, most=LARGEST))
        except Exception as error:  # no room, no permission, or a graph that the runtime cannot write
            log.info("a compiled graph is not kept for later processes: %s", error)
        return compiled

    def take_states(self, runtime: Runtime, bundle: Path, take: Callable[[memoryview], None]) -> None:
        """Gives the content of the last `put_states` of this bundle, if it is there and whole."""
        if (file := self._states_file(runtime, bundle)) is not None:
            _read(file, take, "no states of probes (%s): the layers are run again")

    def put_states(self, runtime: Runtime, bundle: Path, content: Iterable[bytes | memoryview]) -> None:
        """Keeps what layers made of a bundle's probes, for processes that compute alike; what cannot be kept is not."""
        if (file := self._states_file(runtime, bundle)) is None:
            return
        try:
            _write(file, content)
        except OSError as error:  # no room, or no permission
            log.info("states of probes are not kept for later processes: %s", error)

    def _states_file(self, runtime: Runtime, bundle: Path) -> Path | None:
        if self.path is None or not isinstance(runtime, KeepingRuntime):
            return None
        return _file(self.path, runtime, f"{bundle.resolve()} {processors()}", STATES)


COMPILED = CompiledFolder()
"""The folder of this process."""


def user_folder(environment: Mapping[str, str]) -> Path | None:
    """The folder of this user for compiled graphs, by the environment; None where there is no place."""
    base = environment.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(environment.get("HOME", ""), ".cache")
    return Path(base, "polyhead", "compiled") if os.path.isabs(base) else None


def _file(folder: Path, runtime: KeepingRuntime, digest: str, ending: str) -> Path:
    return folder / f"{hashlib.sha256(f'{digest} {runtime.facts} {_code()}'.encode()).hexdigest()}{ending}"


def _read(file: Path, imported: Callable[[memoryview], T], damaged: str) -> T | None:
    """The file's content; None if the file is missing or damaged, and the content is to be computed again."""
    try:
        with open_plain(file, limit=MOST) as opened:
            content = memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY))
            if hashlib.sha256(content[HASHED:]).digest() != content[:HASHED]:
                raise ValueError("it is damaged")
            value = imported(content[HASHED:])
            release([np.frombuffer(content, np.uint8)])  # all was read to be hashed
    except FileNotFoundError:
        return None
    except Exception as error:
        log.warning(f"%s holds {damaged}", file, error)
        return None
    with suppress(OSError):
        os.utime(file)
    return value


def _write(file: Path, content: Iterable[bytes | memoryview]) -> None:
    parts = list(content)
    if sum(map(len, parts)) > LARGEST:
        return
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with replacing(file) as opened:
        opened.writelines([digest.digest(), *parts])
    with os.scandir(file.parent) as entries:
        facts = [(entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in entries if _is_ours(entry.name)]
    total = sum(size for _, size, _ in facts)
    for _, size, oldest in sorted(facts):
        if total <= MOST:
            break
        os.unlink(oldest)
        total -= size


def _is_ours(name: str) -> bool:
    return name.endswith((ENDING, STATES)) and not is_temporary(name)


@lru_cache
def _code() -> str:
    """The digest of this program's files that say what a graph is: a change of them makes all graphs anew."""
    total, root = hashlib.sha256(), Path(__file__).parents[2]
    for file in sorted(file for room in ROOMS for file in root.joinpath(room).rglob("*.py")):
        total.update(file.read_bytes())
    return total.hexdigest()
