"""`polyhead evaluate`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import msgspec

from polyhead._version import __version__
from polyhead.cli.command import OutputFile, option, verb
from polyhead.cli.evaluate_lines import (
    cascade_lines,
    comparison_lines,
    computed_by,
    detail_lines,
    fact_lines,
    label_lines,
    slice_lines,
)
from polyhead.cli.options import (
    BackendOptions,
    File,
    LabelledColumns,
    OptionalFolder,
    Tasks,
    is_typed,
    labelled_sources,
)
from polyhead.cli.output import Printer, check_apart, counted, note, number, text_table, write_rows, writing_file
from polyhead.data.columns import no_column
from polyhead.data.rows import first_columns
from polyhead.errors import DataError, PolyheadError, summary_of
from polyhead.evaluate.beyond_scores import comparisons, details_of_all
from polyhead.evaluate.cascade import POINTS_LOST, CascadeChoice, cascade_of
from polyhead.evaluate.compare import Comparison
from polyhead.evaluate.details import Details
from polyhead.evaluate.on_project import EvaluatedTask, homes, on_another_file, scored_on_files
from polyhead.evaluate.report.evaluation import BASELINES, Reported, page_of
from polyhead.evaluate.scores import evaluation_of
from polyhead.project.tables import data_files, read_project
from polyhead.values import Value

HEAD = ("task", "split", "rows", "metric", "score")
FACTS = ("task", "row", "truth", "answer", "score")  # columns of a file of errors; the input stands between


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

    cascade: Annotated[
        str | None,
        option(
            "Folder of a bundle on a cheaper encoder: print what `polyhead serve` scores and costs where that one "
            "answers the texts of which it is sure enough, by threshold; needs labelled rows that training did not "
            "see.",
            metavar="BUNDLE",
            type=click.Path(file_okay=False, exists=True),
        ),
    ] = None
    points_lost: Annotated[
        float, option("Points of the score that the threshold of --cascade may lose.", ge=0, le=100)
    ] = POINTS_LOST

    def check(self, data: str | None) -> None:
        """Raises, before any work, for a column that `data` does not have, and for an option that changes nothing."""
        if self.cascade is None and is_typed("points_lost"):
            raise click.UsageError("--points-lost is for the threshold of --cascade: give that too.")
        for column in self.slices if data is not None and os.path.exists(data) else ():
            if (columns := first_columns(str(data))) and column not in columns:
                raise no_column(str(data), column, columns)

    @property
    def is_detailed(self) -> bool:
        """Whether more than scores is computed."""
        return self.details or bool(self.slices) or self.report is not None


@verb("evaluate")
def command(
    project: str = option(default="polyhead.toml", type=click.Path(), metavar="[PROJECT | BUNDLE]"),
    *,
    tasks: Tasks = option("Score these tasks only, with commas between them."),
    data: File = option("Score on the labelled rows of this file, in any form that `polyhead init` reads."),
    columns: LabelledColumns,
    bundle: OptionalFolder = option("Read this bundle instead of the project's."),
    split: Literal["test", "validation"] = option(
        "Split to score on; a task without a file for it is scored on the other one.", "test"
    ),
    cache: OptionalFolder = option(
        "Folder where training kept its answers to rows held out; by default BUNDLE-cache, next to the bundle."
    ),
    errors: File = option(
        "Write the rows with wrong answers to FILE (.csv or .jsonl), with truth, answer and score, surest first.",
        type=OutputFile(".csv", ".jsonl"),
    ),
    by_label: bool = option("Also print the scores of each label; with --data always.", "--labels"),
    how: BackendOptions,
    printer: Printer,
    more: ReportOptions,
) -> Any:
    """Score a bundle's tasks on whole splits of PROJECT, or on a labelled file.

    \b
    polyhead evaluate                                             the project's splits
    polyhead evaluate bundle --data new.csv --task mood           a bundle on a file; no project is needed
    polyhead evaluate --data new.csv                              the project's tasks and columns on another file
    polyhead evaluate --against v0001 --report report.html        what changed since version v0001, with plots
    polyhead evaluate deep --data new.csv --cascade cheap         a threshold for `polyhead serve --cascade`

    With PROJECT, three baselines are shown next to each score, as training measured them on the same rows: TF-IDF of
    words with logistic regression, the best linear head, and the best constant answer. A task with neither a test file
    nor a validation file is scored on rows that it did not learn from, by what it answered them in training: "held out"
    where a share of the rows was, "out of fold" where each row was left out once. Training has chosen by these rows, so
    a test file says more. If the recipe makes several bundles, all that exist are scored one after the other.

    With a BUNDLE and --data, the tasks are those whose label column, called like the task, is in the file; --label
    names another. Of one task the columns are guessed where they are called otherwise. The score that each had in
    training is shown next to the new one.
    """
    more.check(data)
    if data is not None and is_typed("split"):
        raise click.UsageError(
            "--split chooses among a project's own files, and --data names another file: give one of the two."
        )
    wanted = _Scoring(only=tasks, split=split, cache=cache, how=how)
    folder = _bundle_in(project, bundle, data)
    if folder is not None:
        outcome = _on_a_file(folder, data, columns, wanted, printer)
    elif columns.is_named and os.path.exists(project):
        raise click.UsageError("columns are named for BUNDLE and --data; a project file names its own.")
    else:
        outcome = _on_splits(project, bundle, data, wanted, printer, written=(printer.json_to, errors, more.report))
    printer.lines(text_table(outcome.rows, left=4))
    outcome.check(errors)
    printer.lines(["", *outcome.facts] if outcome.facts else [])
    if by_label or data is not None:
        printer.lines([line for each in outcome.scored for line in label_lines(each.evaluation.score)])
    return _tell_more(outcome, more, wanted, printer, errors)


def _tell_more(
    outcome: _Outcome, more: ReportOptions, wanted: _Scoring, printer: Printer, errors: str | None
) -> dict[str, Any]:
    """Prints and writes what is asked beyond the table of scores."""
    how: dict[str, Any] = {"say": note, "show": printer.show}
    explains, compared = more.report is not None, []
    details = details_of_all(outcome.scored, more.slices, explains=explains, **how) if more.is_detailed else []
    if more.against is not None:
        compared = comparisons(outcome.scored, more.against, wanted.how.session, wanted.cache_of, **how)
    if more.details:
        printer.lines([line for each in details for line in detail_lines(each)])
    printer.lines([line for each in details for line in slice_lines(each)])
    printer.lines([line for each in compared for line in comparison_lines(each)])
    cascades = [] if more.cascade is None else _cascades(outcome, more.cascade, more.points_lost, wanted, printer)
    if errors is not None:
        wrong = [error for each in outcome.scored for error in each.evaluation.errors]
        rows = [error.written() for error in wrong]
        between = [name for row in rows for name in row if name not in FACTS]
        write_rows(errors, [*FACTS[:2], *dict.fromkeys(between), *FACTS[2:]], rows)
        of = counted(sum(each.evaluation.score.rows for each in outcome.scored), "row")
        printer.line(f"{counted(len(wrong), 'wrong answer')} in {errors}, of {of} that were scored")
    if more.report is not None:
        with writing_file(more.report) as file:
            file.write(_page(outcome, details, compared).encode())
        printer.line(f"report in {more.report}")
    scores = [each.evaluation.score for each in outcome.scored]
    fields = outcome.how | {"scores": scores, "from_training": outcome.from_training}
    held = {each.evaluation.score.task: each.held for each in outcome.scored if each.held is not None}
    fields["trained_with"] = {each.evaluation.score.task: each.trained_with for each in outcome.scored}
    fields["held"] = {
        name: {"folds": then.facts.folds, "lacking": then.lacking, **then.facts.computed} for name, then in held.items()
    }
    fields |= {"cascades": cascades} if cascades else {}
    return fields | {"details": details, "comparisons": compared}


def _cascades(
    outcome: _Outcome, folder: str, points_lost: float, wanted: _Scoring, printer: Printer
) -> list[CascadeChoice]:
    """Each task's cascade with the bundle of this folder, printed. Raises the first reason where there is none."""
    cheap, choices, reasons = wanted.how.session(folder), list[CascadeChoice](), list[PolyheadError]()
    for each in outcome.scored:
        task, answered = each.evaluation.score.task, each.evaluation.answered
        try:
            if each.held is not None:
                raise DataError(
                    "training chose by the rows that it held out", do="give a test file, or others with --data FILE"
                )
            choice = cascade_of(
                cheap, each.session, task, answered.examples, points_lost=points_lost, show=printer.show
            )
        except PolyheadError as error:
            reasons.append(error)
            note(f"{task}: no cascade: {error}")
            continue
        choices.append(choice)
        printer.lines(cascade_lines(choice, folder, str(each.session.bundle.root)))
    printer.show("")
    if not choices and reasons:
        raise reasons[0]
    return choices


