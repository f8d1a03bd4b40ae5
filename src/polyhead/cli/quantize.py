"""`polyhead quantize`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from polyhead.cli.labelled import LabelledColumns, label_option, labelled_sources
from polyhead.cli.lines import read_texts
from polyhead.cli.output import Printer, counted, json_option, number, text_table
from polyhead.engine.backends import BACKENDS

if TYPE_CHECKING:
    from polyhead.bundle.read import Bundle
    from polyhead.data.columns import Source
    from polyhead.engine.scale_files import Int8Change
    from polyhead.store.jobs.columns import RowInput

ROWS = (".csv", ".tsv", ".jsonl", ".csv.gz", ".tsv.gz", ".jsonl.gz", ".parquet")
"""Endings of files of labelled rows."""


@click.command("quantize")
@click.argument("bundle", type=click.Path(file_okay=False))
@click.option(
    "--texts",
    type=click.Path(dir_okay=False, exists=True),
    required=True,
    help="File of typical texts: one a line, as `polyhead predict` reads them, or a table.",
)
@click.option("--text", metavar="COLUMN", help="Column of the text, if --texts is a table [default: by its name].")
@click.option(
    "--rows",
    type=click.IntRange(1),
    default=300,
    show_default=True,
    help="Number of texts to calibrate on; about as many others are used to measure.",
)
@click.option(
    "--backend",
    type=click.Choice([name for name, kind in BACKENDS.items() if kind.compiles]),
    help="Backend to measure on; the scales hold for all of them. By default openvino if it is installed.",
)
@click.option(
    "--data",
    metavar="FILE",
    type=click.Path(dir_okay=False, exists=True),
    help="Also score tasks, in float32 and in int8: on labelled rows (.csv, .tsv, .jsonl or .parquet), or on the test "
    "or validation files of a project file (.toml).",
)
@label_option
@click.option(
    "--bound",
    type=click.FloatRange(0),
    default=1.0,
    show_default=True,
    help="Points that a task's metric may lose on labelled data.",
)
@click.option(
    "--agreement",
    type=click.FloatRange(0, 100),
    default=95.0,
    show_default=True,
    help="Percent of answers that must stay equal, for a task without labelled data.",
)
@click.option(
    "--unmeasured",
    is_flag=True,
    help="Accept tasks that none of the texts fits: the effect of int8 on them is then unknown.",
)
@click.option(
    "--measure",
    is_flag=True,
    help="Keep the existing scales; only measure what int8 changes on this machine, and add the result.",
)
@json_option
def command(
    bundle: str,
    texts: str,
    text: str | None,
    rows: int,
    backend: str | None,
    data: str | None,
    labels: tuple[str, ...],
    bound: float,
    agreement: float,
    unmeasured: bool,
    measure: bool,
    json_to: str | None,
) -> None:
    """Prepare BUNDLE's layers for int8 with your own texts, and show what int8 changes for each task.

    The command runs some of the texts in float32 to find the scale of each matrix product. On other texts it compares
    answers in int8 with those in float32. Poolers and heads are never quantized. If a task changes too much, or no
    text fits it, the command names it, ends with an error and writes nothing; earlier scales stay.

    The scales are stored in BUNDLE/cache. It may be deleted at any time; to get the scales back, run this command
    again. To answer in int8, use `--precision int8`.

    The measurement holds for this backend and for processors like this one. x86 processors without VNNI instructions
    use weights of 7 bits instead of 8. If you move a bundle between the two kinds, run this again with `--measure`.
    """
    from polyhead.bundle.read import Bundle
    from polyhead.engine.backends import default_runtime, open_runtime
    from polyhead.engine.scale_files import read_scales, write_changes, write_scales
    from polyhead.evaluate import int8 as calibrate
    from polyhead.machine import processor

    printer, opened, bits = Printer(json_to), Bundle.open(bundle), processor().weight_bits
    name = backend or default_runtime()
    runtimes = partial(open_runtime, name)
    limits = calibrate.Limits(points=bound, agreement=agreement, unmeasured=unmeasured)
    labelled = None if data is None else _labelled(opened, data, labels)
    calibration_rows, measured_rows = calibrate.halves(_rows(texts, text), rows)
    before, scales = read_scales(opened) if measure else (None, None)
    if scales is None:
        scales = calibrate.calibrated_scales(opened, calibration_rows, runtimes, show=printer.show)
    changes = calibrate.measured(opened, measured_rows, runtimes, scales, labelled=labelled, show=printer.show)
    printer.show("")
    printer.lines(change_lines(changes))
    if unknown := [task for task, change in changes.items() if not change.is_measured]:
        printer.line(f"not measured, as no text to measure on fits: {', '.join(unknown)}")
    calibrate.check(changes, limits)
    if before is not None:
        record = write_changes(opened, before, backend=name, changes=changes)
        printer.line(f"measured with weights of {bits} bits, as this processor has them: {bundle}/cache")
    else:
        record = write_scales(opened, scales, texts=len(calibration_rows), backend=name, changes=changes)
        printer.line(
            f"{counted(len(scales.known), 'product')} in 8 bits, calibrated on "
            f"{counted(len(calibration_rows), 'text')}, measured with weights of {bits} bits: {bundle}/cache"
        )
    tasks = {task: _as_json(change) for task, change in changes.items()}
    facts = {"measured_on": len(measured_rows), "weight_bits": bits, "limits": limits}
    printer.json({"calibration": record, **facts, "tasks": tasks})


def _rows(path: str, column: str | None) -> list[RowInput]:
    """The texts of the user's file."""
    from polyhead.store.jobs.columns import RowInput

    return [RowInput(input=line.input, words=line.words) for line in read_texts(path, column)]


def _labelled(bundle: Bundle, data: str, labels: tuple[str, ...]) -> dict[str, Source]:
    """Where the rows are that tasks are scored on: in the files of a project, or in one that holds rows."""
    from polyhead.evaluate.int8 import project_sources
    from polyhead.project.tables import read_project

    if data.lower().endswith(ROWS):
        tasks = {name: record.task for name, record in bundle.tasks.items()}
        return labelled_sources(tasks, (), data, LabelledColumns(labels=labels))
    if labels:
        raise click.UsageError("--label is for a file of labelled rows; a project file names its own columns.")
    return project_sources(read_project(data), Path(data).resolve().parent)


def change_lines(changes: Mapping[str, Int8Change]) -> list[str]:
    """A table of tasks."""
    rows: list[list[object]] = [["task", "metric", "texts", "equal answers", "difference", "float32", "int8", "points"]]
    for name, change in changes.items():
        agreement, cells = change.agreement, ["-", "-", "-"]
        if agreement is not None:
            equal = f"{100 * agreement.share:.1f} %" if agreement.difference is None else "-"
            cells = [f"{agreement.rows:,}", equal, number(agreement.difference)]
        scores = [number(change.before), number(change.after), number(change.points, "+.2f")]
        rows.append([name, change.metric or "-", *cells, *scores])
    return text_table(rows, left=2)


def _as_json(change: Int8Change) -> dict[str, object]:
    scores = {"float32": change.before, "int8": change.after, "points": change.points}
    return {"agreement": change.agreement, "metric": change.metric, **scores}
