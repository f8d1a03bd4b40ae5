"""Tasks that come and go while a session answers."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

import numpy as np

from polyhead.bundle.complete import check_read
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.read import Bundle
from polyhead.bundle.tensors import release
from polyhead.config import Value
from polyhead.cost import part_arrays
from polyhead.engine.backends.base import LoadedTask
from polyhead.engine.loaded_tasks import LoadedTaskRecord
from polyhead.errors import BackendError, BadName, WrongTrunk
from polyhead.tasks.task import owner_of
from polyhead.trunk.data import check_arrays
from polyhead.trunk.shape import Architecture

_LOG = logging.getLogger(__name__)


class Changes(Value):
    """What became of tasks."""

    attached: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    detached: tuple[str, ...] = ()


def loaded(bundle: Bundle, name: str) -> LoadedTaskRecord:
    """A task of a bundle with its arrays."""
    record, arrays = bundle.tasks[name], bundle.part(name)
    release(arrays.values())  # all were read to be hashed
    others = bundle.others(name)
    return LoadedTaskRecord(record, LoadedTask(path=record.path, arrays=arrays, others=others, is_mapped=True))


def checked(
    record: TaskRecord,
    arrays: Mapping[str, np.ndarray],
    others: Mapping[str, Mapping[str, np.ndarray]],
    *,
    trunk: str,
    shape: Architecture,
    taken: Collection[str] = (),
) -> LoadedTaskRecord:
    """A task with these arrays, checked against its path; raises WrongTrunk, WeightsMismatch.

    `taken` are names of tasks that own their models: BadName is raised for one of these.
    """
    name = record.task.name
    if name in taken:
        raise BadName(
            f"task '{name}' of the bundle owns its model, and no task that reads the trunk takes its place",
            got=name,
            do="give the new task another name",
        )
    if record.trunk != trunk:
        raise WrongTrunk(f"task '{name}' was trained on another trunk", got=record.trunk, allowed=trunk)
    owner = record.owner or owner_of(record.task)
    check_arrays(arrays, part_arrays(record.path, shape, owner), owner=f"task '{name}'")
    for other, theirs in others.items():
        check_read(theirs, record, other, shape)
    return LoadedTaskRecord(record, LoadedTask(path=record.path, arrays=arrays, others=others))


def difference(before: Bundle, after: Bundle) -> Changes:
    """What changed in a bundle between two moments; raises WrongTrunk where that is its trunk."""
    if before.digest != after.digest:
        raise WrongTrunk(
            "the bundle has another trunk than the session that is open on it",
            got=after.digest,
            allowed=before.digest,
            do="open a new session",
        )
    then, now = before.lines, after.lines
    return Changes(
        attached=tuple(name for name in now if name not in then),
        replaced=tuple(name for name in now if name in then and now[name] != then[name]),
        detached=tuple(name for name in then if name not in now),
    )


def trained_precision(records: Mapping[str, TaskRecord]) -> str | None:
    """The precision that the tasks were trained with, where they say; raises BackendError where they differ."""
    precisions = {_precision(record.trained_with) for record in records.values()} - {None}
    if len(precisions) > 1:
        raise BackendError(
            "the bundle's tasks were trained on a trunk of different precisions",
            got=sorted(str(one) for one in precisions),
            do="say which one is to answer: precision=..., --precision",
        )
    return next(iter(precisions), None)


def warn_of_precision(records: Mapping[str, TaskRecord], trained: str | None, precision: str) -> None:
    """Says in the log that tasks came to a session that computes otherwise than they were trained."""
    _LOG.warning(
        "%s: trained on a trunk in %s, and this session computes in %s, as its first tasks asked; open a new "
        "session, or say the precision",
        ", ".join(records),
        trained,
        precision,
    )


def _precision(trained_with: Mapping[str, object]) -> str | None:
    numerics = trained_with.get("numerics")
    return str(numerics["precision"]) if isinstance(numerics, dict) and "precision" in numerics else None
