"""`polyhead import`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from polyhead.cli.command import option, verb
from polyhead.cli.options import Actor, Column, File, Folder
from polyhead.cli.output import Printer, counted, indented, text_table
from polyhead.project.tables import LEAST_TOKENS
from polyhead.store.jobs.lines import read_texts

if TYPE_CHECKING:
    from polyhead.convert.run import ImportResult


@verb("import")
def command(
    bundle: Folder,
    folders: tuple[str, ...] = option(type=click.Path()),
    *,
    base: str | None = option(
        "The encoder of a new bundle: a folder, a hub id, or a name such as 'minilm' [default: the base that a LoRA "
        "folder names; else the deepest prefix that two of FOLDERS share; of one folder, its whole encoder].",
        metavar="NAME",
    ),
    texts: File = option(
        "Check the answers on these texts, pairs or questions, one a line as for `predict` or rows of a table, at "
        "least 16 for each task [default: 128 texts of the packaged sample]."
    ),
    text: Column = option("Column of the text, if --texts is a table [default: by its name]."),
    names: tuple[str, ...] = option(
        "Name of a folder's task; by default the folder's name.", "--name", metavar="FOLDER=TASK"
    ),
    limits: tuple[float, float] | None = option(
        "Lowest and highest value of regression tasks.", "--range", metavar="LOW HIGH"
    ),
    pair: Literal["none", "joined"] = option(
        "Whether classifiers read one text, or a pair as one input; config.json does not say which.", "none"
    ),
    long_texts: Literal["cut", "windows"] = option("How the tasks read texts beyond the limit.", "cut"),
    null_answers: bool = option("Question answering may say that there is no answer, as SQuAD 2 models do."),
    max_tokens: int | None = option(
        "Longest input of a new bundle [default: what the encoder reads, at most 512].", ge=LEAST_TOKENS
    ),
    actor: Actor,
    printer: Printer,
) -> Any:
    """Turn the checkpoints in FOLDERS, which share a frozen prefix, into tasks of BUNDLE.

    BUNDLE is a new bundle, or one whose encoder they share. FOLDERS are what `save_pretrained` of transformers wrote:
    sequence or token classification, question answering or multiple choice with BERT, RoBERTa and other encoders;
    docs/guides/scan-and-import.md lists the classes. A task uses the encoder's layers where its own are equal bit for
    bit; the other layers become the task's own. A folder may also hold a LoRA adapter written by PEFT: its task runs
    the encoder, which must be the adapter's base, with the low-rank matrices in the layers.

    Before anything is written, each task's answers are compared with those of transformers; the result is stored with
    the task. Either all folders are imported or none.
    """
    from polyhead.convert.run import import_folders
    from polyhead.convert.task import ImportRequest

    wanted = ImportRequest(
        folders=folders,
        base=base,
        names=_names(names),
        range=limits,
        pair=pair,
        long_texts=long_texts,
        null_answers=null_answers,
        max_tokens=max_tokens,
        actor=actor,
    )
    outcome = import_folders(wanted, Path(bundle), _proof(texts, text), show=printer.show)
    printer.lines(_shown(outcome))
    return outcome


def _proof(texts: str | None, column: str | None) -> list[Any] | None:
    """The inputs of the file of texts; None without one."""
    if texts is not None:
        return [line.input for line in read_texts(texts, column)]
    if column is not None:
        raise click.UsageError("--text goes with --texts: it is a column of that file.")
    return None


def _names(values: Sequence[str]) -> dict[str, str]:
    """Folder -> task, each folder once."""
    tasks: dict[str, str] = {}
    for value in values:
        folder, _, name = value.rpartition("=")
        if not folder or not name:
            raise click.BadParameter(f"'{value}' is not FOLDER=TASK", param_hint="'--name'")
        if folder in tasks:
            raise click.BadParameter(f"{folder} is named twice: '{tasks[folder]}' and '{name}'", param_hint="'--name'")
        tasks[folder] = name
    return tasks


def _shown(outcome: ImportResult) -> list[str]:
    rows: list[list[object]] = [
        ["task", "kind", "version", "from", "tap", "own layers", "parameters", "difference", "allowed"]
    ]
    for task in outcome.tasks:
        parity = [f"{task.parity.max_abs_difference:.2g}", f"{task.parity.tolerance:g}"]
        cells: list[object] = [task.task, task.kind, task.version, task.folder, task.tap, task.layers]
        rows.append([*cells, f"{task.parameters:,}", *parity])
    first = outcome.tasks[0].parity
    trunk = f"trunk {outcome.trunk_name} ({counted(outcome.trunk_layers, 'layer')})"
    return [
        f"bundle {outcome.bundle} ({'new' if outcome.is_new else 'added to'}): {trunk}",
        "",
        *indented(text_table(rows, left=4)),
        "",
        *(f"{task.task}: {task.adapter}, in the encoder's layers" for task in outcome.tasks if task.adapter),
        *_other_answers(outcome),
        f"difference: the largest from transformers {first.transformers} on {counted(first.texts, 'text')}, "
        "in logits or values",
        *([] if outcome.is_new else ["no other task's answers changed: the certificate is in the bundle"]),
        *_mixed(outcome.precisions),
        f"next: polyhead inspect {shlex.quote(outcome.bundle)}",
    ]


def _other_answers(outcome: ImportResult) -> list[str]:
    """Lines about tasks that answer otherwise than transformers, which ends spans inside words."""
    return [
        f"{task.task}: {100 * task.parity.agreement:.1f} % of its answers are those of transformers, in whole words"
        for task in outcome.tasks
        if task.parity.agreement is not None and task.parity.agreement < 1
    ]


def _mixed(precisions: tuple[str, ...]) -> list[str]:
    if len(precisions) < 2:
        return []
    return [f"its tasks are to be answered in {' and '.join(precisions)}: `polyhead predict` will ask for --precision"]
