"""`polyhead export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polyhead.cli.command import option, verb
from polyhead.cli.options import BY_DEFAULT, Folder, Tasks, backend_option
from polyhead.cli.output import Printer, in_bytes, note, text_table
from polyhead.errors import MissingExtra

if TYPE_CHECKING:
    from polyhead.engine.export.record import Export, ModelFile


@verb("export")
def command(
    bundle: Folder,
    out: str = option(type=click.Path()),
    *,
    tasks: Tasks = option("Export these tasks only, with commas between them; by default all that can be."),
    backend: str | None = backend_option("torch, or without it " + BY_DEFAULT),
    printer: Printer,
) -> Any:
    """Write tasks of BUNDLE to the new folder OUT as ONNX files that run without Polyhead.

    OUT gets one file for the encoder and one for each task, the tokenizer, export.json (inputs and outputs of each
    file, labels, thresholds, digests) and a README.md with an example for onnxruntime and tokenizers.

    Before OUT gets its name, the files answer the tasks' pinned probes. If their answers differ from the bundle's on
    --backend in float32, nothing is written and the command ends with an error.
    """
    from polyhead.engine.backends import training_backend

    try:
        from polyhead.engine.export.write import export_bundle
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("onnx", "onnxruntime"):
            raise
        raise MissingExtra(str(error.name), "", "`polyhead export`") from None

    names = tasks or None
    export = export_bundle(bundle, out, tasks=names, backend=backend or training_backend(), show=printer.show)
    printer.lines(_lines(export, Path(out)))
    for name, why in export.left_out.items():
        note(f"task '{name}' is not exported: {why}")
    return export


def _lines(export: Export, out: Path) -> list[str]:
    rows: list[list[object]] = [["file", "reads", "size", "probes", "largest difference"]]
    if export.trunk is not None:
        rows.append([*_row(export.trunk, out), "", ""])
    for files in export.tasks.values():
        rows.append([*_row(files.model, out), files.probes, f"{files.largest_difference:.2g}"])
        if files.compare is not None:
            rows.append([*_row(files.compare, out), "", ""])
    compared = " ".join(export.checked_with.values())
    worst = max(files.largest_difference for files in export.tasks.values())
    end = f"written to {out}; the largest difference of a logit from {compared} is {worst:.2g}"
    return [*text_table(rows, left=2), end]


def _row(file: ModelFile, out: Path) -> list[object]:
    size = sum((out / file.file).with_name(name).stat().st_size for name in file.digests)
    return [file.file, ", ".join(file.inputs), in_bytes(size)]
