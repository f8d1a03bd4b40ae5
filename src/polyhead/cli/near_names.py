"""Words of a command line that are not known: the ones that were probably meant."""

from __future__ import annotations

from collections.abc import Iterable

import click

from polyhead.errors import near_name
from polyhead.project.names import MEANT, other_name

TRAINING = "train"  # the verb whose numbers stand in a project file


def near_words(word: str, words: Iterable[str]) -> str:
    """A question that names the nearest word; "" where none is near."""
    near = near_name(word, words)
    return "" if near is None else f"Did you mean '{near}'?"


def with_meant(error: click.NoSuchOption) -> click.NoSuchOption:
    """The error, naming the option or the key of the project file that other programs call so."""
    command = error.ctx.command if error.ctx is not None else None
    key = MEANT.get(other_name(error.option_name))
    options = [name for parameter in (command.params if command else []) for name in parameter.opts if name[:2] == "--"]
    table, _, name = (key or "").rpartition(".")
    option = f"--{name.replace('_', '-')}"
    if key is not None and option in options:
        said = f"{option} is meant by {error.option_name}."
    elif (key is not None or _is_key(error.option_name)) and command is not None and command.name == TRAINING:
        key = key or f"training.{other_name(error.option_name)}"
        table, _, name = key.rpartition(".")
        where = {"": "at the top", "tasks": "in [[tasks]]"}.get(table, f"in [{table}]")
        said = f"It stands in the project file, as '{name}' {where}."
    else:
        return error
    message = f"No such option {error.option_name!r}. {said}"
    return click.NoSuchOption(error.option_name, message=message, ctx=error.ctx)


def _is_key(option: str) -> bool:
    return f"training.{other_name(option)}" in MEANT.values()
