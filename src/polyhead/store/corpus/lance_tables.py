"""Arrays of codecs beside a Lance dataset: `_codecs/DIGEST.lance` below it, each a dataset of one value."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from polyhead.codecs.tables import RESTORE, is_known, table_bytes, take_table
from polyhead.errors import CorruptFile, StoreError
from polyhead.store.corpus.lance_library import is_fault


def put_tables(lance: Any, arrow: Any, location: str, digests: Iterable[str], *, format: str) -> None:
    """Writes each table named that is not there yet; "" names none."""
    for digest in set(digests) - {""}:
        content = arrow.table({"content": arrow.array([table_bytes(digest)], arrow.large_binary())})
        try:
            lance.write_dataset(content, _place(location, digest), mode="create", data_storage_version=format)
        except OSError as error:
            if "already exists" not in str(error):
                do = "give a place that can be written"
                raise StoreError(f"{location}: the store cannot be made", got=error, do=do) from None


def bring_tables(lance: Any, location: str, digests: Iterable[str]) -> None:
    """Makes the tables named known to this process; raises StoreError for one that is absent or was changed."""
    check_tables(lance, location, (digest for digest in digests if not is_known(digest)))


def check_tables(lance: Any, location: str, digests: Iterable[str]) -> None:
    """Reads the tables named, known or not; raises StoreError for one that is absent or was changed."""
    for digest in set(digests) - {""}:
        place = _place(location, digest)
        try:
            (content,) = lance.dataset(place).to_table().column("content").to_pylist()
            take_table(content, digest, Path(place))
        except CorruptFile as error:
            raise StoreError(error.what, got=error.got, do=RESTORE) from None
        except BaseException as error:
            if not is_fault(error) and not isinstance(error, (KeyError, TypeError)):
                raise
            got = (str(error).splitlines() or [""])[0]
            raise StoreError(f"the arrays of a codec cannot be read: {place}", got=got, do=RESTORE) from None


def _place(location: str, digest: str) -> str:
    return f"{location.rstrip('/')}/_codecs/{digest}.lance"
