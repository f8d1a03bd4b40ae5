"""Documents and results of a store as Arrow arrays, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from polyhead.store.corpus.base import PackedRows, Schema
from polyhead.store.corpus.ids import ID_BYTES
from polyhead.values import to_json

ABOUT = b"polyhead:schema"  # metadata of an Arrow schema: the store's own as JSON


def arrow_schema(pa: Any, schema: Schema) -> Any:
    """The fields of a store without results."""
    plain = {"lance-encoding:compression": "none"}
    fields = [pa.field("id", pa.binary(ID_BYTES))]
    for name in schema.names:
        fields.append(pa.field(f"tokens_{name}", pa.uint32()))
        fields.append(pa.field(f"features_{name}", pa.large_binary(), metadata=plain))
    return pa.schema(fields, metadata={ABOUT: to_json(schema)})


def rows_table(pa: Any, schema: Schema, ids: np.ndarray, features: Mapping[str, PackedRows]) -> Any:
    """Documents as a table: ids (rows, 16) uint8, and per feature column tokens and one binary value per row."""
    columns = {"id": ids_column(pa, ids)}
    for name in schema.names:
        rows = features[name]
        offsets = np.ascontiguousarray(rows.offsets * schema.item_bytes(name))
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows.data))]
        columns[f"tokens_{name}"] = pa.array(rows.lengths.astype(np.uint32))
        columns[f"features_{name}"] = pa.Array.from_buffers(pa.large_binary(), len(ids), buffers)
    return pa.table(columns, schema=arrow_schema(pa, schema))


def ids_column(pa: Any, ids: np.ndarray) -> Any:
    """Ids (rows, 16) uint8 as an array, not copied."""
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(ID_BYTES), len(ids), [None, pa.py_buffer(ids)])


def id_array(column: Any) -> np.ndarray:
    """A column of ids as uint8 (rows, 16)."""
    array = column.combine_chunks()
    raw = np.frombuffer(array.buffers()[1] or b"", np.uint8)
    start = array.offset * ID_BYTES
    return raw[start : start + len(array) * ID_BYTES].reshape(-1, ID_BYTES)


def binary_values(column: Any) -> tuple[np.ndarray, np.ndarray]:
    """A column of binary values as their offsets, int64 (rows + 1,), and their bytes, uint8, one after another."""
    array = column.combine_chunks()
    offsets = np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array) + 1]
    return offsets, np.frombuffer(array.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]


def packed_rows(lengths: Any, features: Any, token_bytes: int) -> PackedRows | None:
    """Columns of tokens and features as rows, without a copy if they are contiguous; None if they do not match."""
    offsets, raw = binary_values(features)
    tokens = lengths.to_numpy().astype(np.int64)
    if not np.array_equal(tokens * token_bytes, np.diff(offsets)):
        return None
    return PackedRows.of(tokens, raw.reshape(-1, token_bytes))


def array_of(pa: Any, results: np.ndarray) -> Any:
    """Results (rows,) or (rows, numbers) as an array; several numbers per row are a list of fixed length."""
    if results.dtype.kind in "UO":
        return pa.array(results.tolist(), pa.string())
    if results.ndim == 1:
        return pa.array(results)
    flat = np.ascontiguousarray(results)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), flat.shape[1])


def plain_array(pa: Any, array: Any) -> np.ndarray:
    """An array of results as numpy's: (rows,), or (rows, numbers) for lists of fixed length."""
    if pa.types.is_fixed_size_list(array.type):
        flat: np.ndarray = array.flatten().to_numpy(zero_copy_only=False)
        return flat.reshape(len(array), array.type.list_size)
    if pa.types.is_string(array.type):
        return np.array(array.to_pylist(), np.str_)
    values: np.ndarray = array.to_numpy(zero_copy_only=False)
    return values
