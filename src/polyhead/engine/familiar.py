"""Familiarity of a text to a task: the distance of its mean vector from the task's rows in the bundle."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from math import isnan

import numpy as np

from polyhead.bundle.format import SEEN
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.read import Bundle
from polyhead.bundle.row_profile import RowProfile, centre_distances, stored_profile
from polyhead.errors import BadValue, ConfigError, PolyheadError, UnknownTask
from polyhead.lazy import lazy
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Answer, Task, kinds_with
from polyhead.values import Value

log = logging.getLogger(__name__)

KEY, NONE = "familiar", "none_of_these"  # of an answer
NEAREST = 5  # rows of the other sample that define a row's distance
LEAST = 30  # kept rows, below which a rank among them says little


def directions(vectors: np.ndarray) -> np.ndarray:
    """Vectors scaled to length 1; vectors of length 0 are unchanged."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1), np.float32)


def pairwise(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Euclidean distances, float32 (first rows, second rows)."""
    squares = (first**2).sum(axis=1)[:, None] + (second**2).sum(axis=1)[None]
    return np.asarray(np.sqrt(np.maximum(squares - 2 * first @ second.T, 0)), np.float32)


def farness(rows: np.ndarray, known: np.ndarray, *, among: bool = False) -> np.ndarray:
    """The distance of each row from the nearest `known` ones: the mean over the NEAREST; (rows,).

    With `among`, the rows are the known ones, and each is compared with the others.
    """
    distances = pairwise(rows, known)
    if among:
        np.fill_diagonal(distances, np.inf)
    count = min(NEAREST, len(known) - among)
    return np.asarray(np.partition(distances, count - 1, axis=1)[:, :count].mean(axis=1))


def reads_one_text(task: Task) -> bool:
    """Whether the task reads one text per row; one pass then gives its answer and the mean vector."""
    return task.pair == "none" and not kind_of(task).per_option


class KnownRows(Value, eq=False):
    """Rows of a task that texts are compared with."""

    near: np.ndarray  # float32 (centres or rows, width), of length 1: what a text's distance is measured from
    usual: np.ndarray  # float32 (rows,), ascending: how far each row lies
    are_centres: bool

    @classmethod
    def of(cls, seen: RowProfile) -> KnownRows:
        """From the stored vectors of two rows or more."""
        if seen.centres is not None and seen.far is not None:
            return cls(near=seen.centres, usual=np.sort(seen.far), are_centres=True)
        usual = farness(seen.vectors, seen.vectors, among=True)
        return cls(near=seen.vectors, usual=np.sort(usual), are_centres=False)

    def distances(self, vectors: np.ndarray) -> np.ndarray:
        """From the nearest centre, else the mean of those from the NEAREST rows: float32 (texts,)."""
        unit = directions(vectors)
        return centre_distances(unit, self.near).min(axis=1) if self.are_centres else farness(unit, self.near)

    def familiar(self, vectors: np.ndarray) -> np.ndarray:
        """The share of the rows that lie at least as far out as each mean vector, float64 (texts,), above 0 to 1.

        The text itself is counted among them: (1 + rows as far) / (1 + rows), the p-value of a conformal predictor
        (Vovk, Gammerman and Shafer 2005).
        """
        as_far = len(self.usual) - np.searchsorted(self.usual, self.distances(vectors), side="left")
        return np.asarray((1 + as_far) / (1 + len(self.usual)))


class KnownTask:
    """The rows that a bundle keeps of one version of a task, read when they are first asked for."""

    def __init__(self, bundle: Bundle, name: str) -> None:
        self.live = bundle.lines[name]
        self._bundle, self._name, self._fault = bundle, name, ""

    @property
    def rows(self) -> KnownRows | None:
        """None where they are too few; also where they cannot be read, which is logged, and tried again next time."""
        try:
            return self._kept
        except PolyheadError as error:
            if str(error) != self._fault:
                log.warning("task '%s' does not say how familiar texts are: %s", self._name, error)
            self._fault = str(error)
            return None

    @lazy
    def _kept(self) -> KnownRows | None:
        seen = stored_profile(self._bundle, self._name)
        return None if seen is None or len(seen.lengths) < LEAST else KnownRows.of(seen)


def known_tasks(
    bundle: Bundle, records: Mapping[str, TaskRecord], before: Mapping[str, KnownTask]
) -> dict[str, KnownTask]:
    """The tasks that can say how familiar a text is; those of `before` where bundle.json has the same line."""
    known = {}
    for name, record in records.items():
        if SEEN in record.files and bundle.tasks.get(name) == record and reads_one_text(record.task):
            old = before.get(name)
            known[name] = old if old is not None and old.live == bundle.lines[name] else KnownTask(bundle, name)
    return known


NoneBelow = float | Mapping[str, float] | None
"""From which familiarity on an answer stands: of all tasks, or of some by name; None: as the tasks say."""


def none_below(task: Task, requested: NoneBelow) -> float:
    """The limit that applies to a task, 0 for none."""
    if isinstance(requested, Mapping):
        return requested.get(task.name, task.none_below)
    return task.none_below if requested is None else requested


def check_none_below(requested: NoneBelow, tasks: Mapping[str, Task], asked: Sequence[str] | None) -> None:
    """Raises BadValue for a value outside 0 to 1, or a task without labels or not asked; UnknownTask for a missing one.

    `asked` None: all tasks.
    """
    limits = requested if isinstance(requested, Mapping) else {} if requested is None else {"": requested}
    for name, limit in limits.items():
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 <= limit <= 1:
            raise BadValue("'none_below' is a share of known rows", got=limit, allowed="0 to 1")
        if name and name not in tasks:
            raise UnknownTask("'none_below' names a task that is not there", got=name, allowed=sorted(tasks))
        if name and asked is not None and name not in asked:
            raise not_asked("none_below", name, asked)
        if name and "none_below" not in kind_of(tasks[name]).uses:
            raise BadValue(
                f"task '{name}' has no labels of which none could fit",
                got=f"kind '{tasks[name].kind}'",
                allowed=kinds_with("uses", "none_below"),
            )


def not_asked(option: str, name: str, asked: Sequence[str]) -> BadValue:
    """The error for an option of a task that the call does not ask."""
    do = f"leave it out of '{option}', or ask it too"
    return BadValue(f"'{option}' names a task that is not asked", got=name, allowed=list(asked), do=do)


def is_wanted(known: Mapping[str, KnownTask], tasks: Mapping[str, Task], *, familiar: bool, asked: NoneBelow) -> bool:
    """Whether any of these tasks reports how familiar a text is: on request, or for its own limit."""
    return any(familiar or none_below(task, asked) > 0 for name, task in tasks.items() if name in known)


def reported_keys(
    known: Mapping[str, KnownTask], tasks: Mapping[str, Task], *, familiar: bool, asked: NoneBelow
) -> dict[str, tuple[str, ...]]:
    """By task, what its answers add; raises ConfigError if none of the tasks can answer a request for it."""
    keys_by_task = {
        name: (KEY,) * familiar + (NONE,) * _has_limit(tasks[name], asked) for name in tasks if name in known
    }
    keys_by_task = {name: keys for name, keys in keys_by_task.items() if keys and known[name].rows is not None}
    if (familiar or asked) and not keys_by_task:
        raise ConfigError(
            "none of the tasks can say how familiar a text is",
            got=list(tasks),
            allowed=f"tasks of one text whose bundle keeps {LEAST} rows or more",
            do="leave out --familiar and --none-below",
        )
    return keys_by_task


def _has_limit(task: Task, requested: NoneBelow) -> bool:
    return none_below(task, requested) > 0 and "none_below" in kind_of(task).uses


def with_familiar(task: Task, answers: Sequence[Answer], shares: np.ndarray, limit: float) -> list[Answer]:
    """The answers with `familiar`, and with `none_of_these` where the task has labels and there is a limit."""
    extended = []
    for answer, share in zip(answers, shares.tolist(), strict=True):
        more: Answer = {} if isnan(share) else {KEY: share}
        if more and limit and "none_below" in kind_of(task).uses:
            more[NONE] = share < limit
        extended.append({**answer, **more})
    return extended
