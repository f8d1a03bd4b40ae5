"""`polyhead train` with the recipe `fine_tune`: each task's own trunk, the best of a search, as a bundle of its own."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from pathlib import Path as FilePath

import msgspec
import numpy as np

from polyhead._version import __version__
from polyhead.bundle.format import BUNDLE
from polyhead.bundle.read import Bundle
from polyhead.bundle.whole import remove_workspace
from polyhead.config import Value
from polyhead.errors import ConfigError
from polyhead.files import remove_tree
from polyhead.progress import duration
from polyhead.project.recipes import Candidate, FineTune, Training
from polyhead.project.tables import Project
from polyhead.tasks.task import Task
from polyhead.train.data.prepare import prepare
from polyhead.train.data.prepared import Prepared
from polyhead.train.loop.checkpoint import cache_folder
from polyhead.train.loop.devices import Place, joined
from polyhead.train.loop.events import Events
from polyhead.train.loop.numerics import numerics, precision_of
from polyhead.train.recipes.joint import data_of, fingerprint_of
from polyhead.train.recipes.learned import (
    Lineage,
    alone,
    building_of,
    check_bundles,
    check_tasks,
    known_bundle,
    load_any_trunk,
    score_lines,
    tell_known,
    write_learned,
)
from polyhead.train.recipes.paths import joint_paths
from polyhead.train.recipes.refine import CandidateResult, SearchResult, refine, said
from polyhead.train.record.lines import outlook
from polyhead.trunk.data import TrunkData, arrays_digest


class FineTuned(Value):
    """One task's own trunk."""

    bundle: str
    trunk: str  # digest of the learned trunk
    kept: bool  # the bundle was there already, trained the same way
    chosen: Candidate
    tried: tuple[CandidateResult, ...]
    scores: dict[str, dict[str, float]]  # split -> metric -> value


class FineTuneOutcome(Value):
    """What a run of `train` with the recipe `fine_tune` did."""

    tasks: dict[str, FineTuned]
    learned_from: str  # digest of the trunk that all started from
    seconds: float


def fine_tune_project(
    project: Project,
    *,
    folder: FilePath,
    cache: FilePath | None = None,
    events: Events | None = None,
    place: Place | None = None,
    only: tuple[str, ...] = (),
) -> FineTuneOutcome:
    """Fine-tunes the trunk for each task by itself and writes it as the bundle `<project.bundle>/<task>`.

    A search that was stopped goes on in the candidate where it stopped. With `only`, these tasks alone. Raises
    ConfigError where a kept head is asked for and is not there; what can be known to fail does so before any training.
    Tasks that share rows hold out the same ones, as under the joint recipe with the same tasks and seed.
    """
    began, events, recipe = time.monotonic(), events or Events(), project.recipe
    assert isinstance(recipe, FineTune)
    root = (folder / project.bundle).resolve()
    cache = cache or root.with_name(root.name + "-cache")
    data = load_any_trunk(project, folder)
    check_bundles(root)
    check_tasks(only, [entry.name for entry in project.tasks])
    todo = []
    for p in prepare(project, folder):
        if not only or p.task.name in only:
            start = _start(project, folder, p.task)
            todo.append(_One(p, start, root / p.task.name, cache, recipe, data, place or Place()))
    for search in todo:
        search.check()
    events.line(
        f"{len(todo)} tasks, each fine-tunes the trunk {len(recipe.search.candidates)} times at most and keeps the "
        f"best on validation, in a bundle of its own in {project.bundle}"
    )
    tuned = {search.name: search.tuned(events.within(search.name)) for search in todo}
    seconds = time.monotonic() - began
    events.line(f"{len(tuned)} tasks fine-tuned in {duration(seconds)}")
    return FineTuneOutcome(tasks=tuned, learned_from=data.digest, seconds=seconds)


def _start(project: Project, folder: FilePath, task: Task) -> Mapping[str, np.ndarray] | None:
    """The part that a task starts from; None for a fresh one."""
    assert isinstance(project.recipe, FineTune)
    if project.recipe.head == "fresh":
        return None
    place = FilePath(project.trunk.place(folder))
    bundle = Bundle.open(place) if (place / BUNDLE).is_file() else None
    if bundle is None or task.name not in bundle.tasks:
        raise ConfigError(
            f"recipe.head 'kept': task '{task.name}' has no part in the trunk '{project.trunk.name}'",
            got=f"a bundle with {sorted(bundle.tasks)}" if bundle else "a trunk that is no bundle",
            allowed="the folder of a bundle that was trained jointly with heads = 'keep'",
            do="name such a bundle as the trunk, call the task as it is called there, or set head = 'fresh'",
        )
    known = bundle.tasks[task.name].task
    differing = [name for name in ("kind", "labels", "range", "pair") if getattr(task, name) != getattr(known, name)]
    if differing:
        raise ConfigError(
            f"recipe.head 'kept': task '{task.name}' of the trunk '{project.trunk.name}' asks something else",
            got=", ".join(f"{name} {getattr(task, name)!r}" for name in differing),
            allowed=", ".join(f"{name} {getattr(known, name)!r}" for name in differing),
            do="declare the task as it is there, labels in the same order, or set head = 'fresh'",
        )
    return bundle.part(task.name)


