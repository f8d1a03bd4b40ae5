"""`polyhead evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polyhead.cli.options import backend_option, names_in, precision_option, tasks_option
from polyhead.cli.output import Printer, json_option, table

if TYPE_CHECKING:
    from polyhead.bundle.models import Models
    from polyhead.bundle.read import Bundle
    from polyhead.engine.session import Session
    from polyhead.project import Project


@click.command("evaluate")
@click.argument("project", type=click.Path(dir_okay=False), default="polyhead.toml")
@tasks_option("Score these tasks only, with commas between them.")
@click.option("--bundle", type=click.Path(file_okay=False), help="Read this bundle instead of the project's.")
@click.option(
    "--split",
    type=click.Choice(["test", "validation"]),
    default="test",
    show_default=True,
    help="Which split; a task that has no file of it is scored on the other one.",
)
@backend_option
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
    """Score the bundle of PROJECT on whole splits, with live answers of the bundle (no kept features).

    A task with neither a test file nor a validation file cannot be scored again: the score that training measured on
    the share held out is shown for it, marked "from training".
    """
    from polyhead.engine.evaluate import evaluate_bundle
    from polyhead.engine.session import Session
    from polyhead.project import read_project

    printer = Printer(json_to)
    plan, folder = read_project(project), Path(project).resolve().parent
    session = Session(bundle or folder / plan.bundle, backend=backend, precision=precision)
    only = names_in(tasks)
    fileless = _fileless(plan, session, only)
    scorable = (
        tuple(name for name in only if name not in fileless) if only else _others(plan, session, fileless)
    )
    found = (
        evaluate_bundle(session, plan, folder=folder, split=split, only=scorable, show=printer.show)
        if scorable
        else []
    )
    printer.show("")
    trained = {name: _home(session, name).scores(name)["splits"]["validation"] for name in fileless}
    rows: list[list[object]] = [["task", "split", "rows", "metric", "score", "other metrics"]]
    rows += [_row(s.task, s.split, f"{s.rows:,}", s.metric, s.scores) for s in found]
    for name, scores in trained.items():
        rows.append(
            _row(name, "validation (from training)", "-", _home(session, name).headline(name)[0], scores)
        )
    printer.lines(table(rows, left=4))
    printer.json(
        {
            "backend": session.backend.name,
            "precision": session.backend.precision,
            "scores": found,
            "from_training": trained,
        }
    )


def _home(session: Session, name: str) -> Bundle | Models:
    """Where the scores of training are kept."""
    return session.summaries.models if name in session.summaries.tasks else session.bundle


def _row(task: str, split: str, rows: str, metric: str, scores: dict[str, Any]) -> list[object]:
    others = "  ".join(f"{name} {value:.4f}" for name, value in scores.items() if name != metric)
    return [task, split, rows, metric, f"{scores[metric]:.4f}", others]


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
