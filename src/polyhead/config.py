"""Strict frozen structs, TOML in and out. A wrong key is named with its path and the nearest right one."""

from __future__ import annotations

import difflib
import re
import tomllib
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from polyhead.errors import ConfigError, PolyheadError


@typing.dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(msgspec.field,))
class _KeywordOnly(msgspec.StructMeta):
    """msgspec applies `kw_only` to the fields of one class only; this applies it to every subclass too."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **config: Any) -> Any:
        return super().__new__(mcs, name, bases, namespace, **{"kw_only": True, **config})


class Value(msgspec.Struct, metaclass=_KeywordOnly, frozen=True, forbid_unknown_fields=True):
    """Base of every value that crosses a module border: frozen, keyword-only, unknown keys refused."""


ValueT = TypeVar("ValueT", bound=msgspec.Struct)


def read_toml(path: Path | str, kind: type[ValueT]) -> ValueT:
    """The file as a `kind`; raises ConfigError with the file's name and the path to what is wrong."""
    path = Path(path)
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"no configuration file at {path}", do="write one with `polyhead init`, or give its path"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML", got=error, do="fix that line") from None
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}", got=error.strerror, do="give the path of a TOML file"
        ) from None
    return to_value(data, kind, source=str(path))


def to_value(data: object, kind: type[ValueT], *, source: str) -> ValueT:
    """Plain data as a checked `kind`; `source` names where the data came from in errors, with the path to the value."""
    try:
        return msgspec.convert(data, kind, strict=True)
    except msgspec.ValidationError as error:
        raise _config_error(str(error), data, kind, source) from None
    except PolyheadError as error:  # of the value's own check
        path = _refused(data, kind)
        raise error.at(f"{source}, {path.removeprefix('.')}" if path else source, path=f"${path}") from None


def from_json(raw: bytes, kind: type[ValueT], *, source: str) -> ValueT:
    """JSON bytes as a checked `kind`."""
    try:
        return to_value(msgspec.json.decode(raw), kind, source=source)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(
            f"{source} is not JSON", got=error, do="restore the file or write it again"
        ) from None


def to_json(value: object, *, indent: int = 2) -> bytes:
    """Canonical, readable JSON: keys in field order, one trailing newline."""
    return msgspec.json.format(msgspec.json.encode(value), indent=indent) + b"\n"


def to_toml(value: object) -> str:
    """The value as TOML; fields that hold None are left out."""
    import tomli_w

    text: str = tomli_w.dumps(_without_none(msgspec.to_builtins(value)))
    return text


def digested(value: object) -> Any:
    """Plain data for a digest: fields that equal their default are left out.

    A later version may so add a field without changing what every digest was; the default of a field that goes into
    digests is therefore never changed.
    """
    if isinstance(value, msgspec.Struct):
        kept = {name: digested(getattr(value, name)) for name in changed_fields(value)}
        tag = value.__struct_config__.tag
        return kept if tag is None else {str(value.__struct_config__.tag_field): tag, **kept}
    if isinstance(value, dict):
        return {key: digested(item) for key, item in value.items()}
    return [digested(item) for item in value] if isinstance(value, (list, tuple)) else value


def changed_fields(value: msgspec.Struct) -> list[str]:
    """Names of the fields that are not at their default."""
    found = []
    for field in msgspec.structs.fields(type(value)):
        default = field.default_factory() if callable(field.default_factory) else field.default
        if getattr(value, field.name) != default:
            found.append(field.name)
    return found


def _without_none(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _without_none(item) for key, item in data.items() if item is not None}
    if isinstance(data, (list, tuple)):
        return [_without_none(item) for item in data]
    return data


_UNKNOWN = re.compile(r"Object contains unknown field `(?P<key>.*?)`(?: - at `(?P<path>.*)`)?$")


def _config_error(message: str, data: object, kind: type, source: str) -> ConfigError:
    found = _UNKNOWN.match(message)
    if not found:
        return ConfigError(f"{source}: {message}", do="fix that value")
    key, path = found["key"], found["path"] or "$"
    names = _field_names(kind, path, data)
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    do = f"did you mean '{near[0]}'?" if near else "remove the key"
    where = path.removeprefix("$").removeprefix(".") or "the top level"
    return ConfigError(
        f"{source}: unknown key '{key}' in {where}", allowed=sorted(names), do=do, key=key, path=path
    )


def _refused(data: object, kind: Any) -> str:
    """The path, such as `.tasks[0].strategy`, to the innermost value that refuses itself; "" for the data itself."""
    for step, part, of in _parts(data, kind):
        try:
            msgspec.convert(part, of, strict=True)
        except PolyheadError:
            return step + _refused(part, of)
    return ""


def _parts(data: object, kind: Any) -> Iterator[tuple[str, object, Any]]:
    """What data of this kind is made of, in its order: the step to each part, the part, and its kind."""
    if isinstance(data, dict):
        for struct in _chosen(_structs(kind), data):
            hints = typing.get_type_hints(struct)
            yield from ((f".{key}", part, hints[key]) for key, part in data.items() if key in hints)
    for option in _options(kind):
        origin, of = typing.get_origin(option), typing.get_args(option)
        if isinstance(data, dict) and origin is dict:
            yield from ((f".{key}", part, of[1]) for key, part in data.items())
        if isinstance(data, list) and origin in (list, tuple):
            yield from ((f"[{number}]", part, of[0]) for number, part in enumerate(data))


def _field_names(kind: Any, path: str, data: object) -> list[str]:
    """Names allowed at a msgspec error path such as `$.tasks[0].strategy`."""
    for step in re.findall(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]", path):
        name, index = step
        kinds = _structs(kind)
        if name:
            hints = [typing.get_type_hints(k).get(name) for k in kinds if name in k.__struct_fields__]
            if hints:
                kind = hints[0]
            elif typing.get_origin(kind) is dict:
                kind = typing.get_args(kind)[1]
            data = data.get(name) if isinstance(data, dict) else None
        elif index:
            options = typing.get_args(kind)
            kind = options[typing.get_origin(kind) is dict] if options else kind
            data = data[int(index)] if isinstance(data, list) and index.isdigit() else None
    return [name for struct in _chosen(_structs(kind), data) for name in _keys(struct)]


def _keys(struct: Any) -> tuple[str, ...]:
    tag = struct.__struct_config__.tag_field
    return (*([tag] if tag else []), *struct.__struct_encode_fields__)


def _options(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)


def _structs(kind: Any) -> list[Any]:
    return [one for one in _options(kind) if isinstance(one, type) and issubclass(one, msgspec.Struct)]


def _chosen(structs: list[Any], data: object) -> list[Any]:
    """Of a tagged union, the struct whose tag the data names."""
    if len(structs) < 2 or not isinstance(data, dict):
        return structs
    tagged = [s for s in structs if data.get(s.__struct_config__.tag_field) == s.__struct_config__.tag]
    return tagged or structs