def _page(outcome: _Outcome, details: Sequence[Details], compared: Sequence[Comparison]) -> str:
    now, how = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), outcome.how.items()
    facts = (f"{now}, polyhead {__version__}, {', '.join(f'{name} {value}' for name, value in how)}", *outcome.facts)
    return page_of(
        Reported(
            title="Evaluation",
            facts=facts,
            details=tuple(details),
            comparisons=tuple(compared),
            baselines=outcome.baselines,
        )
    )


class _Scoring(Value):
    """What is scored, and how it is computed."""

    only: tuple[str, ...]
    split: str
    cache: str | None
    how: BackendOptions

    def cache_of(self, bundle: Path) -> Path:
        """Where training keeps answers of this bundle's tasks."""
        root = bundle.resolve()
        return Path(self.cache) if self.cache else root.with_name(f"{root.name}-cache")


class _Outcome(Value, eq=False):
    """What was scored: rows of the table under its head, evaluations, scores of training, how it was computed."""

    rows: list[list[object]]
    scored: list[EvaluatedTask]
    from_training: dict[str, dict[str, float]]
    how: dict[str, str]
    facts: list[str] = []  # lines about the scores
    baselines: dict[str, dict[str, dict[str, float]]] = {}  # task -> name -> metric -> value
    reasons: list[PolyheadError] = []  # why tasks were not scored

    def check(self, errors: str | None) -> None:
        """Raises DataError where nothing was scored, or where `errors` are wanted and no task can tell any."""
        if not self.scored:
            raise DataError(
                "nothing was scored, and no file was written",
                got=summary_of(self.reasons[0]) if self.reasons else None,
                do=self.reasons[0].do if self.reasons else "give labelled rows with --data FILE",
            )
        if errors is not None and all(each.evaluation.score.wrong is None for each in self.scored):
            kinds = sorted({each.evaluation.answered.task.kind for each in self.scored})
            raise DataError(
                f"no row is called right or wrong by kind {', '.join(kinds)}, so {errors} is not written",
                do="leave out --errors",
            )


