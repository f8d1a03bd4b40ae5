"""`polyhead init`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import click
import msgspec

from polyhead.cli.command import option, verb
from polyhead.cli.init_tasks import summary
from polyhead.cli.options import trunk_name
from polyhead.cli.output import Printer, check_writable, writing_file
from polyhead.errors import ConfigError
from polyhead.project.declare import project_head
from polyhead.project.encoders import MINILM, NAMES
from polyhead.project.init import ProjectDraft, split_groups
from polyhead.project.tables import TrunkChoice, read_project
from polyhead.tasks.kinds import KINDS
from polyhead.values import Value

Word = str | None
MARK = "\ufeff"  # with which some editors begin a file


class TaskOptions(Value):
    """What is said of the task that DATA is, in place of guesses; `--label` may say it of several."""

    name: Annotated[
        Word, option("Name of the task [default: that of the file; of several tasks, their labels'].", "--task")
    ] = None
    kind: Annotated[
        Word,
        option(
            "Kind of answer: one label, any number of labels, a number, labelled spans or words, one of the options "
            "of a question, the words of a context that answer a question, or a summary [default: what the labels "
            "show].",
            type=click.Choice(list(KINDS)),
        ),
    ] = None
    text: Annotated[Word, option("Column of the text, or of the question.")] = None
    text_b: Annotated[Word, option("Column of the second text, for tasks over pairs; of a question's context.")] = None
    pair: Annotated[
        Literal["joined", "separate"] | None,
        option("Pairs: read both texts as one input, or each alone [default: separate; joined for tagging]."),
    ] = None
    labels: Annotated[
        tuple[str, ...], option("Column of the label. Repeat it for a task of each column.", "--label")
    ] = ()
    one_hot: Annotated[str, option("Columns of 0 and 1, a label each, with commas between them.")] = ""
    tokens: Annotated[Word, option("Tagging: column of the list of tokens; --label then names their tags.")] = None
    spans: Annotated[Word, option("Tagging: column of the list of {start, end, label}.")] = None
    choices: Annotated[Word, option("Multiple choice: column of the list of options.")] = None
    answers: Annotated[Word, option("Span: column of the list of {text, start}.")] = None
    separator: Annotated[Word, option("Separator between several labels (or tokens) in one cell, such as ';'.")] = None
    empty: Annotated[
        Literal["none", "skip"] | None,
        option("An empty cell of several labels: none of them applies, or nobody labelled the row."),
    ] = None
    overlaps: Annotated[
        Literal["longest", "skip"] | None,
        option("Labelled spans that overlap: keep the longest, or leave the row out."),
    ] = None
    validation: Annotated[
        Word,
        option(
            "File of the validation split; by default a share of DATA is held out (5 folds below 1,000 rows).",
            type=click.Path(),
        ),
    ] = None
    test: Annotated[Word, option("File of the reported split.", type=click.Path())] = None


@verb("init")
def command(
    data: tuple[str, ...] = option(type=click.Path()),
    *,
    task: TaskOptions,
    trunk: Word = option(
        f"The encoder: {NAMES}, a folder or a hub id; for summaries one with a decoder, such as facebook/bart-base "
        "[default: minilm, or that of the project file].",
        metavar="NAME",
    ),
    replace: bool = option("Replace a task of the same name; the rest of the file stays as it is."),
    output: str = option("Project file.", "polyhead.toml", "--output", "-o", metavar="FILE"),
    printer: Printer,
) -> Any:
    """Write a project file for DATA: guess columns, kind and labels, and say what was guessed for you to check.

    DATA is a table (.csv with any separator, .tsv, .xlsx, .parquet), JSON (.jsonl, .json; frames as pandas writes
    them, SQuAD), an export of Label Studio, doccano, Prodigy, Argilla or spaCy (.spacy too), a file of tagged words
    (.conll, .conllu, .iob, .bio), fastText's lines, a folder of brat, a folder with one of texts for each class, or
    datasets:ID[/config][:split]. Text formats may be packed (.gz). A table in another encoding, or without a header, is
    written anew for training. The command reads all of it, as `train` will. Each DATA is a task of its own; but files
    that are called train, validation and test are splits of one. If the project file exists, tasks are added at its
    end.

    Every option replaces a guess. Where two guesses are equally good, nothing is written, and the error names both.
    """
    if len(task.labels) > 1 and task.name is not None:
        raise click.UsageError("--task names one task; several --label are tasks named as their columns")
    check_writable(output)
    options = msgspec.structs.asdict(task)
    labels, one_hot = options.pop("labels"), options.pop("one_hot")
    options["soft"] = tuple(part.strip() for part in one_hot.split(",") if part.strip()) or None
    before = _before(Path(output), trunk)
    _check_decoder(task, trunk, output)
    try:
        groups = split_groups(data)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    if len(groups) > 1 and (task.name or task.validation or task.test):
        raise click.UsageError("--task, --validation and --test go with one task; run init once for each DATA")
    mark = MARK if before.startswith(MARK) else ""
    draft = ProjectDraft(output, before.removeprefix(MARK), replace=replace)
    tasks = draft.add(groups, options, labels)
    with writing_file(output) as file:
        file.write((mark + draft.text).encode())
    printer.lines(summary(tasks, draft))
    facts = [
        {"task": each.declared.entry, "counts": each.declared.counts, "unseen": each.declared.unseen}
        | {"rows": each.declared.reports, "guesses": each.whys, "others": each.others}
        for each in tasks
        if each.declared is not None
    ]
    facts_of_file = {"file": output, "trunk": read_project(output).trunk.name}
    return {**facts_of_file, **facts[0]} if len(facts) == 1 else {**facts_of_file, "tasks": facts}


def _check_decoder(task: TaskOptions, trunk: str | None, output: str) -> None:
    """Raises UsageError for a new file without an encoder that is named, where a decoder must stand beside it."""
    if task.kind is not None and KINDS[task.kind].generates and trunk is None and not Path(output).exists():
        raise click.UsageError(
            f"--kind {task.kind} starts from the decoder that a checkpoint has beside its encoder: give --trunk a "
            "folder or a hub id, such as facebook/bart-base"
        )


def _before(target: Path, trunk: str | None) -> str:
    """The text of the project file that is there, or else the head of a new one."""
    folder = target.resolve().parent
    name = None if trunk is None else trunk_name(trunk, folder)
    if not target.exists():
        return project_head(name or MINILM)
    trunk_of_file = read_project(target).trunk
    if name is not None and trunk_of_file.place(folder) != TrunkChoice(name=name).place(folder):
        raise ConfigError(
            f"{target} has an encoder, which all its tasks share",
            got=f"--trunk {trunk}",
            allowed=trunk_of_file.name,
            do="leave --trunk out, change `name` in [trunk], or write another file with --output",
        )
    return target.read_bytes().decode()
