"""What messages advise can be run: commands, their parts and their options are there."""

import importlib
import re
from pathlib import Path

import click

import polyhead
from polyhead.cli.main import UNLISTED, VERBS, module_of

SOURCE = Path(polyhead.__file__).parent
PROSE = {"itself", "has"}  # words that follow the product's name in a sentence
COMMAND = re.compile(r"\bpolyhead ([a-z][a-z-]*)((?: [a-zA-Z-]+)*)")


def lines():
    """Every line of the package, with its file."""
    for path in sorted(SOURCE.rglob("*.py")):
        for line in path.read_text().splitlines():
            yield path.relative_to(SOURCE), line


def fault(verb, rest):
    """Why a command line cannot be run as far as its words say; None where it can."""
    if verb not in {*VERBS, *UNLISTED}:
        return f"no command {verb}"
    command = importlib.import_module(module_of(verb)).command
    words = rest.split()
    if isinstance(command, click.Group) and words and words[0].islower() and not words[0].startswith("-"):
        if words[0] not in command.commands:
            return f"no command {verb} {words[0]}"
        command = command.commands[words.pop(0)]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    unknown = [word for word in words if word.startswith("--") and word not in {*known, "--help"}]
    return f"no option {unknown[0]} of {verb}" if unknown else None


def test_every_command_that_a_message_names_is_there():
    looked_at, wrong = 0, []
    for path, text in lines():
        for verb, rest in COMMAND.findall(text):
            if verb in PROSE:
                continue
            looked_at += 1
            if why := fault(verb, rest):
                wrong.append((str(path), why, text.strip()))
    assert looked_at > 80 and not wrong, wrong


def test_a_message_that_says_to_use_something_names_a_command_or_a_name_that_is_there():
    """It said "make one with `create`", which was no command."""
    names = set(VERBS) | {name for verb in ("tasks", "features", "migrate") for name in _parts(verb)}
    code = {"save_pretrained"}  # of another library
    for path, text in lines():
        for word in re.findall(r"(?:make one|run|do it|them) with `([a-z_]+)`", text):
            assert word in names | code, (str(path), text)


def _parts(verb):
    return importlib.import_module(module_of(verb)).command.commands
