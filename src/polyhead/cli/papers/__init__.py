"""`polyhead papers`: figures and tables of the papers, counted anew."""

from __future__ import annotations

import click

from polyhead.cli.papers.du2020 import du2020
from polyhead.cli.papers.flexible import flexible
from polyhead.cli.papers.mtop import mtop
from polyhead.cli.papers.muppet import muppet
from polyhead.cli.papers.pals import pals


@click.group("papers")
def command() -> None:
    """Reproduce figures and tables of the papers that Polyhead joins; each names its source."""


command.add_command(du2020)
command.add_command(flexible)
command.add_command(mtop)
command.add_command(muppet)
command.add_command(pals)
