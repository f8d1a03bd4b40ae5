"""`python -m studies ...`, run in this process or in one of its own."""

from studies.__main__ import main
from support import commands


def run(*words, **given):
    return commands.run(*words, main=main, **given)


def shell(words, **given):
    return commands.shell(words, module="studies.__main__", **given)
