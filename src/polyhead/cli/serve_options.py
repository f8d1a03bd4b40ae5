"""Options of `polyhead serve` that say what it allows, whose keys it knows and what it writes; from a file too."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import click
import msgspec

from polyhead.cli.output import DASH
from polyhead.errors import ConfigError, suggestion
from polyhead.nesting import toml_of

if TYPE_CHECKING:
    from polyhead.serve.keys import AccessKeys
    from polyhead.serve.settings import ServeSettings

Command = TypeVar("Command", bound=Callable[..., Any])
PREDICT_KEYS, ADMIN_KEYS = "POLYHEAD_KEYS", "POLYHEAD_ADMIN_KEYS"
MIB = 2**20

# Where a setting lies in ServeSettings, its least value, and its help. Options are named as the last part is.
NUMBERS: Mapping[str, tuple[str, float, str]] = {
    "--timeout": ("timeout", 0.001, "Seconds that a request may take; a request may ask for less."),
    "--drain-seconds": ("drain_seconds", 0, "Seconds for answers that are under way when the server is stopped."),
    "--body-mb": ("limits.body_bytes", 0.001, "MiB of a request's body."),
    "--inputs": ("limits.inputs", 1, "Inputs of a request."),
    "--characters": ("limits.characters", 1, "Characters of one text."),
    "--all-characters": (
        "limits.all_characters",
        1,
        "Characters of all texts of a request, with a question's for each of its options.",
    ),
    "--tokens": ("limits.tokens", 1, "Tokens that the encoder reads for one request."),
    "--answers": (
        "limits.answers",
        1,
        "Inputs times tasks of a request; and its words, times the tasks that label each.",
    ),
    "--questions": ("limits.questions", 1, "Questions of a request to a decisions API."),
    "--options": ("limits.options", 2, "Options of one question."),
    "--batch-tokens": ("queue.batch_tokens", 1, "Tokens that the encoder reads at once."),
    "--waiting-inputs": ("queue.waiting_inputs", 1, "Inputs that may wait; more are refused with 429."),
    "--waiting-characters": ("queue.waiting_characters", 1, "Characters that may wait; more are refused with 429."),
    "--connections": ("connections.open", 1, "Connections that may be open at once."),
    "--header-seconds": ("connections.header_seconds", 0.001, "Seconds for a request's headers to come."),
    "--body-seconds": ("connections.body_seconds", 0.001, "Seconds for its body to come, and for a pause in reading."),
    "--cache-mb": ("cache_bytes", 0, "MiB of answers and vectors to keep for texts asked again; 0 keeps none."),
}
IN_MIB = ("limits.body_bytes", "cache_bytes")


def settings_options(command: Command) -> Command:
    """Adds all options of `serve_settings`, `keys_of` and `access_log`, and `--config` for any option."""
    from_file = click.option(
        "--config",
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_read_config,
        help="TOML file with any of these options, such as inputs = 64. What the command line says goes before it.",
    )
    others = [
        click.option(
            "--long-texts",
            type=click.Choice(["cut", "refuse"]),
            default="cut",
            show_default=True,
            help="Texts longer than the encoder reads: read their beginning and say so in the receipt, or refuse.",
        ),
        click.option(
            "--unknown",
            type=click.Choice(["refuse", "similarity"]),
            default="refuse",
            show_default=True,
            help="What a question of a decisions API that no task answers gets: no answer, or one by the similarity of "
            "the text with the words of its options.",
        ),
        click.option(
            "--labels",
            type=click.Path(dir_okay=False),
            help="TOML file that gives questions of a decisions API to tasks of other names, and options to labels.",
        ),
        click.option(
            "--keys",
            metavar="FILE",
            help="File of API keys, one a line: KEY or predict:KEY opens all routes but changes, admin:KEY those too. "
            f"What follows ' #' names the key in the log. {PREDICT_KEYS} and {ADMIN_KEYS} hold more, between commas.",
        ),
        click.option("--no-keys", is_flag=True, help="Need no key, also where other machines reach the server."),
        click.option(
            "--allowed-host",
            "allowed_hosts",
            metavar="NAME",
            multiple=True,
            help="Name by which the server may be asked without a key, beside its addresses, localhost and --host; "
            ".NAME for a name and all below it, '*' for any. Other names are refused, since a web page can point one "
            "of its own at this machine. May be repeated.",
        ),
        click.option(
            "--access-log", metavar="FILE", help="Append a line of JSON for each request, without texts; - prints it."
        ),
        click.option("--traces", is_flag=True, help="Make OpenTelemetry spans; needs the extra otel and an SDK."),
    ]
    for option in reversed([*map(_number, NUMBERS), *others, from_file]):
        command = option(command)
    return command


def serve_settings(given: Mapping[str, Any], **others: Any) -> ServeSettings:
    """The settings that these values of options make, and `others` as they are."""
    from polyhead.serve.settings import ServeSettings, read_labels

    labels = {} if given["labels"] is None else read_labels(given["labels"])
    settings = ServeSettings(long_texts=given["long_texts"], unknown=given["unknown"], labels=labels, **others)
    for option, (path, _, _) in NUMBERS.items():
        value = given[_name(option)]
        if value is not None:
            settings = _with(settings, path, int(value * MIB) if path in IN_MIB else value)
    return settings


def keys_of(path: str | None) -> AccessKeys:
    """The keys of this file and of the environment; raises ConfigError for what is none."""
    from polyhead.serve.keys import AccessKeys, keys_in

    keys = list[Any]()
    if path is not None:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is no text in UTF-8"
            raise ConfigError("the file of keys cannot be read", got=f"{path} ({reason})") from None
        keys += keys_in(text, source=path)
        if not keys:
            raise ConfigError("the file of keys holds none", got=path, do="add a line, or leave --keys out")
    for name, purpose in ((PREDICT_KEYS, "predict"), (ADMIN_KEYS, "admin")):
        lines = os.environ.get(name, "").replace(",", "\n")
        keys += keys_in(lines, source=name, purpose=purpose, before=len(keys))  # type: ignore[arg-type]
    return AccessKeys(keys)


def hosts_of(allowed: Sequence[str], host: str) -> list[str] | None:
    """The names by which a server on this host may be asked without a key; None where it may be any."""
    return None if "*" in allowed else [name.lower().rstrip(".") for name in (host, *allowed)]


@contextmanager
def access_file(path: str | None) -> Iterator[BinaryIO | None]:
    """The open file of the access log, where there is to be one."""
    if path is None:
        yield None
    elif path == DASH:
        yield sys.stdout.buffer
    else:
        try:
            file = open(path, "ab")  # noqa: SIM115 (closed below)
        except OSError as error:
            raise ConfigError("the access log cannot be written", got=f"{path} ({error.strerror})") from None
        with file:
            yield file


def _number(option: str) -> Callable[[Command], Command]:
    from polyhead.serve.settings import ServeSettings

    path, least, text = NUMBERS[option]
    value: Any = ServeSettings()
    for part in path.split("."):
        value = getattr(value, part)
    if path in IN_MIB:
        value = value // MIB
    number = click.IntRange(int(least)) if isinstance(value, int) and path not in IN_MIB else click.FloatRange(least)
    return click.option(option, type=number, default=value, show_default=True, help=text)


def _name(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def _with(settings: Any, path: str, value: object) -> Any:
    first, _, rest = path.partition(".")
    inner = _with(getattr(settings, first), rest, value) if rest else value
    return msgspec.structs.replace(settings, **{first: inner})


def _read_config(context: click.Context, parameter: click.Parameter, path: str | None) -> None:
    if path is None:
        return
    try:
        table = toml_of(Path(path))
    except OSError as error:
        raise ConfigError("the settings cannot be read", got=f"{path} ({error.strerror})") from None
    options = [own for own in context.command.params if isinstance(own, click.Option) and own is not parameter]
    known = {word.removeprefix("--"): own for own in options for word in own.opts}
    values = dict[str, Any]()
    for name, value in table.items():
        own = known.get(name.replace("_", "-"))
        if own is None or isinstance(value, dict):
            allowed = sorted(known)
            raise ConfigError(f"{path}: there is no option '{name}'", allowed=allowed, do=suggestion(name, allowed))
        values[str(own.name)] = [value] if own.multiple and not isinstance(value, list) else value
    context.default_map = values
