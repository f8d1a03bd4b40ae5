"""Stores of whole corpora: fragments with documents' features, and columns of results.

The location decides the kind of store: a Lance dataset if it ends in .lance or is in an object store, else plain files.
"""

from __future__ import annotations

from pathlib import Path

from polyhead.store.corpus.base import CorpusStore, Schema
from polyhead.store.corpus.plain import PlainStore


def kind_at(location: str) -> type[CorpusStore]:
    """The class of the store at a location, or of one to be made there."""
    if location.rstrip("/").endswith(".lance") or "://" in location:
        from polyhead.store.corpus.lance import LanceStore

        return LanceStore
    return PlainStore


def open_corpus(location: Path | str) -> CorpusStore:
    """The store there; raises NoStore where there is none."""
    return kind_at(str(location)).open(str(location))


def create_corpus(location: Path | str, schema: Schema) -> CorpusStore:
    """Opens the store there, made where there is none; raises StoreError where another one is there."""
    return kind_at(str(location)).create(str(location), schema)
