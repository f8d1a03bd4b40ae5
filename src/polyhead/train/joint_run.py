"""`polyhead train` with the joint recipe: a learned trunk and its tasks become a bundle of their own."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path as FilePath

import msgspec

from polyhead import __version__
from polyhead.bundle.families import FamilyDraft
from polyhead.bundle.format import BUNDLE, LOCK
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.read import Bundle
from polyhead.bundle.write import Draft, add_tasks, write_bundle
from polyhead.config import Value
from polyhead.engine.session import Session
from polyhead.errors import BundleError, TrainError
from polyhead.files import held, sync_folder
from polyhead.plan import merge
from polyhead.progress import duration
from polyhead.project import Project, Training
from polyhead.recipe import Joint
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task, owner_of
from polyhead.train.card import card_of
from polyhead.train.devices import Place, from_first, joined
from polyhead.train.events import Events
from polyhead.train.joint import JointCourse, Learned
from polyhead.train.joint_paths import joint_paths, with_owner
from polyhead.train.leaks import without_leaks
from polyhead.train.lineage import Lineage, lineage_of, load_any_trunk, write_lineage
from polyhead.train.numerics import numerics, precision_of
from polyhead.train.outlook import outlook
from polyhead.train.prepare import Prepared, prepare
from polyhead.train.probes import probes_of
from polyhead.train.task_run import Trained
from polyhead.trunk_data import TrunkData


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
) -> JointOutcome:
    """Trains trunk and tasks together and writes them as a bundle; with heads 'strip' the trunk alone.

    A run that was stopped goes on after its last epoch. A bundle of other tasks or another trunk is never touched. Of
    several processes each calls this with its place; the first one writes and tells, and all give its outcome.
    """
    place = place or Place()
    alone = _alone((folder / project.bundle).resolve()) if place.is_first else nullcontext()
    with joined(place), alone:
        told = (events or Events()) if place.is_first else Events()
        return _train(project, folder, cache, told, place)


def _train(
    project: Project, folder: FilePath, cache: FilePath | None, events: Events, place: Place
) -> JointOutcome:
    began, recipe = time.monotonic(), project.recipe
    assert isinstance(recipe, Joint)
    root = (folder / project.bundle).resolve()
    cache = cache or root.with_name(root.name + "-cache")
    prepared, leaks = without_leaks(prepare(project, folder))
    for line in leaks.lines():
        events.line(line)
    training = joint_training(prepared)
    data = load_any_trunk(project, folder)
    paths = joint_paths(prepared, data, recipe)
    fingerprint = fingerprint_of(prepared, recipe, data)
    checkpoint = cache / "joint" / f"{fingerprint}.pt"
    known = from_first(place, _known(root, fingerprint))
    if known is not None:
        events.line(f"bundle {project.bundle}: trained already, unchanged")
        if place.is_first:
            _clean(root, checkpoint)
        return msgspec.structs.replace(known, seconds=time.monotonic() - began)
    precision = precision_of(training, place.device)
    course = JointCourse(
        prepared,
        paths,
        data,
        recipe,
        training=training,
        precision=precision,
        checkpoint=checkpoint,
        events=events,
        place=place,
    )
    for line in _outlook(prepared, course):
        events.line(line)
    learned = course.learn()
    lineage = _lineage(course, learned, fingerprint, precision)
    scores = dict[str, dict[str, dict[str, float]]]()
    if place.is_first:
        scores = _write(root, prepared, learned, lineage, keep=recipe.heads == "keep")
        _clean(root, checkpoint)
        for p in prepared:
            events.line(score_line(p.task, scores[p.task.name]))
    seconds = time.monotonic() - began
    events.line(
        f"bundle {project.bundle}: a trunk learned from {len(prepared)} tasks, "
        f"{learned.blended.digest[:16]}, in {duration(seconds)}"
    )
    outcome = JointOutcome(
        bundle=str(root),
        trunk=learned.blended.digest,
        learned_from=data.digest,
        kept=False,
        scores=scores,
        seconds=seconds,
    )
    return from_first(place, outcome)


def joint_training(prepared: Sequence[Prepared]) -> Training:
    """The one set of training numbers; raises TrainError where tasks have different ones."""
    found = {msgspec.json.encode(p.training): p.training for p in prepared}
    if len(found) > 1:
        raise TrainError(
            "tasks that are trained together have one set of training numbers",
            got=f"{len(found)} sets",
            do="leave [tasks.training] out, and set the project's [training]",
        )
    return next(iter(found.values()))


def _outlook(prepared: Sequence[Prepared], course: JointCourse) -> list[str]:
    """What is going to be done, by whom."""
    paths = {name: [path] for name, path in course.paths.items()}
    in_a_pass = course.mixture.in_a_pass
    lines = outlook(prepared, paths, course.data.architecture, kept=(), in_a_pass=in_a_pass)
    place, parallel = course.place, course.recipe.parallel
    by = [f"{place.world} processes ({parallel}), the first on {place.device}"] if place.world > 1 else []
    return [*lines, *course.mixture.lines(), *by]


def _lineage(course: JointCourse, learned: Learned, fingerprint: str, precision: str) -> Lineage:
    return Lineage(
        trunk=learned.blended.digest,
        learned_from={"name": course.data.name, "digest": course.data.digest},
        recipe=msgspec.to_builtins(course.recipe),
        training=msgspec.to_builtins(course.training),
        tasks={name: {"kind": p.task.kind, **_data(p)} for name, p in course.prepared.items()},
        epochs=len(learned.fitted.history),
        best_epoch=learned.fitted.best_epoch,
        validation=learned.validation,
        fingerprint=fingerprint,
        polyhead=__version__,
        processes=course.place.world,
        numerics=numerics(precision, course.place.device),
    )


def _data(p: Prepared) -> dict[str, object]:
    return {"rows": len(p.train.examples.targets), "sha256": p.train.digest}


def score_line(task: Task, splits: Mapping[str, Mapping[str, float]]) -> str:
    """`mood: validation accuracy 0.8100, test accuracy 0.8000`."""
    metric = kind_of(task).default_metric(task)
    return f"{task.name}: " + ", ".join(
        f"{name} {metric} {found[metric]:.4f}" for name, found in splits.items()
    )


def fingerprint_of(prepared: Sequence[Prepared], recipe: Joint, data: TrunkData) -> str:
    """A short digest of what decides the learned trunk; where and in how much memory it is computed does not."""
    recipe = msgspec.structs.replace(recipe, checkpointing=False, parallel="ddp")
    told = msgspec.to_builtins(recipe)
    if not recipe.head_epochs:  # as before there were any
        told = {
            name: value for name, value in told.items() if name not in ("head_epochs", "head_learning_rate")
        }
    if recipe.blend == 1:
        del told["blend"]
    if recipe.tokens is not None and (recipe.steps is None or recipe.sampling.kind == "shuffled"):
        told["passes"] = "by tokens"  # at first they were counted by `batch`
    if recipe.head_epochs and recipe.sampling.kind == "schedule":
        told["probes"] = "by size"  # at first by the schedule's first epochs
    content = [data.digest, told, [p.fingerprint() for p in prepared]]
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()[:16]


def _known(root: FilePath, fingerprint: str) -> JointOutcome | None:
    """What an earlier run left, if it trained the same; raises BundleError where something else is there."""
    if not (root / BUNDLE).exists():
        _check_empty(root)
        return None
    lineage = lineage_of(root)
    if lineage is None or lineage.fingerprint != fingerprint:
        raise BundleError(
            f"the bundle {root.name} holds another trunk, or was trained otherwise",
            got="a learned trunk of other data or numbers"
            if lineage
            else "a bundle whose trunk is not learned",
            do="name another bundle in the project file; a joint recipe makes a trunk, and a trunk its own bundle",
        )
    bundle = Bundle.open(root)
    return JointOutcome(
        bundle=str(root),
        trunk=bundle.digest,
        learned_from=lineage.learned_from["digest"],
        kept=True,
        scores=lineage.scores or _scores_before(bundle, lineage),
        seconds=0.0,
    )


def _scores_before(bundle: Bundle, lineage: Lineage) -> dict[str, dict[str, dict[str, float]]]:
    """What is left of a run's scores where its lineage does not hold them."""
    found = {name: {"validation": row} for name, row in lineage.validation.items()}
    return found | {name: bundle.scores(name)["splits"] for name in bundle.tasks}


