"""Options that several verbs take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from polyhead.cli.output import check_writable
from polyhead.engine.backends import BACKENDS
from polyhead.errors import ConfigError

if TYPE_CHECKING:
    from polyhead.engine.session import Session

Command = TypeVar("Command", bound=Callable[..., Any])
DRAWN = (".svg", ".png", ".pdf")
BY_DEFAULT = "the first of openvino (on x86), onnxruntime, torch and reference that is installed"


def store_place(value: str) -> str:
    """Type of an argument: the location of a store, or of the one that a file of `migrate switch` names now."""
    from polyhead.store.jobs.migrate import store_named

    return store_named(value)


def backend_option(by_default: str = BY_DEFAULT) -> Callable[[Command], Command]:
    """Adds `--backend`; `by_default` says what computes without it."""
    return click.option(
        "--backend",
        type=click.Choice(list(BACKENDS)),
        help="Library that computes. torch-cuda is torch on a GPU; reference is plain numpy, and slow. By default "
        f"{by_default}.",
    )


def precision_option(command: Command) -> Command:
    """Adds `--precision`."""
    return click.option(
        "--precision",
        type=click.Choice(["float32", "bfloat16", "int8"]),
        help="Precision of the trunk; by default the one of training, if this machine supports it. For int8, run "
        "`polyhead quantize` first.",
    )(command)


def session_options(command: Command) -> Command:
    """Adds `--backend`, `--precision` and `--deterministic`, as `open_session` takes them."""
    deterministic = click.option(
        "--deterministic",
        is_flag=True,
        help="Use fixed batch shapes: an answer has the same bits whatever else is in its batch.",
    )
    return backend_option()(precision_option(deterministic(command)))


def open_session(
    bundle: str, names: tuple[str, ...], *, backend: str | None, precision: str | None, deterministic: bool
) -> Session:
    """A session with these tasks, by default all; raises ConfigError for a bundle without tasks."""
    from polyhead.engine.session import Session

    session = Session(bundle, backend=backend, precision=precision, deterministic=deterministic)
    if not session.task_names(names or None):
        raise ConfigError(f"the bundle {bundle} has no task yet", do="train one with `polyhead train`")
    return session


def names_in(values: tuple[str, ...], option: str = "--tasks") -> tuple[str, ...]:
    """Task names of an option that may be repeated and may hold several between commas, each once.

    Raises click.BadParameter for an option that names none.
    """
    names = tuple(dict.fromkeys(name.strip() for value in values for name in value.split(",") if name.strip()))
    if values and not names:
        raise click.BadParameter("it names no task", param_hint=f"'{option}'")
    return names


def tasks_option(help_text: str) -> Callable[[Command], Command]:
    """Adds `--tasks a,b`, which may be repeated; `--task` is the same."""
    return click.option("--tasks", "--task", "tasks", multiple=True, metavar="NAMES", help=help_text)


def tokens_option(command: Command) -> Command:
    """Adds `--tokens`, the length of the text that costs are computed for."""
    return click.option(
        "--tokens",
        type=click.IntRange(1),
        default=32,
        show_default=True,
        help="Length in tokens of the text that costs are computed for, special tokens included.",
    )(command)


def plot_option(help_text: str) -> Callable[[Command], Command]:
    """Adds `--plot FILE`."""
    return click.option("--plot", metavar="FILE", help=help_text)


def check_drawable(plot: str | None) -> None:
    """Refuses, before any work, a file that cannot be drawn into: click.BadParameter or ConfigError."""
    if plot is None:
        return
    if Path(plot).suffix not in DRAWN:
        raise click.BadParameter(f"a figure ends in {' or '.join(DRAWN)}", param_hint="'--plot'")
    check_writable(plot)
