"""`polyhead train` with the recipe `fine_tune`: each task's own trunk, the best of a search, as a bundle of its own."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Mapping
from pathlib import Path as FilePath

import msgspec
import numpy as np

from polyhead import __version__
from polyhead.bundle.format import BUNDLE
from polyhead.bundle.read import Bundle
from polyhead.config import Value
from polyhead.errors import ConfigError
from polyhead.progress import duration
from polyhead.project import Project, training_of
from polyhead.recipe import Candidate, FineTune
from polyhead.train.devices import Place, joined
from polyhead.train.events import Events
from polyhead.train.joint_paths import joint_paths
from polyhead.train.joint_run import data_of, fingerprint_of
from polyhead.train.learned import alone, building_of, known_bundle, score_line, write_learned
from polyhead.train.lineage import Lineage, load_any_trunk
from polyhead.train.numerics import numerics, precision_of
from polyhead.train.outlook import outlook
from polyhead.train.prepare import Prepared, prepare
from polyhead.train.refine import Refined, Tried, refine, said
from polyhead.trunk_data import TrunkData, arrays_digest


class Tuned(Value):
    """One task's own trunk."""

    bundle: str
    trunk: str  # digest of the learned trunk
    kept: bool  # the bundle was there already, trained the same way
    chosen: Candidate
    tried: tuple[Tried, ...]
    scores: dict[str, dict[str, float]]  # split -> metric -> value


