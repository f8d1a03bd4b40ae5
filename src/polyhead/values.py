"""Strict frozen structs, read from TOML and JSON. Errors name a wrong key with its path and the nearest right one."""

from __future__ import annotations

import functools
import math
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from polyhead.errors import ConfigError, PolyheadError, suggestion
from polyhead.nesting import check_depth, toml_of

DIGITS = 6  # significant ones of a number that people read
MANY = 12  # numbers from which on they are rounded at once
SHIFTS = 22  # the largest power of ten that a float holds exactly


@typing.dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(msgspec.field,))
class _KeywordOnly(msgspec.StructMeta):
    """msgspec applies `kw_only` to the fields of one class only; this applies it to every subclass too."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **config: Any) -> Any:
        return super().__new__(mcs, name, bases, namespace, **{"kw_only": True, **config})


class Value(msgspec.Struct, metaclass=_KeywordOnly, frozen=True, forbid_unknown_fields=True):
    """Base of every value that crosses a module border: frozen, keyword-only, unknown keys refused."""

    meant: typing.ClassVar[Mapping[str, str]] = {}
    """Of the value of a whole file: by what keys are called elsewhere the key, `table.key`, that is meant."""


class Open:
    """Base of tagged values whose classes are registered: a table's tag chooses one of them, and more may be added."""

    __slots__ = ()

    registered: typing.ClassVar[Mapping[str, type[Any]]]
    """The classes by tag; each base sets it."""


ValueT = TypeVar("ValueT", bound=msgspec.Struct)


def read_toml(path: Path | str, kind: type[ValueT]) -> ValueT:
    """The file as a `kind`; raises ConfigError with the file's name and the path to the wrong value."""
    path = Path(path)
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise ConfigError(f"{path} is no plain file", do="give the path of a TOML file")
    try:
        data = toml_of(path)
    except FileNotFoundError:
        raise ConfigError(f"no project file at {path}", do="write one with `polyhead init`, or give its path") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}", got=error.strerror, do="give the path of a TOML file") from None
    return to_value(data, kind, source=str(path))


def to_value(data: object, kind: type[ValueT], *, source: str) -> ValueT:
    """Plain data as a checked `kind`; `source` names where the data came from in errors, with the path to the value."""
    try:
        return msgspec.convert(data, kind, strict=True, dec_hook=_registered)
    except (msgspec.ValidationError, PolyheadError) as error:
        raise _told(error, data, kind, _Place(source=source, kind=kind)) from None


def _registered(kind: type[Open], data: object) -> object:
    """Data of an open union as a value of the class that its tag names."""
    if isinstance(data, kind):
        return data
    try:
        return msgspec.convert(data, typing.Union[tuple(kind.registered.values())], strict=True, dec_hook=_registered)  # noqa: UP007
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None  # which msgspec raises again with the path to this value


def from_json(raw: bytes, kind: type[ValueT], *, source: str) -> ValueT:
    """JSON bytes as a checked `kind`."""
    try:
        check_depth(raw, source=source)
        return to_value(msgspec.json.decode(raw), kind, source=source)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{source} is not JSON", got=error, do="restore the file or write it again") from None


def to_json(value: object, *, indent: int = 2) -> bytes:
    """Canonical, readable JSON: keys in field order, one trailing newline."""
    return msgspec.json.format(msgspec.json.encode(value), indent=indent) + b"\n"


def few_digits(value: Any) -> Any:
    """Plain data for people, whose numbers have six significant digits, or all digits before the point."""
    if isinstance(value, float):
        if 0.1 <= value < 1:  # most of them, and twice as fast
            return round(value, DIGITS)
        return float(f"{value:.{DIGITS}g}") if abs(value) < 10 ** (DIGITS - 1) else round(value, 0)
    if not isinstance(value, (dict, list, tuple)):
        return value
    numbers, places = list[float](), list[tuple[Any, Iterable[Any]]]()
    copy = _copied(value, numbers, places)
    rounded = iter(_rounded(numbers) if len(numbers) >= MANY else map(few_digits, numbers))
    for holder, keys in places:
        for key, number in zip(keys, rounded, strict=False):
            holder[key] = number
    return copy


