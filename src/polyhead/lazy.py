"""Attributes that are computed when they are first read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

Computed = TypeVar("Computed")


class lazy(Generic[Computed]):  # noqa: N801 - a decorator, as `property` is
    """A property that is computed once and kept in its object.

    It holds no lock: `functools.cached_property` before Python 3.12 has one for all objects of a class, so that one
    slow file would stop the readers of every other. Threads that read it first at the same time may each compute it;
    all get the value that was kept first.
    """

    def __init__(self, compute: Callable[[Any], Computed]) -> None:
        self.func, self._name, self.__doc__ = compute, "", compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> Computed: ...

    def __get__(self, instance: object | None, owner: type) -> Self | Computed:
        if instance is None:
            return self
        kept: dict[str, Computed] = instance.__dict__
        return kept[self._name] if self._name in kept else kept.setdefault(self._name, self.func(instance))
