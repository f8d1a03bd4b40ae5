"""`polyhead evaluate`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from polyhead.cli.labelled import LabelledColumns, check_errors_file, labelled_options, sources_of, write_errors
from polyhead.cli.options import backend_option, names_in, precision_option, tasks_option
from polyhead.cli.output import Printer, check_apart, counted, json_option, note, number, section, table
from polyhead.config import Value
from polyhead.errors import DataError

if TYPE_CHECKING:
    from polyhead.bundle.models import Models
    from polyhead.bundle.read import Bundle
    from polyhead.engine.evaluate import Evaluation, Score
    from polyhead.engine.session import Session
    from polyhead.project.tables import Project

HEAD = ("task", "split", "rows", "metric", "score")
BASELINES = ("linear", "constant")
LABEL_HEAD = ("label", "precision", "recall", "f1", "support", "answered")


@click.command("evaluate")
@click.argument("project", type=click.Path(), default="polyhead.toml", metavar="[PROJECT | BUNDLE]")
@tasks_option("Score these tasks only, with commas between them.")
@click.option("--data", metavar="FILE", help="Score on the rows of this file: .csv, .tsv, .jsonl or .parquet.")
@labelled_options
@click.option("--bundle", type=click.Path(file_okay=False), help="Read this bundle instead of the project's.")
@click.option(
    "--split",
    type=click.Choice(["test", "validation"]),
    default="test",
    show_default=True,
    help="Split to score on; a task without a file for it is scored on the other one.",
)
@click.option(
    "--errors",
    metavar="FILE",
    help="Write the rows with wrong answers to FILE (.csv or .jsonl), with truth, answer and score, surest first.",
)
@click.option("--labels", "by_label", is_flag=True, help="Also print the scores of each label; with --data always.")
@backend_option()
@precision_option
@json_option
def command(
    project: str,
    tasks: tuple[str, ...],
    data: str | None,
    bundle: str | None,
    split: str,
    errors: str | None,
    by_label: bool,
    backend: str | None,
    precision: str | None,
    json_to: str | None,
    **columns: Any,
) -> None:
    """Score a bundle's tasks on whole splits of PROJECT, or on a labelled file, with fresh answers.

    \b
    polyhead evaluate                                             the project's splits
    polyhead evaluate bundle --data new.csv --task mood           a bundle on a file; no project is needed
    polyhead evaluate --data new.csv                              the project's tasks and columns on another file

    With PROJECT, two baselines are shown next to each score, as training measured them on the same rows: the best
    linear head, and the best constant answer. A task with neither a test file nor a validation file cannot be scored
    again. Its score from training, on the held-out share, is shown instead and marked "from training". If the recipe
    makes several bundles, all that exist are scored one after the other.

    With a BUNDLE and --data, the tasks are those whose label column, called like the task, is in the file; --label
    names another. The score that each had in training is shown next to the new one.
    """
    printer, only, named = Printer(json_to), names_in(tasks), LabelledColumns(**columns)
    check_errors_file(errors)
    asked = _Asked(only=only, split=split, backend=backend, precision=precision)
    folder = _bundle_in(project, bundle, data)
    if folder is not None:
        outcome = _on_a_file(folder, data, named, asked, printer)
    elif named.is_named:
        raise click.UsageError("columns are named for BUNDLE and --data; a project file names its own.")
    else:
        outcome = _on_splits(project, bundle, data, asked, printer, written=(json_to, errors))
    evaluated = outcome.evaluations
    printer.lines(table(outcome.rows, left=4))
    if by_label or data is not None:
        printer.lines([line for each in evaluated for line in _label_lines(each.score)])
    if errors is not None:
        wrong = [error for each in evaluated for error in each.errors]
        write_errors(errors, wrong)
        printer.line(f"{counted(len(wrong), 'wrong answer')} in {errors}")
    scores = [each.score for each in evaluated]
    printer.json(outcome.how | {"scores": scores, "from_training": outcome.from_training})


class _Asked(Value):
    """What is scored, and how it is computed."""

    only: tuple[str, ...]
    split: str
    backend: str | None
    precision: str | None

    def session(self, root: Path | str) -> Session:
        """A session over the bundle there."""
        from polyhead.engine.session import Session

        return Session(root, backend=self.backend, precision=self.precision)


class _Outcome(Value, eq=False):
    """What was scored: rows of the table under its head, evaluations, scores of training, how it was computed."""

    rows: list[list[object]]
    evaluations: list[Any]  # polyhead.engine.evaluate.Evaluation
    from_training: dict[str, dict[str, float]]
    how: dict[str, str]


def _how(session: Session) -> dict[str, str]:
    return {"backend": session.backend.name, "precision": session.backend.precision}


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
    return bundle if data is not None and not os.path.exists(project) else None


def _on_a_file(folder: str, data: str | None, named: LabelledColumns, asked: _Asked, printer: Printer) -> _Outcome:
    from polyhead.engine.evaluate import evaluation_of

    assert data is not None
    if not os.path.isfile(data):
        raise DataError(f"no file at {data}", do="give the path of a file that exists")
    session = asked.session(folder)
    names = session.task_names(asked.only or None)
    tasks = {name: session.tasks[name] for name in names}
    rows: list[list[object]] = [[*HEAD, "in training", "other metrics"]]
    evaluated = []
    for name, source in sources_of(tasks, asked.only, data, named).items():
        evaluation = evaluation_of(session, name, source, show=printer.show)
        score, (metric, before) = evaluation.score, _home(session, name).headline(name)
        cells = _row(name, "data", f"{score.rows:,}", score.metric, score.scores, {})
        before = before if metric == score.metric else None
        rows.append([*cells[: len(HEAD)], number(before), cells[-1]])
        evaluated.append(evaluation)
    printer.show("")
    return _Outcome(rows=rows, evaluations=evaluated, from_training={}, how=_how(session))


def _on_splits(
    project: str,
    bundle: str | None,
    data: str | None,
    asked: _Asked,
    printer: Printer,
    *,
    written: Sequence[str | None],
) -> _Outcome:
    from polyhead.project.tables import data_files, read_project

    plan, folder = read_project(project), Path(project).resolve().parent
    if data is not None:
        plan = _on_another_file(plan, data)
    check_apart(written, data_files(plan, folder))
    rows: list[list[object]] = [[*HEAD, *BASELINES, "other metrics"]]
    evaluated: list[Evaluation] = []
    from_training: dict[str, dict[str, float]] = {}
    for root, names in _homes(plan, folder, bundle, asked.only).items():
        session = asked.session(root)
        measured, trained = _scored(session, plan, folder, asked.split if data is None else "test", names, printer)
        for each in measured:
            score = msgspec.structs.replace(each.score, split="data") if data is not None else each.score
            simple = _baselines(session, each) if data is None else {}
            rows.append(_row(score.task, score.split, f"{score.rows:,}", score.metric, score.scores, simple))
            evaluated.append(msgspec.structs.replace(each, score=score))
        for name, values in trained.items():
            home = _home(session, name)
            metric, simple = home.headline(name)[0], home.baselines(name, "validation")
            rows.append(_row(name, "validation (from training)", "-", metric, values, simple))
        from_training |= trained
    return _Outcome(rows=rows, evaluations=evaluated, from_training=from_training, how=_how(session))


def _on_another_file(plan: Project, data: str) -> Project:
    """The project with this file as the test rows of every task."""
    path = os.path.abspath(data)
    entries = tuple(msgspec.structs.replace(entry, test=path) for entry in plan.tasks)
    return msgspec.structs.replace(plan, tasks=entries)


def _baselines(session: Session, evaluation: Evaluation) -> dict[str, dict[str, float]]:
    """Scores of simple answers on the same rows; none where training measured them on others."""
    score, home = evaluation.score, _home(session, evaluation.score.task)
    data = home.record(score.task).trained_with.get("data")
    known = data.get(score.split, {}).get("sha256") if isinstance(data, dict) else None
    simple = home.baselines(score.task, score.split)
    if simple and known not in (None, evaluation.digest):
        note(f"{score.task}: its {score.split} rows are others than in training, so no baseline is shown beside them")
        return {}
    return simple


def _label_lines(score: Score) -> list[str]:
    if not score.labels:
        return []
    cells = [
        [one.label, *(f"{value:.4f}" for value in (one.precision, one.recall, one.f1)), one.support, one.predicted]
        for one in score.labels
    ]
    wrong = "" if score.wrong is None else f", {score.wrong:,} of {counted(score.rows, 'row')} wrong"
    return section(f"{score.task}: each label{wrong}", table([LABEL_HEAD, *cells]))


def _homes(project: Project, folder: Path, bundle: str | None, only: tuple[str, ...]) -> dict[Path, tuple[str, ...]]:
    """Bundles to open, by default the project's, each with the tasks to score."""
    from polyhead.errors import BundleError, UnknownTask
    from polyhead.project.tables import bundles_of

    if bundle is not None:
        return {Path(bundle): only}
    known = {folder / root: names for root, names in bundles_of(project).items()}
    if next(iter(known)) == folder / project.bundle:
        return dict.fromkeys(known, only)
    declared = [entry.name for entry in project.tasks]
    if unknown := sorted(set(only) - set(declared)):
        raise UnknownTask("the project declares no such task", got=unknown, allowed=declared)
    wanted = {root: [name for name in names if not only or name in only] for root, names in known.items()}
    chosen = {root: _standing(root, names) for root, names in wanted.items()}
    if only:
        chosen |= {root: tuple(names) for root, names in wanted.items() if names}
    homes = {root: names for root, names in chosen.items() if names}
    if not homes:
        raise BundleError(
            f"there is no bundle with a task in {folder / project.bundle}",
            allowed=sorted(map(str, known)),
            do="train the project first with `polyhead train`",
        )
    return homes