def _copied(value: Any, numbers: list[float], places: list[tuple[Any, Iterable[Any]]]) -> Any:
    """A copy with lists in place of tuples; adds its numbers, and in the same order their places in the copy.

    A place is a dictionary or a list, and the keys or indices of the numbers in it.
    """
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    inner, keys = (copy.values(), copy) if isinstance(value, dict) else (copy, range(len(copy)))
    if set(map(type, inner)) == {float}:
        numbers += inner
        places.append((copy, keys))
        return copy
    for key, item in copy.items() if isinstance(value, dict) else enumerate(copy):
        if isinstance(item, str):
            continue
        if isinstance(item, float):
            numbers.append(item)
            places.append((copy, (key,)))
        elif isinstance(item, (dict, list, tuple)):
            copy[key] = _copied(item, numbers, places)
    return copy


def _rounded(numbers: Sequence[float]) -> list[float]:
    """The same for many numbers, all at once: a tenth of the time for 150 of them."""
    import numpy as np  # nothing else here needs it, and `polyhead --help` reads this file

    exact = np.array(numbers)
    sizes = np.abs(exact)
    is_usual = (sizes >= 10.0 ** (DIGITS - 1 - SHIFTS)) & (sizes < 10.0**DIGITS)
    places = DIGITS - 1 - np.floor(np.log10(np.where(is_usual, sizes, 1.0)))
    shifts = _powers().take(np.clip(places, 0, SHIFTS).astype(np.int64))
    is_other = ~is_usual & (sizes != 0)
    rounded: list[float] = (np.rint(np.where(is_other, 0.0, exact) * shifts) / shifts).tolist()
    for place in np.flatnonzero(is_other).tolist():
        rounded[place] = few_digits(numbers[place])
    return rounded


@functools.cache
def _powers() -> Any:
    """The powers of ten that a float holds exactly, float64 (SHIFTS + 1,)."""
    import numpy as np

    return np.array([float(10**place) for place in range(SHIFTS + 1)])


def digested(value: object) -> Any:
    """Plain data for a digest: fields that equal their default are left out.

    A later version may therefore add a field without changing older digests, and never changes the default of a field
    that goes into digests. A field that got another name keeps its old one here as its encoded name.
    """
    if isinstance(value, msgspec.Struct):
        keys = {field.name: field.encode_name for field in _fields(type(value))}
        kept = {keys[name]: digested(getattr(value, name)) for name in changed_fields(value)}
        tag = value.__struct_config__.tag
        return kept if tag is None else {str(value.__struct_config__.tag_field): tag, **kept}
    if isinstance(value, dict):
        return {key: digested(item) for key, item in value.items()}
    return [digested(item) for item in value] if isinstance(value, (list, tuple)) else value


def changed_fields(value: msgspec.Struct) -> list[str]:
    """Names of the fields that are not at their default."""
    names = []
    for field in _fields(type(value)):
        default = field.default_factory() if callable(field.default_factory) else field.default
        if getattr(value, field.name) != default:
            names.append(field.name)
    return names


_fields = functools.cache(msgspec.structs.fields)  # which reads every annotation of the type anew


def check_unused(table: str, value: msgspec.Struct, why: Mapping[str, str]) -> None:
    """Raises ConfigError for a field that is not at its default and has no effect; `why` holds the reason by name."""
    changed = changed_fields(value)
    for name in why:
        if name in changed:
            what = f"{table}{name} would change nothing: {why[name]}"
            raise ConfigError(what, got=getattr(value, name), do="leave it out")


_WORDS = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}


