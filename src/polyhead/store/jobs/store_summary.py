"""Facts about a store of a corpus, for people."""

from __future__ import annotations

from pathlib import Path

import msgspec

from polyhead.store.corpus.base import WORD_BYTES, WORDS, CorpusStore
from polyhead.store.corpus.ids import ID_BYTES
from polyhead.store.taps import kept_in_words
from polyhead.values import Value


class StoredColumn(Value):
    """The features kept of every document under one digest."""

    digest: str
    keeps: str  # layers, positions and codec in words
    codec: str
    token_bytes: int
    tokens: int  # of all documents
    bytes: int  # of their packed features


class KeptResults(Value):
    """A column of results."""

    name: str
    documents: int  # that have it
    task: str | None = None  # None: the column has no description
    version: str | None = None
    labels: tuple[str, ...] = ()


class StoreInfo(Value):
    """The content of a store."""

    store: str
    version: int
    documents: int
    fragments: int
    source: dict[str, str]  # origin of the features: digests of trunk and tokenizer, precision, long texts
    features: tuple[StoredColumn, ...]
    results: tuple[KeptResults, ...]
    id_bytes: int
    words_bytes: int | None  # of hashed words; None: the store keeps none
    disk_bytes: int | None  # of all files, old versions included; None if the store is not a local folder


def store_info(location: str, store: CorpusStore) -> StoreInfo:
    """The content of the store at this location."""
    features = []
    for column in store.schema.features:
        tokens = sum(store.tokens(fragment.name, column.digest) for fragment in store.fragments)
        kept = StoredColumn(
            digest=column.digest,
            keeps=kept_in_words(column),
            codec=column.codec.name,
            token_bytes=column.token_bytes,
            tokens=tokens,
            bytes=tokens * column.token_bytes,
        )
        features.append(kept)
    described, done = store.described(), dict[str, int]()
    for fragment in store.fragments:
        for name in fragment.results:
            done[name] = done.get(name, 0) + fragment.rows
    results = []
    for name, documents in sorted(done.items()):
        facts = described.get(name)
        answers = KeptResults(name=name, documents=documents)
        if facts is not None:
            answers = msgspec.structs.replace(answers, task=facts.task, version=facts.version, labels=facts.labels)
        results.append(answers)
    documents, words = sum(fragment.rows for fragment in store.fragments), None
    if store.schema.words:
        words = sum(store.tokens(fragment.name, WORDS) for fragment in store.fragments)
    return StoreInfo(
        store=location,
        version=store.version,
        documents=documents,
        fragments=len(store.fragments),
        source=store.schema.source,
        features=tuple(features),
        results=tuple(results),
        id_bytes=ID_BYTES * documents,
        words_bytes=None if words is None else WORD_BYTES * words,
        disk_bytes=_disk_bytes(Path(location)) if "://" not in location else None,
    )


def _disk_bytes(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_symlink() and path.is_file())
