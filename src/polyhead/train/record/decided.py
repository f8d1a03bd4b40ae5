"""The tasks to train: those with a new fingerprint, unless a decision about the bundle says otherwise.

People decide with `polyhead tasks rollback` and `remove`; a version that lost under `--if-better` is a decision too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence

import msgspec

from polyhead.bundle.journal import Attempt, read_attempts
from polyhead.bundle.manifest import Live
from polyhead.bundle.read import Bundle
from polyhead.errors import ConfigError, UnknownTask
from polyhead.project.tables import AllocationRule
from polyhead.tasks.task import Task
from polyhead.train.data.prepared import Prepared, split_rows
from polyhead.train.data.units import units_of
from polyhead.train.record.compared import no_comparison
from polyhead.values import Value

Fingerprint = dict[str, object]


def fingerprints_of(prepared: Sequence[Prepared], choice: AllocationRule, *, layers: int) -> dict[str, Fingerprint]:
    """What determines each trained part; for a branch that is one of several to choose from, also the choice.

    Under one budget a choice depends on all branches, so each names every other's own way of training. Beside heads a
    branch is chosen by c alone, named where it is not the default's and the trunk has `layers` for branches.
    """
    prints = {p.task.name: p.fingerprint() for p in prepared}
    among = {p.task.name: tag(prints[p.task.name]) for p in prepared if p.strategy.is_allocated}
    settings: dict[str, object] = msgspec.to_builtins(choice)
    if choice.rule == "budget":
        settings["among"] = among
    for unit in units_of({p.task.name: p.strategy for p in prepared if p.strategy.is_live}):
        if len(unit) > 1:  # each task's result depends on the others in training
            tags = {name: tag(prints[name]) for name in unit}
            for name in unit:
                prints[name]["among"] = tags
    for p in prepared:
        if p.strategy.is_undecided:
            prints[p.task.name]["allocation"] = settings
        elif p.weighs_branches and layers and not p.columns and choice.c != AllocationRule().c:
            prints[p.task.name]["allocation"] = {"c": choice.c}
    return prints


def tag(fingerprint: Mapping[str, object]) -> str:
    """A short name of one exact way of training. Numerics are not included: a trained task stays."""
    named = {name: value for name, value in fingerprint.items() if name != "numerics"}
    return hashlib.sha256(msgspec.json.encode(named, order="sorted")).hexdigest()[:16]


def untrained(bundle: Bundle, prints: Mapping[str, Fingerprint]) -> set[str]:
    """The tasks without a part in the bundle that was trained this way."""
    trained = {name: record.trained_with.get("fingerprint") for name, record in bundle.tasks.items()}
    return {name for name, fingerprint in prints.items() if trained.get(name) != tag(fingerprint)}


def rescored(bundle: Bundle, prepared: Sequence[Prepared]) -> list[str]:
    """A line for each trained task whose test rows differ from those of its scores."""
    lines = []
    for p in prepared:
        record = bundle.tasks.get(p.task.name)
        known = record.trained_with.get("data") if record is not None else None
        if p.test is None or not isinstance(known, dict):
            continue
        if known.get("test") != split_rows([p.test])["test"]:
            lines.append(
                f"{p.task.name}: its test rows are others than those of its scores, which changes nothing that was "
                "trained; `polyhead evaluate` scores it on them"
            )
    return lines


class TrainOptions(Value):
    """Options about decisions: tasks to train in any case, and which new versions go live."""

    retrain: tuple[str, ...] = ()
    if_better: bool = False
    allow_lost_labels: bool = False  # whether a version that lacks labels of the one before may go live
    actor: str = ""  # the person who trains, for certificates

    def check(self, known: Sequence[str], only: Sequence[str] = ()) -> None:
        """Raises UnknownTask for names that the project does not have, ConfigError for names that are not in `only`."""
        if unknown := sorted(set(self.retrain) - set(known)):
            raise UnknownTask("the project declares no such task to train again", got=unknown, allowed=list(known))
        if only and (beyond := sorted(set(self.retrain) - set(only))):
            raise ConfigError(
                "a task is to be trained again that the run leaves out",
                got=beyond,
                allowed=list(only),
                do="name it among the tasks of the run too",
            )


class VersionDecisions(msgspec.Struct, frozen=True, kw_only=True):
    """Decisions in effect in a bundle."""

    lines: Mapping[str, Live]
    removed: Collection[str]
    attempts: Mapping[str, Attempt]

    @classmethod
    def of(cls, bundle: Bundle) -> VersionDecisions:
        """Decisions about its tasks."""
        return cls(lines=bundle.lines, removed=bundle.removed, attempts=read_attempts(bundle.root))

    def reason(self, name: str, tag: str) -> str | None:
        """The reason not to train a task in the way of this tag; None without a decision."""
        if name in self.removed:
            return "it was removed from the bundle, and its table is still in the project file"
        line, attempt = self.lines.get(name), self.attempts.get(name)
        if line is not None and line.pinned:
            return f"its live version {line.version} is pinned: it was rolled back to, or calibrated after that"
        if line is not None and attempt is not None and attempt.fingerprint == tag:
            return f"trained this way it lost to its live version {line.version} ({attempt.line()})"
        return None


class Choices(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks that a run trains, and those that it does not, each with the reason."""

    todo: frozenset[str]
    left: Mapping[str, str]


def left_line(name: str, reason: str) -> str:
    """The line about a task that is not trained."""
    return f"{name}: {reason}; left as it is (--retrain {name}, in Python `fit` without `if_better`, trains it)"


def choices(
    new: Collection[str],
    units: Sequence[Sequence[str]],
    tags: Mapping[str, str],
    decisions: VersionDecisions,
    wish: TrainOptions,
    rivals: Mapping[str, tuple[Task, Task]],
) -> Choices:
    """`new` tasks are untrained; of a unit all tasks are trained, or none, since they read each other's arrays.

    `tags` name each task's way of training. `rivals` are the tasks with a live version, with its answers and its
    declaration: if only better versions are wanted and no score can decide, the live one stays.
    """
    todo, reasons_kept = set[str](), dict[str, str]()
    grouped = {name: tuple(unit) for unit in units for name in unit}
    wanted = {*new, *wish.retrain}
    for unit in dict.fromkeys(grouped.get(name, (name,)) for name in tags):
        if wanted.isdisjoint(unit):
            continue
        held = {name: _held(name, tags[name], decisions, wish, rivals) for name in unit}
        reasons = {name: reason for name, reason in held.items() if reason is not None}
        if not reasons:
            todo.update(unit)
            continue
        whose = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        reasons_kept |= {name: reasons.get(name, f"it shares arrays with {whose}") for name in unit if name in wanted}
    return Choices(todo=frozenset(todo), left={name: reasons_kept[name] for name in tags if name in reasons_kept})


def _held(
    name: str, tag: str, decisions: VersionDecisions, wish: TrainOptions, rivals: Mapping[str, tuple[Task, Task]]
) -> str | None:
    if name in wish.retrain:
        return None
    reason = decisions.reason(name, tag)
    if reason is None and wish.if_better and name in rivals:
        return no_comparison(*rivals[name])
    return reason
