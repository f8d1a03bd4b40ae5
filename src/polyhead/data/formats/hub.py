"""Data sets of the Hugging Face hub: Parquet files, sets of the `datasets` library, and the names of their classes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from polyhead.errors import DataError, MissingExtra
from polyhead.files import open_plain
from polyhead.tasks.limits import check_packing

DATASETS = "datasets:"  # begins the path of rows that come from a hub
METADATA = b"huggingface"  # of a Parquet file's schema: the features of its columns
MOST_NESTED = 20  # features inside features
Begin = Callable[[list[str]], list[str]]


def parquet_rows(path: str, begin: Begin) -> Iterator[dict[str, object]]:
    """Each row; classes by their names, where the file has them. `begin` gives those to read of all columns."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("pyarrow", "store", f"reading {Path(path).name}") from None
    number = 0
    try:
        name = os.fsencode(path)  # which may be any bytes
        open_plain(path).close()
        with pyarrow.OSFile(name) as raw, pyarrow.parquet.ParquetFile(raw) as file:
            chosen = begin(list(file.schema_arrow.names))
            features = _features(file.schema_arrow.metadata or {})
            check_packing(file.metadata, chosen, path)
            for group in range(file.num_row_groups):
                for batch in file.iter_batches(batch_size=1024, row_groups=[group], columns=chosen):
                    for values in _values(batch, path, number):
                        yield {name: with_names(value, features.get(name)) for name, value in values.items()}
                    number += batch.num_rows
    except pyarrow.ArrowException as error:
        raise DataError(f"cannot read {path}", got=error, do="give a Parquet file") from None


def dataset_rows(path: str, begin: Begin) -> Iterator[dict[str, object]]:
    """Each row of `datasets:owner/name[/config][:split]`; classes by their names."""
    try:
        import datasets
    except ImportError:
        raise MissingExtra("datasets", "datasets", f"reading {path}") from None
    name, _, split = path.removeprefix(DATASETS).partition(":")
    parts = name.split("/")
    try:
        dataset = datasets.load_dataset("/".join(parts[:2]), "/".join(parts[2:]) or None, split=split or "train")
    except Exception as error:  # the library raises many types of its own, and those of the network
        raise DataError(f"cannot load {path}", got=error, allowed="datasets:owner/name[/config][:split]") from error
    begin(list(dataset.features))
    for values in dataset:
        yield {key: with_names(value, dataset.features[key]) for key, value in values.items()}


def with_names(value: object, feature: Any, depth: int = 0) -> object:
    """A value with its classes by their names, as its feature says, however deep they stand.

    `feature` is one of the `datasets` library or its description in JSON. -1 is the library's mark for no label: it is
    None, and so is a list of them alone.
    """
    if feature is None or value is None or depth > MOST_NESTED:
        return value
    if (names := _part(feature, "names")) is not None and not isinstance(value, (list, dict)):
        return _named(value, names)
    inner = feature[0] if isinstance(feature, list) and feature else _part(feature, "feature")
    if isinstance(value, list) and inner is not None:
        items = [with_names(item, inner, depth + 1) for item in value]
        return None if items and all(item is None for item in items) and value != items else items
    fields = inner if isinstance(inner, Mapping) and "_type" not in inner else feature
    if isinstance(value, dict) and isinstance(fields, Mapping):
        return {key: _field(item, fields.get(key), depth) for key, item in value.items()}
    return value


def _field(value: object, feature: Any, depth: int) -> object:
    """A field of an object; of a list of objects that is kept as an object of lists, each field is a list."""
    if isinstance(value, list) and _part(feature, "names") is not None:
        return [with_names(item, feature, depth + 1) for item in value]
    return with_names(value, feature, depth + 1)


def _part(feature: Any, key: str) -> Any:
    if isinstance(feature, Mapping):
        return feature.get(key) if isinstance(feature.get("_type"), str) else None
    return getattr(feature, key, None)


def _named(value: object, names: Any) -> object:
    if isinstance(names, Mapping):
        names = [names[key] for key in sorted(names, key=int)]
    if isinstance(value, int) and not isinstance(value, bool):
        return names[value] if 0 <= value < len(names) else None
    return value


def _features(metadata: Mapping[bytes, bytes]) -> dict[str, Any]:
    """The features of a hub file's columns in JSON; none of any other file, or where they cannot be read."""
    with suppress(ValueError, RecursionError, AttributeError):
        features = json.loads(metadata.get(METADATA, b"{}")).get("info", {}).get("features", {})
        return features if isinstance(features, dict) else {}
    return {}


def _values(batch: Any, path: str, before: int) -> list[dict[str, object]]:
    rows = f"{path}: one of the rows {before + 1:,} to {before + batch.num_rows:,}"
    try:
        return cast(list[dict[str, object]], batch.to_pylist())
    except UnicodeDecodeError as error:
        do = "write the file again with strings in UTF-8, or its column as binary"
        raise DataError(f"{rows} holds a string that is not UTF-8", got=error, do=do) from None
    except ValueError as error:  # pyarrow's for a struct with two fields of one name, and for dates of year 10,000
        do = "write the file again without this column, or with its values as strings"
        raise DataError(f"{rows} holds a value that Python cannot hold", got=error, do=do) from None
