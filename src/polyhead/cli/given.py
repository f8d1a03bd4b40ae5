"""What stands on the command line to be answered: texts, a file, or nothing, which is standard input."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import click

from polyhead.cli.output import DASH
from polyhead.data.tables import file_endings
from polyhead.errors import DataError
from polyhead.values import Value

OTHER_ENDINGS = (".ndjson", ".txt", ".gz", ".zip")
"""How names of data files end that are no tables: a text that ends so is taken for one."""
LONGEST_PATH = 4096


class TextInput(Value):
    """Texts of the command line, or else a file; DASH is standard input."""

    texts: tuple[str, ...] = ()
    file: str = DASH


def given_in(arguments: Sequence[str]) -> TextInput:
    """What the arguments are: one that names a file is that file, alone; others are texts.

    Raises DataError for what looks like the path of a file and is none, click's errors for folders and for several
    files.
    """
    for argument in arguments:
        if os.path.isdir(argument):
            do = "give a file, or pipe the word in to have it answered as a text"
            raise click.BadParameter(f"'{argument}' is a folder; {do}", param_hint="'TEXT or FILE'")
        if argument != DASH and not os.path.exists(argument) and looks_like_a_path(argument):
            raise DataError(
                f"no file at {argument}",
                do="give the path of a file that exists; a text that looks like a path is answered from a pipe: "
                "echo TEXT | polyhead predict BUNDLE",
            )
    files = [argument for argument in arguments if argument == DASH or os.path.exists(argument)]
    if files and len(arguments) > 1:
        raise click.UsageError(f"{files[0]} is a file: give one file alone, or texts.")
    return TextInput(file=files[0]) if files else TextInput(texts=tuple(arguments))


def looks_like_a_path(argument: str) -> bool:
    """Whether a word that names no file was meant to: by its ending, or by a folder before a `/`."""
    if not argument.strip() or len(argument) > LONGEST_PATH:
        return False
    if argument.lower().endswith((*file_endings(), *OTHER_ENDINGS)):
        return True
    if re.search(r"\s", argument) or "/" not in argument:
        return False
    return argument.startswith((".", "~", "/")) or os.path.isdir(os.path.dirname(argument))
