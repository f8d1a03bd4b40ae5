"""Any store as Arrow record batches, for DuckDB, Polars, pandas and other readers of Arrow.

Each function returns a `pyarrow.RecordBatchReader`, which reads the store fragment by fragment on demand, and can be
read once; its `read_all` returns a table. Ids, numbers and packed features are not copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from polyhead.errors import MissingExtra, StoreError
from polyhead.plan.coding import decode
from polyhead.store.corpus.arrow import array_of, arrow_schema, ids_column, rows_table
from polyhead.store.corpus.base import CorpusStore, Fragment, ResultFacts, Schema
from polyhead.store.corpus.ids import ID_BYTES

ROWS = 1024  # documents per batch of decoded features


def results_reader(store: CorpusStore, columns: Sequence[str] | None = None) -> Any:
    """Answers of all documents without features: `id` (16 bytes), and COLUMN__NAME for each array of a result column.

    Null if a document has no answer, or its fragment none yet. Labels are names: `label` one, `labels` a list of those
    that apply; `scores` has a number for each, by name. Columns without a description are numbers.

    Raises StoreError for a column that no fragment has.
    """
    pa, fragments = _arrow(), store.fragments
    stored = list(dict.fromkeys(name for fragment in fragments for name in fragment.results))
    unknown = [name for name in columns or () if name not in stored]
    if unknown:
        do = "name columns that are there; `polyhead backfill` fills others"
        raise StoreError("the store has no results under these names", got=unknown, allowed=stored, do=do)
    chosen, facts = list(stored if columns is None else dict.fromkeys(columns)), store.described()
    types = {name: _types(pa, store, name, facts.get(name)) for name in chosen}
    fields = [pa.field("id", pa.binary(ID_BYTES))]
    fields += [pa.field(f"{name}__{part}", kind) for name in chosen for part, kind in types[name].items()]
    schema = pa.schema(fields)

    def batches() -> Iterator[Any]:
        for fragment in fragments:
            arrays = [ids_column(pa, store.ids(fragment.name))]
            for name in chosen:
                answers = _column(pa, store, fragment, name, facts.get(name))
                if more := set(answers) - set(types[name]):
                    got = f"{sorted(more)} in fragment {fragment.name}"
                    raise StoreError(f"column '{name}' holds other arrays here and there", got=got)
                arrays += [answers.get(part, pa.nulls(fragment.rows, kind)) for part, kind in types[name].items()]
            yield pa.record_batch(arrays, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def features_of(store: CorpusStore, digest: str, *, rows: int = ROWS) -> Any:
    """Decoded features, `rows` documents per batch: `id`, `tokens`, `features`, a list of float32 for each token.

    If several layers are kept of a token, its list has them concatenated. Raises StoreError for features that the store
    does not keep.
    """
    pa, column = _arrow(), store.schema.column(digest)
    numbers = column.layers * column.width
    token = pa.list_(pa.float32(), numbers)
    schema = pa.schema({"id": pa.binary(ID_BYTES), "tokens": pa.uint32(), "features": pa.list_(token)})

    def batches() -> Iterator[Any]:
        for fragment in store.fragments:
            ids, packed = store.ids(fragment.name), store.rows(fragment.name, digest)
            for start in range(0, fragment.rows, rows):
                offsets = packed.offsets[start : start + rows + 1]
                raw = packed.data[offsets[0] : offsets[-1]]
                layers = raw.reshape(len(raw), column.layers, column.token_bytes // column.layers)
                values = decode(layers, column.codec, column.width)
                tokens = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), numbers)
                lists = pa.ListArray.from_arrays(pa.array((offsets - offsets[0]).astype(np.int32)), tokens)
                lengths = pa.array(np.diff(offsets).astype(np.uint32))
                yield pa.record_batch([ids_column(pa, ids[start : start + rows]), lengths, lists], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def packed_of(store: CorpusStore, digest: str) -> Any:
    """Features in stored form: `id`, `tokens_DIGEST` and `features_DIGEST`, bytes, named as in a Lance store.

    Raises StoreError for features that the store does not keep.
    """
    pa, column = _arrow(), store.schema.column(digest)
    schema = Schema(features=(column,), source=store.schema.source)

    def batches() -> Iterator[Any]:
        for fragment in store.fragments:
            rows = store.rows(fragment.name, digest)
            yield from rows_table(pa, schema, store.ids(fragment.name), {digest: rows}).to_batches()

    return pa.RecordBatchReader.from_batches(arrow_schema(pa, schema), batches())


def _types(pa: Any, store: CorpusStore, column: str, facts: ResultFacts | None) -> dict[str, Any]:
    """The types of a column's arrays, from the first fragment that has it."""
    first = next(fragment for fragment in store.fragments if column in fragment.results)
    return {name: array.type for name, array in _column(pa, store, first, column, facts).items()}


def _column(pa: Any, store: CorpusStore, fragment: Fragment, column: str, facts: ResultFacts | None) -> dict[str, Any]:
    """The arrays of a fragment's column; empty if it is not done yet."""
    labels = facts.labels if facts is not None else ()
    results = store.results(fragment.name, column) or {}
    return {name: _readable(pa, name, array, labels) for name, array in results.items()}


def _readable(pa: Any, name: str, array: np.ndarray, labels: Sequence[str]) -> Any:
    """Results in readable form; `labels` are the names behind numbers."""
    if not labels or name not in _NAMED:
        return _numbers(pa, array)
    return _NAMED[name](pa, array, labels)


def _numbers(pa: Any, array: np.ndarray) -> Any:
    """Numbers with NaN as null."""
    if array.ndim == 1 and array.dtype.kind == "f":
        return pa.array(array, from_pandas=True)
    return array_of(pa, array)


def _label(pa: Any, array: np.ndarray, labels: Sequence[str]) -> Any:
    """Numbers of labels (rows,), -1 for none, as their names."""
    numbers = pa.array(array, mask=array < 0) if (array < 0).any() else pa.array(array)
    return pa.DictionaryArray.from_arrays(numbers, pa.array(labels, pa.string()))


def _labels(pa: Any, array: np.ndarray, labels: Sequence[str]) -> Any:
    """Which labels apply, bool (rows, labels), as lists of names."""
    offsets = np.zeros(len(array) + 1, np.int32)
    np.cumsum(array.sum(axis=1), out=offsets[1:])
    names = pa.array(labels, pa.string()).take(pa.array(np.nonzero(array)[1]))
    return pa.ListArray.from_arrays(pa.array(offsets), names)


def _scores(pa: Any, array: np.ndarray, labels: Sequence[str]) -> Any:
    """Scores (rows, labels) as one number per label; float32, since DuckDB reads no float16."""
    columns = array.astype(np.float32).T
    return pa.StructArray.from_arrays([_numbers(pa, np.ascontiguousarray(column)) for column in columns], list(labels))


_NAMED: dict[str, Callable[[Any, np.ndarray, Sequence[str]], Any]] = {
    "label": _label,
    "labels": _labels,
    "scores": _scores,
    "set": _labels,
}


def _arrow() -> Any:
    """Arrow; raises MissingExtra if it is not installed."""
    try:
        import pyarrow
    except ImportError:
        raise MissingExtra("pyarrow", "store", "reading a store as Arrow") from None
    return pyarrow