class _One:
    """One task's search and its bundle."""

    def __init__(
        self,
        prepared: Prepared,
        head: Mapping[str, np.ndarray] | None,
        root: FilePath,
        cache: FilePath,
        recipe: FineTune,
        data: TrunkData,
        place: Place,
    ) -> None:
        self.name, self._prepared, self._head, self._root = prepared.task.name, prepared, head, root
        self._recipe, self._data, self._place = recipe, data, place
        self._fingerprint = self._told_apart()
        self._cache, self._checkpoints = cache, cache_folder(cache, "fine-tune", self._fingerprint)

    def check(self) -> None:
        """Raises what training would, as far as that is known before."""
        joint_paths([self._prepared], self._data, self._recipe.joint)
        known_bundle(self._root, self._fingerprint)

    def tuned(self, events: Events) -> FineTuned:
        """The bundle there, or made now."""
        with alone(self._root):
            known = known_bundle(self._root, self._fingerprint)
            if known is not None:
                bundle, lineage = known
                tell_known(bundle, lineage, keep=True, events=events)
                searched = msgspec.convert(lineage.search, _Searched)
                outcome = self._told(bundle.digest, True, searched, lineage.scores[self.name])
            else:
                outcome = self._made(events)
            remove_workspace(building_of(self._root))
            remove_tree(self._checkpoints, root=self._cache)
            return outcome

    def _made(self, events: Events) -> FineTuned:
        p, recipe = self._prepared, self._recipe.joint
        path = joint_paths([p], self._data, recipe)[self.name]
        for line in outlook([p], {self.name: [path]}, self._data.architecture, kept=()):
            events.line(line)
        precision = precision_of(p.training, self._place.device)
        with joined(self._place):
            refined = refine(
                p,
                self._data,
                search=self._recipe.search,
                head=self._head,
                recipe=recipe,
                precision=precision,
                checkpoints=self._checkpoints,
                events=events,
                place=self._place,
            )
        lineage = self._lineage(refined, precision)
        scores = write_learned(self._root, [p], refined.learned, lineage, keep=True)
        searched = _Searched(chosen=refined.chosen, tried=refined.tried)
        for line in (*_lines(searched), *score_lines(p, scores[self.name])):
            events.line(line)
        return self._told(refined.learned.data.digest, False, searched, scores[self.name])

    def _told(self, trunk: str, kept: bool, searched: _Searched, scores: dict[str, dict[str, float]]) -> FineTuned:
        return FineTuned(
            bundle=str(self._root), trunk=trunk, kept=kept, chosen=searched.chosen, tried=searched.tried, scores=scores
        )

    def _told_apart(self) -> str:
        """A short digest of what decides the task's trunk; learning rate and dropout are those of the search."""
        plain = msgspec.structs.replace(
            self._prepared.training, learning_rate=Training().learning_rate, dropout=Training().dropout
        )
        prepared = msgspec.structs.replace(self._prepared, training=plain)
        head = arrays_digest(self._head) if self._head is not None else None
        search = msgspec.to_builtins(self._recipe.search)
        own = fingerprint_of([prepared], self._recipe.joint, self._data)
        return hashlib.sha256(msgspec.json.encode([own, search, head], order="sorted")).hexdigest()[:16]

    def _lineage(self, refined: SearchResult, precision: str) -> Lineage:
        p, fitted, chosen = self._prepared, refined.learned.fitted, refined.chosen
        training = msgspec.structs.replace(p.training, learning_rate=chosen.learning_rate, dropout=chosen.dropout)
        return Lineage(
            trunk=refined.learned.data.digest,
            learned_from={"name": self._data.name, "digest": self._data.digest},
            recipe=msgspec.to_builtins(self._recipe),
            training=msgspec.to_builtins(training),
            tasks={self.name: {"kind": p.task.kind, **data_of(p)}},
            epochs=len(fitted.history),
            best_epoch=fitted.best_epoch,
            validation=refined.learned.validation,
            fingerprint=self._fingerprint,
            polyhead=__version__,
            processes=self._place.world,
            numerics=numerics(precision, self._place.device),
            search=msgspec.to_builtins(_Searched(chosen=chosen, tried=refined.tried)),
        )


class _Searched(Value):
    """A search as a lineage keeps it."""

    chosen: Candidate
    tried: tuple[CandidateResult, ...]


def _lines(searched: _Searched) -> list[str]:
    """A line a candidate, the chosen one marked."""
    lines = []
    for candidate in searched.tried:
        numbers, mark = candidate.candidate, ", chosen" if candidate.candidate == searched.chosen else ""
        result = candidate.error
        if candidate.score is not None:
            result = f"validation {candidate.score:.4f} after epoch {candidate.best_epoch}"
        lines.append(f"  {said(numbers)}: {result}{mark}")
    return lines
