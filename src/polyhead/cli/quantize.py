"""`polyhead tasks quantize`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click

from polyhead.bundle.read import Bundle
from polyhead.cli.agree import agreement_cells
from polyhead.cli.command import option, verb
from polyhead.cli.options import Column, File, Folder, LabelledColumns, Labels, labelled_sources
from polyhead.cli.output import Printer, counted, number, text_table
from polyhead.data.columns import Source
from polyhead.engine.backends import BACKENDS, default_runtime, open_runtime
from polyhead.engine.scale_files import Int8Change, read_scales, write_changes, write_scales
from polyhead.engine.scales import Scales
from polyhead.evaluate import int8 as calibrate
from polyhead.evaluate.int8 import Limits, project_sources
from polyhead.machine import processor
from polyhead.project.tables import read_project
from polyhead.store.jobs.lines import read_texts

PROJECT = ".toml"  # ending of a project file; every other file holds labelled rows
SLOW = (
    "note: int8 saves memory on this processor, not time: it has no VNNI. Measured without VNNI, int8 had 0.7 of the "
    "speed of float32 (docs/guides/engine.md, Processors)"
)


@verb("quantize")
def command(
    bundle: Folder,
    *,
    texts: str = option(
        "File of typical texts: one a line, as `polyhead predict` reads them, or a table.",
        type=click.Path(dir_okay=False, exists=True),
        required=True,
    ),
    text: Column = option("Column of the text, if --texts is a table [default: by its name]."),
    rows: int = option("Number of texts to calibrate on; about as many others are used to measure.", 300, ge=1),
    backend: str | None = option(
        "Backend to measure on; the scales hold for all of them. By default openvino if it is installed.",
        type=click.Choice([name for name, kind in BACKENDS.items() if kind.compiles]),
    ),
    data: File = option(
        "Also score tasks, in float32 and in int8: on the labelled rows of this file, or on the test or validation "
        "files of a project file (.toml).",
        type=click.Path(dir_okay=False, exists=True),
    ),
    labels: Labels = (),
    limits: Limits,
    measure: bool = option(
        "Keep the existing scales; only measure what int8 changes on this machine, and add the result."
    ),
    printer: Printer,
) -> Any:
    """Prepare BUNDLE's layers for int8 with your own texts, and show what int8 changes for each task.

    The command runs some of the texts in float32 to find the scale of each matrix product. On other texts it compares
    answers in int8 with those in float32. Poolers and heads of OpenVINO are in 8 bits too, unless a task then changes
    too much. If it does so without them, or no text fits it, the command ends with an error and writes nothing.

    The scales are stored in BUNDLE/cache. It may be deleted at any time; to get the scales back, run this command
    again. To answer in int8, use `--precision int8`.

    The measurement holds for this backend and for processors like this one. x86 processors without VNNI instructions
    use weights of 7 bits instead of 8. If you move a bundle between the two kinds, run this again with `--measure`.
    """
    opened = Bundle.open(bundle)
    runtimes = partial(open_runtime, name := backend or default_runtime())
    labelled = None if data is None else _labelled(opened, data, labels)
    calibration_rows, measured_rows = calibrate.halves(read_texts(texts, text), rows)
    before, scales = read_scales(opened) if measure else (None, None)
    if scales is None:
        scales = calibrate.calibrated_scales(opened, calibration_rows, runtimes, show=printer.show)
    measured = partial(calibrate.measured, opened, measured_rows, runtimes, labelled=labelled, show=printer.show)
    scales, changes = _measured(scales, measured, printer, limits=None if measure else limits)
    calibrate.check(changes, limits)
    bits, kept = processor().weight_bits, dict[str, Any](backend=name, changes=changes)
    if before is not None:
        record = write_changes(opened, before, **kept)
        how = f"measured with weights of {bits} bits, as this processor has them"
    else:
        texts_read = len(calibration_rows)
        record = write_scales(opened, scales, texts=texts_read, **kept)
        products, read = counted(len(scales.known), "product"), counted(texts_read, "text")
        how = f"{products} in 8 bits, calibrated on {read}, measured with weights of {bits} bits"
    printer.lines([*([] if processor().has_wide_sums else [SLOW]), f"{how}: {opened.root}/cache"])
    facts = {"measured_on": len(measured_rows), "weight_bits": bits, "limits": limits}
    return {"calibration": record, **facts, "tasks": {task: _as_json(change) for task, change in changes.items()}}


def _measured(
    scales: Scales, measured: Callable[[Scales], dict[str, Int8Change]], printer: Printer, *, limits: Limits | None
) -> tuple[Scales, dict[str, Int8Change]]:
    """The scales and what they change: where that is past the limits for a task, the scales of layers alone."""
    changes = measured(scales)
    printer.lines(change_lines(changes))
    if limits is None or not scales.has_slots or not any(calibrate.is_past(each, limits) for each in changes.values()):
        return scales, changes
    printer.line("too much for a task: poolers and heads stay in floating point, layers alone are in 8 bits")
    return _measured(scales.of_layers, measured, printer, limits=None)


def _labelled(bundle: Bundle, data: str, labels: tuple[str, ...]) -> dict[str, Source]:
    """Where the rows are that tasks are scored on: in the files of a project, or in one that holds rows."""
    if not data.lower().endswith(PROJECT):
        tasks = {name: record.task for name, record in bundle.tasks.items()}
        return labelled_sources(tasks, (), data, LabelledColumns(labels=labels))
    if labels:
        raise click.UsageError("--label is for a file of labelled rows; a project file names its own columns.")
    return project_sources(read_project(data), Path(data).resolve().parent)


def change_lines(changes: Mapping[str, Int8Change]) -> list[str]:
    """A table of tasks, and which of them no text was measured for."""
    rows: list[list[object]] = [["task", "metric", "texts", "equal answers", "difference", "float32", "int8", "points"]]
    for name, change in changes.items():
        agreed = agreement_cells(change.agreement) if change.agreement is not None else ["-", "-", "-"]
        scores = [number(change.before), number(change.after), number(change.points, "+.2f")]
        rows.append([name, change.metric or "-", *agreed, *scores])
    unknown = ", ".join(task for task, change in changes.items() if not change.is_measured)
    return text_table(rows, left=2) + ([f"not measured, as no text to measure on fits: {unknown}"] if unknown else [])


def _as_json(change: Int8Change) -> dict[str, object]:
    scores = {"float32": change.before, "int8": change.after, "points": change.points}
    return {"agreement": change.agreement, "metric": change.metric, **scores}
