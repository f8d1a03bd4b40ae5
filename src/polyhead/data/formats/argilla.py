"""Exports of Argilla: records with fields and responses, or flat columns `QUESTION.responses`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from polyhead.data.formats.base import RecordFormat
from polyhead.data.formats.offsets import Places
from polyhead.errors import BadValue

SUBMITTED = "submitted"
RESPONSES = ".responses"
BESIDE = (".users", ".status")
SUGGESTIONS = (".suggestion", "-suggestion")
ENDS_OF_COLUMNS = (RESPONSES, SUGGESTIONS[1])  # columns that identify a table of this tool
TAKEN = ("fields", "responses", "suggestions", "vectors", "metadata", "status", "_server_id")
FIRST = ("annotation", "prediction", "status", "inputs")  # columns of the first versions
KEPT_OF_FIRST = ("id", "text")  # the other columns say who annotated, and how
TIMES = ("inserted_at", "updated_at", "event_timestamp")


class Argilla(RecordFormat):
    """Reads the value that most submitted responses give, the first of equals. Suggestions are not labels."""

    name = "Argilla"

    def begin(self, head: Sequence[Any]) -> None:
        """Detects the fields of the records."""
        self._questions = set[str]()
        for record in head:
            with suppress(AttributeError, TypeError, BadValue):  # included in what `rows` says about the record
                self._questions |= {name for name, _ in _responses(record)}

    @classmethod
    def knows(cls, head: Sequence[Any]) -> bool:
        """True if each record has `fields` and `responses`, or a column of responses next to one of their users."""
        if all(isinstance(record.get("fields"), dict) and "responses" in record for record in head):
            return True
        return any(_flat(record) or _listed(record) or _is_first(record) for record in head)

    def rows(self, record: Any) -> Iterator[dict[str, object]]:
        """A column for each field and each question."""
        fields = record.get("inputs" if _is_first(record) else "fields")
        columns = dict(fields) if isinstance(fields, dict) else {}
        names = [name for name in record if self._is_kept(name)]
        columns |= {name: record[name] for name in (KEPT_OF_FIRST if _is_first(record) else names) if name in record}
        texts = [value for value in columns.values() if isinstance(value, str)]
        responses: dict[str, list[Any]] = {name: [] for name in sorted(self._questions)}
        for name, value in _responses(record):
            responses.setdefault(name, []).append(value)
        self.counts["records without a submitted response, left out"] += not any(responses.values())
        answers = {name: self._chosen(values, texts) for name, values in responses.items()}
        yield columns | {(f"{name}.response" if name in columns else name): value for name, value in answers.items()}

    def _is_kept(self, name: str) -> bool:
        if name in (*TAKEN, *TIMES, *FIRST[:2], FIRST[3]) or name in self._questions:
            return False
        return RESPONSES not in name and not any(mark in name for mark in SUGGESTIONS)

    def _chosen(self, values: Sequence[Any], texts: Sequence[str]) -> Any:
        if not values:
            return None
        written = [json.dumps(value, sort_keys=True) for value in values]
        counts = Counter(written)
        self.counts["answers of several annotators who differ, of which the commonest is read"] += len(counts) > 1
        value = values[written.index(max(counts, key=lambda each: counts[each]))]
        if isinstance(value, list) and value and all(isinstance(each, dict) and "start" in each for each in value):
            places = Places(texts[0]) if len(texts) == 1 else None
            return [_span(each, places) for each in value]
        return value


def _responses(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every submitted value with the name of its question."""
    responses = record.get("responses")
    if isinstance(responses, dict):
        for name, listed in responses.items():
            for each in listed or ():
                if isinstance(each, dict) and _is_submitted(each.get("status")):
                    yield from _value(name, each.get("value"))
    elif isinstance(responses, list):  # before version 2.0, a response holds the values of all questions
        for each in responses:
            if isinstance(each, dict) and _is_submitted(each.get("status")):
                for name, value in (each.get("values") or {}).items():
                    yield from _value(name, value.get("value") if isinstance(value, dict) else value)
    for name in _flat(record):
        values = record.get(name) or []
        states = record.get(f"{name}{BESIDE[1]}") or [None] * len(values)
        if len(states) != len(values):
            got = f"{len(values)} and {len(states)}"
            raise BadValue(f"'{name}' and its status differ in number", got=got, do="export the records again")
        for value, state in zip(values, states, strict=True):
            if _is_submitted(state):
                yield from _value(name.removesuffix(RESPONSES), value)
    if _is_first(record) and record["status"] != "Discarded":
        yield from _value(FIRST[0], _entities(record[FIRST[0]]))
    for name, answers in _listed(record).items():
        for each in answers:
            if _is_submitted(each.get("status")):
                yield from _value(name, each.get("value"))


def _value(name: str, value: object) -> Iterator[tuple[str, Any]]:
    if value is not None:
        yield name, value


def _is_submitted(state: object) -> bool:
    """Whether a response is gold; exports with submitted responses only omit the status."""
    return state is None or getattr(state, "value", state) == SUBMITTED


def _flat(record: Mapping[str, Any]) -> list[str]:
    return [
        name
        for name, value in record.items()
        if name.endswith(RESPONSES) and (value is None or isinstance(value, list)) and f"{name}{BESIDE[0]}" in record
    ]


def _listed(record: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Columns of hub data sets before version 2.0: lists of `{user_id, value, status}`, or one list per key."""
    columns = {name: _turned(value) if isinstance(value, dict) else value for name, value in record.items()}
    return {
        name: value
        for name, value in columns.items()
        if isinstance(value, list)
        and value
        and all(isinstance(each, dict) and {"user_id", "value", "status"} <= set(each) for each in value)
    }


def _turned(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A list of objects from an object of lists."""
    if not all(isinstance(values, list) for values in columns.values()) or len(set(map(len, columns.values()))) != 1:
        return []
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _entities(value: object) -> object:
    """Spans that the first versions wrote as `[label, start, end]`; any other value unchanged."""
    if not isinstance(value, list) or not all(
        isinstance(e, list) and [type(x) for x in e[1:3]] == [int] * 2 for e in value
    ):
        return value
    return [{"label": each[0], "start": each[1], "end": each[2]} for each in value]


def _is_first(record: Mapping[str, Any]) -> bool:
    return all(name in record for name in FIRST[:3])


def _span(value: Mapping[str, Any], places: Places | None) -> dict[str, object]:
    start, end = value.get("start"), value.get("end")
    if type(start) is not int or type(end) is not int:
        raise BadValue("a span cannot be read", got=value, allowed="{start, end, label}", do="correct the record")
    first, last = (start, end) if places is None else places.of_edges(start, end)
    return {"start": first, "end": last, "label": value.get("label")}
