"""What `polyhead evaluate` tells beyond scores: options, the work, and the files that it is written to."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from polyhead.cli.command import OutputFile, option
from polyhead.cli.evaluate_where import EvaluatedTask, keeper_of
from polyhead.cli.output import note, writing_file
from polyhead.data.columns import no_column
from polyhead.data.rows import first_columns
from polyhead.errors import BundleError, DataError, MissingColumn, PolyheadError, UnknownTask, summary_of
from polyhead.values import Value

if TYPE_CHECKING:
    from polyhead.engine.session import Session
    from polyhead.evaluate.against import Comparison
    from polyhead.evaluate.details import Details
    from polyhead.evaluate.explain import Explanation
    from polyhead.evaluate.scores import Evaluation, SplitOutputs

EXPLAINED, LONGEST = 5, 2000  # mistakes of a task that the report explains, characters of their texts


class ReportOptions(Value):
    """What is asked beyond scores."""

    details: Annotated[
        bool, option("Also print intervals, confusion, how right the surest answers are, and the worst mistakes.")
    ] = False
    slices: Annotated[
        tuple[str, ...],
        option(
            "Also score the rows of each value of this column of the file; of many numbers, of each quarter.",
            "--slice",
            metavar="COLUMN",
        ),
    ] = ()
    against: Annotated[
        str | None,
        option(
            "Compare with another version of each task, such as v0001, or with the tasks of the same names of another "
            "bundle, by its folder: which rows changed, and whether that is chance.",
            metavar="VERSION",
        ),
    ] = None
    report: Annotated[
        str | None,
        option(
            "Write all of it to FILE (.html), one page that needs no network, with plots and the words that moved the "
            "worst mistakes.",
            metavar="FILE",
            type=OutputFile(".html", ".htm"),
        ),
    ] = None

    def check(self, data: str | None) -> None:
        """Raises, before any work, for a column that `data` does not have."""
        for column in self.slices if data is not None and os.path.exists(data) else ():
            if (there := first_columns(str(data))) and column not in there:
                raise no_column(str(data), column, there)

    @property
    def is_detailed(self) -> bool:
        """Whether more than scores is computed."""
        return self.details or bool(self.slices) or self.report is not None


def details_of_all(scored: Sequence[EvaluatedTask], more: ReportOptions, show: Callable[[str], None]) -> list[Details]:
    """The details of every evaluation, where they are asked; slices by each column that its file has.

    Raises MissingColumn for a column that no file has.
    """
    from polyhead.evaluate.details import details_of

    if not more.is_detailed:
        return []
    several, lacking = [], dict.fromkeys(more.slices, list[MissingColumn]())
    for each in scored:
        evaluation: Evaluation = each.evaluation
        show(f"{evaluation.score.task}: intervals and slices")
        columns = _columns(evaluation, more.slices, lacking)
        is_fresh = each.held is None  # what answered rows held out is not there to be asked again
        explanations = _explanations(each.session, evaluation) if more.report is not None and is_fresh else []
        several.append(details_of(evaluation, columns=columns, explanations=explanations))
    show("")
    for column, errors in lacking.items():
        if errors and len(errors) == len(scored):
            raise errors[0]
        if errors:
            note(f"{len(errors)} of {len(scored)} tasks have no column '{column}' in their file")
    return several


def _columns(
    evaluation: Evaluation, names: Sequence[str], lacking: dict[str, list[MissingColumn]]
) -> dict[str, list[object]]:
    from polyhead.evaluate.slices import columns_read

    columns: dict[str, list[object]] = {}
    for name in names:
        try:
            columns |= columns_read(evaluation.answered.source.path, [name], evaluation.answered.examples.rows)
        except MissingColumn as error:
            lacking[name] = [*lacking[name], error]
    return columns


def _explanations(session: Session, evaluation: Evaluation) -> list[Explanation | None]:
    """Of the first mistakes, those with texts that are not long."""
    from polyhead.evaluate.details import texts_shown
    from polyhead.evaluate.explain import explained

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
    found = iter(explained(session, [error.input for error in short], [task], words=words) if short else [])
    return [next(found).get(task) if fits else None for fits in is_short]


def comparisons(
    scored: Sequence[EvaluatedTask],
    against: str | None,
    opened: Callable[[Any], Session],
    cache_of: Callable[[Path], Path],
    show: Callable[[str], None],
) -> list[Comparison]:
    """Each task against its other version; a note for a task that has none. `opened` makes a session of a bundle.

    Answers to rows held out are compared with the other version's, on the rows that both held out. Raises
    BundleError where no task is compared.
    """
    from polyhead.evaluate.against import compare_versions

    if against is None:
        return []
    is_folder = os.path.isdir(against)
    other_bundle = cache(lambda: opened(against))
    several, reasons = [], list[PolyheadError]()
    for each in scored:
        task = each.evaluation.score.task
        try:
            session = other_bundle() if is_folder else opened(_version(each.session, task, against))
            session.task_names([task])
            pair = _both(each, session, cache_of, show)
        except (BundleError, DataError, UnknownTask) as error:
            reasons.append(error)
            note(f"{task} is not compared: {error}")
            continue
        several.append(compare_versions(*pair, against=against))
    show("")
    if not several:
        raise BundleError(
            f"no task is compared with {against}",
            got=summary_of(reasons[0]) if reasons else None,
            allowed="a version that `polyhead tasks list` shows, or the folder of a bundle with tasks of these names",
            do=reasons[0].do if reasons else None,
        )
    return several


def _both(
    each: EvaluatedTask, session: Session, cache_of: Callable[[Path], Path], show: Callable[[str], None]
) -> tuple[SplitOutputs, SplitOutputs]:
    """What the task and its other version, which the session has, answered the same rows."""
    from polyhead.evaluate.held import answered_then, shared_rows
    from polyhead.evaluate.scores import outputs_of_split

    now, task = each.evaluation.answered, each.evaluation.score.task
    if each.held is None:
        return now, outputs_of_split(session, task, now.source, show=show)
    home = keeper_of(session, task)
    then = answered_then(session.tasks[task], now.source, cache_of(home.root), home.record(task).arrays)
    pair = shared_rows(now, then.answered)
    if (count := len(pair[0].outputs)) < len(now.outputs):
        note(f"{task}: compared on {count:,} of {len(now.outputs):,} rows, which the other version held out too")
    return pair


def _version(session: Session, task: str, version: str) -> Any:
    from polyhead.evaluate.against import version_view

    if task not in session.records:
        raise BundleError(f"task '{task}' owns its model", do="name another bundle to compare with")
    return version_view(session.bundle, task, version)


def write_report(
    path: str, details: Sequence[Details], comparisons: Sequence[Comparison], how: dict[str, str], facts: Sequence[str]
) -> None:
    """Writes the page; `facts` are lines about the scores."""
    from polyhead._version import __version__
    from polyhead.evaluate.report.evaluation import Reported, page_of

    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    computed = ", ".join(f"{name} {value}" for name, value in how.items())
    reported = Reported(
        title="Evaluation",
        facts=(f"{now}, polyhead {__version__}, {computed}", *facts),
        details=tuple(details),
        comparisons=tuple(comparisons),
    )
    with writing_file(path) as file:
        file.write(page_of(reported).encode())
