"""The bundles and tasks of a project to score, on files or on held-out rows of training."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from polyhead.errors import BundleError, DataError, PolyheadError, UnknownTask
from polyhead.values import Value

if TYPE_CHECKING:
    from polyhead.bundle.read import Bundle
    from polyhead.engine.session import Session
    from polyhead.evaluate.held_out import RestoredAnswers
    from polyhead.project.tables import Project, TaskEntry


def homes(project: Project, folder: Path, bundle: str | None, only: tuple[str, ...]) -> dict[Path, tuple[str, ...]]:
    """The bundles to open, by default the project's, each with the tasks to score."""
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


def on_another_file(project: Project, data: str) -> Project:
    """The project with this file as the test rows of every task."""
    path = os.path.abspath(data)
    entries = tuple(msgspec.structs.replace(entry, test=path) for entry in project.tasks)
    return msgspec.structs.replace(project, tasks=entries)


def _standing(root: Path, names: list[str]) -> tuple[str, ...]:
    """The tasks with these names in the bundle; empty if it is missing or its training was interrupted."""
    from polyhead.bundle.format import BUNDLE
    from polyhead.bundle.read import Bundle

    tasks = Bundle.open(root, verify=False).tasks if (root / BUNDLE).exists() else {}
    return tuple(name for name in names if name in tasks)


class EvaluatedTask(Value, eq=False):
    """An evaluation, and the session with the task; `held` if training had answered the rows."""

    evaluation: Any  # polyhead.evaluate.scores.Evaluation
    session: Any  # polyhead.engine.session.Session
    held: Any = None  # polyhead.evaluate.held_out.RestoredAnswers

    @property
    def trained_with(self) -> dict[str, str]:
        """The backend and precision with which `train` scored the task; empty if unknown."""
        name = self.evaluation.score.task
        known = self.session.bundle.record(name).trained_with.get("numerics")
        return {key: known[key] for key in ("backend", "precision") if key in known} if isinstance(known, dict) else {}

    def baselines(self, *, say: Callable[[str], None]) -> dict[str, dict[str, float]]:
        """Scores of simple answers on the same rows; none, which is said, where training measured them on others."""
        score = self.evaluation.score
        home: Bundle = self.session.bundle
        simple = home.baselines(score.task, score.split if self.held is None else "validation")
        if self.held is not None:
            is_same = self.held.is_same
        else:
            data = home.record(score.task).trained_with.get("data")
            known = data.get(score.split, {}).get("sha256") if isinstance(data, dict) else None
            is_same = known in (None, self.evaluation.digest)
        if simple and not is_same:
            say(
                f"{score.task}: its {score.split} rows are others than in training, so no baseline is shown beside them"
            )
            return {}
        return simple


class OnSplits(Value, eq=False):
    """The scores of a bundle's tasks on a project's files, in the project's order."""

    scored: list[EvaluatedTask]
    trained: dict[str, dict[str, float]]  # training scores of tasks that cannot be scored
    reasons: list[PolyheadError]  # the reason


def scored_on_files(
    session: Session,
    plan: Project,
    folder: Path,
    cache: Path,
    split: str,
    only: tuple[str, ...],
    *,
    say: Callable[[str], None],
    show: Callable[[str], None],
) -> OnSplits:
    """The scores of tasks with a file for scoring; for the others, of their answers to held-out rows of training."""
    from polyhead.evaluate.scores import evaluation_from, evaluations

    entries = {entry.name: entry for entry in plan.tasks}
    names = [name for name in only or _known(plan, session) if name in session.tasks and name in entries]
    held: dict[str, RestoredAnswers] = {}
    trained: dict[str, dict[str, float]] = {}
    reasons, unscored = list[PolyheadError](), list[str]()
    for entry in (entries[name] for name in names if _holds_out(entries[name], split)):
        try:
            held[entry.name] = _then(session, entry, folder, cache)
        except (BundleError, DataError) as error:
            if entry.test is not None:
                continue
            say(f"{entry.name} is not scored: {error}")
            reasons.append(error)
            unscored.append(entry.name)
    scorable = tuple(name for name in only or names if name not in held and name not in unscored)
    scored: dict[str, EvaluatedTask] = {}
    if scorable:
        for each in evaluations(session, plan, folder=folder, split=split, only=scorable, show=show):
            scored[each.score.task] = EvaluatedTask(evaluation=each, session=session)
    for name, then in held.items():
        evaluation = evaluation_from(then.answered, split=then.facts.split)
        scored[name] = EvaluatedTask(evaluation=evaluation, session=session, held=then)
    for name in unscored:
        scores = session.bundle.split_scores(name).get("validation")
        trained |= {} if scores is None else {name: scores}
    return OnSplits(scored=[scored[name] for name in names if name in scored], trained=trained, reasons=reasons)


def _holds_out(entry: TaskEntry, split: str) -> bool:
    """Whether training held out a share of the task's rows, and no file replaces them."""
    return isinstance(entry.validation, float) and (entry.test is None or split == "validation")


def _then(session: Session, entry: TaskEntry, folder: Path, cache: Path) -> RestoredAnswers:
    from polyhead.evaluate.held_out import restore_answers

    part = session.bundle.record(entry.name).arrays
    return restore_answers(session.tasks[entry.name], entry.source(entry.train, folder), cache, part)


def _known(project: Project, session: Session) -> tuple[str, ...]:
    """The project's tasks that the bundle holds; raises UnknownTask if there are none."""
    names = tuple(e.name for e in project.tasks if e.name in session.tasks)
    if not names:
        raise UnknownTask(
            f"the bundle {session.bundle.root} holds no task of the project",
            got=[entry.name for entry in project.tasks],
            allowed=sorted(session.tasks) or None,
            do="train them first with `polyhead train`",
        )
    return names
