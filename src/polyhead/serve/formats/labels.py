"""An answer as labels with scores or as spans: what formats of classifiers have in place of our kinds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from polyhead.engine.inputs import task_input
from polyhead.errors import BadValue
from polyhead.serve.formats.asking import TaskAnswers
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Answer, Task
from polyhead.text.question import texts_of
from polyhead.text.tokenize import Input
from polyhead.values import Value


class ScoredLabel(Value):
    """A label and its score."""

    label: str
    score: float


class SpanAnswer(Value):
    """A labelled part of a text, in the names of both `token_spans.v1` and transformers' pipeline; in code points."""

    label: str
    entity_group: str
    score: float
    text: str
    word: str
    start: int
    end: int


def has_spans(task: Task) -> bool:
    """Whether the task's labels are of parts of a text."""
    return kind_of(task).labels_words


def check_span_labels(task: Task, *, spans: bool, route: str) -> None:
    """Raises BadValue for a task without labels or a number, and, unless `spans`, for one whose labels are of parts."""
    kind = kind_of(task)
    if spans if has_spans(task) else kind.scores is not None and not (kind.per_word or kind.per_option):
        return
    raise BadValue(
        f"{route} has no form for answers of task '{task.name}'",
        got=f"kind '{task.kind}'",
        do=f"ask POST /models/{task.name}, which gives spans" if has_spans(task) else "ask POST /v1/predict",
    )


def label_scores(task: Task, answer: Answer) -> list[ScoredLabel]:
    """Every label with its score in the task's order: probabilities, which sum to 1 for `single_label` alone.

    A regression task has one, its own name with the number that it answers, in the task's range.
    """
    kind = kind_of(task)
    if kind.scores == "range":
        return [ScoredLabel(label=task.name, score=kind.cell_of(answer))]  # type: ignore[arg-type]
    return [ScoredLabel(label=label, score=score) for label, score in answer["scores"].items()]


def label_of(task: Task, answer: Answer) -> str:
    """The label that is answered; of a task that answers several or none, the most probable one."""
    kind = kind_of(task)
    return str(kind.cell_of(answer)) if kind.cell == "text" else ranked(task, answer)[0].label


def ranked(task: Task, answer: Answer) -> list[ScoredLabel]:
    """The same, most probable first; of equals, the first in the task's order."""
    return sorted(label_scores(task, answer), key=lambda scored: -scored.score)


def answer_spans(answer: Answer, text: str) -> list[SpanAnswer]:
    """The spans of an answer; of labels that are not BIO, one for each word that was read."""
    found = answer["spans"] if "spans" in answer else answer["words"]
    return [_span(span, text[span["start"] : span["end"]]) for span in found]


def _span(span: Answer, text: str) -> SpanAnswer:
    label, start, end = span["label"], span["start"], span["end"]
    return SpanAnswer(label=label, entity_group=label, score=span["score"], text=text, word=text, start=start, end=end)


def pipelined(answered: TaskAnswers) -> list[Sequence[ScoredLabel | SpanAnswer]]:
    """For each input what a pipeline of transformers gives of all labels: ranked labels with scores, or spans."""
    task = answered.task
    if not has_spans(task):
        return [ranked(task, answer) for answer in answered.answers]
    texts = [texts_of(task_input(entry))[-1] for entry in answered.inputs]
    return [answer_spans(answer, text) for answer, text in zip(answered.answers, texts, strict=True)]


async def cut_at(answered: TaskAnswers, number: int) -> int | None:
    """Where the text of an input ends that was read, in code points; None where all of it was."""
    result, (text, *others) = answered.ticket.results[number], texts_of(task_input(answered.inputs[number]))
    if result is None or not result.receipt.cut or others:
        return None
    only: Input = (text,)
    (encoded,) = await asyncio.to_thread(answered.ticket.loaded.tokenizer.encode, [only])
    read = int(encoded.offsets[encoded.sequence == 0].max(initial=0))
    # A word is labelled where its first token was read, so that its span may end behind the last of these.
    return max([read, *(span.end for span in answer_spans(answered.answers[number], text))])