class FineTuneOutcome(Value):
    """What a run of `train` with the recipe `fine_tune` did."""

    tasks: dict[str, Tuned]
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
    ConfigError where a kept head is asked for and is not there.
    """
    began, events, recipe = time.monotonic(), events or Events(), project.recipe
    assert isinstance(recipe, FineTune)
    root = (folder / project.bundle).resolve()
    cache = cache or root.with_name(root.name + "-cache")
    data = load_any_trunk(project, folder)
    entries = [entry for entry in project.tasks if not only or entry.name in only]
    starts = {entry.name: _start(project, folder, entry.name) for entry in entries}
    events.line(
        f"{len(entries)} tasks, each fine-tunes the trunk {len(recipe.search.candidates)} times at most and keeps the "
        f"best on validation, in a bundle of its own in {project.bundle}"
    )
    found = dict[str, Tuned]()
    for entry in entries:
        training = training_of(project, entry)
        entry = msgspec.structs.replace(entry, training=training)
        alone_there = msgspec.structs.replace(project, tasks=(entry,), recipe=recipe.joint)
        (prepared,) = prepare(alone_there, folder)
        run = _One(root / entry.name, cache / "fine-tune", recipe, data, events, place or Place())
        found[entry.name] = run.tuned(prepared, starts[entry.name])
    seconds = time.monotonic() - began
    events.line(f"{len(found)} tasks fine-tuned in {duration(seconds)}")
    return FineTuneOutcome(tasks=found, learned_from=data.digest, seconds=seconds)


def _start(project: Project, folder: FilePath, task: str) -> Mapping[str, np.ndarray] | None:
    """The part that a task starts from; None for a fresh one."""
    assert isinstance(project.recipe, FineTune)
    if project.recipe.head == "fresh":
        return None
    place = FilePath(project.trunk.place(folder))
    bundle = Bundle.open(place) if (place / BUNDLE).is_file() else None
    if bundle is None or task not in bundle.tasks:
        raise ConfigError(
            f"recipe.head 'kept': task '{task}' has no part in the trunk '{project.trunk.name}'",
            got=f"a bundle with {sorted(bundle.tasks)}" if bundle else "a trunk that is no bundle",
            allowed="the folder of a bundle that was trained jointly with heads = 'keep'",
            do="name such a bundle as the trunk, call the task as it is called there, or set head = 'fresh'",
        )
    return bundle.part(task)


class _One:
    """One task's search and its bundle."""

    def __init__(
        self,
        root: FilePath,
        cache: FilePath,
        recipe: FineTune,
        data: TrunkData,
        events: Events,
        place: Place,
    ) -> None:
        self._root, self._cache, self._recipe = root, cache, recipe
        self._data, self._events, self._place = data, events, place

    def tuned(self, p: Prepared, head: Mapping[str, np.ndarray] | None) -> Tuned:
        """The bundle there, or made now."""
        fingerprint = self._fingerprint(p, head)
        with alone(self._root):
            known = known_bundle(self._root, fingerprint)
            if known is not None:
                bundle, lineage = known
                self._events.line(f"bundle {bundle.root.name}: trained already, unchanged")
                found = msgspec.convert(lineage.search, _Searched)
                return self._told(bundle.digest, True, found, lineage.scores[p.task.name])
            return self._made(p, head, fingerprint)

    def _made(self, p: Prepared, head: Mapping[str, np.ndarray] | None, fingerprint: str) -> Tuned:
        paths = joint_paths([p], self._data, self._recipe.joint)
        for line in outlook([p], {p.task.name: [paths[p.task.name]]}, self._data.architecture, kept=()):
            self._events.line(line)
        precision, checkpoints = precision_of(p.training, self._place.device), self._cache / fingerprint
        with joined(self._place):
            refined = refine(
                p,
                self._data,
                search=self._recipe.search,
                head=head,
                recipe=self._recipe.joint,
                precision=precision,
                checkpoints=checkpoints,
                events=self._events,
                place=self._place,
            )
        lineage = self._lineage(p, refined, fingerprint, precision)
        scores = write_learned(self._root, [p], refined.learned, lineage, keep=True)
        shutil.rmtree(building_of(self._root), ignore_errors=True)
        shutil.rmtree(checkpoints, ignore_errors=True)
        searched = _Searched(chosen=refined.chosen, tried=refined.tried)
        for line in _lines(searched):
            self._events.line(line)
        self._events.line(score_line(p.task, scores[p.task.name]))
        return self._told(refined.learned.data.digest, False, searched, scores[p.task.name])

    def _told(
        self, trunk: str, kept: bool, searched: _Searched, scores: dict[str, dict[str, float]]
    ) -> Tuned:
        return Tuned(
            bundle=str(self._root),
            trunk=trunk,
            kept=kept,
            chosen=searched.chosen,
            tried=searched.tried,
            scores=scores,
        )

    def _fingerprint(self, p: Prepared, head: Mapping[str, np.ndarray] | None) -> str:
        """A short digest of what decides the task's trunk."""
        content = [
            fingerprint_of([p], self._recipe.joint, self._data),
            msgspec.to_builtins(self._recipe.search),
            arrays_digest(head) if head is not None else None,
        ]
        return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()[:16]

    def _lineage(self, p: Prepared, refined: Refined, fingerprint: str, precision: str) -> Lineage:
        fitted, chosen = refined.learned.fitted, refined.chosen
        training = msgspec.structs.replace(
            p.training, learning_rate=chosen.learning_rate, dropout=chosen.dropout
        )
        return Lineage(
            trunk=refined.learned.data.digest,
            learned_from={"name": self._data.name, "digest": self._data.digest},
            recipe=msgspec.to_builtins(self._recipe),
            training=msgspec.to_builtins(training),
            tasks={p.task.name: {"kind": p.task.kind, **data_of(p)}},
            epochs=len(fitted.history),
            best_epoch=fitted.best_epoch,
            validation=refined.learned.validation,
            fingerprint=fingerprint,
            polyhead=__version__,
            processes=self._place.world,
            numerics=numerics(precision, self._place.device),
            search=msgspec.to_builtins(_Searched(chosen=chosen, tried=refined.tried)),
        )


class _Searched(Value):
    """A search as a lineage keeps it."""

    chosen: Candidate
    tried: tuple[Tried, ...]


def _lines(searched: _Searched) -> list[str]:
    """A line a candidate, the chosen one marked."""
    lines = []
    for one in searched.tried:
        numbers, mark = one.candidate, ", chosen" if one.candidate == searched.chosen else ""
        found = one.error if one.score is None else f"validation {one.score:.4f} after epoch {one.best_epoch}"
        lines.append(f"  {said(numbers)}: {found}{mark}")
    return lines
