"""`polyhead init`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from polyhead.cli.output import Printer, check_writable, json_option, writing_file
from polyhead.errors import ConfigError
from polyhead.tasks.kinds import KINDS
from polyhead.tasks.task import kinds_with

DATA = click.Path()


@click.command("init")
@click.argument("data", type=DATA, nargs=-1, required=True)
@click.option("--task", "name", help="Name of the task [default: that of the file; of several tasks, their labels'].")
@click.option(
    "--kind",
    type=click.Choice(list(KINDS)),
    help="Kind of answer: one label, any number of labels, a number, labelled spans or words, one of the options "
    "of a question, the words of a context that answer a question, or a summary [default: what the labels show].",
)
@click.option("--text", help="Column of the text, or of the question.")
@click.option("--text-b", help="Column of the second text, for tasks over pairs; of a question's context.")
@click.option(
    "--pair",
    type=click.Choice(["joined", "separate"]),
    help="Pairs: read both texts as one input, or each alone [default: separate; joined for tagging].",
)
@click.option("--label", "labels", multiple=True, help="Column of the label. Repeat it for a task of each column.")
@click.option("--one-hot", help="Columns of 0 and 1, a label each, with commas between them.")
@click.option("--tokens", help="Tagging: column of the list of tokens; --label then names their tags.")
@click.option("--spans", help="Tagging: column of the list of {start, end, label}.")
@click.option("--choices", help="Multiple choice: column of the list of options.")
@click.option("--answers", help="Span: column of the list of {text, start}.")
@click.option("--separator", help="Separator between several labels (or tokens) in one cell, such as ';'.")
@click.option(
    "--empty",
    type=click.Choice(["none", "skip"]),
    help="An empty cell of several labels: none of them applies, or nobody labelled the row.",
)
@click.option(
    "--overlaps",
    type=click.Choice(["longest", "skip"]),
    help="Labelled spans that overlap: keep the longest, or leave the row out.",
)
@click.option("--model", help="Summarization: the encoder-decoder to start from, a folder or a hub id.")
@click.option(
    "--validation",
    type=DATA,
    help="File of the validation split; by default a share of DATA is held out (5 folds below 1,000 rows).",
)
@click.option("--test", type=DATA, help="File of the reported split.")
@click.option("--replace", is_flag=True, help="Replace a task of the same name; the rest of the file stays as it is.")
@click.option("--output", "-o", metavar="FILE", default="polyhead.toml", show_default=True, help="Project file.")
@json_option
def command(output: str, json_to: str | None, replace: bool, data: tuple[str, ...], **options: Any) -> None:
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
    from polyhead.cli.init_tasks import summary
    from polyhead.project.init import ProjectDraft, split_groups

    printer, target = Printer(json_to), Path(output)
    _check_model(options)
    check_writable(output)
    before = _before(target)
    labels, one_hot = options.pop("labels"), options.pop("one_hot") or ""
    options["soft"] = tuple(part.strip() for part in one_hot.split(",") if part.strip()) or None
    try:
        groups = split_groups(data)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    if len(groups) > 1 and (options["name"] or options["validation"] or options["test"]):
        raise click.UsageError("--task, --validation and --test go with one task; run init once for each DATA")
    draft = ProjectDraft(output, before, replace=replace)
    made = draft.add(groups, options, labels)
    with writing_file(output) as file:
        file.write(draft.text.encode())
    printer.lines(summary(made, draft))
    facts = [
        {"task": task.entry, "counts": task.counts, "unseen": task.unseen, "rows": task.reports}
        | {"guesses": each.whys, "others": each.others}
        for each in made
        if (task := each.declared) is not None
    ]
    printer.json({"file": output, **facts[0]} if len(facts) == 1 else {"file": output, "tasks": facts})


def _check_model(options: dict[str, Any]) -> None:
    kind = options["kind"]
    if (kind is not None and KINDS[kind].owns_model) != (options["model"] is not None):
        names = kinds_with("owns_model")
        raise click.UsageError(f"--model belongs to --kind {names}, which needs one to start from")
    if len(options["labels"]) > 1 and options["name"] is not None:
        raise click.UsageError("--task names one task; several --label are tasks named as their columns")


def _before(target: Path) -> str:
    """The text of the project file that is there; "" for none."""
    from polyhead.project.tables import read_project

    if not target.exists():
        return ""
    read_project(target)
    return target.read_text(encoding="utf-8-sig")
