"""spaCy's training data: texts with `cats`, a number for each label, and `entities`, as objects or as pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from polyhead.data.formats.base import RecordFormat
from polyhead.errors import BadValue

FROM_SCORE = 0.5  # threshold from which a score is read as a label
READ_AS = {"cats": "labels", "entities": "spans"}


class Spacy(RecordFormat):
    """Records `{"text", "cats", "entities"}`, or lists of a text and an object of these."""

    name, of_objects = "spaCy", False

    @classmethod
    def knows(cls, head: Sequence[Any]) -> bool:
        """True if each record has a text, and one has labels with numbers, or spans as lists."""
        pairs = [_pair(record) for record in head]
        notes = [pair[1] for pair in pairs if pair is not None]
        if len(notes) < len(head):
            return False
        has_cats = any(_is_cats(note.get("cats")) for note in notes)
        spans = [note["entities"] for note in notes if note.get("entities")]
        has_spans = bool(spans) and all(isinstance(each, list) and all(map(_is_span, each)) for each in spans)
        return has_cats or has_spans or not all(isinstance(record, dict) for record in head)

    def rows(self, record: Any) -> Iterator[dict[str, object]]:
        """`text`, `labels` from `cats`, `spans` from `entities`, and the record's other columns."""
        pair = _pair(record)
        if pair is None:
            raise BadValue("it is no text with notes", got=record, allowed='["text", {"cats": {...}}]')
        text, notes = pair
        row: dict[str, object] = {"text": text}
        row |= {name: value for name, value in notes.items() if name not in (*READ_AS, "text")}
        for name, column in READ_AS.items():
            if name in notes:
                content = notes[name]
                row[_free(column, notes)] = labels_of_cats(content, self.counts) if name == "cats" else _spans(content)
        yield row


def labels_of_cats(cats: object, counts: Counter[str]) -> list[str] | None:
    """The labels with score 1; None without any number. Raises BadValue for anything but an object of numbers."""
    if not cats:
        return None
    if not isinstance(cats, dict) or not _is_cats(cats):
        raise BadValue("'cats' is no object of labels and numbers", got=cats, allowed='{"label": 1, "other": 0}')
    between = any(0 < float(value) < 1 for value in cats.values())
    counts[f"texts with scores between 0 and 1, read as labels from {FROM_SCORE:g} on"] += between
    return [str(label) for label, value in cats.items() if value >= FROM_SCORE]


def _pair(record: object) -> tuple[str, Mapping[str, Any]] | None:
    if isinstance(record, list) and len(record) == 2 and isinstance(record[1], dict):
        text, notes = record
    elif isinstance(record, dict):
        text, notes = record.get("text"), record
    else:
        return None
    return (text, notes) if isinstance(text, str) else None


def _is_cats(value: object) -> bool:
    return (
        isinstance(value, dict) and bool(value) and all(isinstance(number, (int, float)) for number in value.values())
    )


def _is_span(value: object) -> bool:
    return isinstance(value, list) and len(value) >= 3 and type(value[0]) is int and type(value[1]) is int


def _spans(entities: object) -> list[dict[str, object]] | None:
    if entities is None:
        return None
    if not isinstance(entities, list) or not all(map(_is_span, entities)):
        raise BadValue("'entities' holds no spans", got=entities, allowed="[[start, end, label], ...]")
    return [{"start": start, "end": end, "label": label} for start, end, label, *_ in entities]


def _free(name: str, notes: Mapping[str, Any]) -> str:
    return f"{name}_of_spacy" if name in notes else name
