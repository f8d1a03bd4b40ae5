"""`polyhead scan`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from polyhead.cli.output import Printer, counted, in_bytes, json_option, table

if TYPE_CHECKING:
    from polyhead.importing.difference import Difference
    from polyhead.importing.folders import Scan
    from polyhead.importing.scan import ScannedEncoder, SharedLayers


@click.command("scan")
@click.argument("folders", nargs=-1, required=True, type=click.Path())
@click.option(
    "--base",
    metavar="NAME",
    help="Also compare with this encoder: a folder, a hub id, or 'minilm'; the models are then merged over it.",
)
@click.option(
    "--tokens",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    help="Length of the text that the costs are for, special tokens included.",
)
@json_option
def command(folders: tuple[str, ...], base: str | None, tokens: int, json_to: str | None) -> None:
    """Say what the checkpoints in FOLDERS share, layer by layer, and what merging them would save.

    FOLDERS are what `save_pretrained` of transformers wrote. Two of them share a prefix if tokenizer, embeddings and
    the first layers are equal bit for bit, as fine-tuning leaves them that froze these. With --base, also says which
    differ from it by matrices of low rank (at most an eighth of their smaller side). Of a LoRA folder, which PEFT
    wrote, it says what `import` makes of it, over the base that it names or --base.
    """
    from polyhead.importing.folders import scan_folders

    printer = Printer(json_to)
    scan = scan_folders(folders, base=base, tokens=tokens, show=printer.show)
    printer.lines(_shown(scan))
    printer.json(_as_json(scan))


def _shown(scan: Scan) -> list[str]:
    lines = [f"  {line}" for line in table(_models(scan), left=5)]
    if scan.base is not None:
        lines += ["", f"Beside {scan.base.name}", "", *(f"  {line}" for line in table(_with_base(scan), left=4))]
    notes = [f"{one.scanned.name} cannot be imported: {one.refused}" for one in scan.models if one.refused]
    notes += [
        f"{one.scanned.name} ({one.adapter}): import runs the trunk's layers with its matrices and keeps no other"
        for one in scan.models
        if one.adapter
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
    """Each folder's last part, where these tell the folders apart; else the folders as they were given."""
    from pathlib import PurePath

    given = [found.scanned.name for found in scan.models]
    last = [PurePath(name).name for name in given]
    return dict(zip(given, last if len(set(last)) == len(last) and all(last) else given, strict=True))


def _models(scan: Scan) -> list[list[object]]:
    rows: list[list[object]] = [["folder", "task", "labels", "shares most with", "shared", "layers", "size"]]
    names = _names(scan)
    for found in scan.models:
        one = found.scanned
        near = _nearest(scan, one)
        head = one.head
        rows.append(
            [
                names[one.name],
                head.kind if head is not None else "-",
                str(len(found.labels) or "-"),
                names[near[0]] if near else "-",
                near[1] if near else "nothing",
                len(one.layers),
                in_bytes(4 * _parameters(one)),
            ]
        )
    return rows


def _nearest(scan: Scan, one: ScannedEncoder) -> tuple[str, str] | None:
    """The other model with which `one` shares most, and what."""
    found = [pair for pair in scan.pairs if one.name in (pair.one, pair.other) and pair.layers is not None]
    if not found:
        return None
    best = max(found, key=lambda pair: pair.layers or 0)
    return best.other if best.one == one.name else best.one, _prefix(best)


def _prefix(pair: SharedLayers) -> str:
    if pair.layers is None:
        return "nothing"
    if not pair.layers:
        return "embeddings"
    return "embeddings, layer 1" if pair.layers == 1 else f"embeddings, layers 1 to {pair.layers}"


def _parameters(one: ScannedEncoder) -> int:
    from polyhead.cost import parameters
    from polyhead.plan import merge

    return parameters(merge({one.name: one.path(len(one.layers), trunk=one.root)}), one.architecture)


def _with_base(scan: Scan) -> list[list[object]]:
    rows: list[list[object]] = [["folder", "equal to it", "first that differs", "difference", "of low rank"]]
    for found in scan.models:
        pair, delta = found.with_base, found.difference
        if pair is None:  # an adapter that cannot be imported
            continue
        low = "-" if delta is None or not delta.matrices else "yes" if delta.is_low_rank else "no"
        told = ["an adapter beside it", "yes"] if found.adapter else [_difference(delta), low]
        rows.append([_names(scan)[found.scanned.name], _prefix(pair), pair.differs or "-", *told])
    return rows


def _difference(delta: Difference | None) -> str:
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
    from polyhead.importing.scan import sharing
    from polyhead.report.tree import tree

    models, names = list(scan.encoders.values()), _names(scan)
    if scan.base is not None and scan.base.name not in names:
        models, names = [*models, scan.base], names | {scan.base.name: f"base {scan.base.name}"}
    drawn = tree(sharing(models, names))
    return [
        "",
        "Who shares what: what stands on a line of its own is the same in all models below it",
        "",
        *(f"  {line}" for line in drawn),
    ]


def _savings(scan: Scan) -> list[str]:
    apart, merged = scan.apart, scan.merged
    rows: list[list[object]] = [["", "apart", "merged", "saved"]]
    for name, before, after, shown in (
        ("layers run", apart.layers, merged.layers, "{:,}"),
        ("MFLOP", apart.flops / 1e6, merged.flops / 1e6, "{:,.2f}"),
        ("arrays, MB", apart.bytes / 1e6, merged.bytes / 1e6, "{:,.2f}"),
    ):
        rows.append([name, shown.format(before), shown.format(after), f"{100 * (1 - after / before):.1f} %"])
    return [
        "",
        f"All of them on one text of {counted(scan.tokens, 'token')}, apart and merged by `polyhead import`",
        "",
        *(f"  {line}" for line in table(rows)),
    ]


def _next(scan: Scan) -> list[str]:
    """The command that merges each group; an encoder whose head cannot be read can still be the trunk of others."""
    refused = {found.scanned.name for found in scan.models if found.refused}
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
    return {
        "models": [
            {
                "folder": found.scanned.name,
                "class": found.model_class,
                "kind": found.scanned.head.kind if found.scanned.head is not None else None,
                "labels": found.labels,
                "layers": len(found.scanned.layers),
                "refused": found.refused,
                "with_base": found.with_base,
                "difference": found.difference,
                "adapter": found.adapter,
                "digests": {
                    "tokenizer": found.scanned.tokenizer,
                    "embeddings": found.scanned.embeddings,
                    "layers": found.scanned.layers,
                },
            }
            for found in scan.models
        ],
        "base": scan.base.name if scan.base is not None else None,
        "pairs": scan.pairs,
        "groups": scan.groups,
        "tokens": scan.tokens,
        "apart": scan.apart,
        "merged": scan.merged,
    }
