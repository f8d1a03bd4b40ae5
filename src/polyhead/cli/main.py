"""The `polyhead` command. A verb's modules are imported when the verb runs, so `--help` is quick."""

from __future__ import annotations

import importlib
import logging
import sys

import click

from polyhead import __version__
from polyhead.errors import PolyheadError

VERBS = {
    "init": "Write a project file from a data file.",
    "train": "Train every task of a project file into a bundle.",
    "evaluate": "Score a bundle's tasks on whole splits.",
    "predict": "Answer tasks for texts from a file or standard input.",
    "inspect": "Show a bundle's plan, tasks and costs.",
    "demo": "Train, evaluate and answer six tasks on the packaged sample.",
    "papers": "Reproduce figures and tables of the papers.",
    "claims": "Print every claim of the results files, those that do not hold first.",
}


class _Verbs(click.Group):
    """Finds a verb's command in `polyhead.cli.<verb>.command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(f"polyhead.cli.{cmd_name}").command
        command.short_help = VERBS[cmd_name]
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="polyhead")
@click.option("--verbose", is_flag=True, help="Also print the log of what the library does.")
def commands(verbose: bool) -> None:
    """One shared encoder, every text task: train, bundle and answer many tasks with one pass."""
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(name)s: %(message)s")


def main(arguments: list[str] | None = None) -> None:
    """Runs a command line; ends the process with 1 after an error of ours, 2 after a wrong command line."""
    try:
        commands.main(args=arguments, prog_name="polyhead", standalone_mode=False)
    except click.exceptions.Abort:
        _fail("stopped; what was written stays, and the same command goes on from there", 130)
    except KeyboardInterrupt:
        _fail("stopped; what was written stays, and the same command goes on from there", 130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except PolyheadError as error:
        _fail(f"{type(error).__name__}: {error}", 1)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        name = f" {error.filename}" if error.filename else ""
        _fail(f"cannot read or write{name}: {error.strerror or error}. What was finished before is kept.", 1)


def _fail(message: str, code: int) -> None:
    click.echo(f"polyhead: {message}", err=True)
    sys.exit(code)
