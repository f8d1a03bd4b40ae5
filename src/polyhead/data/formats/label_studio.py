"""Exports of Label Studio: JSON, and its short forms JSON-MIN and CSV, which hold only the annotators' choices."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from polyhead.data.formats.base import RecordFormat
from polyhead.data.formats.offsets import Places
from polyhead.errors import BadValue

PATH_STEP = " > "  # separates the steps of a path in a taxonomy
NUMERIC = ("rating", "number")
PLAIN_WORDS = ("selected", "datetime")  # pairs of texts, and dates
SHORT = ("annotator", "annotation_id", "lead_time")  # columns of the short forms
TIMES_OF_SHORT = ("created_at", "updated_at")
SCALARS = (str, int, float, bool, list)


class LabelStudio(RecordFormat):
    """JSON: reads a text's annotation marked as ground truth, else the first; never predictions."""

    name = "Label Studio"

    def begin(self, head: Sequence[Any]) -> None:
        """Detects the controls of the records."""
        self._data = {name for record in head for name in record.get("data") or ()}
        results = [result for record in head for each in _annotations(record) for result in _results(each)]
        self._spans = {str(result.get("from_name")) for result in results if _is_region(_value(result))}

    @classmethod
    def knows(cls, head: Sequence[Any]) -> bool:
        """True if each record has `data`, an object, and a list of annotations (called completions in old versions)."""
        return all(
            isinstance(record.get("data"), dict)
            and any(isinstance(record.get(key), list) for key in ("annotations", "completions"))
            for record in head
        )

    def rows(self, record: Any) -> Iterator[dict[str, object]]:
        """The data's columns, and one column for each control."""
        row: dict[str, object] = {name: value for name, value in record["data"].items() if isinstance(value, SCALARS)}
        texts = {name: value for name, value in row.items() if isinstance(value, str)}
        done = [each for each in _annotations(record) if not (each.get("was_cancelled") or each.get("skipped"))]
        self.counts["texts with several annotations, of which one is read"] += len(done) > 1
        self.counts["texts without an annotation, left out"] += not done
        if done:
            chosen = next((each for each in done if each.get("ground_truth")), done[0])
            reading = _Reading(texts, self.counts)
            for result in _results(chosen):
                reading.add(str(result.get("from_name")), _value(result), str(result.get("to_name")), result)
            answers = {name: [] for name in self._spans} | reading.answers
            row |= {self._column(name): value for name, value in answers.items()}
        yield row

    def _column(self, name: str) -> str:
        return f"{name}.label" if name in self._data else name


class LabelStudioShort(RecordFormat):
    """JSON-MIN and CSV: one record per annotation; only the first of each text is read."""

    name = "Label Studio (JSON-MIN or CSV)"

    def begin(self, head: Sequence[Any]) -> None:
        """Detects the controls of the records."""
        self._seen = set[str]()
        values = [(name, _parsed(value)) for record in head for name, value in record.items()]
        self._spans = {name for name, value in values if any(_is_region(each) for each in _listed(value))}
        self._several = {name for name, value in values if isinstance(value, dict) and "choices" in value}

    @classmethod
    def knows(cls, head: Sequence[Any]) -> bool:
        """True if each record has the columns about annotators, or a value lists spans as this tool does."""
        if all(any(name in record for name in SHORT[:2]) and SHORT[2] in record for record in head):
            return True
        return any(_is_region(each) for record in head for value in record.values() for each in _listed(value))

    def rows(self, record: Any) -> Iterator[dict[str, object]]:
        """The record with its answers as plain values; empty for a text that occurred before."""
        number, annotation = record.get("id"), record.get("annotation_id")
        if annotation is not None and number is not None:
            is_first = str(number) not in self._seen
            self._seen.add(str(number))
            if not is_first:
                self.counts["further annotations of a text, left out"] += 1
                return
        texts = {name: value for name, value in record.items() if isinstance(value, str)}
        # If an annotator marked nothing in a text, its record lacks the column of spans that the file has.
        unmarked: dict[str, object] = {
            name: [] for name in self._spans if annotation is not None and name not in record
        }
        reading, row = _Reading(texts, self.counts), dict(record) | unmarked
        for name, value in record.items():
            values = _listed(_parsed(value))
            if name in self._spans and not values:
                row[name] = []
            elif name in self._several and isinstance(value, str) and not values:
                row[name] = [value] if value else None
            elif values and all(isinstance(each, Mapping) for each in values):
                row[name] = None
                for each in values:
                    reading.add(name, each, "", {})
        yield {name: value for name, value in (row | reading.answers).items() if name not in (*SHORT, *TIMES_OF_SHORT)}


