"""The documents of a store nearest to a text: every document is compared, from its packed features.

A document is the mean of its decoded features over its tokens, and over layers if several are kept. The text is encoded
by the same trunk and codec, so that it is comparable with the stored documents.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path as FilePath

import msgspec
import numpy as np

from polyhead import plan as planning
from polyhead.arguments import check_fields
from polyhead.bundle.files import release
from polyhead.bundle.read import Bundle
from polyhead.engine.backends import open_backend
from polyhead.engine.backends.base import runner_of
from polyhead.engine.backends.prefix import with_every_token
from polyhead.engine.inputs import is_blank_input
from polyhead.engine.scale_files import scales_for
from polyhead.errors import BadValue, ConfigError, StoreError
from polyhead.plan import Path
from polyhead.plan.coding import through
from polyhead.progress import Show, progress_line
from polyhead.store.corpus import open_corpus
from polyhead.store.corpus.base import FILE_KEYS, CorpusStore, FeatureColumn, PackedRows, Schema
from polyhead.store.corpus.ids import ID_BYTES
from polyhead.store.jobs.backfill import check_store_trunk
from polyhead.store.jobs.documents import texts_by_id
from polyhead.store.jobs.workers import slices
from polyhead.store.packed import means
from polyhead.store.taps import batch_values, entry_batches
from polyhead.text.tokenize import Input, Tokenizer
from polyhead.values import Value

TOP = 10  # reported documents
AT_ONCE = 2**14  # documents with vectors in memory at once


class NearRequest(Value):
    """A search: its text, and how to encode it."""

    top: int = TOP
    features: str | None = None  # the digest of the features to compare, or its beginning; None: the first ones
    backend: str | None = None
    precision: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.top < 1:
            raise ConfigError("at least one document is asked for", got=self.top)


class NearDocument(Value):
    """A document, and the cosine of its mean vector with the text's."""

    id: str  # in hexadecimal
    cosine: float
    text: tuple[str, ...] | None = None  # or pair; None if no file of texts has it


class NearDocuments(Value):
    """The nearest documents, the nearest first; ties in the order of appending."""

    store: str
    features: str  # digest
    codec: str
    documents: int  # number of compared documents
    cut: int  # tokens of the text beyond the trunk's limit
    found: tuple[NearDocument, ...]
    encoding_seconds: float  # from opening the trunk to the text's vector
    seconds: float  # for the comparison


def nearest_documents(
    location: FilePath | str,
    bundle: FilePath | str,
    text: Input,
    wish: NearRequest | None = None,
    *,
    show: Show = lambda text: None,
) -> NearDocuments:
    """The documents of the store nearest to a text or a pair, by the cosine of mean vectors.

    Raises StoreError for a store of another trunk, for features that it does not keep, and for one without documents;
    BadValue for an empty text.
    """
    wish, opened = wish or NearRequest(), Bundle.open(bundle)
    if is_blank_input(text):
        raise BadValue("the text is empty", got=text, do="give a text that has words")
    store = open_corpus(location)
    check_store_trunk(str(location), store, opened)
    column = chosen_documents(str(location), store, wish.features)
    if not any(fragment.rows for fragment in store.fragments):
        raise StoreError(f"{location} has no document", do="extract some into it first")
    began = time.monotonic()
    vector, cut = vector_of(opened, column, text, wish, kept=store.schema.source.get("precision"))
    encoded = time.monotonic()
    ids, cosines = top_cosines(store, column, vector, top=wish.top, show=show)
    return NearDocuments(
        store=str(location),
        features=column.digest,
        codec=column.codec.name,
        documents=sum(fragment.rows for fragment in store.fragments),
        cut=cut,
        found=tuple(NearDocument(id=i.hex(), cosine=c) for i, c in zip(map(bytes, ids), cosines.tolist(), strict=True)),
        encoding_seconds=encoded - began,
        seconds=time.monotonic() - encoded,
    )


def extracted_file(schema: Schema) -> tuple[str | None, dict[str, str]]:
    """The file that a store was made from, if it is still there, and its columns that were named."""
    texts, columns = (schema.source.get(key) for key in FILE_KEYS)
    if texts is None or columns is None or not FilePath(texts).is_file():
        return None, {}
    return texts, msgspec.json.decode(columns, type=dict[str, str])


def chosen_documents(location: str, store: CorpusStore, features: str | None) -> FeatureColumn:
    """The features whose digest begins so; by default the store's first ones."""
    fit = [column for column in store.schema.features if column.digest.startswith(features or "")]
    if not fit or (features and len(fit) > 1):
        raise StoreError(
            f"{location} keeps {'several' if fit else 'no'} features whose digest begins with '{features}'",
            got=features,
            allowed=[column.digest for column in store.schema.features],
            do="give the digest of features that are kept",
        )
    return fit[0]


