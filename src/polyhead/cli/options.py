"""Options that several verbs take."""

from __future__ import annotations

import getpass
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import msgspec
from click.core import ParameterSource

from polyhead.bundle.read import Bundle
from polyhead.cli.command import InputFile, OutputFile, option
from polyhead.cli.output import note
from polyhead.data import labelled
from polyhead.data.columns import Columns, Source
from polyhead.engine.backends import BACKENDS
from polyhead.engine.compile.compiled import COMPILED, user_folder
from polyhead.engine.session import Session
from polyhead.errors import ConfigError, CorruptFile, summary_of
from polyhead.project.declare import place_from
from polyhead.project.encoders import ENCODERS, HUB_ID, NAMES
from polyhead.store.jobs.migrate import store_named
from polyhead.tasks.task import Task
from polyhead.values import Value

VARIABLE = "POLYHEAD_ACTOR"
LONGEST_NAME = 200  # characters
ROLES = ("text", "text_b", "tokens", "question", "context", "choices")  # of columns
DRAWN = (".svg", ".png", ".pdf")
BY_DEFAULT = "the first of openvino (on x86), onnxruntime, torch and reference that is installed"


def backend_option(by_default: str = BY_DEFAULT) -> Any:
    """`--backend`; `by_default` says what computes without it."""
    return option(
        "Library that computes. torch-cuda is torch on a GPU; reference is plain numpy, and slow. By default "
        f"{by_default}.",
        type=click.Choice(list(BACKENDS)),
    )


def keep_compiled() -> None:
    """Keeps what this process compiles for later ones, in the user's folder for such files."""
    COMPILED.path = user_folder(os.environ)


def comma_names(text: str) -> tuple[str, ...]:
    """The names between commas, each once."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def is_typed(*names: str) -> bool:
    """True if any of these parameters was typed on the command line."""
    context = click.get_current_context()
    return any(context.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in names)


def names_of(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Task names of an option that may be repeated and may hold several between commas, each once.

    Raises click.BadParameter for an option that names none.
    """
    names = comma_names(",".join(values))
    if values and not names:
        hint = parameter.opts[0] if isinstance(parameter, click.Option) else "TASK"
        raise click.BadParameter("it names none", param_hint=f"'{hint}'")
    return names


