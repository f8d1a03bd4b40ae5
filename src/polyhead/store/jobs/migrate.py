"""Migration of readers to another encoder: a file that names the store and the bundle to read, replaced atomically.

    {"format": 1, "current": {"store": "new-store", "bundle": "new-bundle", "trunk": "..."}, "previous": {...}}

Paths in it are relative to its folder.
"""

from __future__ import annotations

import os
from pathlib import Path

from polyhead.errors import StoreError
from polyhead.files import LARGEST_CONFIG, read_plain, replace_file
from polyhead.progress import Show
from polyhead.store.jobs.compare import StoreComparison, check_agreement, check_whole_store, compare
from polyhead.store.jobs.stored_answers import StoredAnswers
from polyhead.values import Value, from_json, to_json

FORMAT = 1


class StoreBundle(Value):
    """A store, and the bundle over its trunk."""

    store: str
    bundle: str
    trunk: str  # digest


class Pointer(Value):
    """The store and bundle for readers, and those before the last switch."""

    format: int
    current: StoreBundle
    previous: StoreBundle | None = None


def read_pointer(path: Path | str) -> Pointer:
    """The content of the file; raises StoreError if there is none, ConfigError for another content."""
    try:
        content = read_plain(path, limit=LARGEST_CONFIG)
    except FileNotFoundError:
        raise StoreError(f"no file at {path}", do="write it with `polyhead features switch`") from None
    except OSError as error:
        raise StoreError(
            f"cannot read {path}", got=error.strerror, do="name the file of `polyhead features switch`"
        ) from None
    pointer = from_json(content, Pointer, source=str(path))
    if pointer.format != FORMAT:
        got, allowed = f"format {pointer.format}", f"format {FORMAT}"
        raise StoreError(f"{path} was written by another version", got=got, allowed=allowed)
    return pointer


def open_current(path: Path | str) -> StoredAnswers:
    """The store and the bundle that the file names; raises StoreError if their trunk differs from the file's."""
    return _opened(Path(path), read_pointer(path).current)


def store_named(location: Path | str) -> str:
    """The location of a store itself; for a file written by `switch`, of the store that it names now.

    Raises StoreError and ConfigError for a file with another content.
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
    """Makes the file name another store and bundle; returns their comparison with the previous ones, if any.

    Raises StoreError if documents, tasks or answers that exist now are missing there, unless `incomplete`, and if a
    task's answers may agree for a lower share than `at_least` (`check_agreement`). Then the file is unchanged.
    """
    path, new = Path(path), StoredAnswers(store, bundle)
    place = _place(path, new)
    if not os.path.lexists(path):
        replace_file(path, to_json(Pointer(format=FORMAT, current=place)))
        return None
    current = read_pointer(path).current
    comparison = compare(_opened(path, current), new, show=show)
    if not incomplete:
        check_whole_store(comparison)
    if at_least is not None:
        check_agreement(comparison, at_least)
    if place != current:
        replace_file(path, to_json(Pointer(format=FORMAT, current=place, previous=current)))
    return comparison


def switch_back(path: Path | str) -> Pointer:
    """Makes the file name the previous store and bundle again; raises StoreError if these cannot be read."""
    path, pointer = Path(path), read_pointer(path)
    if pointer.previous is None:
        raise StoreError(f"{path} named nothing before", do="switch to a store and a bundle")
    _opened(path, pointer.previous)
    back = Pointer(format=FORMAT, current=pointer.previous, previous=pointer.current)
    replace_file(path, to_json(back))
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
            do="they were replaced: switch to them with `polyhead features switch`",
        )
    return opened


def _place(path: Path, side: StoredAnswers) -> StoreBundle:
    store = side.location if "://" in side.location else _relative(path, side.location)
    return StoreBundle(store=store, bundle=_relative(path, str(side.bundle.root)), trunk=side.trunk)


def _relative(path: Path, name: str) -> str:
    """A path in the form of the file: an absolute one is unchanged. Links are kept where it can be opened with them."""
    if os.path.isabs(name):
        return name
    relative = os.path.relpath(name, path.parent)
    place = path.parent / relative
    if place.exists() and place.samefile(name):
        return relative
    return os.path.relpath(os.path.realpath(name), os.path.realpath(path.parent))  # the folder is reached by a link
