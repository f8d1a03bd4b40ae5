"""Stores by location: a Lance dataset if the name ends in .lance or names an object store, else plain files."""

from __future__ import annotations

from pathlib import Path

from polyhead.store.corpus.base import CorpusStore, Schema
from polyhead.store.corpus.plain import PlainStore


def kind_at(location: str) -> type[CorpusStore]:
    """The class of the store at a location, or of one to be created there."""
    if location.rstrip("/").endswith(".lance") or "://" in location:
        from polyhead.store.corpus.lance import LanceStore

        return LanceStore
    return PlainStore


def open_corpus(location: Path | str) -> CorpusStore:
    """The store there; raises NoStore if there is none."""
    return kind_at(str(location)).open(str(location))


def create_corpus(location: Path | str, schema: Schema) -> CorpusStore:
    """Opens the store there, or creates it; raises StoreError if a different one exists."""
    return kind_at(str(location)).create(str(location), schema)
