"""Exports of doccano: JSON Lines with spans as [start, end, label], or as objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from polyhead.data.formats.base import RecordFormat
from polyhead.data.formats.offsets import Places
from polyhead.errors import BadValue

LISTED = ("label", "labels")  # columns of spans, also as lists
SPAN_KEYS = (*LISTED, "entities", "annotations")
TEXT_KEYS = ("text", "data")
OFFSETS = ("start_offset", "end_offset")


class Doccano(RecordFormat):
    """Versions of doccano count offsets in characters or in UTF-16 units, and the export does not say which."""

    name = "doccano"

    def begin(self, head: Sequence[Any]) -> None:
        """Detects the columns of the records."""
        self._key = _key(head) or SPAN_KEYS[0]

    @classmethod
    def knows(cls, head: Sequence[Any]) -> bool:
        """True if each record has a text, and one column lists spans."""
        return _key(head) is not None

    def rows(self, record: Any) -> Iterator[dict[str, object]]:
        """The record with its column of spans renamed to `spans`, and its text to `text`."""
        text = next((record[key] for key in TEXT_KEYS if isinstance(record.get(key), str)), None)
        self.counts["texts with relations, which are left out"] += bool(record.get("relations"))
        kept = {name: value for name, value in record.items() if name not in (self._key, *TEXT_KEYS, "relations")}
        spans = record.get(self._key)
        places = Places(text or "")
        if isinstance(spans, list):
            kept["spans"] = [_span(each, places) for each in spans]
        else:
            kept["spans"] = spans
        yield {"text": text} | kept


def _key(head: Sequence[Any]) -> str | None:
    if not all(any(isinstance(r.get(key), str) for key in TEXT_KEYS) for r in head):
        return None
    for key in SPAN_KEYS:
        values = [record[key] for record in head if record.get(key)]
        is_known = _is_span if key in LISTED else _is_object
        if values and all(isinstance(value, list) and all(map(is_known, value)) for value in values):
            return key
    return None


def _is_object(value: object) -> bool:
    return isinstance(value, dict) and {*OFFSETS, "label"} <= set(value)


def _is_span(value: object) -> bool:
    return (
        _is_object(value)
        or isinstance(value, list)
        and len(value) == 3
        and type(value[0]) is int
        and type(value[1]) is int
    )


def _span(value: Any, places: Places) -> dict[str, object]:
    if not _is_span(value):
        raise BadValue("a span cannot be read", got=value, allowed="[start, end, label]", do="correct the record")
    start, end, label = value if isinstance(value, list) else (*(value[key] for key in OFFSETS), value["label"])
    first, last = places.of_edges(start, end)
    return {"start": first, "end": last, "label": label}
