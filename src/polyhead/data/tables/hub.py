"""Data sets of the `datasets` library from the Hugging Face hub, with class names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from polyhead.data.tables.arrow import with_numbers
from polyhead.data.tables.base import Numbered, TableFormat
from polyhead.errors import DataError, MissingExtra

MOST_NESTED = 20  # features inside features


class HubSet(TableFormat):
    """A data set of the `datasets` library; classes as their names."""

    name = "datasets"
    address, place = "datasets:", "ID[/config][:split]"

    def records(self) -> Iterator[Numbered]:
        """Each row of `datasets:owner/name[/config][:split]`."""
        try:
            import datasets
        except ImportError:
            raise MissingExtra("datasets", "datasets", f"reading {self.path}") from None
        name, _, split = self.path.removeprefix(self.address).partition(":")
        parts = name.split("/")
        try:
            dataset = datasets.load_dataset("/".join(parts[:2]), "/".join(parts[2:]) or None, split=split or "train")
        except Exception as error:  # the library raises many error types of its own and of the network
            allowed = "datasets:owner/name[/config][:split]"
            raise DataError(f"cannot load {self.path}", got=error, allowed=allowed) from error
        self.begin(list(dataset.features), f"the schema of {self.path}", "write it again with a name for each")
        types = {key: str(feature) for key, feature in dataset.features.items()}
        for number, values in enumerate(dataset, start=1):
            named = {key: with_names(value, dataset.features[key]) for key, value in values.items()}
            yield number, with_numbers(named, types)


def with_names(value: object, feature: Any, depth: int = 0) -> object:
    """A value with class indices replaced by names, as its feature declares, at any depth.

    `feature` is a feature of the `datasets` library or its description in JSON. -1 is the library's mark for a missing
    label: it becomes None, and so does a list of only such marks.
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
    """A field of an object; in a list of objects that is stored as an object of lists, each field is a list."""
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
