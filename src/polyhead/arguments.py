"""Arguments of public functions, and fields of public values, checked against their annotations.

Values that fit are passed on as they are; any other raises ConfigError, which names the argument and what it may be.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import numbers
import reprlib
import types
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

import msgspec

from polyhead.errors import ConfigError

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")
Item = TypeVar("Item")
# Abstract classes whose values fit an annotation too: numpy's numbers.
_NUMBERS: Mapping[object, type] = {float: numbers.Real, int: numbers.Integral}
_WORDS = {float: "a number", int: "a whole number", str: "a string", bool: "True or False", type(None): "None"}


def typed(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """The function, which then raises ConfigError for an argument that is not of the annotated type."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
        check_arguments(function, signature.bind(*args, **kwargs).arguments)
        return function(*args, **kwargs)

    return call


def check_arguments(function: Callable[..., object], arguments: Mapping[str, object]) -> None:
    """Raises ConfigError if one of these arguments, by name, is not of the annotated type."""
    hints, name = _hints(function), function.__qualname__.removesuffix(".__init__")
    for argument, value in arguments.items():
        if argument in hints and not fits(value, hints[argument]):
            raise _wrong(f"{name}: '{argument}'", value, hints[argument])
        if isinstance(value, str) and "\0" in value and Path in typing.get_args(hints.get(argument)):
            do = "give the path of a file or folder"
            raise ConfigError(f"{name}: '{argument}' is no path", got=value, allowed="no NUL in it", do=do)


def check_fields(value: msgspec.Struct) -> None:
    """Raises ConfigError for a field that is not of its annotated type; lists become the tuples that fields are."""
    for name, hint in _hints(type(value)).items():
        if name not in value.__struct_fields__:
            continue
        field = getattr(value, name)
        if not fits(field, hint):
            raise _wrong(f"{type(value).__name__}: '{name}'", field, hint)
        if isinstance(field, list):
            msgspec.structs.force_setattr(value, name, tuple(field))


def twice_in(items: Iterable[Item]) -> list[Item]:
    """Those that occur more than once, each once, in the order in which they come."""
    return [item for item, times in Counter(items).items() if times > 1]


def fits(value: object, hint: Any) -> bool:
    """Whether a value is of an annotated type, the items of collections too."""
    return type(value) is hint or _check_of(hint)(value)


@functools.cache
def _check_of(hint: Any) -> Callable[[Any], bool]:
    """The function that tells whether a value is of this type, made once for each type."""
    origin, of = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        options = tuple(map(_check_of, of))
        return lambda value: type(value) in of or any(option(value) for option in options)
    if origin is Literal:
        return lambda value: any(type(value) is type(option) and value == option for option in of)
    if origin is tuple:
        return _check_of_tuple(of)
    if isinstance(origin, type) and issubclass(origin, collections.abc.Mapping):
        key, item = map(_check_of, of)
        return lambda value: (
            isinstance(value, collections.abc.Mapping) and all(key(name) and item(kept) for name, kept in value.items())
        )
    if isinstance(origin, type) and issubclass(origin, collections.abc.Iterable):
        return _check_of_several(origin, _check_of(of[0]))
    if origin is collections.abc.Callable:
        return callable
    return _check_of_class(hint, origin or hint)


def _check_of_tuple(of: tuple[Any, ...]) -> Callable[[Any], bool]:
    """A list fits the annotation of a tuple too."""
    checks = tuple(_check_of(hint) for hint in of if hint is not ...)
    if of[-1] is ...:
        return lambda value: isinstance(value, tuple | list) and all(map(checks[0], value))
    return lambda value: (
        isinstance(value, tuple | list)
        and len(value) == len(checks)
        and all(check(item) for check, item in zip(checks, value, strict=True))
    )


def _check_of_several(kind: type, check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Checks the items of a collection; an iterator is not read, since it can be read only once."""

    def holds(value: object) -> bool:
        if not isinstance(value, kind) or isinstance(value, str | bytes | bytearray | Mapping):
            return False
        return all(map(check, value)) if isinstance(value, collections.abc.Collection) else True

    return holds


def _check_of_class(hint: Any, known: Any) -> Callable[[Any], bool]:
    """Annotations that are not classes accept every value; a bool is no number."""
    kind = _NUMBERS.get(known, known)
    if hint is Any or not isinstance(kind, type):
        return lambda value: True
    if kind in _NUMBERS.values():
        return lambda value: type(value) is hint or (isinstance(value, kind) and not isinstance(value, bool))
    return lambda value: isinstance(value, kind)


@functools.cache
def _hints(of: Any) -> dict[str, Any]:
    return {name: hint for name, hint in typing.get_type_hints(of).items() if name not in ("return", "self")}


def _wrong(what: str, value: object, hint: Any) -> ConfigError:
    return ConfigError(
        f"{what} is of a type, or holds one, that cannot be used",
        got=f"{reprlib.repr(value)} ({type(value).__name__})",
        allowed=_in_words(hint),
        do="give one of these",
    )


def _in_words(hint: Any) -> str:
    origin, of = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(_in_words, of)))
    if origin is Literal:
        return " or ".join(map(repr, of))
    if isinstance(origin, type) and issubclass(origin, collections.abc.Mapping):
        return f"a mapping of {_in_words(of[0])} to {_in_words(of[1])}"
    if isinstance(origin, type) and issubclass(origin, collections.abc.Iterable):
        if origin is tuple and of[-1] is not ...:
            return f"({', '.join(map(_in_words, of))})"
        return f"a list, each item {_in_words(of[0])}"
    return _WORDS.get(hint, getattr(hint, "__name__", str(hint)))