class _Place(msgspec.Struct, frozen=True):
    """Where a value stands: the data's source and kind, its path, and the path with the names of entries."""

    source: str
    kind: Any
    path: str = ""  # such as .tasks[0].labels
    named: str = ""  # such as .tasks[0] ('mood').labels

    def __str__(self) -> str:
        return self.named.removeprefix(".") or "the top level"

    def below(self, step: str, part: object) -> _Place:
        name = part.get("name") if isinstance(part, dict) and step.startswith("[") else None
        shown = f" ('{name}')" if isinstance(name, str) else ""
        return _Place(self.source, self.kind, self.path + step, self.named + step + shown)


def _told(error: Exception, data: object, kind: Any, place: _Place) -> PolyheadError:
    """The error of the innermost part of the data that does not fit its kind."""
    for step, part, of in _parts(data, kind):
        try:
            msgspec.convert(part, of, strict=True, dec_hook=_registered)
        except (msgspec.ValidationError, PolyheadError) as inner:
            return _told(inner, part, of, place.below(step, part))
    if isinstance(error, PolyheadError):  # of the value's own check
        where = f"{place.source}, {place.path.removeprefix('.')}" if place.path else place.source
        return error.at(where, path=f"${place.path}")
    message, kinds = str(error), _options(kind)
    if message.startswith("Object contains unknown field") and isinstance(data, dict):
        return _unknown_key(data, _chosen(_structs(kinds), data), place)
    if message.startswith("Object missing required field"):
        key = message.split("`")[1]
        do = f"add the key '{key}'"
        return ConfigError(f"{place.source}: key '{key}' is missing in {place}", do=do, key=key)
    if message.startswith("Invalid"):
        return _wrong_choice(data, kinds, place)
    if not message.startswith("Expected `") or "`, got `" not in message:
        return ConfigError(f"{place.source}: {message} at {place}", do="fix that value", path=f"${place.path}")
    words = [word for word in message.split("`")[1].split(" | ") if word != "null"]
    return ConfigError(
        f"{place.source}: wrong type at {place}",
        got=_written(data),
        allowed=" or ".join(_WORDS.get(word, word) for word in words or ["null"]),
        do="write such a value",
        path=f"${place.path}",
    )


def _written(value: Any) -> str:
    """A value nearly as its file has it; JSON cannot write numbers that are not finite."""
    is_number = isinstance(value, float) and not math.isfinite(value)
    return str(value) if is_number else msgspec.json.encode(value).decode()


def _its_table(key: str, structs: Iterable[Any], above: str = "") -> str | None:
    """What to do with a key beside tables of which one has it; None if none does. `above` is the place of them all."""
    tables: list[str] = []
    for struct in structs:
        for name, hint in typing.get_type_hints(struct).items():
            inner = [item for option in _options(hint) for item in typing.get_args(option)]
            if any(key in _keys(table) for table in _structs(_options(hint))):
                tables.append(f"[{above}{name}]")
            elif any(key in _keys(table) for table in _structs(inner)):
                tables.append(f"[[{above}{name}]]")
    return f"put it into the table {' or '.join(tables)}" if tables else None


def _unknown_key(data: Mapping[str, object], structs: list[Any], place: _Place) -> ConfigError:
    names, path, kind = _keys(structs[0]), place.path, place.kind
    key = next(str(key) for key in data if key not in names)
    where = path.removeprefix(".") or "the top level"
    return ConfigError(
        f"{place.source}: unknown key '{key}' in {where}",
        allowed=sorted(names),
        do=_meant(key, path, names, kind)
        or (_its_table(key, structs, f"{where}." if path else "") if "[" not in path else None)
        or _its_table(key, _structs(_options(kind)))
        or suggestion(key, names)
        or "remove the key",
        key=key,
        path=f"${path}",
    )


def _meant(key: str, path: str, names: tuple[str, ...], kind: type) -> str | None:
    """What to do with a key that is called otherwise here; None for one that is not known by another name."""
    meant = getattr(kind, "meant", {}).get(key.lower().replace("-", "_"))
    if meant is None:
        return None
    table, _, name = meant.rpartition(".")
    # A task's name is not that of a trunk; any other key of this table is what is meant.
    if name in names and (name != "name" or table == path.rpartition(".")[2].partition("[")[0]):
        return f"write '{name}': {name} is meant by {key}"
    if not table:
        return f"write '{name}' at the top level: {name} is meant by {key}"
    brackets = f"[[{table}]]" if _is_list(kind, table) else f"[{table}]"
    return f"write '{name}' in the table {brackets}: {table}.{name} is meant by {key}"


