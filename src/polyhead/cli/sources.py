"""What stands on the command line to be answered: texts, a file, or standard input; and tables given in their place."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence

import click

from polyhead.cli.output import DASH
from polyhead.data.tables import file_endings
from polyhead.data.tables.base import written_ending
from polyhead.errors import DataError
from polyhead.store.jobs.lines import COLUMNS_OF_TEXTS
from polyhead.values import Value

OTHER_ENDINGS = (".ndjson", ".txt", ".gz", ".zip")
"""How names of data files end that are no tables: a text that ends so is taken for one."""
LONGEST_PATH = 4096


class TextInput(Value):
    """Texts of the command line, or else a file; DASH is standard input."""

    texts: tuple[str, ...] = ()
    file: str = DASH

    @property
    def place(self) -> str:
        """Where the inputs stand, in words."""
        if self.texts:
            return "the command line"
        return "standard input" if self.file == DASH else self.file


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


def command_for(bundle: str, file: str, columns: Sequence[str]) -> str:
    """The command that answers the rows of a file; COLUMN stands where it is not known which one holds the texts."""
    names = {name.casefold(): name for name in columns}
    column = next((names[name] for name in COLUMNS_OF_TEXTS if name in names), "COLUMN")
    words = shlex.join(["polyhead", "predict", bundle, file, "--text"])
    return f"{words} {column if column == 'COLUMN' else shlex.quote(column)} -o answered{written_ending(file)}"


def objects_as_inputs(bundle: str, columns: Sequence[str], where: str) -> DataError:
    """The error for rows in JSON that would be read as inputs; `where` they came from."""
    file = where if where.lower().endswith((".jsonl", ".json")) else "FILE.jsonl"
    return DataError(
        f"{where} holds rows of a table, which are no inputs",
        got=f"objects with {', '.join(columns)}",
        allowed='objects with "text", or with the other keys that `polyhead predict --help` names',
        do=f"answer its rows: `{command_for(bundle, file, columns)}`",
    )


def rows_as_lines(bundle: str, columns: Sequence[str], where: str) -> DataError:
    """The error for a table whose lines would be answered as texts; `where` it came from."""
    command = command_for(bundle, "FILE.csv", columns)
    return DataError(
        f"{where} holds a table, whose lines are no texts",
        got=f"a first line with the columns {', '.join(columns)}",
        allowed="one text a line, or JSON Lines",
        do=f"answer the rows of its file: `{command}`; or, if these are texts, add --format text",
    )