def _bundle_in(project: str, bundle: str | None, data: str | None) -> str | None:
    """The folder of a bundle that is to be scored without a project; click's errors for one without a file."""
    if os.path.isdir(project):
        if bundle is not None:
            raise click.UsageError("give a bundle once: as BUNDLE, or with --bundle beside a project file.")
        if data is None:
            raise click.UsageError(
                f"{project} is a folder: add --data FILE with labelled rows, or give a project file. "
                f"`polyhead tasks list {project}` shows the scores of training."
            )
        return project
    if data is None or os.path.exists(project):
        return None
    return project if bundle is None and not project.endswith(".toml") else bundle


def _on_a_file(folder: str, data: str | None, named: LabelledColumns, wanted: _Scoring, printer: Printer) -> _Outcome:
    assert data is not None
    if not os.path.isfile(data):
        raise DataError(f"no file at {data}", do="give the path of a file that exists")
    session = wanted.how.session(folder)
    names = session.task_names(wanted.only or None)
    tasks = {name: session.tasks[name] for name in names}
    rows: list[list[object]] = [[*HEAD, "in training", "other metrics"]]
    evaluated, from_training = list[EvaluatedTask](), dict[str, dict[str, float]]()
    for name, source in labelled_sources(tasks, wanted.only, data, named).items():
        evaluation = evaluation_of(session, name, source, show=printer.show)
        score, (metric, before) = evaluation.score, session.bundle.headline(name)
        cells = _row(name, "data", f"{score.rows:,}", score.metric, score.scores, {})
        if before is not None and metric == score.metric:
            from_training[name] = {metric: before}
        rows.append([*cells[: len(HEAD)], number(from_training.get(name, {}).get(metric)), cells[-1]])
        evaluated.append(EvaluatedTask(evaluation=evaluation, session=session))
    return _Outcome(rows=rows, scored=evaluated, from_training=from_training, how=computed_by(session))


def _on_splits(
    project: str,
    bundle: str | None,
    data: str | None,
    wanted: _Scoring,
    printer: Printer,
    *,
    written: Sequence[str | None],
) -> _Outcome:
    plan, folder = read_project(project), Path(project).resolve().parent
    if data is not None:
        plan = on_another_file(plan, data)
    check_apart(written, data_files(plan, folder))
    cache, split = wanted.cache_of(Path(bundle or folder / plan.bundle)), wanted.split if data is None else "test"
    rows: list[list[object]] = [[*HEAD, *BASELINES, "other metrics"]]
    scored, reasons = list[EvaluatedTask](), list[PolyheadError]()
    from_training, baselines = dict[str, dict[str, float]](), dict[str, dict[str, dict[str, float]]]()
    for root, names in homes(plan, folder, bundle, wanted.only).items():
        session = wanted.how.session(root)
        outcome = scored_on_files(session, plan, folder, cache, split, names, say=note, show=printer.show)
        for each in outcome.scored:
            score = each.evaluation.score
            if data is not None:
                score = msgspec.structs.replace(score, split="data")
                evaluation = msgspec.structs.replace(each.evaluation, score=score)
                each = msgspec.structs.replace(each, evaluation=evaluation)
            simple = each.baselines(say=note) if data is None else {}
            rows.append(_row(score.task, score.split, f"{score.rows:,}", score.metric, score.scores, simple))
            baselines[score.task] = simple
            scored.append(each)
        for name, values in outcome.trained.items():
            home = session.bundle
            metric, simple = home.headline(name)[0], home.baselines(name, "validation")
            rows.append(_row(name, "validation (from training)", "-", metric, values, simple))
        from_training |= outcome.trained
        reasons += outcome.reasons
    how = computed_by(session)
    facts = [] if data is not None else fact_lines(scored, how)
    return _Outcome(
        rows=rows,
        scored=scored,
        from_training=from_training,
        how=how,
        facts=facts,
        reasons=reasons,
        baselines=baselines,
    )


def _row(
    task: str, split: str, rows: str, metric: str, scores: dict[str, Any], simple: dict[str, dict[str, float]]
) -> list[object]:
    others = "  ".join(f"{name} {value:.4f}" for name, value in scores.items() if name != metric)
    beside = [number(simple.get(name, {}).get(metric)) for name in BASELINES]
    return [task, split, rows, metric, number(scores.get(metric)), *beside, others]
