"""Details of scored tasks, and comparisons with other versions."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from polyhead.engine.session import Session
from polyhead.errors import BundleError, DataError, MissingColumn, PolyheadError, UnknownTask, summary_of
from polyhead.evaluate.compare import Comparison, compare_versions, version_view
from polyhead.evaluate.details import Details, details_of, texts_shown
from polyhead.evaluate.explain import Explanation, explained
from polyhead.evaluate.held_out import restore_answers, shared_rows
from polyhead.evaluate.on_project import EvaluatedTask
from polyhead.evaluate.scores import Evaluation, SplitOutputs, columns_read, outputs_of_split

EXPLAINED, LONGEST = 5, 2000  # explained mistakes per task, and maximum characters of their texts


def details_of_all(
    scored: Sequence[EvaluatedTask],
    slices: Sequence[str],
    *,
    explains: bool,
    say: Callable[[str], None],
    show: Callable[[str], None],
) -> list[Details]:
    """The details of every evaluation, with slices by each column that its file has.

    Raises MissingColumn for a column that no file has.
    """
    all_details, lacking = [], dict.fromkeys(slices, list[MissingColumn]())
    for each in scored:
        evaluation: Evaluation = each.evaluation
        show(f"{evaluation.score.task}: intervals and slices")
        columns = _columns(evaluation, slices, lacking)
        is_fresh = each.held is None  # the part that answered held-out rows does not exist any more
        explanations = _explanations(each.session, evaluation) if explains and is_fresh else []
        all_details.append(details_of(evaluation, columns=columns, explanations=explanations))
    show("")
    for column, errors in lacking.items():
        if errors and len(errors) == len(scored):
            raise errors[0]
        if errors:
            say(f"{len(errors)} of {len(scored)} tasks have no column '{column}' in their file")
    return all_details


def _columns(
    evaluation: Evaluation, names: Sequence[str], lacking: dict[str, list[MissingColumn]]
) -> dict[str, list[object]]:
    columns: dict[str, list[object]] = {}
    for name in names:
        try:
            columns |= columns_read(evaluation.answered.source.path, [name], evaluation.answered.examples.rows)
        except MissingColumn as error:
            lacking[name] = [*lacking[name], error]
    return columns


def _explanations(session: Session, evaluation: Evaluation) -> list[Explanation | None]:
    """Explanations of the first mistakes whose texts are not too long."""
    task, examples = evaluation.score.task, evaluation.answered.examples
    if task not in session.records:
        return []
    mistakes = evaluation.errors[:EXPLAINED]
    is_short = [sum(map(len, texts_shown(error.input))) <= LONGEST for error in mistakes]
    short = [error for error, fits in zip(mistakes, is_short, strict=True) if fits]
    words = None
    if examples.words is not None:
        place = {row: number for number, row in enumerate(examples.rows)}
        words = [examples.whole_words(place[error.row]) for error in short]
    explanations = iter(explained(session, [error.input for error in short], [task], words=words) if short else [])
    return [next(explanations).get(task) if fits else None for fits in is_short]


def comparisons(
    scored: Sequence[EvaluatedTask],
    against: str,
    opened: Callable[[Any], Session],
    cache_of: Callable[[Path], Path],
    *,
    say: Callable[[str], None],
    show: Callable[[str], None],
) -> list[Comparison]:
    """Each task compared with its other version, or a note without one. `opened` makes a session of a bundle.

    Answers to held-out rows are compared on the rows that both versions held out. Raises BundleError if no task is
    compared.
    """
    is_folder = os.path.isdir(against)
    other_bundle = cache(lambda: opened(against))
    compared, reasons = [], list[PolyheadError]()
    for each in scored:
        task = each.evaluation.score.task
        try:
            session = other_bundle() if is_folder else opened(version_view(each.session.bundle, task, against))
            session.task_names([task])
            pair = _same_rows(each, session, cache_of, say, show)
        except (BundleError, DataError, UnknownTask) as error:
            reasons.append(error)
            say(f"{task} is not compared: {error}")
            continue
        compared.append(compare_versions(*pair, against=against))
    show("")
    if not compared:
        raise BundleError(
            f"no task is compared with {against}",
            got=summary_of(reasons[0]) if reasons else None,
            allowed="a version that `polyhead tasks list` shows, or the folder of a bundle with tasks of these names",
            do=reasons[0].do if reasons else None,
        )
    return compared


def _same_rows(
    each: EvaluatedTask,
    session: Session,
    cache_of: Callable[[Path], Path],
    say: Callable[[str], None],
    show: Callable[[str], None],
) -> tuple[SplitOutputs, SplitOutputs]:
    """The answers of the task and of its other version, which is in the session, to the same rows."""
    now, task = each.evaluation.answered, each.evaluation.score.task
    if each.held is None:
        return now, outputs_of_split(session, task, now.source, show=show)
    home = session.bundle
    restored = restore_answers(session.tasks[task], now.source, cache_of(home.root), home.record(task).arrays)
    pair = shared_rows(now, restored.answered)
    if (count := len(pair[0].outputs)) < len(now.outputs):
        say(f"{task}: compared on {count:,} of {len(now.outputs):,} rows, which the other version held out too")
    return pair
