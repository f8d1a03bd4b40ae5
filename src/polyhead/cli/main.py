"""The `polyhead` command. A verb's modules are imported when the verb runs, so `--help` is quick."""

from __future__ import annotations

import _thread
import contextlib
import errno
import importlib
import io
import keyword
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator

import click

from polyhead._version import __version__
from polyhead.cli.output import FINISHED, note, shown_lines
from polyhead.errors import PolyheadError, near_name
from polyhead.plugins import load_plugins
from polyhead.project.names import MEANT, other_name

GROUPS = {
    "Start": {
        "demo": "Train, evaluate and answer eight tasks of a packaged sample.",
        "init": "Write a project file from a data file.",
        "train": "Train every task of a project file into a bundle.",
        "predict": "Answer texts, lines of a file, or rows of a table.",
        "serve": "Answer tasks over HTTP, for many callers at once.",
    },
    "Improve": {
        "check": "Find faults of a project's data before training.",
        "label": "Label the texts of a file that teach a task most.",
        "evaluate": "Score tasks on labelled rows, with baselines and a report.",
        "compare": "Train tasks in every way of sharing: scores and costs.",
        "advise": "Choose each task's way of sharing within a budget.",
        "calibrate": "Make a task's probabilities mean what they say.",
        "drift": "Show which tasks see other texts than they learned from.",
    },
    "Corpus": {
        "features": "Keep the features of a corpus in a store; change encoders.",
        "backfill": "Answer tasks for every document of a store.",
    },
    "Bundles": {
        "tasks": "List, add, update, remove, roll back, merge, verify, quantize.",
        "inspect": "Show a bundle's plan and costs, or what checkpoints share.",
        "import": "Turn checkpoints into tasks of one bundle.",
        "export": "Write tasks as ONNX files that run without polyhead.",
    },
}
UNLISTED = {"allocate": "Choose how deep each task's branch is, by a rule or within a budget."}
# Words of earlier versions, which still work, and what is said in their place.
MOVED = {
    "score": "predict BUNDLE FILE -o OUT",
    "merge": "tasks merge",
    "agree": "tasks agree",
    "scan": "inspect FOLDER...",
    "quantize": "tasks quantize",
    "migrate": "features",
}
VERBS = {verb: text for verbs in GROUPS.values() for verb, text in verbs.items()}
FAILED, STOPPED = 1, 130
TRAINING = "train"  # the verb whose numbers stand in a project file
AGAIN = 0.05  # seconds until an interrupt that Python could not raise comes again


def module_of(verb: str) -> str:
    """The module of a verb's command: `polyhead.cli.<verb>`, with a trailing `_` for a Python keyword."""
    return f"polyhead.cli.{verb}_" if keyword.iskeyword(verb) else f"polyhead.cli.{verb}"


