"""`polyhead features near`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from polyhead.cli.options import backend_option, precision_option, store_place
from polyhead.cli.output import Printer, counted, indented, json_option, note

if TYPE_CHECKING:
    from polyhead.store.jobs.near import NearDocuments


@click.command("near")
@click.argument("store", metavar="STORE", type=store_place)
@click.argument("text", metavar="TEXT")
@click.argument("text_b", metavar="[TEXT_B]", required=False)
@click.option("--bundle", required=True, type=click.Path(file_okay=False), help="Bundle over the encoder of STORE.")
@click.option("--top", type=click.IntRange(1), default=10, show_default=True, help="How many documents are shown.")
@click.option("--texts", metavar="FILE", help="Show the texts too: the file that STORE was extracted from.")
@click.option("--text", "column", metavar="COLUMN", help="Column of the text in --texts [default: text, or text_a].")
@click.option("--text-b", "column_b", metavar="COLUMN", help="Column of the second text of a pair [default: text_b].")
@click.option(
    "--digest",
    metavar="DIGEST",
    help="Which features are compared, where STORE keeps several: the beginning of their digest [default: the first].",
)
@backend_option()
@precision_option
@json_option
def near_command(
    store: str,
    text: str,
    text_b: str | None,
    bundle: str,
    top: int,
    texts: str | None,
    column: str | None,
    column_b: str | None,
    digest: str | None,
    backend: str | None,
    precision: str | None,
    json_to: str | None,
) -> None:
    """Show the documents of STORE that are nearest to TEXT, or to the pair of TEXT and TEXT_B.

    TEXT is encoded as documents were, and compared with each of them: by the cosine of the means over tokens of what
    STORE keeps. There is no index: documents that were added a moment ago are found too.
    """
    from polyhead.data.rows import open_rows
    from polyhead.store.jobs.near import NearRequest, nearest_documents, neighbours_with_texts

    printer = Printer(json_to)
    if texts is not None:
        open_rows(texts)  # fails before the work where there is none
    wish = NearRequest(top=top, features=digest, backend=backend, precision=precision)
    roles = {role: name for role, name in (("text", column), ("text_b", column_b)) if name is not None}
    try:
        nearest = nearest_documents(
            store, bundle, (text,) if text_b is None else (text, text_b), wish, show=printer.show
        )
        if texts is not None:
            nearest = neighbours_with_texts(nearest, texts, roles, show=printer.show)
    finally:
        printer.show("")
    printer.lines(_lines(nearest))
    if nearest.cut:
        note(f"TEXT is longer than the encoder reads: {counted(nearest.cut, 'token')} were left out")
    absent = sum(each.text is None for each in nearest.found)
    if texts is not None and absent:
        note(f"{texts} has no text for {counted(absent, 'document')} of these")
    printer.json(nearest)


def _lines(nearest: NearDocuments) -> list[str]:
    lines = [f"{nearest.store}: {counted(nearest.documents, 'document')} compared, by features {nearest.features[:12]}"]
    for each in nearest.found:
        lines.append(f"{each.cosine:.4f}  {each.id}")
        lines += indented(each.text or ())
    return lines
