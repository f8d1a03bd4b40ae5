"""Strict frozen structs, read from TOML and JSON. Errors name a wrong key with its path and the nearest right one."""

from __future__ import annotations

import functools
import math
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from polyhead.errors import ConfigError, PolyheadError, suggestion
from polyhead.nesting import check_depth, toml_of


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
        raise ConfigError(
            f"no configuration file at {path}", do="write one with `polyhead init`, or give its path"
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}", got=error.strerror, do="give the path of a TOML file") from None
    return to_value(data, kind, source=str(path))


def to_value(data: object, kind: type[ValueT], *, source: str) -> ValueT:
    """Plain data as a checked `kind`; `source` names where the data came from in errors, with the path to the value."""
    try:
        return msgspec.convert(data, kind, strict=True, dec_hook=_registered)
    except msgspec.ValidationError as error:
        raise _config_error(str(error), data, kind, source) from None
    except PolyheadError as error:  # of the value's own check
        path = _refused(data, kind)
        raise error.at(f"{source}, {path.removeprefix('.')}" if path else source, path=f"${path}") from None


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


_UNKNOWN = re.compile(r"Object contains unknown field `(?P<key>.*?)`(?: - at `(?P<path>.*)`)?$")
_CHOICE = re.compile(r"Invalid (?:enum )?value (?P<value>.*) - at `(?P<path>.*?)`(?: in `(?P<table>.*?)`)?$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<key>.*?)`(?: - at `(?P<path>.*)`)?$")
_TYPE = re.compile(r"Expected `(?P<wanted>.*?)`, got `(?P<got>.*?)`(?: - at `(?P<path>.*)`)?$")
_WORDS = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}
_INNER = re.compile(r" - at `\$([^`]*)` - at `([^`]*)`$")  # of a value in an open union, and of that value
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")


def _config_error(message: str, data: object, kind: type, source: str) -> ConfigError:
    message = _INNER.sub(r" - at `\2\1`", message)
    if match := _UNKNOWN.match(message):
        return _unknown_key(match["key"], match["path"] or "$", data, kind, source)
    if match := _CHOICE.match(message):
        return _wrong_choice(match["value"], match["path"], match["table"], data, kind, source)
    if match := _MISSING.match(message):
        where = _where(match["path"] or "$", data)
        key = match["key"]
        return ConfigError(f"{source}: key '{key}' is missing in {where}", do=f"add the key '{key}'", key=key)
    if match := _TYPE.match(message):
        path, values = match["path"] or "$", [value for _, value in _at(kind, match["path"] or "$", data)]
        return ConfigError(
            f"{source}: wrong type at {_where(path, data)}",
            got=_written(values[0]) if len(values) == 1 else _in_words(match["got"]),
            allowed=_in_words(match["wanted"]),
            do="write such a value",
            path=path,
        )
    return ConfigError(f"{source}: {message}", do="fix that value")


def _written(value: Any) -> str:
    """A value nearly as its file has it; JSON cannot write numbers that are not finite."""
    is_number = isinstance(value, float) and not math.isfinite(value)
    return str(value) if is_number else msgspec.json.encode(value).decode()


def _in_words(types: str) -> str:
    """Types as msgspec writes them, such as `str | object`, in words of TOML."""
    return " or ".join(_WORDS.get(word, word) for word in types.split(" | ") if word != "null" or types == "null")


def _where(path: str, data: object) -> str:
    """A msgspec path with the names of the entries that have one: `tasks[0] ('mood').labels`."""
    text, here, rest = "", data, _STEP.findall(path)
    for name, index in rest:
        if name:
            here = here.get(name) if isinstance(here, dict) else None
            text += f".{name}"
        else:
            is_there = isinstance(here, list) and index.isdigit() and int(index) < len(here)
            here = here[int(index)] if isinstance(here, list) and is_there else None
            named = isinstance(here, dict) and isinstance(here.get("name"), str)
            text += f"[{index}]" + (f" ('{here['name']}')" if isinstance(here, dict) and named else "")
    return text.removeprefix(".") or "the top level"


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


def _unknown_key(key: str, path: str, data: object, kind: type, source: str) -> ConfigError:
    structs = [struct for kinds, value in _at(kind, path, data) for struct in _chosen(_structs(kinds), value)]
    keys_by_struct = [_keys(struct) for struct in structs]
    names = {name for keys in keys_by_struct if key not in keys for name in keys}
    where = path.removeprefix("$").removeprefix(".") or "the top level"
    return ConfigError(
        f"{source}: unknown key '{key}' in {where}",
        allowed=sorted(names),
        do=_meant(key, path, names, kind)
        or (_its_table(key, structs, "" if path == "$" else f"{where}.") if "[" not in path else None)
        or _its_table(key, _structs(_options(kind)))
        or suggestion(key, names)
        or "remove the key",
        key=key,
        path=path,
    )