class _Verbs(click.Group):
    """Finds a verb's command in its module's `command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in {*VERBS, *UNLISTED, *MOVED}:
            return None
        load_plugins()  # first, as options list the kinds and backends that there are
        command: click.Command = importlib.import_module(module_of(cmd_name)).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in {*VERBS, *UNLISTED, *MOVED}:
            ctx.fail(f"No such command {args[0]!r}. {_near(args[0])}".rstrip())
        if args and args[0] in MOVED:
            note(f"`polyhead {args[0]}` is `polyhead {MOVED[args[0]]}` now, and goes on working")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, verbs in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(list(verbs.items()))


class _Shown(logging.Formatter):
    """Escapes log lines too: they may quote what files hold."""

    def format(self, record: logging.LogRecord) -> str:
        return shown_lines(super().format(record))


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="polyhead")
@click.option("--verbose", is_flag=True, help="Also print the library's log, and tracebacks of errors.")
def commands(verbose: bool) -> None:
    """One shared encoder, every text task: train, bundle and answer many tasks with one pass.

    Start with `polyhead demo`; with your own data run init, train and predict.

    Exit codes: 0 success, 1 error, 2 wrong command line, 130 interrupted.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_Shown("%(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler])


def main(arguments: list[str] | None = None, group: click.Group = commands, name: str = "polyhead") -> None:
    """Runs a command line; ends the process with 1 after an error, 2 after a wrong command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a path or a label may hold what the terminal cannot show
            stream.reconfigure(errors="backslashreplace")
    try:
        with interruptible():
            group.main(args=arguments, prog_name=name, standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt) as error:
        kept = str(error.__cause__ or error)  # click wraps what stopped it, which may say what is kept
        _end(f"stopped; {kept or FINISHED}", STOPPED)
    except click.ClickException as error:
        if isinstance(error, click.NoSuchOption):
            error = _with_meant(error)
        message = io.StringIO()
        error.show(message)  # it may tell what was given
        with contextlib.suppress(OSError, ValueError):
            click.echo(shown_lines(message.getvalue()), nl=False, err=True)
        _end("", error.exit_code)
    except PolyheadError as error:
        _end(f"{type(error).__name__}: {error}", FAILED, error)
    except OSError as error:
        _end(_os_error(error), FAILED, error)
    except MemoryError as error:
        _end("there is not enough memory; what was finished is kept", FAILED, error)
    except Exception as error:
        _end(
            f"a fault of polyhead itself: {type(error).__name__}: {error}. What was finished is kept. "
            "Do: run `polyhead --verbose` with the same words and report what it prints.",
            FAILED,
            error,
        )


def _os_error(error: OSError) -> str:
    name = f" {error.filename}" if error.filename else ""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    do = " Do: make room, then run the same command again." if full else ""
    return f"cannot read or write{name}: {error.strerror or error}. What was finished is kept.{do}"


def _end(message: str, code: int, error: BaseException | None = None) -> None:
    """Says why and ends the process, also when nobody reads what it says."""
    with contextlib.suppress(OSError, ValueError):
        if error is not None and logging.getLogger().isEnabledFor(logging.INFO):
            click.echo(shown_lines("".join(traceback.format_exception(error))), err=True)
        if message:
            click.echo(f"polyhead: {shown_lines(message)}", err=True)
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):  # a closed pipe or a full disk: Python would try again at its end
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(code)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """An interrupt that comes where Python can raise nothing, as in a destructor, comes again a moment later."""
    before, waiting = sys.unraisablehook, list[threading.Timer]()

    def unraisable(raised: sys.UnraisableHookArgs) -> None:
        if not issubclass(raised.exc_type, KeyboardInterrupt):
            before(raised)
            return
        # By another thread: raised here and now it would only be printed again.
        timer = threading.Timer(AGAIN, _interrupt_main)
        timer.daemon = True
        waiting.append(timer)
        timer.start()

    sys.unraisablehook = unraisable
    try:
        yield
    finally:
        sys.unraisablehook = before
        for timer in waiting:
            timer.cancel()


def _interrupt_main() -> None:
    main = threading.main_thread().ident
    if main is not None and hasattr(signal, "pthread_kill"):
        signal.pthread_kill(main, signal.SIGINT)  # a true signal, which wakes it also where it waits
    else:
        _thread.interrupt_main()


def _near(word: str) -> str:
    """A question that names the nearest verb; "" where none is near."""
    near = near_name(word, {**VERBS, **UNLISTED})
    return "" if near is None else f"Did you mean '{near}'?"


def _with_meant(error: click.NoSuchOption) -> click.NoSuchOption:
    """The error with the option, or the key of the project file, for a name that other programs use."""
    command = error.ctx.command if error.ctx is not None else None
    key = MEANT.get(other_name(error.option_name))
    options = [name for parameter in (command.params if command else []) for name in parameter.opts if name[:2] == "--"]
    table, _, name = (key or "").rpartition(".")
    option = f"--{name.replace('_', '-')}"
    if key is not None and option in options:
        advice = f"{option} is meant by {error.option_name}."
    elif (key is not None or _is_key(error.option_name)) and command is not None and command.name == TRAINING:
        key = key or f"training.{other_name(error.option_name)}"
        table, _, name = key.rpartition(".")
        where = {"": "at the top", "tasks": "in [[tasks]]"}.get(table, f"in [{table}]")
        advice = f"It stands in the project file, as '{name}' {where}."
    else:
        return error
    message = f"No such option {error.option_name!r}. {advice}"
    return click.NoSuchOption(error.option_name, message=message, ctx=error.ctx)


def _is_key(option: str) -> bool:
    return f"training.{other_name(option)}" in MEANT.values()
