"""`polyhead scan`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from polyhead.cli.command import option, verb
from polyhead.cli.options import Tokens
from polyhead.cli.output import Printer, counted, in_bytes, indented, section, text_table

if TYPE_CHECKING:
    from polyhead.convert.difference import EncoderDifference
    from polyhead.convert.folders import FoundFolder, Scan
    from polyhead.convert.scan import ScannedEncoder, SharedLayers


@verb("scan")
def command(
    folders: tuple[str, ...] = option(type=click.Path()),
    *,
    base: str | None = option(
        "Also compare with this encoder, and merge over it: a folder, a hub id, or 'minilm'.", metavar="NAME"
    ),
    tokens: Tokens = 32,
    printer: Printer,
) -> Any:
    """Show which layers the checkpoints in FOLDERS share, and what merging them would save.

    FOLDERS are checkpoints that `save_pretrained` of transformers wrote. Two checkpoints share a prefix if tokenizer,
    embeddings and the first layers are equal bit for bit, as they are when fine-tuning froze them. With --base, the
    command also shows which checkpoints differ from it by matrices of low rank (at most an eighth of their smaller
    side). For a LoRA folder written by PEFT, it shows what `import` would make of it, over --base or the base that
    the folder names.
    """
    from polyhead.convert.folders import scan_folders

    scan = scan_folders(folders, base=base, tokens=tokens, show=printer.show)
    printer.lines(_shown(scan))
    return _as_json(scan)


def _shown(scan: Scan) -> list[str]:
    lines = indented(text_table(_models(scan), left=5))
    if scan.base is not None:
        lines += section(f"Beside {scan.base.name}", text_table(_with_base(scan), left=4))
    notes = [f"{model.scanned.name} cannot be imported: {model.refused}" for model in scan.models if model.refused]
    notes += [
        f"{model.scanned.name} ({model.adapter}): import runs the trunk's layers with its matrices and keeps no other"
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


def _names(scan: Scan) -> dict[str, str]:
    """The last part of each folder if no two are equal; else the folders as the user wrote them."""
    from pathlib import PurePath

    folders = [model.scanned.name for model in scan.models]
    last = [PurePath(name).name for name in folders]
    return dict(zip(folders, last if len(set(last)) == len(last) and all(last) else folders, strict=True))


def _models(scan: Scan) -> list[list[object]]:
    rows: list[list[object]] = [["folder", "task", "labels", "shares most with", "shared", "layers", "size"]]
    names = _names(scan)
    for model in scan.models:
        scanned = model.scanned
        near, kind = _nearest(scan, scanned), scanned.head.kind if scanned.head is not None else "-"
        shared = [names[near[0]], near[1]] if near else ["-", "nothing"]
        size = in_bytes(4 * _parameters(scanned))
        rows.append([names[scanned.name], kind, len(model.labels) or "-", *shared, len(scanned.layers), size])
    return rows


def _nearest(scan: Scan, model: ScannedEncoder) -> tuple[str, str] | None:
    """The model with which this one shares most, and what they share."""
    pairs = [pair for pair in scan.pairs if model.name in (pair.one, pair.other) and pair.layers is not None]
    if not pairs:
        return None
    best = max(pairs, key=lambda pair: pair.layers or 0)
    return best.other if best.one == model.name else best.one, _prefix(best)


def _prefix(pair: SharedLayers) -> str:
    if pair.layers is None:
        return "nothing"
    if not pair.layers:
        return "embeddings"
    return "embeddings, layer 1" if pair.layers == 1 else f"embeddings, layers 1 to {pair.layers}"


def _parameters(encoder: ScannedEncoder) -> int:
    from polyhead.plan import merge
    from polyhead.plan.cost import parameters

    return parameters(
        merge({encoder.name: encoder.path(len(encoder.layers), trunk=encoder.root)}), encoder.architecture
    )


def _with_base(scan: Scan) -> list[list[object]]:
    rows: list[list[object]] = [["folder", "equal to it", "first that differs", "difference", "of low rank"]]
    for model in scan.models:
        pair, delta = model.with_base, model.difference
        if pair is None:  # an adapter that cannot be imported
            continue
        low = "-" if delta is None or not delta.matrices else "yes" if delta.is_low_rank else "no"
        cells = ["an adapter beside it", "yes"] if model.adapter else [_difference(delta), low]
        rows.append([_names(scan)[model.scanned.name], _prefix(pair), pair.differs or "-", *cells])
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
    from polyhead.evaluate.report.tree import tree

    models, names = list(scan.encoders.values()), _names(scan)
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


def _as_json(scan: Scan) -> dict[str, object]:
    names = ("pairs", "groups", "tokens", "apart", "merged")
    facts = {"models": [_model_as_json(model) for model in scan.models], "base": scan.base and scan.base.name}
    return facts | {name: getattr(scan, name) for name in names}


def _model_as_json(model: FoundFolder) -> dict[str, object]:
    scanned = model.scanned
    facts = {name: getattr(model, name) for name in ("labels", "refused", "with_base", "difference", "adapter")}
    return facts | {
        "folder": scanned.name,
        "class": model.model_class,
        "kind": scanned.head.kind if scanned.head is not None else None,
        "layers": len(scanned.layers),
        "digests": {name: getattr(scanned, name) for name in ("tokenizer", "embeddings", "layers")},
    }
