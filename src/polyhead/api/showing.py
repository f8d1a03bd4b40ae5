"""HTML of a model and its answers for notebooks, and the report of its held-out answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path as FilePath
from typing import Any

from polyhead.api.rows import (
    PAIR,
    SPANS,
    TAGS,
    TOKENS,
    LabelledTexts,
    check_inputs,
    columns_for,
    columns_of_training,
    in_python,
    records_of,
    with_lists,
)
from polyhead.data.columns import Source, check_has_reader
from polyhead.data.tables.memory import in_memory
from polyhead.engine.inputs import input_types_of, task_input
from polyhead.engine.session import Result, Session
from polyhead.errors import BadValue, BundleError, PolyheadError
from polyhead.evaluate.beyond_scores import details_of_all
from polyhead.evaluate.held_out import restore_answers
from polyhead.evaluate.on_project import EvaluatedTask
from polyhead.evaluate.report.evaluation import Reported, page_of
from polyhead.evaluate.report.notebook import AnsweredText, ReportPage, TaskRow, answers_html, tasks_html
from polyhead.evaluate.scores import Evaluation, evaluation_from, evaluation_of
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.kinds.tagged import is_bio
from polyhead.tasks.task import Task
from polyhead.text.question import texts_of
from polyhead.values import to_value


class ShownResults(list[Result]):
    """Results with their inputs, for a notebook."""

    def __init__(self, results: Sequence[Result], inputs: Sequence[Any]) -> None:
        super().__init__(results)
        self.inputs = list(inputs)

    def _repr_html_(self) -> str:
        return answers_html([_answered(entry, result) for entry, result in zip(self.inputs, self, strict=False)])


def _answered(entry: Any, result: Result) -> AnsweredText:
    texts = (entry,) if isinstance(entry, str) else texts_of(task_input(entry))
    late = dict.fromkeys(result.late, "late")
    return AnsweredText(texts=texts, answers=result.answers, reasons={**result.skipped, **result.failed, **late})


def model_html(title: str, session: Session | None) -> str:
    """The tasks of a model."""
    return tasks_html(title, [] if session is None else _rows(session))


def _rows(session: Session) -> list[TaskRow]:
    rows = []
    for name, task in session.tasks.items():
        metric, score = session.bundle.headline(name)
        split = "test" if "test" in session.bundle.split_scores(name) else "held out"
        version, labels = session.bundle.version(name), tuple(task.labels)
        if is_bio(task):
            labels = tuple(dict.fromkeys(label[2:] for label in labels if label != "O"))
        rows.append(
            TaskRow(name=name, kind=task.kind, labels=labels, version=version, metric=metric, score=score, split=split)
        )
    return rows


def evaluation_on(
    session: Session,
    task: Task,
    texts: Any,
    labels: Any,
    *,
    text: str | Sequence[str] = "text",
    text_b: str | None = None,
    separator: str | None = None,
    empty: str | None = None,
    overlaps: str | None = None,
) -> Evaluation:
    """The evaluation of a task on rows in memory."""
    kind = kind_of(task)
    check_has_reader({"separator": separator, "empty": empty, "overlaps": overlaps}, [kind])
    rows = LabelledTexts.of(texts, labels, text=text, text_b=text_b, subject="evaluate")
    rows = with_lists(rows, kind, known=task.labels, separator=separator, empty=empty)
    check_inputs(kind, rows.inputs, input_types_of(task))
    named = {"overlaps": overlaps, "empty": empty, **columns_for(kind, rows.inputs)}
    with in_memory(records_of(kind, rows)) as address, in_python():
        source = to_value({"path": address, **named}, Source, source="evaluate")
        return evaluation_of(session, task.name, source)


def rows_report(session: Session, task: Task, texts: Any, labels: Any, **cells: Any) -> ReportPage:
    """The report of a task on rows in memory, which `cells` describe as in `evaluation_on`."""
    evaluation = evaluation_on(session, task, texts, labels, **cells)
    return _page([EvaluatedTask(evaluation=evaluation, session=session)], [])


def check_no_rows(labels: Any, *, text: str | Sequence[str] = "text", **cells: str | None) -> None:
    """Raises BadValue for arguments about rows, where a report has no texts and is of rows that training held out."""
    given = {"labels": labels, "text": None if text == "text" else text, **cells}
    for name, value in given.items():
        if value is not None:
            raise BadValue(
                f"'{name}' would change nothing: without texts the report is about rows that training held out",
                got=value if name != "labels" else type(value).__name__,
                do=f"give texts, or leave '{name}' out",
            )


def held_report(session: Session, rows: Mapping[str, FilePath], cache: FilePath) -> ReportPage:
    """The report of answers to rows that training held out, from the files with each task's training rows.

    Raises BundleError if the rows of no task were kept.
    """
    scored, reasons = [], dict[str, PolyheadError]()
    for name, file in rows.items():
        try:
            source = _source(session.tasks[name], file)
            then = restore_answers(session.tasks[name], source, cache, session.bundle.record(name).arrays)
        except PolyheadError as error:
            reasons[name] = error
            continue
        evaluation = evaluation_from(then.answered, split=then.facts.split)
        scored.append(EvaluatedTask(evaluation=evaluation, session=session, held=then))
    if not scored:
        raise BundleError(
            "no answers to rows that training held out are kept here",
            got=next(iter(reasons.values())) if reasons else "no task",
            do="fit in this model, or with one cache= for both; with rows of your own: `polyhead evaluate --report`",
        )
    omissions = [f"{name}: not shown, {reasons[name]}" for name in reasons]
    return _page(scored, ["answers to rows that training held out", *omissions])


def _page(scored: Sequence[EvaluatedTask], facts: Sequence[str]) -> ReportPage:
    details = details_of_all(scored, (), explains=False, say=_nothing, show=_nothing)
    return ReportPage(html=page_of(Reported(title="Report", facts=tuple(facts), details=tuple(details))))


def _source(task: Task, file: FilePath) -> Source:
    """The rows of a task as `keep_records` wrote them."""
    if not file.exists():
        raise BundleError(f"the rows of task '{task.name}' are not kept here")
    with open(file, "rb") as lines:
        records = map(json.loads, lines)
        first = next(records)
        columns: dict[str, Any] = {**columns_of_training(chain([first], records))}
    columns |= {"spans": SPANS} if SPANS in first else {}
    columns |= {"tokens": TOKENS, "tags": TAGS} if TOKENS in first else {}
    columns |= {"text_b": PAIR} if PAIR in first and kind_of(task).context_column is None else {}
    return Source(path=str(file), **columns)


def _nothing(text: str) -> None:
    pass