def vector_of(
    bundle: Bundle, column: FeatureColumn, text: Input, wish: NearRequest, *, kept: str | None
) -> tuple[np.ndarray, int]:
    """The mean vector of a text as the store would keep it, float32 (width,), and the number of its tokens cut off.

    `kept` is the precision of the documents: used by default if this machine supports it.
    """
    path, trunk = stored_path(bundle, column), bundle.trunk()
    tokenizer = Tokenizer(trunk.tokenizer, trunk.settings)
    encodings = tokenizer.encodings([text])
    ((_, batch),) = entry_batches(encodings, pad_id=tokenizer.pad_id, budget=trunk.settings.max_tokens)
    scales = partial(scales_for, bundle)
    backend = open_backend(wish.backend, trunk, {}, precision=wish.precision, trained=kept, scales=scales)
    (value,) = batch_values(runner_of(backend).features, [path], batch)
    decoded = through(value.values, column.codec, value.tokens[:, None])
    return decoded.mean(axis=(0, 1)), int(encodings.cut.sum())


def stored_path(bundle: Bundle, column: FeatureColumn) -> Path:
    """The path with these features as stored value; raises StoreError if neither store nor bundle knows it."""
    if column.path is not None:
        return column.path
    for record in bundle.tasks.values():
        path = with_every_token(record.path.stored())
        if planning.digest(path) == column.digest:
            return path
    raise StoreError(
        f"nobody knows which layers of the trunk the features '{column.digest}' are",
        got=f"neither the store says it, nor reads a task of {bundle.root} these features",
        do="give a bundle that has a task which reads them",
    )


def top_cosines(
    store: CorpusStore, column: FeatureColumn, vector: np.ndarray, *, top: int, show: Show = lambda text: None
) -> tuple[np.ndarray, np.ndarray]:
    """Ids (top, 16) uint8 and cosines (top,) float32 of the documents nearest to a vector (width,), nearest first.

    Documents without a token are skipped, so there may be fewer. SLICE_BYTES of features are read at once.
    """
    unit = vector / max(float(np.linalg.norm(vector)), np.finfo(np.float32).tiny)
    ids, cosines = np.empty((0, ID_BYTES), np.uint8), np.empty(0, np.float32)
    began, done, total = time.monotonic(), 0, sum(fragment.rows for fragment in store.fragments)
    for fragment in store.fragments:
        names, rows = store.ids(fragment.name), store.rows(fragment.name, column.digest)
        for start, part in _parts(rows):
            part_cosines = _cosines(means(column, part), unit)
            kept = np.flatnonzero(np.isfinite(part_cosines))
            kept = kept[_highest(part_cosines[kept], top)]
            ids, cosines = np.concatenate([ids, names[start + kept]]), np.concatenate([cosines, part_cosines[kept]])
            best = _highest(cosines, top)
            ids, cosines = ids[best], cosines[best]
            release([rows.data])  # else everything read so far counts as memory of this process
            done += len(part_cosines)
            show(progress_line("near", done=done, total=total, unit="documents", seconds=time.monotonic() - began))
    return ids, cosines


def _parts(rows: PackedRows) -> Iterator[tuple[int, PackedRows]]:
    """Rows in parts of bounded memory, each with its first row's number."""
    for start in range(0, len(rows.lengths), AT_ONCE):
        first = start
        for part in slices(rows, start, min(start + AT_ONCE, len(rows.lengths))):
            yield first, part
            first += len(part.lengths)


def _cosines(vectors: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """The cosine of each of the vectors (rows, width) with one of length 1; 0 for a vector of zeros."""
    lengths = np.sqrt(np.einsum("rd,rd->r", vectors, vectors))
    with np.errstate(invalid="ignore"):
        return np.asarray(vectors @ unit.astype(np.float32) / np.maximum(lengths, np.finfo(np.float32).tiny))


def _highest(values: np.ndarray, count: int) -> np.ndarray:
    """The indices of the highest values, highest first, ties in order."""
    return np.argsort(-values, kind="stable")[:count]


def neighbours_with_texts(
    documents: NearDocuments, source: FilePath | str, roles: Mapping[str, str], *, show: Show = lambda text: None
) -> NearDocuments:
    """The same with the texts of the file that the store was made from; see `texts_by_id`."""
    texts = texts_by_id({each.id for each in documents.found}, source, roles, show=show)
    named = [msgspec.structs.replace(each, text=texts.get(each.id)) for each in documents.found]
    return msgspec.structs.replace(documents, found=tuple(named))