def _login_name() -> str:
    """The name that the person of this process is logged in by; "" where it has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the first before Python 3.13
        return ""


def _checked_name(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
    """The name of `--actor`, by default the login name."""
    name = _login_name() if value is None else value.strip()
    if len(name) > LONGEST_NAME or not name.isprintable():
        raise click.BadParameter(f"a name is at most {LONGEST_NAME} characters, each of which can be printed")
    return name


Folder = Annotated[str, click.Path(file_okay=False)]
TaskArguments = Annotated[tuple[str, ...], option(callback=names_of)]
Store = Annotated[str, option(metavar="STORE", type=store_named)]  # or a file of `features switch` that names one
Column = Annotated[str | None, option(metavar="COLUMN")]
OptionalFolder = Annotated[str | None, click.Path(file_okay=False)]
DataFile = Annotated[str, option(metavar="FILE", type=InputFile())]
File = Annotated[str | None, option(metavar="FILE")]
Output = Annotated[str | None, option(metavar="FILE", type=OutputFile())]
RequiredFile = Annotated[str, option(metavar="FILE")]
Figure = Annotated[str | None, option(metavar="FILE", type=OutputFile(*DRAWN))]
Tasks = Annotated[tuple[str, ...], option("", "--tasks", "--task", metavar="NAMES", callback=names_of)]
Tokens = Annotated[
    int, option("Length in tokens of the text that costs are computed for, special tokens included.", ge=1)
]
Actor = Annotated[
    str,
    option(
        f"Who makes the change, for its certificate; '' names nobody. [default: {VARIABLE}, or the login name]",
        metavar="NAME",
        envvar=VARIABLE,
        callback=_checked_name,
    ),
]


class BackendOptions(Value):
    """What computes, and in which precision."""

    backend: Annotated[str | None, backend_option()] = None
    precision: Annotated[
        Literal["float32", "bfloat16", "int8"] | None,
        option(
            "Precision of the encoder; by default the one of training, if this machine supports it. For int8, run "
            "`polyhead tasks quantize` first."
        ),
    ] = None

    def session(self, bundle: Bundle | Path | str) -> Session:
        """A session with all tasks of a bundle; raises ConfigError for one without tasks."""
        session = Session(bundle, **msgspec.structs.asdict(self))
        if not session.tasks:
            raise ConfigError(f"the bundle {bundle} has no task yet", do="train one with `polyhead train`")
        return session

    def open(self, bundle: str, names: tuple[str, ...] = ()) -> Session:
        """A session with these tasks, by default all; raises ConfigError for a bundle without tasks.

        Where a file of a task that is not named is missing or damaged, the named ones are read alone, and that is said.
        """
        try:
            session = self.session(bundle)
        except CorruptFile as fault:
            if not names:
                raise
            whole = Bundle.open(bundle, verify=False)
            lines = {name: whole.lines[name] for name in names if whole.version(name)}
            session = Session(whole.view(lines), **msgspec.structs.asdict(self))  # each of their files is hashed
            do = f"`polyhead tasks verify {bundle}` names all such files"
            note(f"{summary_of(fault)}. No task that is asked needs it; {do}")
        session.task_names(names or None)  # which raises for unknown ones
        if self.backend is None and not BACKENDS[session.backend.name].compiles:
            note(f"{session.backend.name} answers; pip install 'polyhead[cpu]' brings a backend that is quicker")
        return session


class FamiliarOptions(Value):
    """Whether answers say how familiar a text is."""

    familiar: Annotated[
        bool, option("Also say which share of the rows known of a task lies as far out as the text.")
    ] = False
    none_below: Annotated[
        float | None,
        option(
            "Say none_of_these where that share is below this, also without --familiar [default: as each task says].",
            ge=0,
            le=1,
            metavar="SHARE",
        ),
    ] = None

    def given(self) -> dict[str, Any]:
        """The options that were given; a limit of 0 is one, and means never."""
        limit = {} if self.none_below is None else {"none_below": self.none_below}
        return ({"familiar": True} if self.familiar else {}) | limit


class SessionOptions(BackendOptions):
    """How a session computes."""

    deterministic: Annotated[
        bool, option("Use fixed batch shapes: an answer has the same bits whatever else is in its batch.")
    ] = False


class TextColumns(Value):
    """The columns of a file of texts."""

    text: Annotated[Column, option("Column of the text [default: text, or text_a].")] = None
    text_b: Annotated[Column, option("Column of the second text of a pair [default: text_b].")] = None

    @property
    def roles(self) -> dict[str, str]:
        """The columns that are named, by role."""
        named = {role: getattr(self, role) for role in ROLES if role in self.__struct_fields__}
        return {role: column for role, column in named.items() if column is not None}


class TokenColumns(TextColumns):
    """Those of one whose rows may also be lists of tokens."""

    tokens: Annotated[Column, option("Column of the list of tokens, instead of a text [default: tokens].")] = None


Labels = Annotated[
    tuple[str, ...],
    option(
        "Column of a task's labels, tags, spans or answers. TASK may be left out if one task is scored. [default: the "
        "column of the task's name; of one task label, tags, spans or answers]",
        "--label",
        metavar="[TASK=]COLUMN",
    ),
]


class LabelledColumns(Columns):
    """The columns that options name; None: those of the task's kind."""

    labels: Labels = ()
    text: Annotated[Column, option("Column of the text, or of the question [default: text, or question].")] = None
    text_b: Annotated[
        Column, option("Column of the second text of a pair, or of the context [default: text_b, or context].")
    ] = None
    tokens: Annotated[
        Column, option("Column of the list of tokens, for tagging with a label for each [default: tokens, if any].")
    ] = None
    choices: Annotated[Column, option("Column of the list of options, for multiple_choice [default: choices].")] = None
    separator: Annotated[
        str | None, option("Text between several labels, tokens or options in one cell.", metavar="TEXT")
    ] = None
    overlaps: Annotated[
        Literal["longest", "skip"] | None,
        option("Labelled spans that overlap: keep the longest, or leave the row out."),
    ] = None
    empty: Annotated[
        Literal["none", "skip"] | None,
        option(
            "What an empty label cell says: none of the labels, or that the row is not labelled. [default: none for "
            "multi_label, else skip]"
        ),
    ] = None

    @property
    def roles(self) -> dict[str, str]:
        """The columns of texts that are named, by role."""
        return TextColumns(text=self.text, text_b=self.text_b).roles

    def labels_of(self, names: Collection[str]) -> dict[str | None, str]:
        """The columns of labels by these tasks; the key None holds a column that names none of them."""
        labels: dict[str | None, str] = {}
        for value in self.labels:
            task, mark, column = value.partition("=")
            is_named = bool(mark) and task in names
            labels[task if is_named else None] = column if is_named else value
        return labels

    @property
    def is_named(self) -> bool:
        """Whether anything is said of columns."""
        return self != LabelledColumns()


def labelled_sources(
    tasks: Mapping[str, Task], names: Sequence[str], file: str, columns: LabelledColumns
) -> dict[str, Source]:
    """Where each task's labels are; what is guessed is printed on standard error."""
    labels = columns.labels_of(names or tasks)
    try:
        return labelled.sources_of(tasks, names, file, columns, labels, say=note)
    except ConfigError as error:
        if "argument" in error.facts:
            raise click.BadParameter(f"{error.what}: {error.do}", param_hint="'--label'") from None
        raise


def trunk_name(name: str, folder: Path) -> str:
    """An encoder that is named on the command line as a project file in `folder` names it."""
    if name not in ENCODERS and Path(name).is_dir():
        return place_from(name, folder)
    if name not in ENCODERS and not HUB_ID.fullmatch(name):
        raise click.UsageError(f"--trunk: no encoder '{name}'; allowed: {NAMES}, a folder that exists, or a hub id")
    return name
