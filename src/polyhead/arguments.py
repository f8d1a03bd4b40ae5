"""Arguments of public functions, and fields of public values, checked against their annotations.

What fits is passed on as it is; what does not raises ConfigError, which names the argument and what it may be.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import numbers
import reprlib
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

import msgspec

from polyhead.errors import ConfigError

Given = ParamSpec("Given")
Found = TypeVar("Found")
# Annotations that a class stands for, where values of other classes do as well: numpy's numbers, and whole ones.
_NUMBERS: Mapping[object, type] = {float: numbers.Real, int: numbers.Integral}
_WORDS = {float: "a number", int: "a whole number", str: "a string", bool: "True or False", type(None): "None"}


def typed(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """The function, which raises ConfigError for an argument that is not of the annotated type."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Found:
        check_arguments(function, signature.bind(*args, **kwargs).arguments)
        return function(*args, **kwargs)

    return call


def check_arguments(function: Callable[..., object], given: Mapping[str, object]) -> None:
    """Raises ConfigError for one of these arguments, by name, that is not of the annotated type."""
    hints, name = _hints(function), function.__qualname__.removesuffix(".__init__")
    for argument, value in given.items():
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
        given = getattr(value, name)
        if not fits(given, hint):
            raise _wrong(f"{type(value).__name__}: '{name}'", given, hint)
        if isinstance(given, list):
            msgspec.structs.force_setattr(value, name, tuple(given))


def fits(value: object, hint: Any) -> bool:
    """Whether a value is of an annotated type, the items of collections too."""
    if type(value) is hint or hint is Any:  # of nearly all, and far quicker than what follows
        return True
    origin, of = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, option) for option in of)
    if origin is Literal:
        return any(type(value) is type(option) and value == option for option in of)
    if origin is tuple:
        return _is_tuple(value, of)
    if isinstance(origin, type) and issubclass(origin, collections.abc.Mapping):
        return isinstance(value, collections.abc.Mapping) and all(
            fits(key, of[0]) and fits(item, of[1]) for key, item in value.items()
        )
    if isinstance(origin, type) and issubclass(origin, collections.abc.Iterable):
        is_several = isinstance(value, origin) and not isinstance(value, str | bytes | bytearray | Mapping)
        # What may be read once alone is not looked into.
        return is_several and all(
            fits(item, of[0]) for item in (value if isinstance(value, collections.abc.Collection) else ())
        )
    if origin is collections.abc.Callable:
        return callable(value)
    if hint is bool:
        return isinstance(value, bool)
    kind = _NUMBERS.get(origin or hint, origin or hint)
    return not (isinstance(kind, type) and _is_other(value, kind))


def _is_tuple(value: object, of: tuple[Any, ...]) -> bool:
    """Lists do as well, as long as nobody has to keep them."""
    if not isinstance(value, tuple | list):
        return False
    if of[-1] is ...:
        return all(fits(item, of[0]) for item in value)
    return len(value) == len(of) and all(map(fits, value, of))


def _is_other(value: object, kind: type) -> bool:
    """Whether a value is of another class; a bool is no number here."""
    return not isinstance(value, kind) or (isinstance(value, bool) and kind in _NUMBERS.values())


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
