"""Compiled graphs in a folder of the user, so that a process to come need not compile what an earlier one did.

A file's name is the digest of all that the graph is made from: the bits of its arrays, the plan's form, this program's
code, the runtime with its version and settings, and the processor. The folder is the user's own, not a bundle's: a
runtime trusts what it reads there, and a bundle may come from anybody. It may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Protocol, runtime_checkable

from polyhead.engine.compile.ops import Build, Compiled, Runtime
from polyhead.files import is_temporary, open_plain, replace_file

log = logging.getLogger(__name__)

MOST = 2 * 2**30  # bytes of all files; what was read longest ago goes first
ENDING = ".compiled"
HASHED = 32  # bytes of a file before its content: their SHA-256
ROOMS = ("bundle", "codecs", "encoder", "engine", "plan")  # whose code decides what a graph is


@runtime_checkable
class KeepingRuntime(Protocol):
    """A runtime whose compiled graphs can be written and read again."""

    @property
    def facts(self) -> str:
        """All that decides what it compiles, beside the graph: version, settings, processor."""

    def exported(self, compiled: Compiled) -> bytes:
        """A compiled graph as bytes."""

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
        """The graph of this digest from the folder, or else compiled now, and kept; what cannot be kept is not."""
        folder, make = self.path, partial(runtime.compile, build, label=label, layers=layers, exact=exact)
        if exact or folder is None or not isinstance(runtime, KeepingRuntime) or (own := digest()) is None:
            return make()
        file = folder / f"{hashlib.sha256(f'{own} {runtime.facts} {_code()}'.encode()).hexdigest()}{ENDING}"
        found = _read(file, partial(runtime.imported, build=build, label=label, layers=layers))
        if found is not None:
            return found
        made = make()
        try:
            _write(file, runtime.exported(made))
        except Exception as error:  # no room, no permission, or a graph that the runtime cannot write
            log.info("a compiled graph is not kept for later processes: %s", error)
        return made


COMPILED = CompiledFolder()
"""The folder of this process."""


def user_folder(environment: Mapping[str, str]) -> Path | None:
    """The folder of this user for compiled graphs, by the environment; None where there is no place."""
    base = environment.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(environment.get("HOME", ""), ".cache")
    return Path(base, "polyhead", "compiled") if os.path.isabs(base) else None


def _read(file: Path, imported: Callable[[memoryview], Compiled]) -> Compiled | None:
    """None where there is none, or it is damaged: then the graph is compiled again."""
    try:
        with open_plain(file, limit=MOST) as opened:
            content = memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY))
            if hashlib.sha256(content[HASHED:]).digest() != content[:HASHED]:
                raise ValueError("it is damaged")
            compiled = imported(content[HASHED:])
    except FileNotFoundError:
        return None
    except Exception as error:
        log.warning("%s holds no compiled graph (%s): the graph is compiled again", file, error)
        return None
    with suppress(OSError):
        os.utime(file)
    return compiled


def _write(file: Path, content: bytes) -> None:
    if len(content) > MOST // 4:
        return
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(file, hashlib.sha256(content).digest() + content)
    with os.scandir(file.parent) as entries:
        facts = [(entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in entries if _is_ours(entry.name)]
    total = sum(size for _, size, _ in facts)
    for _, size, oldest in sorted(facts):
        if total <= MOST:
            break
        os.unlink(oldest)
        total -= size


def _is_ours(name: str) -> bool:
    return name.endswith(ENDING) and not is_temporary(name)


@lru_cache
def _code() -> str:
    """The digest of this program's files that say what a graph is: a change of them makes all graphs anew."""
    total, root = hashlib.sha256(), Path(__file__).parents[2]
    for file in sorted(file for room in ROOMS for file in root.joinpath(room).rglob("*.py")):
        total.update(file.read_bytes())
    return total.hexdigest()
