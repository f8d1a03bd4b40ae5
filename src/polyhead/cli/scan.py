"""`polyhead inspect` of checkpoints, and the older word `scan`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polyhead.bundle.format import BUNDLE
from polyhead.cli.command import option, verb
from polyhead.cli.options import Tokens
from polyhead.cli.output import Printer, counted, in_bytes, indented, section, text_table
from polyhead.evaluate.report.tree import tree

if TYPE_CHECKING:
    from polyhead.convert.folders import EncoderDifference, Scan

MODEL_FILES = ("config.json", "adapter_config.json")


@verb("scan")
def command(
    folders: tuple[str, ...] = option(type=click.Path()),
    *,
    base: str | None = option(
        "Also compare with this encoder, and merge over it: a folder, a hub id, or a name such as 'minilm'.",
        metavar="NAME",
    ),
    tokens: Tokens = 32,
    printer: Printer,
) -> Any:
    """Show which layers the checkpoints in FOLDERS share: see `polyhead inspect`."""
    return show_scan(folders, base, tokens, printer)


def are_checkpoints(folders: Sequence[str]) -> bool:
    """Whether these are folders of models of transformers or PEFT, and not one bundle."""
    if len(folders) != 1:
        return True
    (only,) = map(Path, folders)
    return not (only / BUNDLE).exists() and any((only / name).is_file() for name in MODEL_FILES)


def show_scan(folders: tuple[str, ...], base: str | None, tokens: int, printer: Printer) -> dict[str, Any]:
    """Prints which layers checkpoints share, and what merging them would save."""
    from polyhead.convert.folders import scan_folders

    scan = scan_folders(folders, base=base, tokens=tokens, show=printer.show)
    printer.lines(_shown(scan))
    return scan.facts()


def _shown(scan: Scan) -> list[str]:
    lines = indented(text_table(_models(scan), left=5))
    if scan.base is not None:
        lines += section(f"Beside {scan.base.name}", text_table(_with_base(scan), left=4))
    notes = [f"{model.scanned.name} cannot be imported: {model.refused}" for model in scan.models if model.refused]
    notes += [
        f"{model.scanned.name} ({model.adapter}): import runs the encoder's layers with its matrices and keeps no other"
        for model in scan.models
        if model.adapter
    ]
    return [
        counted(len(scan.models), "checkpoint"),
        "",
        *lines,
        *(["", *notes] if notes else []),
        *([*_tree(scan), *_savings(scan)] if scan.encoders else []),
        *_next(scan),
    ]


def _models(scan: Scan) -> list[list[object]]:
    rows: list[list[object]] = [["folder", "task", "labels", "shares most with", "shared", "layers", "size"]]
    names = scan.short_names
    for model in scan.models:
        scanned = model.scanned
        near, kind = scan.nearest(scanned.name), scanned.head.kind if scanned.head is not None else "-"
        shared = ["-", "nothing"] if near is None else [names[near.beside(scanned.name)], near.prefix]
        size = in_bytes(4 * scanned.parameters)
        rows.append([names[scanned.name], kind, len(model.labels) or "-", *shared, len(scanned.layers), size])
    return rows


def _with_base(scan: Scan) -> list[list[object]]:
    rows: list[list[object]] = [["folder", "equal to it", "first that differs", "difference", "of low rank"]]
    for model in scan.models:
        pair, delta = model.with_base, model.difference
        if pair is None:  # an adapter that cannot be imported
            continue
        low = "-" if delta is None or not delta.matrices else "yes" if delta.is_low_rank else "no"
        cells = ["an adapter beside it", "yes"] if model.adapter else [_difference(delta), low]
        rows.append([scan.short_names[model.scanned.name], pair.prefix, pair.differs or "-", *cells])
    return rows


def _difference(delta: EncoderDifference | None) -> str:
    if delta is None:
        return "cannot be compared"
    if not delta.matrices and not delta.vectors:
        return "none"
    vectors = counted(len(delta.vectors), "vector")
    if not delta.matrices:
        return vectors
    more = "" if delta.is_low_rank else " or more"
    rank = f"rank {delta.rank}{more} ({delta.largest})" if delta.largest else "rank 0: rounding alone"
    return f"{counted(len(delta.matrices), 'matrix', several='matrices')}, {vectors}; {rank}"


def _tree(scan: Scan) -> list[str]:
    from polyhead.convert.scan import sharing

    models, names = list(scan.encoders.values()), scan.short_names
    if scan.base is not None and scan.base.name not in names:
        models, names = [*models, scan.base], names | {scan.base.name: f"base {scan.base.name}"}
    title = "Who shares what: a line without a model name is the same in all models below it"
    return section(title, tree(sharing(models, names)))


def _savings(scan: Scan) -> list[str]:
    apart, merged = scan.apart, scan.merged
    rows: list[list[object]] = [["", "apart", "merged", "saved"]]
    for name, before, after, shown in (
        ("layers run", apart.layers, merged.layers, "{:,}"),
        ("MFLOP", apart.flops / 1e6, merged.flops / 1e6, "{:,.2f}"),
        ("arrays, MB", apart.bytes / 1e6, merged.bytes / 1e6, "{:,.2f}"),
    ):
        rows.append([name, shown.format(before), shown.format(after), f"{100 * (1 - after / before):.1f} %"])
    text = f"one text of {counted(scan.tokens, 'token')}"
    return section(f"All of them on {text}, apart and merged by `polyhead import`", text_table(rows))


def _next(scan: Scan) -> list[str]:
    """The command that merges each group. An encoder whose head cannot be read can still be the trunk of others."""
    refused = {model.scanned.name for model in scan.models if model.refused}
    base = {scan.base.name} if scan.base is not None else set()
    lines = []
    for group in scan.groups:
        usable = [name for name in group.taps if name not in refused]
        trunk = next((name for name in (group.trunk, *group.taps) if name in base | refused), None)
        if usable and (trunk is not None or len(usable) > 1):
            base_words = ["--base", trunk] if trunk is not None else []
            lines.append(f"next: polyhead import BUNDLE {shlex.join([*usable, *base_words])}")
    if not lines and all(len(group.taps) < 2 for group in scan.groups):
        lines.append("nothing to merge: no two of them share their embeddings and tokenizer")
    return ["", *lines] if lines else []
