"""Things of one sort that are known by name: kinds, strategies, codecs, backends. Others register more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from polyhead.errors import ConfigError, PolyheadError, suggestion

Item = TypeVar("Item")


class Registry(Mapping[str, Item]):
    """Items by name, in the order of their registration. A mapping that `register` alone adds to."""

    def __init__(
        self,
        what: str,
        *,
        name_of: Callable[[Item], str] = lambda item: str(getattr(item, "name", "")),
        unknown: type[PolyheadError] = ConfigError,
        other_names_of: Callable[[Item], Iterable[str]] = lambda item: (),
    ) -> None:
        """`what` calls an item in messages, `unknown` is the error for a name that nothing has.

        `other_names_of` gives what an item is called elsewhere, in small letters with `_`: errors say what is meant.
        """
        self._what, self._name_of, self._unknown, self._other_names_of = what, name_of, unknown, other_names_of
        self._items: dict[str, Item] = {}

    def __getitem__(self, name: str) -> Item:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def register(self, item: Item) -> None:
        """Adds an item under its name; raises ConfigError where one of another class has that name."""
        name = self._name_of(item)
        if _class_of(self._items.get(name, item)) is not _class_of(item):
            raise ConfigError(f"there is a {self._what} '{name}' already", do=f"give the new {self._what} another name")
        self._items[name] = item

    def named(self, name: str) -> Item:
        """The item of this name; raises an error that lists the names and suggests the nearest."""
        if name not in self._items:
            raise self._unknown(
                f"there is no {self._what} '{name}'",
                allowed=list(self._items),
                do=self._meant_by(name)
                or suggestion(name, self._items)
                or f"choose one of these, or register a {self._what} of this name: install the package that has it",
                unregistered=f"{self._what} '{name}'",
            )
        return self._items[name]

    def _meant_by(self, name: str) -> str | None:
        other = name.lower().replace("-", "_").replace(" ", "_")
        meant = next((own for own, item in self._items.items() if other in self._other_names_of(item)), None)
        return None if meant is None else f"write '{meant}': {meant} is meant by {name}"

    @contextmanager
    def temporary(self) -> Iterator[None]:
        """Items that are registered inside are removed at the end."""
        items = dict(self._items)
        try:
            yield
        finally:
            self._items = items


def _class_of(item: object) -> type:
    return item if isinstance(item, type) else type(item)
