"""SQuAD's JSON, versions 1 and 2: articles of paragraphs with questions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from polyhead.data.formats.base import RecordFormat
from polyhead.errors import BadValue

PARAGRAPHS, QUESTIONS = "paragraphs", "qas"


class Squad(RecordFormat):
    """One row per question; plausible answers to impossible questions are ignored."""

    name, many = "SQuAD", True

    @classmethod
    def knows(cls, head: Sequence[Any]) -> bool:
        """True if each record is an article with a list of paragraphs, and one of these has questions."""
        if not all(isinstance(record.get(PARAGRAPHS), list) for record in head):
            return False
        return any(isinstance(each, dict) and QUESTIONS in each for record in head for each in record[PARAGRAPHS])

    def rows(self, record: Any) -> Iterator[dict[str, object]]:
        """`id`, `title`, `question`, `context` and `answers`, a list of {text, start}, empty if impossible."""
        for paragraph in record.get(PARAGRAPHS) or ():
            questions = paragraph.get(QUESTIONS) if isinstance(paragraph, dict) else None
            if not isinstance(questions, list) or not all(isinstance(each, dict) for each in questions):
                allowed = '{"context": "...", "qas": [...]}'
                raise BadValue("a paragraph holds no questions", got=paragraph, allowed=allowed, do="correct the file")
            for each in questions:
                yield {
                    "id": each.get("id"),
                    "title": record.get("title"),
                    "question": each.get("question"),
                    "context": paragraph.get("context"),
                    "answers": self._answers(each),
                }

    def _answers(self, question: dict[str, Any]) -> list[dict[str, object]] | None:
        if question.get("is_impossible"):
            self.counts["questions without an answer in their context"] += 1
            return []
        answers = question.get("answers")
        if not isinstance(answers, list):
            return None
        return [{"text": each.get("text"), "start": each.get("answer_start", each.get("start"))} for each in answers]
