"""Which bundles and tasks of a project `polyhead evaluate` scores, and which of these have no file to be scored on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from polyhead.cli.output import Printer, note

if TYPE_CHECKING:
    from polyhead.bundle.models import Models
    from polyhead.bundle.read import Bundle
    from polyhead.engine.evaluate import Evaluation
    from polyhead.engine.session import Session
    from polyhead.project.tables import Project


def homes(project: Project, folder: Path, bundle: str | None, only: tuple[str, ...]) -> dict[Path, tuple[str, ...]]:
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
    filled = {root: names for root, names in chosen.items() if names}
    if not filled:
        raise BundleError(
            f"there is no bundle with a task in {folder / project.bundle}",
            allowed=sorted(map(str, known)),
            do="train the project first with `polyhead train`",
        )
    return filled


def _standing(root: Path, names: list[str]) -> tuple[str, ...]:
    """The tasks of these names in the bundle; none where it is missing or its training was stopped."""
    from polyhead.bundle.format import BUNDLE
    from polyhead.bundle.read import Bundle

    tasks = Bundle.open(root, verify=False).tasks if (root / BUNDLE).exists() else {}
    return tuple(name for name in names if name in tasks)


def scored_on_files(
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
    trained = {name: keeper_of(session, name).split_scores(name).get("validation") for name in fileless}
    if lacking := [name for name, values in trained.items() if values is None]:
        note(f"no file to be scored on, and no scores of training: {', '.join(lacking)}")
    return scores, {name: values for name, values in trained.items() if values is not None}


def keeper_of(session: Session, name: str) -> Bundle | Models:
    """The keeper of the task's scores of training."""
    return session.summaries.models if name in session.summaries.tasks else session.bundle


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