def _meant(key: str, path: str, names: set[str], kind: type) -> str | None:
    """What to do with a key that is called otherwise here; None for one that is not known by another name."""
    meant = getattr(kind, "meant", {}).get(key.lower().replace("-", "_"))
    if meant is None:
        return None
    table, _, name = meant.rpartition(".")
    steps = [step for step, _ in _STEP.findall(path) if step]
    # A task's name is not that of a trunk; any other key of this table is what is meant.
    if name in names and (name != "name" or table in steps[-1:]):
        return f"write '{name}': {name} is meant by {key}"
    if not table:
        return f"write '{name}' at the top level: {name} is meant by {key}"
    brackets = f"[[{table}]]" if _is_list(kind, table) else f"[{table}]"
    return f"write '{name}' in the table {brackets}: {table}.{name} is meant by {key}"


def _is_list(kind: Any, table: str) -> bool:
    """Whether a key at the top level holds several tables."""
    options = _options(typing.get_type_hints(kind)[table])
    return any(typing.get_origin(option) in (list, tuple) for option in options)


def _wrong_choice(shown: str, path: str, table: str | None, data: object, kind: type, source: str) -> ConfigError:
    """`shown` is the value as msgspec writes it; `table` is the path if the key of a table is wrong."""
    path = table or path
    allowed: dict[object, None] = {}
    for kinds, value in _at(kind, path, data):
        if table is not None:
            tables = [kind for kind in kinds if typing.get_origin(kind) is dict]
            kinds = [key for table in tables for key in _options(typing.get_args(table)[0])]
        choices = _choices(kinds)
        if table is not None or (value is not None and value not in choices):  # else another entry of its table
            allowed |= dict.fromkeys(choices)
    return ConfigError(
        f"{source}: wrong {'value' if table is None else 'key'} {shown} at `{path}`",
        allowed=list(allowed),
        do=suggestion(shown.strip("'\""), map(str, allowed)) or "give one of these",
        path=path,
    )


def _choices(kinds: Iterable[Any]) -> list[object]:
    """What these kinds allow: values, then types in words."""
    literals = [kind for kind in kinds if typing.get_origin(kind) is Literal]
    values = [value for kind in literals for value in typing.get_args(kind) if value is not None]
    return values + [f"a value of type {kind.__name__}" for kind in kinds if kind in (bool, int, float, str)]


def _refused(data: object, kind: Any) -> str:
    """The path, such as `.tasks[0].strategy`, to the innermost value whose own check fails; "" for the data itself."""
    for step, part, of in _parts(data, kind):
        try:
            msgspec.convert(part, of, strict=True, dec_hook=_registered)
        except PolyheadError:
            return step + _refused(part, of)
    return ""


def _parts(data: object, kind: Any) -> Iterator[tuple[str, object, Any]]:
    """The parts of data of this kind, in order: the step to each part, the part, and its kind."""
    if isinstance(data, dict):
        for struct in _chosen(_structs(_options(kind)), data):
            hints = typing.get_type_hints(struct)
            yield from ((f".{key}", part, hints[key]) for key, part in data.items() if key in hints)
    for option in _options(kind):
        if isinstance(data, dict) and typing.get_origin(option) is dict:
            yield from ((f".{key}", part, typing.get_args(option)[1]) for key, part in data.items())
        if isinstance(data, list):
            items = ((number, part, _item(option, number)) for number, part in enumerate(data))
            yield from ((f"[{number}]", part, of) for number, part, of in items if of is not None)


def _at(kind: Any, path: str, data: object) -> Iterator[tuple[list[Any], object]]:
    """The kinds allowed at a msgspec path such as `$.tasks[0].strategy`, with unions taken apart, and the value there.

    After `[...]`, which means any entry of a table, there is one such pair for each entry.
    """
    places = [(_options(kind), data)]
    for name, index in _STEP.findall(path):
        below = []
        for kinds, value in places:
            if index == "...":
                of = [typing.get_args(kind)[1] for kind in kinds if typing.get_origin(kind) is dict]
                below += [(of, entry) for entry in (value.values() if isinstance(value, dict) else ())]
            elif name:
                of = [_hint(struct, name) for struct in _chosen(_structs(kinds), value)]
                below.append((of, value.get(name) if isinstance(value, dict) else None))
            else:
                of = [_item(kind, int(index)) for kind in kinds]
                below.append((of, value[int(index)] if isinstance(value, list) else None))
        places = [
            (tuple(option for kind in of if kind is not None for option in _options(kind)), value)
            for of, value in below
        ]
    return ((list(kinds), value) for kinds, value in places)


def _hint(struct: Any, name: str) -> Any:
    """The kind of a field, or of the tag, which is a choice too; None for any other key."""
    config = struct.__struct_config__
    return Literal[config.tag] if name == config.tag_field else typing.get_type_hints(struct).get(name)


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
