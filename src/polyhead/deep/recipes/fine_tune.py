"""The recipe `fine_tune`: each task's own trunk, the best of a search, as a bundle of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath

import msgspec
import numpy as np

from polyhead.bundle.format import BUNDLE
from polyhead.bundle.read import Bundle
from polyhead.deep.loop.numerics import precision_of
from polyhead.deep.recipes.learned import LearnedTrunk, RecipeResult
from polyhead.deep.recipes.paths import fingerprint_of, joint_paths
from polyhead.deep.recipes.refine import refine
from polyhead.encoder.data import arrays_digest
from polyhead.errors import ConfigError
from polyhead.files import remove_tree
from polyhead.progress import counted, duration
from polyhead.project.recipes import FineTune, Training
from polyhead.project.tables import Project
from polyhead.tasks.task import Task
from polyhead.train.data.prepared import Prepared
from polyhead.train.events import Events
from polyhead.train.record.lines import outlook
from polyhead.train.runs import cache_folder
from polyhead.train.training import Bundles, TrainingResult, TrainingRun


class FineTuning(Bundles):
    """Fine-tunes the trunk for each task by itself and writes it as the bundle `<project.bundle>/<task>`.

    Tasks that share rows hold out the same ones, as under the joint recipe with the same tasks and seed.
    """

    def __init__(self, run: TrainingRun, recipe: FineTune, prepared: Sequence[Prepared]) -> None:
        super().__init__(run, {p.task.name: TunedTrunk(run.part(p.task.name), recipe, p) for p in prepared})
        self.recipe = recipe

    def begin(self) -> list[str]:
        """Lines before the first training."""
        most = len(self.recipe.search.candidates)
        return [
            f"{counted(len(self.trainings), 'task')}, each fine-tunes the trunk {counted(most, 'time')} at most and "
            f"keeps the best on validation, in a bundle of its own in {self.run.project.bundle}"
        ]

    def end(self, outcomes: Mapping[str, TrainingResult], seconds: float) -> list[str]:
        """How long it took."""
        return [f"{counted(len(outcomes), 'task')} fine-tuned in {duration(seconds)}"]


class TunedTrunk(LearnedTrunk):
    """One task's search and its bundle; a search that was stopped goes on in the candidate where it stopped."""

    def __init__(self, run: TrainingRun, recipe: FineTune, prepared: Prepared) -> None:
        super().__init__(run, [prepared], recipe.joint, keeps_heads=True)
        self.declared = self.recipe = recipe
        task = prepared.task
        self.head = None if recipe.head == "fresh" else _kept_head(run.project, run.folder, task)
        self.fingerprint = self._fingerprint(prepared)
        self.checkpoints = cache_folder(run.cache, "fine-tune", self.fingerprint)

    def learn(self, events: Events) -> RecipeResult:
        """The best candidate."""
        (p,), recipe = self.prepared, self.recipe.joint
        paths = {name: [path] for name, path in joint_paths([p], self.data, recipe).items()}
        for line in outlook([p], paths, self.data.architecture, kept=()):
            events.line(line)
        refined = refine(
            p,
            self.data,
            search=self.recipe.search,
            head=self.head,
            recipe=recipe,
            precision=precision_of(p.training, self.run.place.device),
            checkpoints=self.checkpoints,
            events=events,
            place=self.run.place,
        )
        chosen = refined.chosen
        training = msgspec.structs.replace(p.training, learning_rate=chosen.learning_rate, dropout=chosen.dropout)
        return RecipeResult(result=refined.learned, training=training, chosen=chosen, tried=refined.tried)

    def clean(self) -> None:
        """Removes the search's checkpoints."""
        remove_tree(self.checkpoints, root=self.run.cache)

    def _fingerprint(self, prepared: Prepared) -> str:
        """A short digest of what decides the task's trunk; learning rate and dropout are those of the search."""
        plain = msgspec.structs.replace(
            prepared.training, learning_rate=Training().learning_rate, dropout=Training().dropout
        )
        own = fingerprint_of([msgspec.structs.replace(prepared, training=plain)], self.recipe.joint, self.data)
        head = arrays_digest(self.head) if self.head is not None else None
        content = [own, msgspec.to_builtins(self.recipe.search), head]
        return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()[:16]


def _kept_head(project: Project, folder: FilePath, task: Task) -> Mapping[str, np.ndarray]:
    """The part of the task's name in the bundle whose trunk this is; raises ConfigError where there is none."""
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
