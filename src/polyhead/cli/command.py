"""Commands from functions: an annotation says an option once, in the signature or at the field that the option fills.

A parameter before `*` is an argument of the command line, one after it an option. A parameter whose type is a Value
stands for its described fields. A Printer brings `--json`, which gets what the function returns.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Annotated, Any, Literal

import click
import msgspec

from polyhead.cli.output import JSON_OPTION, Printer, check_writable, stoppable
from polyhead.values import Value, ValueT

LEAST_SCALED = 0.001  # of a number that is given in larger units
LONGEST_HELP = 400  # characters of a first sentence
BOUNDS = ("ge", "gt", "le", "lt")


class OptionText:
    """What is said of an option or argument: its help, names, bounds and settings of click.

    `rest` are names, which begin with a dash, and at most one default.
    """

    def __init__(self, text: str = "", *others: Any, **settings: Any) -> None:
        self.text = text
        self.names = tuple(each for each in others if isinstance(each, str) and each.startswith("-") and len(each) > 1)
        self.default = next((each for each in others if each not in self.names), settings.pop("default", NONE))
        self.bounds = {key: settings.pop(key) for key in BOUNDS if key in settings}
        self.settings = settings

    def over(self, other: OptionText) -> OptionText:
        """What this says, and what the other one says beyond it."""
        settings = {**other.settings, **other.bounds, **self.settings, **self.bounds}
        return OptionText(self.text or other.text, *(self.names or other.names), **settings)


NONE = inspect.Parameter.empty


def option(text: str = "", *others: Any, **settings: Any) -> Any:
    """The default of a parameter that describes it; see `OptionText`."""
    return OptionText(text, *others, **settings)


class OutputFile(click.ParamType[str]):
    """A file that the command writes: its name is checked before any work."""

    name = "file"

    def __init__(self, *endings: str) -> None:
        self.endings = endings

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name; click's error for another ending."""
        if self.endings and not str(value).lower().endswith(self.endings):
            self.fail(f"it ends in {' or '.join(self.endings)}", param, ctx)
        return str(value)


class InputFile(click.ParamType[str]):
    """A file that the command reads."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name; DataError where no such file is."""
        import os

        from polyhead.errors import DataError

        if not os.path.isfile(value):
            raise DataError(f"no file at {value}", do="give the path of a file that exists")
        return str(value)


class Field(Value, eq=False):
    """A parameter of the command, or of a value that a parameter takes."""

    name: str
    kind: Any
    described: Any = None  # OptionText
    default: Any = NONE
    is_argument: bool = False

    @property
    def scale(self) -> int:
        """By what the number of the command line is multiplied."""
        return int(self.described.settings.get("scale", 1))


class VerbGroup(click.Group):
    """A verb with verbs of its own; the first sentence of each is shown whole."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the verbs."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(LONGEST_HELP)) for name, each in self.commands.items()])


class _Command(click.Command):
    """A command that refuses a second value of an option that takes one; of two equal flags one is enough."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, which takes the last of several values without a word."""
        occurrences = Counter(self.make_parser(ctx).parse_args(args=list(args))[2])
        for each, count in occurrences.items():
            if isinstance(each, click.Option) and count > 1 and not (each.multiple or each.is_flag or each.count):
                raise click.UsageError(f"{each.opts[0]} is given {count} times, and takes one value.", ctx)
        return super().parse_args(ctx, args)


def verb(name: str, *, group: click.Group | None = None, again: str | None = None) -> Callable[[Any], click.Command]:
    """Makes the command of a function; `again` says how an interrupted one goes on."""

    def made(function: Callable[..., Any]) -> click.Command:
        hints = typing.get_type_hints(function, include_extras=True)
        declared = [
            _field(
                parameter.name, hints[parameter.name], parameter.default, parameter.kind is not parameter.KEYWORD_ONLY
            )
            for parameter in inspect.signature(function).parameters.values()
        ]

        @functools.wraps(function)
        def callback(**values: Any) -> None:
            for parameter in command.params:
                if isinstance(parameter.type, OutputFile) and values.get(str(parameter.name)) is not None:
                    check_writable(values[str(parameter.name)])
            arguments, printer = {}, None
            for field in declared:
                if field.kind is Printer:
                    arguments[field.name] = printer = Printer(values["json_to"])
                else:
                    arguments[field.name] = _filled(field, values)
            try:
                with stoppable(again) if again else nullcontext():
                    result = function(**arguments)
            finally:
                if printer is not None:
                    printer.show("")
            if printer is not None and result is not None:
                printer.json(result)

        command = click.command(name, cls=_Command)(callback)
        command.params = [each for field in declared for each in _parameters(field)]
        if group is not None:
            group.add_command(command)
        return command

    return made


