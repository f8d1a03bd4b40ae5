"""Familiarity of a store's documents to tasks, from the mean vectors in the store."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from polyhead.bundle.read import Bundle
from polyhead.engine.familiar import KnownRows, known_tasks, reported_keys
from polyhead.engine.session import vector_path
from polyhead.errors import StoreError
from polyhead.store.corpus.base import CorpusStore, FeatureColumn, PackedRows
from polyhead.store.packed import means
from polyhead.store.taps import kept_in_words
from polyhead.values import Value


class KnownDocuments(Value, eq=False):
    """The rows that documents are compared with, by task, and the features that hold the documents' mean vectors."""

    column: FeatureColumn
    rows: dict[str, KnownRows]

    def shares(self, documents: PackedRows) -> dict[str, np.ndarray]:
        """For each task how familiar documents are, float64 (documents, 1); NaN for one without a token."""
        vectors = means(self.column, documents)
        is_read = np.isfinite(vectors).all(axis=1)
        shares = {}
        for name, rows in self.rows.items():
            shares[name] = np.full((len(vectors), 1), np.nan)
            shares[name][is_read, 0] = rows.familiar(vectors[is_read])
        return shares


def known_documents(location: str, store: CorpusStore, bundle: Bundle, names: Collection[str]) -> KnownDocuments:
    """Raises ConfigError where no task keeps rows, and StoreError for a store without the documents' mean vectors."""
    records = {name: bundle.tasks[name] for name in names}
    known = known_tasks(bundle, records, {})
    reported = reported_keys(known, {name: record.task for name, record in records.items()}, familiar=True, asked=None)
    fit = [column for column in store.schema.features if _holds_vectors(column, bundle)]
    if not fit:
        raise StoreError(
            f"{location} does not keep the mean vectors that say how familiar its documents are",
            got=[kept_in_words(column) for column in store.schema.features],
            allowed="the last layer, every token or their mean, in half precision at least",
            do="extract into another store with --tap last:float16 too, or leave out --familiar",
        )
    pairs: Mapping[str, KnownRows | None] = {name: known[name].rows for name in reported}
    return KnownDocuments(column=fit[0], rows={name: rows for name, rows in pairs.items() if rows is not None})


def _holds_vectors(column: FeatureColumn, bundle: Bundle) -> bool:
    """Whether the mean of these features is that of the trunk's last states."""
    path = column.path
    if path is None or path.nodes[:-1] != vector_path(bundle.digest, bundle.architecture.layers).nodes[:-1]:
        return False
    pool = path.pool
    is_last = pool.layers == "last" or (pool.layers == "mean" and pool.of == 1)
    is_near = pool.codec.format.is_exact or pool.codec.format.is_fine
    return is_last and pool.positions in ("all", "mean") and is_near
