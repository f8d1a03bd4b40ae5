"""`polyhead train` with the joint recipe: a learned trunk and its tasks become a bundle of their own."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path as FilePath

import msgspec

from polyhead._version import __version__
from polyhead.config import Value
from polyhead.errors import TrainError
from polyhead.progress import duration
from polyhead.project.recipes import Joint, Training
from polyhead.project.tables import Project
from polyhead.train.data.leaks import without_leaks
from polyhead.train.data.prepare import prepare
from polyhead.train.data.prepared import Prepared
from polyhead.train.loop.checkpoint import SUFFIX, cache_folder
from polyhead.train.loop.devices import Place, from_first, joined
from polyhead.train.loop.events import Events
from polyhead.train.loop.numerics import numerics, precision_of
from polyhead.train.recipes.course import JointCourse, JointResult
from polyhead.train.recipes.learned import (
    Lineage,
    Scores,
    alone,
    clean,
    known_bundle,
    load_any_trunk,
    score_lines,
    scores_before,
    tell_known,
    write_learned,
)
from polyhead.train.recipes.paths import joint_paths
from polyhead.train.record.lines import outlook
from polyhead.trunk.data import TrunkData


class JointOutcome(Value):
    """What a run of `train` with the joint recipe did."""

    bundle: str
    trunk: str  # digest of the learned trunk
    learned_from: str
    kept: bool  # the bundle was there already, trained the same way
    scores: dict[str, dict[str, dict[str, float]]]  # task -> split -> metric -> value
    seconds: float


def train_together(
    project: Project,
    *,
    folder: FilePath,
    cache: FilePath | None = None,
    events: Events | None = None,
    place: Place | None = None,
    given: Sequence[Prepared] | None = None,
    held: Sequence[Prepared] = (),
) -> JointOutcome:
    """Trains trunk and tasks together and writes them as a bundle; with heads 'strip' the trunk alone.

    With `given` no file is read. No text on which one of the tasks is evaluated is trained on, nor one of those that
    are `held` out. A run that was stopped goes on after its last epoch. A bundle of other tasks or another trunk is
    never touched. Of several processes each calls this with its place; the first one writes and tells, and all give
    its outcome.
    """
    place = place or Place()
    lone = alone((folder / project.bundle).resolve()) if place.is_first else nullcontext()
    with joined(place), lone:
        heard = (events or Events()) if place.is_first else Events()
        return _train(project, folder, cache, heard, place, given, held)


def _train(
    project: Project,
    folder: FilePath,
    cache: FilePath | None,
    events: Events,
    place: Place,
    given: Sequence[Prepared] | None,
    held: Sequence[Prepared],
) -> JointOutcome:
    began, recipe, root = time.monotonic(), project.recipe, (folder / project.bundle).resolve()
    assert isinstance(recipe, Joint)
    cache = cache or root.with_name(root.name + "-cache")
    prepared, leaks = without_leaks(given or prepare(project, folder), others=held)
    for line in leaks.lines():
        events.line(line)
    training = joint_training(prepared)
    data = load_any_trunk(project, folder)
    fingerprint = fingerprint_of(prepared, recipe, data)
    checkpoint = cache_folder(cache, "joint") / f"{fingerprint}{SUFFIX}"
    known = from_first(place, _known(root, fingerprint, recipe, events))
    if known is not None:
        if place.is_first:
            clean(root, checkpoint)
        return msgspec.structs.replace(known, seconds=time.monotonic() - began)
    course = JointCourse(
        prepared,
        joint_paths(prepared, data, recipe),
        data,
        recipe,
        training=training,
        precision=precision_of(training, place.device),
        checkpoint=checkpoint,
        events=events,
        place=place,
    )
    for line in _outlook(prepared, course):
        events.line(line)
    learned = course.learn()
    lineage = _lineage(course, learned, fingerprint)
    scores: Scores = {}
    if place.is_first:
        scores = write_learned(root, prepared, learned, lineage, keep=recipe.heads == "keep")
        clean(root, checkpoint)
        for p in prepared:
            for line in score_lines(p, scores[p.task.name]):
                events.line(line)
    seconds = time.monotonic() - began
    events.line(
        f"bundle {project.bundle}: a trunk learned from {len(prepared)} tasks, "
        f"{lineage.trunk[:16]}, in {duration(seconds)}"
    )
    outcome = JointOutcome(
        bundle=str(root), trunk=lineage.trunk, learned_from=data.digest, kept=False, scores=scores, seconds=seconds
    )
    return from_first(place, outcome)


def joint_training(prepared: Sequence[Prepared]) -> Training:
    """The one set of training numbers; raises TrainError where tasks have different ones."""
    settings = {msgspec.json.encode(p.training): p.training for p in prepared}
    if len(settings) > 1:
        raise TrainError(
            "tasks that are trained together have one set of training numbers",
            got=f"{len(settings)} sets",
            do="leave [tasks.training] out, and set the project's [training]",
        )
    return next(iter(settings.values()))


def _outlook(prepared: Sequence[Prepared], course: JointCourse) -> list[str]:
    """What is going to be done, by whom."""
    paths = {name: [path] for name, path in course.paths.items()}
    in_a_pass = course.mixture.in_a_pass
    lines = outlook(prepared, paths, course.data.architecture, kept=(), in_a_pass=in_a_pass)
    place, parallel = course.place, course.recipe.parallel
    by = [f"{place.world} processes ({parallel}), the first on {place.device}"] if place.world > 1 else []
    return [*lines, *course.mixture.lines(), *by]


def _lineage(course: JointCourse, learned: JointResult, fingerprint: str) -> Lineage:
    return Lineage(
        trunk=learned.blended.digest,
        learned_from={"name": course.data.name, "digest": course.data.digest},
        recipe=msgspec.to_builtins(course.recipe),
        training=msgspec.to_builtins(course.training),
        tasks={name: {"kind": p.task.kind, **data_of(p)} for name, p in course.prepared.items()},
        epochs=len(learned.fitted.history),
        best_epoch=learned.fitted.best_epoch,
        validation=learned.validation,
        fingerprint=fingerprint,
        polyhead=__version__,
        processes=course.place.world,
        numerics=numerics(precision_of(course.training, course.place.device), course.place.device),
    )


def data_of(p: Prepared) -> dict[str, object]:
    """What a lineage says of a task's training data."""
    return {"rows": len(p.train.examples.targets), "sha256": p.train.digest}