class _Reading:
    """The results of one annotation, by control."""

    def __init__(self, texts: Mapping[str, str], counts: Any) -> None:
        self.answers: dict[str, Any] = {}
        self._texts, self._counts = texts, counts
        self._places: dict[str, Places] = {}
        self._chosen: dict[str, dict[str, None]] = {}  # labels of each control, in order

    def add(self, control: str, value: Mapping[str, Any], to_name: str, result: Mapping[str, Any]) -> None:
        if _is_region(value):
            self._add_spans(control, value, to_name)
        elif "start" in value or "x" in value:
            self._counts["answers about a part of a text or an image, left out"] += 1
        elif isinstance(paths := value.get("choices", value.get("taxonomy")), list):
            self._extend(control, [PATH_STEP.join(map(str, p)) if isinstance(p, list) else str(p) for p in paths])
        elif (plain := next((value[key] for key in (*NUMERIC, *PLAIN_WORDS) if key in value), None)) is not None:
            self.answers[control] = plain
        elif isinstance(value.get("text"), (str, list)):
            written = [value["text"]] if isinstance(value["text"], str) else value["text"]
            self.answers[control] = "\n".join(map(str, written))
        else:
            self._counts[f"results of type '{result.get('type', 'unknown')}', left out"] += 1

    def _extend(self, control: str, labels: list[Any]) -> None:
        kept = self._chosen.setdefault(control, {})
        new = [label for label in dict.fromkeys(labels) if label not in kept]
        kept |= dict.fromkeys(new)
        self.answers.setdefault(control, []).extend(new)

    def _add_spans(self, control: str, value: Mapping[str, Any], to_name: str) -> None:
        labels = _labels(value)
        self.answers.setdefault(control, [])
        self._counts["spans without a label, left out"] += not labels
        if labels:
            start, end = self._place(value, to_name)
            self.answers[control] += [{"start": start, "end": end, "label": label} for label in labels]

    def _place(self, value: Mapping[str, Any], to_name: str) -> tuple[int, int]:
        """The characters of a region, checked against its own text. Browsers count offsets in UTF-16 units."""
        start, end, passage = value["start"], value["end"], value.get("text")
        if type(start) is not int or type(end) is not int:
            raise BadValue(
                "a region is no span of a plain text",
                got=f"from {start!r} to {end!r}",
                allowed="offsets of characters, as for the tag Text",
                do="label plain texts, without markup, sound or time",
            )
        names = [to_name] if to_name in self._texts else list(self._texts)
        for name in names:
            places = self._places.get(name) or self._places.setdefault(name, Places(self._texts[name]))
            if isinstance(passage, str):
                place = places.of_passage(start, end, passage)
            else:
                place = places.of_units(start, end) if len(names) == 1 else None
            if place is not None:
                return place
        raise BadValue(
            f"the text from {start} to {end} is not that of the region",
            got=passage,
            allowed="a region that holds the text which the export gives with it",
            do="label this text again, or remove the record",
        )


def _annotations(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return _objects(record.get("annotations") or record.get("completions"))


def _results(annotation: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return _objects(annotation.get("result"))


def _objects(value: object) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _value(result: Mapping[str, Any]) -> Mapping[str, Any]:
    value = result.get("value")
    return value if isinstance(value, dict) else {}


def _is_region(value: object) -> bool:
    """Whether a value is a labelled part of a text."""
    return isinstance(value, Mapping) and {"start", "end"} <= set(value) and isinstance(_labels(value), list)


def _labels(region: Mapping[str, Any]) -> Any:
    return region.get("labels", region.get("hypertextlabels"))


def _parsed(value: object) -> object:
    """The JSON value that a cell of CSV spells; any other value unchanged."""
    if isinstance(value, str) and value.startswith(("[{", '{"')):
        with suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value] if isinstance(value, dict) else []
