"""Texts of a file as a store's documents: all of them, a sample, or those behind ids."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import msgspec
import numpy as np

from polyhead.data.rows import Rows, open_rows
from polyhead.errors import BadValue
from polyhead.progress import Show
from polyhead.store.corpus.base import FILE_KEYS
from polyhead.store.corpus.ids import document_id
from polyhead.store.jobs.columns import Roles, RowInput, roles_of
from polyhead.text.tokenize import Input, lone_surrogates

PIECE_ROWS = 8192  # rows read at a time


def file_of_texts(source: str, columns: Mapping[str, str]) -> dict[str, str]:
    """The file and the columns that a store is made from, as its schema names them; nothing for one that it cannot."""
    if not Path(source).is_file() or lone_surrogates(str(Path(source).resolve())):
        return {}
    return dict(zip(FILE_KEYS, (str(Path(source).resolve()), msgspec.json.encode(columns).decode()), strict=True))


def drawn_rows(
    file: Rows, roles: Roles, total: int, count: int, rng: np.random.Generator
) -> Iterator[RowInput | BadValue]:
    """A sample by `rng` of so many of a file's `total` rows (all if there are fewer), in file order."""
    drawn, start = np.sort(rng.choice(total, min(total, count), replace=False)), 0
    for chunk in file.chunks(roles.wanted, start=0, size=PIECE_ROWS):
        in_chunk = drawn[(drawn >= start) & (drawn < start + len(chunk))] - start
        if len(in_chunk):
            rows = roles.inputs(chunk)
            yield from (rows[row] for row in in_chunk.tolist())
        start += len(chunk)


def text_in(row: RowInput | BadValue) -> Input | None:
    """The text or pair of a row; None if it has none."""
    return row.input if isinstance(row, RowInput) and isinstance(row.input, tuple) else None


def documents_of(source: Path | str | Rows, roles: Mapping[str, str], show: Show) -> Iterator[Input]:
    """The documents that a file's rows may be: a text, a pair read together, and each text of a pair alone.

    `roles` names columns of the file if they are not found by name; rows without a text are skipped.
    """
    file = open_rows(source)
    known = roles_of(str(source), file.survey(show), dict(roles))
    for chunk in file.chunks(known.wanted, start=0, size=PIECE_ROWS):
        for text in map(text_in, known.inputs(chunk)):
            if text is not None:
                yield text
                if len(text) > 1:
                    yield from ((each,) for each in text)


def texts_by_id(
    ids: Collection[str], source: Path | str, roles: Mapping[str, str], *, show: Show = lambda text: None
) -> dict[str, Input]:
    """The texts or pairs behind these ids (hexadecimal), from a file that a store was made from.

    The second and later windows of a text have their own ids, and no text here. Raises DataError for an unreadable
    file.
    """
    texts, wanted = dict[str, Input](), set(ids)
    for document in documents_of(source, roles, show) if wanted else ():
        identity = document_id(document).hex()
        if identity in wanted:
            texts[identity] = document
            if len(texts) == len(wanted):
                break
    return texts
