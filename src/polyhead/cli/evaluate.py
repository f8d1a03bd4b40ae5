"""`polyhead evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polyhead.cli.options import backend_option, names_in, precision_option, tasks_option
from polyhead.cli.output import Printer, check_apart, json_option, note, number, table

if TYPE_CHECKING:
    from polyhead.bundle.models import Models
    from polyhead.bundle.read import Bundle
    from polyhead.engine.evaluate import Score
    from polyhead.engine.session import Session
    from polyhead.project.tables import Project

HEAD = ("task", "split", "rows", "metric", "score")
BASELINES = ("linear", "constant")


@click.command("evaluate")
@click.argument("project", type=click.Path(dir_okay=False), default="polyhead.toml")
@tasks_option("Score these tasks only, with commas between them.")
@click.option("--bundle", type=click.Path(file_okay=False), help="Read this bundle instead of the project's.")
@click.option(
    "--split",
    type=click.Choice(["test", "validation"]),
    default="test",
    show_default=True,
    help="Split to score on; a task without a file for it is scored on the other one.",
)
@backend_option()
@precision_option
@json_option
def command(
    project: str,
    tasks: tuple[str, ...],
    bundle: str | None,
    split: str,
    backend: str | None,
    precision: str | None,
    json_to: str | None,
) -> None:
    """Score the bundle of PROJECT on whole splits, with fresh answers (no stored features).

    Two baselines are shown next to each score, as training measured them: the best linear head, and the best constant
    answer.

    A task with neither a test file nor a validation file cannot be scored again. Its score from training, on the
    held-out share, is shown instead and marked "from training". If the recipe makes several bundles, all that exist
    are scored one after the other.
    """
    from polyhead.engine.session import Session
    from polyhead.project.tables import data_files, read_project

    printer, only = Printer(json_to), names_in(tasks)
    plan, folder = read_project(project), Path(project).resolve().parent
    check_apart([json_to], data_files(plan, folder))
    rows: list[list[object]] = [[*HEAD, *BASELINES, "other metrics"]]
    scores: list[Score] = []
    from_training: dict[str, dict[str, float]] = {}
    for root, names in _homes(plan, folder, bundle, only).items():
        session = Session(root, backend=backend, precision=precision)
        measured, trained = _scored(session, plan, folder, split, names, printer)
        for score in measured:
            simple = _home(session, score.task).baselines(score.task, score.split)
            rows.append(_row(score.task, score.split, f"{score.rows:,}", score.metric, score.scores, simple))
        for name, values in trained.items():
            home = _home(session, name)
            metric, simple = home.headline(name)[0], home.baselines(name, "validation")
            rows.append(_row(name, "validation (from training)", "-", metric, values, simple))
        scores += measured
        from_training |= trained
    printer.lines(table(rows, left=4))
    how = {"backend": session.backend.name, "precision": session.backend.precision}
    printer.json(how | {"scores": scores, "from_training": from_training})


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
) -> tuple[list[Score], dict[str, dict[str, float]]]:
    """Scores of tasks with files, from live answers; scores of training of the others."""
    from polyhead.engine.evaluate import evaluate_bundle

    fileless = _fileless(plan, session, only)
    scorable = tuple(name for name in only if name not in fileless) if only else _others(plan, session, fileless)
    scores: list[Score] = []
    if scorable:
        scores = evaluate_bundle(session, plan, folder=folder, split=split, only=scorable, show=printer.show)
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