def _standing(root: Path, names: list[str]) -> tuple[str, ...]:
    """The tasks of these names in the bundle; none where it is missing or its training was stopped."""
    from polyhead.bundle.format import BUNDLE
    from polyhead.bundle.read import Bundle

    tasks = Bundle.open(root, verify=False).tasks if (root / BUNDLE).exists() else {}
    return tuple(name for name in names if name in tasks)


def _scored(
    session: Session, plan: Project, folder: Path, split: str, only: tuple[str, ...], printer: Printer
) -> tuple[list[Evaluation], dict[str, dict[str, float]]]:
    """Scores of tasks with files, from live answers; scores of training of the others."""
    from polyhead.engine.evaluate import evaluations

    fileless = _fileless(plan, session, only)
    scorable = tuple(name for name in only if name not in fileless) if only else _others(plan, session, fileless)
    scores: list[Evaluation] = []
    if scorable:
        scores = evaluations(session, plan, folder=folder, split=split, only=scorable, show=printer.show)
    printer.show("")
    trained = {name: _home(session, name).split_scores(name).get("validation") for name in fileless}
    if lacking := [name for name, values in trained.items() if values is None]:
        note(f"no file to be scored on, and no scores of training: {', '.join(lacking)}")
    return scores, {name: values for name, values in trained.items() if values is not None}