def _field(name: str, annotation: Any, default: Any, is_argument: bool) -> Field:
    """The field of an annotation, whose parts in a union may be annotated too."""
    kind, notes = _bare(annotation)
    described = default if isinstance(default, OptionText) else OptionText()
    if isinstance(default, OptionText):
        default = default.default
    for each in reversed(notes):  # the outermost wins
        if isinstance(each, msgspec.Meta):
            extra = dict(each.extra or {})
            names = (extra.pop("option"),) if "option" in extra else ()
            if "choices" in extra:
                extra["type"] = click.Choice(list(extra.pop("choices")))
            bounds = {key: getattr(each, key) for key in BOUNDS if getattr(each, key) is not None}
            each = OptionText(each.description or "", *names, **bounds, **extra)
        elif not isinstance(each, OptionText):
            each = OptionText(type=each)
        described = described.over(each)
    return Field(name=name, kind=kind, described=described, default=default, is_argument=is_argument)


def _bare(annotation: Any) -> tuple[Any, list[Any]]:
    """The type without None and annotations, and these."""
    notes: list[Any] = []
    if typing.get_origin(annotation) is Annotated:
        annotation, *notes = typing.get_args(annotation)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        inner = next(each for each in typing.get_args(annotation) if each is not type(None))
        annotation, more = _bare(inner)
        return annotation, [*notes, *more]
    return annotation, notes


def _is_value(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _inner(kind: Any) -> Iterator[Field]:
    """The fields of a value that options fill: those with a description, and those of values within."""
    hints = typing.get_type_hints(kind, include_extras=True)
    for each in msgspec.structs.fields(kind):
        default = each.default if each.default is not msgspec.NODEFAULT else None
        field = _field(each.name, hints[each.name], default, False)
        if field.described.text or _is_value(field.kind):
            yield field


def filled(kind: type[ValueT], values: Mapping[str, Any]) -> ValueT:
    """The value whose described fields are these values of a command line."""
    return kind(**{each.name: _filled(each, values) for each in _inner(kind)})


def _filled(field: Field, values: Mapping[str, Any]) -> Any:
    if _is_value(field.kind):
        return filled(field.kind, values)
    value = values[field.name]
    return value if field.scale == 1 or value is None else int(value * field.scale)


def _parameters(field: Field) -> Iterator[click.Parameter]:
    if field.kind is Printer:
        yield click.Option(["--json", "json_to"], **JSON_OPTION)
    elif _is_value(field.kind):
        for each in _inner(field.kind):
            yield from _parameters(each)
    else:
        settings = {key: value for key, value in field.described.settings.items() if key != "scale"}
        settings = _settings(field) | settings
        if field.is_argument:
            yield click.Argument([field.name], **settings)
            return
        names = field.described.names or (f"--{field.name.replace('_', '-')}",)
        yield click.Option([*names, field.name], help=field.described.text, **settings)


def _settings(field: Field) -> dict[str, Any]:
    """The settings that follow from the type, the bounds and the default."""
    kind, settings = field.kind, dict[str, Any]()
    if typing.get_origin(kind) is tuple:
        members = typing.get_args(kind)
        settings["nargs" if field.is_argument or members[-1] is not ... else "multiple"] = (
            len(members) if members[-1] is not ... else -1 if field.is_argument else True
        )
        kind = members[0]
    settings["type"] = _type(kind, field)
    default = field.default
    if kind is bool:
        return {"is_flag": True}
    if default not in (NONE, None, ()):
        settings["default"] = default // field.scale if field.scale > 1 else default
        settings["show_default"] = default != ""
    if field.is_argument:
        settings["required"] = default is NONE
        settings.pop("show_default", None)
    return settings


def _type(kind: Any, field: Field) -> Any:
    if typing.get_origin(kind) is Literal:
        return click.Choice(list(typing.get_args(kind)))
    bounds = dict(field.described.bounds)
    if field.scale > 1 and "ge" in bounds:
        bounds["ge"] = max(LEAST_SCALED, bounds["ge"] / field.scale) if bounds["ge"] else 0
    if kind in (int, float) and (bounds or field.scale > 1):
        least, most = bounds.get("ge", bounds.get("gt")), bounds.get("le", bounds.get("lt"))
        is_int = kind is int and field.scale == 1
        form = click.IntRange if is_int else click.FloatRange
        return form(least, most, min_open="gt" in bounds, max_open="lt" in bounds)
    return kind if kind in (int, float) else None
