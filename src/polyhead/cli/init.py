"""`polyhead init`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polyhead.cli.output import Printer, check_writable, counted, json_option, writing
from polyhead.tasks.kinds import KINDS
from polyhead.tasks.task import kinds_with

if TYPE_CHECKING:
    from polyhead.project.declare import Declared

DATA = click.Path(dir_okay=False)


@click.command("init")
@click.argument("data", type=DATA)
@click.option("--task", "name", help="Name of the task; by default that of the file.")
@click.option(
    "--kind",
    type=click.Choice(list(KINDS)),
    required=True,
    help="Kind of answer: one label, any number of labels, a number, labelled spans or words, one of the options "
    "of a question, the words of a context that answer a question, or a summary.",
)
@click.option("--text", help="Column of the text [default: text; question for multiple_choice and span].")
@click.option("--text-b", help="Column of the second text, for tasks over pairs; of a question's context.")
@click.option(
    "--pair",
    type=click.Choice(["joined", "separate"]),
    help="Pairs: read both texts as one input, or each alone [default: separate; joined for tagging].",
)
@click.option("--label", help="Column of the label [default: label; with --tokens: tags].")
@click.option("--tokens", help="Tagging: column of the list of tokens; --label then names their tags.")
@click.option("--spans", help="Tagging: column of the list of {start, end, label}.")
@click.option("--choices", help="Multiple choice: column of the list of options [default: choices].")
@click.option("--answers", help="Span: column of the list of {text, start} [default: answers].")
@click.option("--separator", help="Separator between several labels (or tokens) in one cell, such as ';'.")
@click.option("--model", help="Summarization: the encoder-decoder to start from, a folder or a hub id.")
@click.option(
    "--validation",
    type=DATA,
    help="File of the validation split; by default a share of DATA is held out (5 folds below 1,000 rows).",
)
@click.option("--test", type=DATA, help="File of the reported split.")
@click.option("--output", "-o", metavar="FILE", default="polyhead.toml", show_default=True, help="Project file.")
@json_option
def command(output: str, json_to: str | None, **options: Any) -> None:
    """Write a project file for DATA, with the labels found in it for you to check.

    DATA is a file (.jsonl, .csv, .tsv, each also .gz, or .parquet) or datasets:ID[/config][:split]. The command reads
    all of it, as `train` will. If the project file exists, the task is added at its end.
    """
    from polyhead.project.declare import InitOptions, declare

    printer, target = Printer(json_to), Path(output)
    if KINDS[options["kind"]].owns_model != (options["model"] is not None):
        names = kinds_with("owns_model")
        raise click.UsageError(f"--model belongs to --kind {names}, which needs one to start from")
    check_writable(output)
    before = _before(target)
    declared = declare(InitOptions(**options), target.resolve().parent)
    after = _after(before, declared, output)
    with writing(output) as file:
        file.write(after.encode())
    printer.lines(_lines(declared, output))
    facts = {"counts": declared.counts, "unseen": declared.unseen, "rows": declared.reports}
    printer.json({"file": output, "task": declared.entry, **facts})


def _before(target: Path) -> str:
    """The text of the project file that is there; "" for none."""
    from polyhead.project.tables import read_project

    if not target.exists():
        return ""
    read_project(target)
    return target.read_text(encoding="utf-8-sig")


def _after(before: str, declared: Declared, output: str) -> str:
    from polyhead.project.declare import project_text
    from polyhead.config import to_value
    from polyhead.errors import ConfigError
    from polyhead.project.tables import Project

    text = project_text(declared.entry, is_first=not before)
    after = before.rstrip() + "\n\n" + text if before else text
    try:
        content = tomllib.loads(after)
    except tomllib.TOMLDecodeError as error:
        do = "write the tasks of that file as [[tasks]] tables"
        raise ConfigError(f"cannot add a task to {output}", got=error, do=do) from None
    to_value(content, Project, source=output)
    return after


def _lines(declared: Declared, output: str) -> list[str]:
    entry = declared.entry
    lines = [f"{output}: task '{entry['name']}' ({entry['kind']})"]
    for split, report in declared.reports.items():
        counts = [counted(report.rows, "row"), f"{report.used:,} used", *report.notes()]
        lines.append(f"{split}: {', '.join(counts)}")
    if "validation" not in entry:
        lines.append("validation: a tenth of train is held out; below 1,000 rows five folds")
    if entry.get("empty") == "none":
        lines.append(
            'empty: a cell without text says that none of the labels applies; write empty = "skip" if it says that '
            "nobody labelled the row"
        )
    if entry.get("null_answers"):
        lines.append("null_answers: some rows have no answer, so the task may answer that there is none")
    if "range" in entry:
        lines.append(f"range: {entry['range'][0]:g} to {entry['range'][1]:g}, as found; widen it if more can occur")
    if declared.counts:
        width = max(map(len, declared.counts))
        what = "spans (B- and I- tags)" if "spans" in entry else "labels"
        lines.append(f"{what}, and how often train has them; check that none is misspelt, missing or rare:")
        lines += [f"  {label:<{width}}  {count:>7,}" for label, count in declared.counts.items()]
    if declared.unseen:
        lines.append(f"not in train, so it cannot be learned: {', '.join(declared.unseen)}")
    return [*lines, f"next: polyhead train {output}"]
