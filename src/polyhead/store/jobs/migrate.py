"""The move of readers to another encoder: a file that names the store and the bundle to read, replaced at once.

    {"format": 1, "current": {"store": "new-store", "bundle": "new-bundle", "trunk": "..."}, "previous": {...}}

Paths in it are relative to its folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from polyhead.errors import StoreError
from polyhead.files import LARGEST_CONFIG, read_plain, replace_file
from polyhead.store.jobs.compare import StoreComparison, check_agreement, check_whole_store, compare
from polyhead.store.jobs.stored import StoredAnswers
from polyhead.values import Value, from_json, to_json

FORMAT = 1
Show = Callable[[str], None]


class StoreBundle(Value):
    """A store, and the bundle over its trunk."""

    store: str
    bundle: str
    trunk: str  # digest


class Pointer(Value):
    """What readers are to open, and what they opened before the last switch."""

    format: int
    current: StoreBundle
    previous: StoreBundle | None = None


def read_pointer(path: Path | str) -> Pointer:
    """What the file names; raises StoreError where there is none, ConfigError where it holds something else."""
    try:
        content = read_plain(path, limit=LARGEST_CONFIG)
    except FileNotFoundError:
        raise StoreError(f"no file at {path}", do="write it with `polyhead migrate switch`") from None
    except OSError as error:
        raise StoreError(f"cannot read {path}", got=error.strerror, do="name the file of `migrate switch`") from None
    pointer = from_json(content, Pointer, source=str(path))
    if pointer.format != FORMAT:
        got, allowed = f"format {pointer.format}", f"format {FORMAT}"
        raise StoreError(f"{path} was written by another version", got=got, allowed=allowed)
    return pointer


def open_current(path: Path | str) -> StoredAnswers:
    """The store and the bundle that the file names; raises StoreError where they are of another trunk than it says."""
    return _opened(Path(path), read_pointer(path).current)


def store_named(location: Path | str) -> str:
    """The location of a store as it is; of a file that `switch` wrote, that of the store which it names now.

    Raises StoreError and ConfigError for a file of something else.
    """
    if "://" in str(location) or not Path(location).is_file():
        return str(location)
    store = read_pointer(location).current.store
    return store if "://" in store else str(Path(location).parent / store)


def switch(
    path: Path | str,
    store: Path | str,
    bundle: Path | str,
    *,
    at_least: float | None = None,
    incomplete: bool = False,
    show: Show = lambda text: None,
) -> StoreComparison | None:
    """Lets the file name another store and bundle, and gives their comparison with those that it named; None for none.

    Raises StoreError where documents, tasks or answers are lacking that are there now, unless `incomplete`, and where a
    task's answers may agree for a lower share than `at_least` (`check_agreement`). Then the file stays as it was.
    """
    path, new = Path(path), StoredAnswers(store, bundle)
    place = _place(path, new)
    if not os.path.lexists(path):
        _write(path, Pointer(format=FORMAT, current=place))
        return None
    current = read_pointer(path).current
    comparison = compare(_opened(path, current), new, show=show)
    if not incomplete:
        check_whole_store(comparison)
    if at_least is not None:
        check_agreement(comparison, at_least)
    if place != current:
        _write(path, Pointer(format=FORMAT, current=place, previous=current))
    return comparison


def switch_back(path: Path | str) -> Pointer:
    """Lets the file name again what it named before the last switch; raises StoreError where that cannot be read."""
    path, pointer = Path(path), read_pointer(path)
    if pointer.previous is None:
        raise StoreError(f"{path} named nothing before", do="switch to a store and a bundle")
    _opened(path, pointer.previous)
    back = Pointer(format=FORMAT, current=pointer.previous, previous=pointer.current)
    _write(path, back)
    return back


def _opened(path: Path, place: StoreBundle) -> StoredAnswers:
    folder = path.parent
    store = place.store if "://" in place.store else folder / place.store
    opened = StoredAnswers(store, folder / place.bundle)
    if opened.trunk != place.trunk:
        raise StoreError(
            f"{path} names a store and a bundle over another trunk than it says",
            got=f"trunk {opened.trunk}",
            allowed=f"trunk {place.trunk}",
            do="they were replaced: switch to them with `polyhead migrate switch`",
        )
    return opened


def _place(path: Path, side: StoredAnswers) -> StoreBundle:
    store = side.location if "://" in side.location else _relative(path, side.location)
    return StoreBundle(store=store, bundle=_relative(path, str(side.bundle.root)), trunk=side.trunk)


def _relative(path: Path, name: str) -> str:
    """A path as the file names it: an absolute one as it is."""
    return name if os.path.isabs(name) else os.path.relpath(name, path.parent)


def _write(path: Path, pointer: Pointer) -> None:
    replace_file(path, to_json(pointer))