def _write(
    root: FilePath,
    prepared: Sequence[Prepared],
    learned: Learned,
    lineage: Lineage,
    *,
    keep: bool,
) -> dict[str, dict[str, dict[str, float]]]:
    """Builds the bundle under a name of its own, scores its tasks as they will answer, and renames it."""
    building = _building(root)
    shutil.rmtree(building, ignore_errors=True)
    drafts = {p.task.name: _draft(p, learned, lineage) for p in prepared}
    write_bundle(building / "scored", learned.data)
    families = [FamilyDraft(family=owner, arrays=arrays) for owner, arrays in learned.families.items()]
    add_tasks(building / "scored", list(drafts.values()), families=families)
    scores = _scores(building / "scored", prepared)
    if keep:
        plan = merge({name: draft.record.path for name, draft in drafts.items()})
        for p in prepared:
            name = p.task.name
            trained = Trained(
                path=drafts[name].record.path,
                arrays=learned.arrays[name],
                scores=scores[name],
                fitted=learned.fitted,
                tried={},
            )
            drafts[name] = msgspec.structs.replace(
                drafts[name],
                scores={"splits": scores[name], "tried": {}, "history": []},
                card=card_of(p, trained, learned.data, plan, learned=True),
            )
    write_bundle(building / "kept", learned.blended)
    if keep:
        add_tasks(building / "kept", list(drafts.values()), families=families)
    write_lineage(building / "kept", msgspec.structs.replace(lineage, scores=scores))
    root.parent.mkdir(parents=True, exist_ok=True)
    _check_empty(root)
    shutil.rmtree(root, ignore_errors=True)
    (building / "kept").rename(root)
    sync_folder(root.parent)
    return scores


