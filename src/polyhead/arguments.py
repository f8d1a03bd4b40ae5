"""Arguments of public functions, and fields of public values, checked against their annotations.

Values that fit are passed on as they are; any other raises ConfigError, which names the argument and what it may be.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import itertools
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
    """Whether a value is of an annotated type, the items of collections too.

    A list fits a tuple, numpy's numbers fit numbers, and a bool is none. An iterator is not read, since it can be read
    only once. Annotations that are not classes accept every value.
    """
    if type(value) is hint:
        return True
    origin, of = _taken_apart(hint)
    if origin is typing.Union:
        return type(value) in of or any(fits(value, option) for option in of)
    if origin is Literal:
        return any(type(value) is type(option) and value == option for option in of)
    if origin is tuple and of:
        if not isinstance(value, tuple | list):
            return False
        kinds = of[:1] * len(value) if of[-1] is ... else of
        return len(kinds) == len(value) and all(map(fits, value, kinds))
    if of and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(fits(key, of[0]) and fits(item, of[1]) for key, item in value.items())
    if of and issubclass(origin, Iterable):
        if not isinstance(value, origin) or isinstance(value, str | bytes | bytearray | Mapping):
            return False
        return not isinstance(value, collections.abc.Collection) or all(map(fits, value, itertools.repeat(of[0])))
    return isinstance(value, origin) and not (isinstance(value, bool) and origin in _NUMBERS.values())


@functools.cache
def _taken_apart(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """The class or form of an annotation, and what stands in its brackets."""
    origin, of = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin is types.UnionType:
        origin = typing.Union
    if isinstance(origin, type) and origin is not Any:
        return _NUMBERS.get(origin, origin), of
    return (origin, of) if origin in (typing.Union, Literal) else (object, ())


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