def _home(session: Session, name: str) -> Bundle | Models:
    """The keeper of the task's scores of training."""
    return session.summaries.models if name in session.summaries.tasks else session.bundle


def _row(
    task: str, split: str, rows: str, metric: str, scores: dict[str, Any], simple: dict[str, dict[str, float]]
) -> list[object]:
    others = "  ".join(f"{name} {value:.4f}" for name, value in scores.items() if name != metric)
    beside = [number(simple.get(name, {}).get(metric)) for name in BASELINES]
    return [task, split, rows, metric, f"{scores[metric]:.4f}", *beside, others]


def _fileless(project: Project, session: Session, only: tuple[str, ...]) -> list[str]:
    """Tasks of project and bundle with no file to be scored on."""
    return [
        entry.name
        for entry in project.tasks
        if entry.test is None and isinstance(entry.validation, float)
        if entry.name in session.tasks and (not only or entry.name in only)
    ]


def _others(project: Project, session: Session, fileless: list[str]) -> tuple[str, ...]:
    from polyhead.errors import UnknownTask

    names = tuple(e.name for e in project.tasks if e.name in session.tasks)
    if not names:
        raise UnknownTask(
            f"the bundle {session.bundle.root} holds no task of the project",
            got=[entry.name for entry in project.tasks],
            allowed=sorted(session.tasks) or None,
            do="train them first with `polyhead train`",
        )
    return tuple(name for name in names if name not in fileless)