def _check_empty(root: FilePath) -> None:
    """Raises BundleError where the bundle's place holds something; a lock alone is nothing."""
    there = [root.name] if root.is_file() else sorted(e.name for e in root.iterdir()) if root.is_dir() else []
    if set(there) - {LOCK}:
        raise BundleError(
            f"{root} holds something that is no bundle",
            got=there[:5],
            do="name a new folder in the project file",
        )


def _building(root: FilePath) -> FilePath:
    return root.with_name(f".{root.name}.learning")


def _clean(root: FilePath, checkpoint: FilePath) -> None:
    """Removes what is of no use once the bundle stands, also what a killed run left."""
    shutil.rmtree(_building(root), ignore_errors=True)
    for file in (
        checkpoint,
        *checkpoint.parent.glob(f"{checkpoint.stem}-*.pt"),
    ):  # of donors and probed heads too
        file.unlink(missing_ok=True)


@contextmanager
def _alone(root: FilePath) -> Iterator[None]:
    """Raises BundleError where another training writes the same bundle; ends with the process, however it ends."""
    root.parent.mkdir(parents=True, exist_ok=True)
    place = root.parent / f".{root.name}.training"
    busy = BundleError(f"another training is writing {root}", do="wait for it, or name another bundle")
    with held(place, patience=0.0, busy=busy):
        try:
            yield
        finally:
            place.unlink(missing_ok=True)


def _draft(p: Prepared, learned: Learned, lineage: Lineage) -> Draft:
    """The task as it stands alone: what a family shared while it learned is its own from now on."""
    name = p.task.name
    record = TaskRecord(
        task=p.task,
        path=with_owner(learned.paths[name], owner_of(p.task)),
        trunk=learned.data.digest,
        trained_with={
            "polyhead": __version__,
            "recipe": "joint",
            "lineage": lineage.fingerprint,
            **p.fingerprint(),
            "numerics": lineage.numerics,
        },
    )
    return Draft(record=record, arrays=learned.arrays[name], scores={}, probes=probes_of(p), card="")


def _scores(root: FilePath, prepared: Sequence[Prepared]) -> dict[str, dict[str, dict[str, float]]]:
    """Every task's metrics on whole splits, as the bundle answers."""
    session, found = Session(root, backend="torch"), dict[str, dict[str, dict[str, float]]]()
    for p in prepared:
        kind, found[p.task.name] = kind_of(p.task), {}
        for split in p.splits[1:]:
            words = split.examples.words if kind.per_word else None
            outputs = session.outputs(p.task.name, split.examples.inputs, words=words)
            found[p.task.name][split.name] = split.examples.scores(p.task, outputs)
    return found
