"""Selects the tasks to train: those with a new fingerprint, unless an earlier decision about the bundle forbids it.

Such decisions are `polyhead tasks rollback` and `remove`, and a new version that `--if-better` has rejected.
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
from polyhead.train.data.task_groups import task_groups
from polyhead.train.record.comparison import no_comparison
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
    for group in task_groups({p.task.name: p.strategy for p in prepared if p.strategy.is_live}):
        if len(group) > 1:  # each task's result depends on the others in training
            tags = {name: tag(prints[name]) for name in group}
            for name in group:
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
    """A line for each trained task whose test rows are not those that its scores were computed on."""
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
    """The tasks that are trained again in any case, and the new versions that go live."""

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
    """Decisions about versions that are in effect in a bundle."""

    lines: Mapping[str, Live]
    removed: Collection[str]
    attempts: Mapping[str, Attempt]

    @classmethod
    def of(cls, bundle: Bundle) -> VersionDecisions:
        """The decisions of the bundle."""
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


class TrainingSelection(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks that a run trains, and the reason for each other task that it skips."""

    todo: frozenset[str]
    left: Mapping[str, str]


def skipped_line(name: str, reason: str) -> str:
    """The line about a task that is not trained."""
    return f"{name}: {reason}; left as it is (--retrain {name}, in Python `fit` without `if_better`, trains it)"


def select_tasks(
    new: Collection[str],
    groups: Sequence[Sequence[str]],
    tags: Mapping[str, str],
    decisions: VersionDecisions,
    options: TrainOptions,
    rivals: Mapping[str, tuple[Task, Task]],
) -> TrainingSelection:
    """The tasks to train: `new` ones, which have no trained part, and those that the options name.

    The tasks of a group are all trained or all skipped, since they read each other's arrays. `tags` are the tasks'
    fingerprints (see `tag`). `rivals` holds two declarations of each task with a live version, that of the version and
    the new one: if only better versions are wanted and no score can compare the two, the live one stays.
    """
    todo, skipped = set[str](), dict[str, str]()
    group_of = {name: tuple(group) for group in groups for name in group}
    wanted = {*new, *options.retrain}
    for group in dict.fromkeys(group_of.get(name, (name,)) for name in tags):
        if wanted.isdisjoint(group):
            continue
        found = {name: _reason_to_skip(name, tags[name], decisions, options, rivals) for name in group}
        reasons = {name: reason for name, reason in found.items() if reason is not None}
        if not reasons:
            todo.update(group)
            continue
        others = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        skipped |= {name: reasons.get(name, f"it shares arrays with {others}") for name in group if name in wanted}
    return TrainingSelection(todo=frozenset(todo), left={name: skipped[name] for name in tags if name in skipped})


def _reason_to_skip(
    name: str, tag: str, decisions: VersionDecisions, options: TrainOptions, rivals: Mapping[str, tuple[Task, Task]]
) -> str | None:
    if name in options.retrain:
        return None
    reason = decisions.reason(name, tag)
    if reason is None and options.if_better and name in rivals:
        return no_comparison(*rivals[name])
    return reason