def _known(root: FilePath, fingerprint: str, recipe: Joint, events: Events) -> JointOutcome | None:
    """What an earlier run left, if it trained the same."""
    known = known_bundle(root, fingerprint)
    if known is None:
        return None
    bundle, lineage = known
    tell_known(bundle, lineage, keep=recipe.heads == "keep", events=events)
    return JointOutcome(
        bundle=str(root),
        trunk=bundle.digest,
        learned_from=lineage.learned_from["digest"],
        kept=True,
        scores=lineage.scores or scores_before(bundle, lineage),
        seconds=0.0,
    )


def fingerprint_of(prepared: Sequence[Prepared], recipe: Joint, data: TrunkData) -> str:
    """A short digest of what decides the learned trunk; where and in how much memory it is computed does not."""
    recipe = msgspec.structs.replace(recipe, checkpointing=False, parallel="ddp")
    settings = msgspec.to_builtins(recipe)
    if not recipe.head_epochs:  # as before there were any
        del settings["head_epochs"], settings["head_learning_rate"]
    if recipe.blend == 1:
        del settings["blend"]
    if recipe.tokens is not None and (recipe.steps is None or recipe.sampling.kind == "shuffled"):
        settings["passes"] = "by tokens"  # at first they were counted by `batch`
    if recipe.head_epochs and recipe.sampling.kind == "schedule":
        settings["probes"] = "by size"  # at first by the schedule's first epochs
    content = [data.digest, settings, [p.fingerprint() for p in prepared]]
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()[:16]