def _is_list(kind: Any, table: str) -> bool:
    """Whether a key at the top level holds several tables."""
    options = _options(typing.get_type_hints(kind)[table])
    return any(typing.get_origin(option) in (list, tuple) for option in options)


def _wrong_choice(data: object, kinds: Iterable[Any], place: _Place) -> ConfigError:
    """Of a value, or of a key of a table."""
    what, allowed = "value", _choices(kinds)
    if isinstance(data, dict):
        tables = [kind for kind in kinds if typing.get_origin(kind) is dict]
        what, allowed = "key", _choices(key for table in tables for key in _options(typing.get_args(table)[0]))
        data = next((key for key in data if key not in allowed), "")
    return ConfigError(
        f"{place.source}: wrong {what} {data!r} at {place}",
        allowed=allowed,
        do=suggestion(str(data), map(str, allowed)) or "give one of these",
        path=f"${place.path}",
    )


def _choices(kinds: Iterable[Any]) -> list[object]:
    """What these kinds allow: values, then types in words."""
    literals = [kind for kind in kinds if typing.get_origin(kind) is Literal]
    values = [value for kind in literals for value in typing.get_args(kind) if value is not None]
    return values + [f"a value of type {kind.__name__}" for kind in kinds if kind in (bool, int, float, str)]


def _parts(data: object, kind: Any) -> Iterator[tuple[str, object, Any]]:
    """The parts of data of this kind, in order: the step to each part, the part, and its kind."""
    kinds = _options(kind)
    if isinstance(data, dict):
        configs = [struct.__struct_config__ for struct in _structs(kinds)]
        tags = {config.tag_field: Literal[tuple(each.tag for each in configs)] for config in configs if config.tag}
        structs = _chosen(_structs(kinds), data)
        known = _fields_of(structs[0]) if len(structs) == 1 else {}
        hints = {**known, **tags}
        yield from ((f".{key}", part, hints[key]) for key, part in data.items() if key in hints)
    for option in kinds:
        if isinstance(data, dict) and typing.get_origin(option) is dict:
            yield from ((f".{key}", part, typing.get_args(option)[1]) for key, part in data.items())
        if isinstance(data, list):
            items = ((number, part, _item(option, number)) for number, part in enumerate(data))
            yield from ((f"[{number}]", part, of) for number, part, of in items if of is not None)


@functools.cache
def _fields_of(struct: Any) -> dict[str, Any]:
    """The kind of each field, by its key."""
    hints = typing.get_type_hints(struct, include_extras=True)
    return {field.encode_name: hints[field.name] for field in _fields(struct)}


def _item(kind: Any, number: int) -> Any:
    """The kind of an item of a list or tuple; None for other kinds."""
    origin, of = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple and of[-1] is not ...:
        return of[number] if number < len(of) else None
    return of[0] if origin in (list, tuple, set, frozenset) else None


def _keys(struct: Any) -> tuple[str, ...]:
    tag = struct.__struct_config__.tag_field
    return (*([tag] if tag else []), *struct.__struct_encode_fields__)


def _options(kind: Any) -> tuple[Any, ...]:
    kind = typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind
    kinds = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    return tuple(option for kind in kinds for option in (kind.registered.values() if _is_open(kind) else (kind,)))


def _is_open(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Open) and not issubclass(kind, msgspec.Struct)


def _structs(kinds: Iterable[Any]) -> list[Any]:
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]


def _chosen(structs: list[Any], data: object) -> list[Any]:
    """The struct of a tagged union whose tag the data names."""
    if len(structs) < 2 or not isinstance(data, dict):
        return structs
    tagged = [s for s in structs if data.get(s.__struct_config__.tag_field) == s.__struct_config__.tag]
    return tagged or structs
