"""Fine-tuning of a trunk for one task, the best of a small search, and the recipe `fine_tune`: one bundle per task.

The second stage of Aghajanyan et al. 2021: the trunk is a pre-trained or a pre-finetuned one, all of it is trained, and
the head is a fresh one or that of pre-finetuning. The trunk becomes the task's own.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath

import msgspec
import numpy as np
import torch

from polyhead.bundle.format import BUNDLE
from polyhead.bundle.read import Bundle
from polyhead.deep.loop.smooth import normalise_heads, settle_heads
from polyhead.deep.nn.runtime import precision_of
from polyhead.deep.recipes.joint_loop import JointLoop, JointResult, RecipeResult, joint_scores
from polyhead.deep.recipes.paths import fingerprint_of, joint_paths
from polyhead.deep.recipes.trained_trunk import TrainedTrunk
from polyhead.encoder.data import TrunkData, arrays_digest
from polyhead.errors import ConfigError, NotFinite, TrainError
from polyhead.progress import counted
from polyhead.project.recipes import ONE_TASK, FineTune, Joint, SearchGrid, SearchPoint
from polyhead.project.tables import Project
from polyhead.tasks.task import Task
from polyhead.train.data.prepared import Prepared
from polyhead.train.events import Events
from polyhead.train.record.lines import outlook
from polyhead.train.runs import SUFFIX, ProcessRank, cache_folder
from polyhead.train.training import Bundles, CandidateResult, TrainingRun, candidate_name


def fine_tuning(run: TrainingRun, recipe: FineTune, prepared: Sequence[Prepared]) -> Bundles:
    """Fine-tunes the trunk for each task separately and writes it as the bundle `<project.bundle>/<task>`.

    Tasks that share rows hold out the same ones, as in the joint recipe with the same tasks and seed.
    """
    tasks, most = counted(len(prepared), "task"), counted(len(recipe.search.candidates), "time")
    line = f"{tasks}, each fine-tunes the trunk {most} at most and keeps the best on validation, in a bundle of its own"
    trainings = {p.task.name: TunedTrunk(run.part(p.task.name), recipe, p) for p in prepared}
    return Bundles(run, trainings, [f"{line} in {run.project.bundle}"], lambda _: [f"{tasks} fine-tuned"])


class TunedTrunk(TrainedTrunk):
    """One task's search and its bundle; an interrupted search resumes in the candidate where it stopped."""

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
        return refine(
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

    def clean(self) -> None:
        """Removes the search's checkpoints."""
        shutil.rmtree(self.checkpoints, ignore_errors=True)

    def _fingerprint(self, prepared: Prepared) -> str:
        """A short digest of what determines the task's trunk."""
        run_digest = fingerprint_of([prepared], self.recipe.joint, self.data)
        head = arrays_digest(self.head) if self.head is not None else None
        content = [run_digest, msgspec.to_builtins(self.recipe.search), head]
        return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()[:16]


def _kept_head(project: Project, folder: FilePath, task: Task) -> Mapping[str, np.ndarray]:
    """The part of the task's name in the bundle of this trunk; raises ConfigError if there is none."""
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


def refine(
    prepared: Prepared,
    data: TrunkData,
    *,
    search: SearchGrid | None = None,
    head: Mapping[str, np.ndarray] | None = None,
    recipe: Joint = ONE_TASK,
    precision: str,
    checkpoints: FilePath | None = None,
    events: Events | None = None,
    place: ProcessRank | None = None,
) -> RecipeResult:
    """Fine-tunes `data` for the task once per candidate, and keeps the best on validation (ties: the first).

    A candidate uses the usual early stopping, and its best epoch counts. Epochs, patience, batch and seed are the
    task's own; only the chosen candidate reads the test split, once. `head` are the arrays of a part that every
    candidate starts from (`JointResult.arrays`, `Bundle.part`): they are trained with the trunk at once, without the
    recipe's `head_epochs`, whatever `init` a prompt has. Without them heads are fresh. `checkpoints` is a folder from
    which an interrupted search resumes; it may also contain other files. A candidate whose numbers do not stay finite
    has failed, and the search continues; raises NotFinite if all fail.
    """
    best: tuple[SearchPoint, JointLoop, JointResult] | None = None
    tried: list[CandidateResult] = []
    for candidate in (search or SearchGrid()).candidates:
        name = candidate_name(candidate)
        tuned = _with_candidate(prepared, candidate)
        recipe = msgspec.structs.replace(recipe, layer_dropout=candidate.dropout)
        tag = _tag(fingerprint_of([tuned], recipe, data), head, precision)
        loop = JointLoop(
            [tuned],
            joint_paths([tuned], data, recipe),
            data,
            recipe,
            training=tuned.training,
            precision=precision,
            checkpoint=checkpoints / f"{name.replace(' ', '-')}-{tag}{SUFFIX}" if checkpoints else None,
            events=None if events is None else events.within(name),
            place=place,
        )
        if head is not None:
            _start(loop, head, tuned)
        label = f"{prepared.task.name} {name}"
        try:
            learned = loop.learn(label, fresh=head is None)
        except NotFinite as error:
            tried.append(CandidateResult(candidate=candidate, error=error.what))
            if events is not None:
                events.line(f"{label} failed: {error.what}")
            continue
        score, epoch = learned.fitted.score, learned.fitted.best_epoch
        epochs = len(learned.fitted.history)
        tried.append(CandidateResult(candidate=candidate, score=score, best_epoch=epoch, epochs=epochs))
        if best is None or score > best[2].fitted.score:
            best = (candidate, loop, learned)
    if best is None:
        raise _all_failed(prepared, tried)
    candidate, loop, learned = best
    training, scores = _with_candidate(prepared, candidate).training, joint_scores(loop, prepared)
    return RecipeResult(learned=learned, training=training, chosen=candidate, tried=tuple(tried), scores=scores)


def _all_failed(prepared: Prepared, tried: Sequence[CandidateResult]) -> NotFinite:
    failures = "; ".join(f"{candidate_name(result.candidate)}: {result.error}" for result in tried)
    return NotFinite(
        f"no candidate of the search for task '{prepared.task.name}' could be trained: {failures}",
        do="search among lower learning rates",
        tried=tuple(tried),
    )


def _with_candidate(prepared: Prepared, candidate: SearchPoint) -> Prepared:
    training = msgspec.structs.replace(prepared.training, **msgspec.structs.asdict(candidate))
    return msgspec.structs.replace(prepared, training=training)


def _tag(fingerprint: str, head: Mapping[str, np.ndarray] | None, precision: str) -> str:
    """A short digest of what determines a candidate's run."""
    started = ["as it is", arrays_digest(head)] if head is not None else None
    content = [fingerprint, started, precision]
    return hashlib.sha256(msgspec.json.encode(content)).hexdigest()[:16]


def _start(loop: JointLoop, head: Mapping[str, np.ndarray], prepared: Prepared) -> None:
    """Loads the arrays into the task's part; raises TrainError if they belong to another part."""
    settle_heads(loop.module)  # like the given one
    part = loop.module.model.parts[prepared.task.name]
    expected = {name: tuple(value.shape) for name, value in part.state_dict().items()}
    shapes = {name: tuple(value.shape) for name, value in head.items()}
    if expected != shapes:
        differing = sorted(name for name in expected.keys() | shapes.keys() if expected.get(name) != shapes.get(name))
        raise TrainError(
            f"task '{prepared.task.name}' cannot start from this head",
            got=f"other arrays at {', '.join(differing[:3])}",
            allowed="arrays of a part with the same pooler, head and number of outputs",
            do="give the task the strategy and labels that the head was trained with, or start from a fresh head",
        )
    part.load_state_dict({name: torch.tensor(np.asarray(value)) for name, value in head.items()})
    if loop.recipe.smoothing is not None and loop.recipe.smoothing.spectral:
        normalise_heads(loop.module)
