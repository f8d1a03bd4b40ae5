"""Exports of Prodigy: JSON Lines whose records each have an answer; only accepted records are gold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from polyhead.data.formats.base import RecordFormat
from polyhead.errors import BadValue

VERDICTS = ("accept", "reject", "ignore")
MARKS_OF_PRODIGY = ("_view_id", "_task_hash", "_input_hash", "_timestamp", "_session_id", "_annotator_id")
NO_ANSWER = "records without an answer, left out"
SHAPES = ("spans", "accept", "options", "label")
TAKEN_APART = ("answer", "accept", "options", "tokens", "spans", "label", "relations", "config", "html", "meta")


class Prodigy(RecordFormat):
    """Reads spans, choices, or the verdict on one proposed label, depending on the first records."""

    name = "Prodigy"

    def begin(self, head: Sequence[Any]) -> None:
        """Detects the form of the records."""
        self._has_spans = any(isinstance(record.get("spans"), list) for record in head)
        self._has_choice = any("accept" in record or "options" in record for record in head)
        self._labels = {str(record["label"]) for record in head if isinstance(record.get("label"), str)}

    @classmethod
    def knows(cls, head: Sequence[Any]) -> bool:
        """True if all answers are Prodigy's, at least one record has one, and at least one has columns of this tool."""
        return (
            any("answer" in record for record in head)
            and all(record.get("answer", VERDICTS[0]) in VERDICTS for record in head)
            and any(name in record for record in head for name in (*MARKS_OF_PRODIGY, *SHAPES))
        )

    def rows(self, record: Any) -> Iterator[dict[str, object]]:
        """The record's own columns, and `spans` if the file has spans, else `label`."""
        row = {name: value for name, value in record.items() if name not in (*TAKEN_APART, *MARKS_OF_PRODIGY)}
        verdict = record.get("answer")
        is_gold = verdict == VERDICTS[0]
        if not is_gold:
            self.counts[f"records with the answer '{verdict}', left out" if verdict else NO_ANSWER] += 1
        self.counts["records with relations, which are left out"] += bool(record.get("relations"))
        if self._has_spans:
            row["spans"] = (record.get("spans") or []) if is_gold else None
        if self._has_choice:
            row["label"] = _chosen(record) if is_gold else None
        elif self._labels and not self._has_spans:
            row["label"] = self._judged(record, verdict)
        yield row

    def _judged(self, record: Any, verdict: object) -> list[str] | None:
        """The proposed label if it was accepted. If the file proposes only one label, a rejection means no label."""
        label = record.get("label")
        if verdict == VERDICTS[0]:
            if label not in self._labels and len(self._labels) == 1:
                raise BadValue(
                    "a second label is proposed, after records that propose one alone",
                    got=label,
                    allowed=sorted(self._labels),
                    do="move a record of each label to the beginning of the file",
                )
            return None if label is None else [str(label)]
        if verdict == VERDICTS[1] and len(self._labels) == 1:
            self.counts["records with the answer 'reject', left out"] -= 1
            self.counts[f"records that are not '{min(self._labels)}', read as none of the labels"] += 1
            return []
        return None


def _chosen(record: Any) -> list[str]:
    """The ids of the chosen options; their texts if the ids are numbers."""
    texts = {option.get("id"): option.get("text") for option in record.get("options") or () if isinstance(option, dict)}
    accepted = record.get("accept") or []
    if not isinstance(accepted, list):
        raise BadValue("what was accepted is no list", got=accepted, do="correct the record")
    return [each if isinstance(each, str) else str(texts.get(each) or each) for each in accepted]
