"""`polyhead features near`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from polyhead.cli.command import option, verb
from polyhead.cli.options import Backend, Column, File, Folder, Precision, Store
from polyhead.cli.output import Printer, counted, indented, note

if TYPE_CHECKING:
    from polyhead.store.jobs.near import NearDocuments


@verb("near")
def near_command(
    store: Store,
    text: str,
    text_b: str | None = option(metavar="[TEXT_B]", default=None),
    *,
    bundle: Folder = option("Bundle over the encoder of STORE.", required=True),
    top: int = option("How many documents are shown.", 10, ge=1),
    texts: File = option("Show the texts too: the file that STORE was extracted from."),
    column: Column = option("Column of the text in --texts [default: text, or text_a].", "--text"),
    column_b: Column = option("Column of the second text of a pair [default: text_b].", "--text-b"),
    digest: str | None = option(
        "Which features are compared, where STORE keeps several: the beginning of their digest [default: the first].",
        metavar="DIGEST",
    ),
    backend: Backend = None,
    precision: Precision = None,
    printer: Printer,
) -> Any:
    """Show the documents of STORE that are nearest to TEXT, or to the pair of TEXT and TEXT_B.

    TEXT is encoded as documents were, and compared with each of them: by the cosine of the means over tokens of what
    STORE keeps. There is no index: documents that were added a moment ago are found too.
    """
    from polyhead.data.rows import open_rows
    from polyhead.store.jobs.near import NearRequest, nearest_documents, neighbours_with_texts

    if texts is not None:
        open_rows(texts)  # fails before the work where there is none
    wish = NearRequest(top=top, features=digest, backend=backend, precision=precision)
    roles = {role: name for role, name in (("text", column), ("text_b", column_b)) if name is not None}
    nearest = nearest_documents(store, bundle, (text,) if text_b is None else (text, text_b), wish, show=printer.show)
    if texts is not None:
        nearest = neighbours_with_texts(nearest, texts, roles, show=printer.show)
    printer.lines(_lines(nearest))
    if nearest.cut:
        note(f"TEXT is longer than the encoder reads: {counted(nearest.cut, 'token')} were left out")
    absent = sum(each.text is None for each in nearest.found)
    if texts is not None and absent:
        note(f"{texts} has no text for {counted(absent, 'document')} of these")
    return nearest


def _lines(nearest: NearDocuments) -> list[str]:
    lines = [f"{nearest.store}: {counted(nearest.documents, 'document')} compared, by features {nearest.features[:12]}"]
    for each in nearest.found:
        lines.append(f"{each.cosine:.4f}  {each.id}")
        lines += indented(each.text or ())
    return lines
