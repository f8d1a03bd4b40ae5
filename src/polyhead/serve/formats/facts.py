"""Facts about tasks: `/v1/tasks`, and one task with its card, scores and path."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from polyhead.bundle.live_versions import ScoreNotes
from polyhead.bundle.read import Bundle
from polyhead.engine.inputs import InputType, input_types_of
from polyhead.engine.loaded import LoadedTasks, shown_tasks
from polyhead.engine.several import TasksOfSet
from polyhead.errors import BundleError
from polyhead.serve.formats.asking import PORT_TASK
from polyhead.serve.http import json_content
from polyhead.serve.service import Service, TaskSelection
from polyhead.tasks.task import Task
from polyhead.values import Value, few_digits

DIGITS = 4  # of errors and scales


class Tasks(Value):
    """All tasks that can be asked."""

    trunk: str  # digest
    tasks: list[TaskFacts]
    bundles: dict[str, str] | UnsetType = UNSET  # of a set: the digest of each one's trunk, by name
    task: str | UnsetType = UNSET  # at a task's own port: that task, which requests without a task ask


class TaskCalibration(Value, omit_defaults=True):
    """The calibration of a task. Errors are expected calibration errors; unmeasured ones are left out."""

    error: float | None = None  # of `scores`, on rows that training held out
    rows: int | None = None  # that many
    scale: float = 1.0  # of the task's outputs, in its weights, by which it is as sure as it is right
    calibrated_error: float | None = None  # of `calibrated` in answers, on rows that checked `polyhead calibrate`


class TaskFacts(Value):
    """A task that can be asked. Transitions that a tagger learned are left out of `task`: they are weights."""

    name: str
    task: Task
    inputs: tuple[InputType, ...]  # that it reads
    version: str
    digest: str
    headline: tuple[str, float | None] | None = None  # the score on test rows: metric, value
    calibration: TaskCalibration | None = None  # None: of a kind without probabilities, or not known
    bundles: tuple[str, ...] | UnsetType = UNSET  # of a set: those that answer it, in order; the facts are the last's
    sure_from: float | UnsetType = UNSET  # of a cascade: the probability at which a bundle's answer stands


async def tasks(service: Service, request: Request) -> Response:
    """All tasks that callers may ask."""
    port_task = request.scope.get(PORT_TASK)
    own = {} if port_task is None else {"task": port_task}
    return json_content(await asyncio.to_thread(_all_tasks, service) | own)


def _all_tasks(service: Service) -> dict[str, Any]:
    """`Tasks` as plain values."""
    loaded = service.loaded
    facts = [_facts(service, loaded, name) for name in shown_tasks(loaded)]
    bundles = {} if service.bundles is UNSET else {"bundles": service.bundles}
    return {"trunk": service.session.bundle.digest, "tasks": facts, **bundles}


async def task(service: Service, request: Request) -> Response:
    """One of them, with its card, scores and path."""
    return json_content(await asyncio.to_thread(_one_task, service, service.named([request.path_params["name"]])))


def _one_task(service: Service, names: TaskSelection) -> dict[str, Any]:
    (name,) = names
    bundle = service.home(name).session.bundle
    facts = _facts(service, names.loaded, name)
    if name in bundle.tasks:
        with suppress(BundleError):  # its files are gone already, while it answers its last requests
            facts |= {"card": bundle.card(name), "scores": bundle.scores(name)}
            facts |= {"path": bundle.tasks[name].path} if name in bundle.tasks else {}
    return facts


def _facts(service: Service, loaded: LoadedTasks, name: str) -> dict[str, Any]:
    """`TaskFacts` as plain values."""
    facts: dict[str, Any] = msgspec.to_builtins(_task_facts(service, loaded, name))
    del facts["task"]["transitions"]
    return facts


def _task_facts(service: Service, loaded: LoadedTasks, name: str) -> TaskFacts:
    bundle, home = service.home(name).session.bundle, loaded.homes(name)[-1]
    return TaskFacts(
        name=name,
        task=loaded.tasks[name],
        inputs=input_types_of(loaded.tasks[name]),
        version=loaded.versions.get(name, ""),
        digest=loaded.records[name].arrays if name in loaded.records else "",
        headline=_headline(bundle, name),
        calibration=_calibration(bundle, home, name),
        bundles=loaded.bundles.get(name, UNSET) if isinstance(loaded, TasksOfSet) else UNSET,
        sure_from=loaded.cascades.get(name, UNSET) if isinstance(loaded, TasksOfSet) else UNSET,
    )


def _calibration(bundle: Bundle, loaded: LoadedTasks, name: str) -> TaskCalibration | None:
    """The calibration; None also if the task's files were removed."""
    notes, calibration = ScoreNotes(), loaded.calibrations.get(name)
    with suppress(BundleError):
        notes = bundle.score_notes(name) if name in bundle.tasks else notes
    errors = calibration.measured.get("calibration_error") if calibration is not None else None
    after = errors.get("after") if isinstance(errors, dict) else None
    if notes.scale == 1 and notes.calibration is None and after is None:
        return None
    known = notes.calibration
    return TaskCalibration(
        error=None if known is None else round(known.error, DIGITS),
        rows=None if known is None else known.rows,
        scale=round(notes.scale, DIGITS),
        calibrated_error=round(after, DIGITS) if isinstance(after, float) else None,
    )


def _headline(bundle: Bundle, name: str) -> tuple[str, float | None] | None:
    """The score; None also if the task's files were removed while it answers its last requests."""
    with suppress(BundleError):
        return few_digits(bundle.headline(name)) if name in bundle.tasks else None
    return None
