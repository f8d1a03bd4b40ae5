"""A trained trunk with its tasks as a bundle: its lineage, lookup, atomic writing, and scoring."""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path as FilePath

import msgspec

from polyhead._version import __version__
from polyhead.bundle.atomic import remove_workspace, workspace
from polyhead.bundle.create import write_bundle
from polyhead.bundle.files import read_inside
from polyhead.bundle.format import BUNDLE, LARGEST_JSON, LINEAGE, LOCK, TRUNK
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.read import Bundle
from polyhead.bundle.write import Draft, FamilyDraft, add_tasks
from polyhead.deep.loop.devices import from_first, process_group
from polyhead.deep.nn.runtime import numerics, precision_of
from polyhead.deep.recipes.joint_loop import JointResult, RecipeResult
from polyhead.deep.recipes.paths import joint_paths, with_owner
from polyhead.engine.backends import TRAINING_BACKEND
from polyhead.engine.session import Session
from polyhead.errors import BundleError
from polyhead.files import held, remove_files, remove_leftovers, replace_file, sync_folder
from polyhead.plan import merge
from polyhead.progress import counted, duration
from polyhead.project.recipes import FineTune, Joint, SearchPoint
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task, owner_of
from polyhead.train.candidates import constant_scores
from polyhead.train.data.prepared import Prepared, split_rows
from polyhead.train.events import Events
from polyhead.train.heads import selection_rule
from polyhead.train.record.draft import HeldOutRows, Trained, finite_scores, task_card, validation_probes
from polyhead.train.record.held_out import held_out_answers, with_profile_from, write_held_out
from polyhead.train.record.lines import scores_shown, warnings_of
from polyhead.train.runs import SUFFIX
from polyhead.train.training import BundleTraining, CandidateResult, Scores, TrainingResult, TrainingRun, candidate_name
from polyhead.values import Value, from_json, to_json


class Lineage(Value):
    """The origin of a trained trunk."""

    trunk: str  # digest of the trained trunk
    learned_from: dict[str, str]  # name and digest of the initial trunk
    recipe: dict[str, object]
    training: dict[str, object]
    tasks: dict[str, dict[str, object]]  # each with its kind, rows and the SHA-256 of its training data
    epochs: int  # trained; the best by validation was kept
    best_epoch: int
    validation: dict[str, dict[str, float]]
    fingerprint: str  # equal ones need no second training
    polyhead: str
    # task -> split -> metric -> value, measured on the bundle's answers
    scores: dict[str, dict[str, dict[str, float]]] = {}
    # processes that shared the training: their number determines the order of sums, and so the bits
    processes: int | None = None
    numerics: dict[str, str] = {}  # their numerics; these three are empty in records from before they were stored
    search: dict[str, object] = {}  # for fine-tuning: every candidate, and the chosen one


def write_lineage(root: FilePath, lineage: Lineage) -> None:
    """Writes it next to the trunk of the bundle at `root`."""
    scores = {task: finite_scores(splits) for task, splits in lineage.scores.items()}
    kept = msgspec.structs.replace(lineage, validation=finite_scores(lineage.validation), scores=scores)
    replace_file(root / TRUNK / LINEAGE, to_json(kept))


def lineage_of(root: FilePath) -> Lineage | None:
    """The lineage of a bundle's trunk; None for a trunk without training here."""
    if not os.path.lexists(root / TRUNK / LINEAGE):
        return None
    raw = read_inside(root, TRUNK, LINEAGE, limit=LARGEST_JSON)
    return from_json(raw, Lineage, source=str(root / TRUNK / LINEAGE))


class TrainedTrunk(BundleTraining):
    """A bundle whose trunk is trained: found by its fingerprint, or trained, scored and written atomically.

    A bundle of other tasks or another trunk is never changed. `recipe` is the way of training.
    """

    declared: Joint | FineTune  # the recipe as the project declares it
    fingerprint: str  # digest of what determines the trained trunk
    first_lines: Sequence[str] = ()

    def __init__(self, run: TrainingRun, prepared: Sequence[Prepared], recipe: Joint, *, keeps_heads: bool) -> None:
        self.run, self.prepared = run, prepared
        self.data = run.data
        self._joint, self._keeps_heads = recipe, keeps_heads

    @abstractmethod
    def learn(self, events: Events) -> RecipeResult:
        """Trains, or resumes an interrupted run."""

    @abstractmethod
    def clean(self) -> None:
        """Removes checkpoints, which are useless once the bundle exists."""

    def check(self) -> None:
        """Raises the foreseeable errors of training."""
        joint_paths(self.prepared, self.data, self._joint)
        known_bundle(self.run.root, self.fingerprint)

    def train(self) -> TrainingResult:
        """The existing bundle, or a new one; of several processes the first one writes and reports."""
        began, place, root = time.monotonic(), self.run.place, self.run.root
        lone = writing_alone(root) if place.is_first else nullcontext()
        with process_group(place), lone:
            events = self.run.events if place.is_first else Events()
            for line in self.first_lines:
                events.line(line)
            outcome = from_first(place, self._known(events))
            if outcome is None:
                outcome = from_first(place, self._trained(events, began))
            if place.is_first:
                remove_workspace(building_of(root))
                self.clean()
        return msgspec.structs.replace(outcome, seconds=time.monotonic() - began)

    def _known(self, events: Events) -> TrainingResult | None:
        """The outcome of an earlier run, if it trained the same."""
        known = known_bundle(self.run.root, self.fingerprint)
        if known is None:
            return None
        bundle, lineage = known
        tell_known(bundle, lineage, keep=self._keeps_heads, events=events)
        scores = lineage.scores or scores_before(bundle, lineage)
        outcome = self._outcome(bundle.digest, scores)
        outcome = msgspec.structs.replace(outcome, kept=tuple(lineage.tasks))
        if not lineage.search:
            return outcome
        tried = msgspec.convert(lineage.search["tried"], tuple[CandidateResult, ...])
        return msgspec.structs.replace(
            outcome, chosen=msgspec.convert(lineage.search["chosen"], SearchPoint), tried=tried
        )

    def _trained(self, events: Events, began: float) -> TrainingResult:
        learned = self.learn(events)
        lineage, scores = self._lineage(learned), Scores()
        if self.run.place.is_first:
            scores, held = write_trained(self.run.root, self.prepared, learned.learned, lineage, keep=self._keeps_heads)
            for task in (p.task for p in self.prepared if p.task.name in held):
                answers = held_out_answers(task, held[task.name], lineage.numerics)
                write_held_out(self.run.cache, task.name, learned.learned.arrays[task.name], answers)
            tasks = counted(len(self.prepared), "task")
            how = f"a trunk learned from {tasks}, {lineage.trunk[:16]}, in {duration(time.monotonic() - began)}"
            lines = [line for p in self.prepared for line in score_lines(p, scores[p.task.name])]
            for line in (*search_lines(learned), *lines, f"bundle {self.run.project.bundle}: {how}"):
                events.line(line)
        outcome = self._outcome(lineage.trunk, scores)
        return msgspec.structs.replace(outcome, trained=scores, chosen=learned.chosen, tried=learned.tried)

    def _outcome(self, trunk: str, scores: Scores) -> TrainingResult:
        return TrainingResult(
            bundle=str(self.run.root),
            trunk=trunk,
            learned_from=self.data.digest,
            taught=tuple(p.task.name for p in self.prepared),
            scores=scores,
            seconds=0.0,
        )

    def _lineage(self, learned: RecipeResult) -> Lineage:
        result, place = learned.learned, self.run.place
        search = {"chosen": learned.chosen, "tried": learned.tried} if learned.chosen is not None else {}
        return Lineage(
            trunk=result.blended.digest,
            learned_from={"name": self.data.name, "digest": self.data.digest},
            recipe=msgspec.to_builtins(self.declared),
            training=msgspec.to_builtins(learned.training),
            tasks={
                p.task.name: {"kind": p.task.kind, "rows": len(p.train.examples.targets), "sha256": p.train.digest}
                for p in self.prepared
            },
            epochs=len(result.fitted.history),
            best_epoch=result.fitted.best_epoch,
            validation=result.validation,
            fingerprint=self.fingerprint,
            polyhead=__version__,
            processes=place.world,
            numerics=numerics(precision_of(learned.training, place.device), place.device),
            search=msgspec.to_builtins(search),
        )


def known_bundle(root: FilePath, fingerprint: str) -> tuple[Bundle, Lineage] | None:
    """The outcome of an earlier run with this fingerprint; raises BundleError if something else is there."""
    if not (root / BUNDLE).exists():
        check_empty(root)
        return None
    lineage = lineage_of(root)
    if lineage is None or lineage.fingerprint != fingerprint:
        raise BundleError(
            f"the bundle {root.name} holds another trunk, or was trained otherwise",
            got="a learned trunk of other data or numbers" if lineage else "a bundle whose trunk is not learned",
            do="name another bundle in the project file; a trunk that learns makes a bundle of its own",
        )
    return Bundle.open(root), lineage


def changed_since(bundle: Bundle, lineage: Lineage) -> list[str]:
    """Tasks of the run that are no longer in the bundle in its versions."""
    live = {name: record.trained_with.get("lineage") for name, record in bundle.tasks.items()}
    return [name for name in lineage.tasks if live.get(name) != lineage.fingerprint]


def tell_known(bundle: Bundle, lineage: Lineage, *, keep: bool, events: Events) -> None:
    """Reports that the bundle is trained already, and which of its tasks have changed since."""
    changed = changed_since(bundle, lineage) if keep else []
    if not changed:
        events.line(f"bundle {bundle.root.name}: trained already, unchanged")
        return
    events.line(
        f"bundle {bundle.root.name}: trained already; replaced or removed since then: {', '.join(changed)} "
        "(to have them back, name another bundle)"
    )


def scores_before(bundle: Bundle, lineage: Lineage) -> Scores:
    """Scores of an earlier run: of its lineage, and of the tasks in the bundle."""
    scores = {name: {"validation": row} for name, row in lineage.validation.items()}
    return scores | {name: bundle.split_scores(name) for name in bundle.tasks}


def write_trained(
    root: FilePath, prepared: Sequence[Prepared], learned: JointResult, lineage: Lineage, *, keep: bool
) -> tuple[Scores, dict[str, HeldOutRows]]:
    """Builds the bundle under a temporary name, scores its tasks' final answers, and renames it.

    For tasks that are kept, the scores come with their outputs for the validation rows.
    """
    root.parent.mkdir(parents=True, exist_ok=True)
    with workspace(building_of(root), f"the bundle {root} cannot be written") as building:
        building.mkdir()
        scores, held = _build(building, prepared, learned, lineage, keep=keep)
        check_empty(root)
        remove_files(root, [LOCK])
        (building / "kept").rename(root)
        sync_folder(root.parent)
    return scores, held if keep else {}


def _build(
    building: FilePath, prepared: Sequence[Prepared], learned: JointResult, lineage: Lineage, *, keep: bool
) -> tuple[Scores, dict[str, HeldOutRows]]:
    """Writes the bundle to be scored, and the one to keep; returns the scores, and outputs for validation rows."""
    drafts = {p.task.name: _draft(p, learned, lineage) for p in prepared}
    write_bundle(building / "scored", learned.data)
    families = [FamilyDraft(family=owner, arrays=arrays) for owner, arrays in learned.families.items()]
    add_tasks(building / "scored", list(drafts.values()), families=families)
    session = Session(building / "scored", backend=TRAINING_BACKEND)
    tasks, scores, held = _scores(session, prepared)
    if keep:
        plan = merge({name: draft.record.path for name, draft in drafts.items()})
        for p in prepared:
            name = p.task.name
            trained = Trained(
                path=drafts[name].record.path,
                arrays=learned.arrays[name],
                scores=scores[name],
                fitted=msgspec.structs.replace(learned.fitted, history=()),  # it belongs to all tasks
                tried={},
                baselines={"constant": constant_scores(p, p.validation.examples)},
                task=tasks[name],
            )
            draft = msgspec.structs.replace(
                drafts[name],
                record=msgspec.structs.replace(drafts[name].record, task=tasks[name]),
                scores=trained.notes(tasks[name]),
                card=task_card(p, trained, learned.data.facts, plan, learned=True),
            )
            drafts[name] = with_profile_from(draft, p, session)
    write_bundle(building / "kept", learned.blended)
    if keep:
        add_tasks(building / "kept", list(drafts.values()), families=families)
    write_lineage(building / "kept", msgspec.structs.replace(lineage, scores=scores))
    return scores, held


def check_empty(root: FilePath) -> None:
    """Raises BundleError if something is at the bundle's place; a lock alone does not count."""
    names = [root.name] if root.is_file() else sorted(e.name for e in root.iterdir()) if root.is_dir() else []
    if set(names) - {LOCK}:
        raise BundleError(
            f"{root} holds something that is no bundle", got=names[:5], do="name a new folder in the project file"
        )


def building_of(root: FilePath) -> FilePath:
    """The workspace where a bundle is built under a temporary name."""
    return root.with_name(f".{root.name}.learning")


def remove_checkpoint(checkpoint: FilePath) -> None:
    """Removes the checkpoint and those next to it, including the rest of a killed run."""
    if not checkpoint.parent.is_dir():
        return
    for file in (checkpoint, *checkpoint.parent.glob(f"{checkpoint.stem}-*{SUFFIX}")):  # of donors and probed heads too
        file.unlink(missing_ok=True)
    remove_leftovers(checkpoint.parent)


@contextmanager
def writing_alone(root: FilePath) -> Iterator[None]:
    """A context that raises BundleError if another training writes the same bundle; a lock ends with its process."""
    root.parent.mkdir(parents=True, exist_ok=True)
    place = root.parent / f".{root.name}.training"
    busy = BundleError(f"another training is writing {root}", do="wait for it, or name another bundle")
    with held(place, patience=0.0, busy=busy):
        try:
            yield
        finally:
            if not place.stat().st_size:  # else it is somebody's: a lock holds nothing
                place.unlink(missing_ok=True)


def _draft(p: Prepared, learned: JointResult, lineage: Lineage) -> Draft:
    """The task as an independent one: the arrays that a family shared in training become its own."""
    name = p.task.name
    record = TaskRecord(
        task=p.task,
        path=with_owner(learned.paths[name], owner_of(p.task)),
        trunk=learned.data.digest,
        trained_with={
            "polyhead": __version__,
            "recipe": lineage.recipe["kind"],
            "lineage": lineage.fingerprint,
            **p.fingerprint(),
            "data": split_rows(p.splits),
            "numerics": lineage.numerics,
        },
    )
    return Draft(record=record, arrays=learned.arrays[name], scores={}, probes=validation_probes(p), card="")


def _scores(session: Session, prepared: Sequence[Prepared]) -> tuple[dict[str, Task], Scores, dict[str, HeldOutRows]]:
    """Every task as its validation rows decide, with its metrics on whole splits and its outputs for those rows.

    Outputs are the bundle's.
    """
    tasks, scores, held = dict[str, Task](), Scores(), dict[str, HeldOutRows]()
    for p in prepared:
        outputs = {}
        for split in p.splits[1:]:
            words = split.examples.words if kind_of(p.task).per_word else None
            outputs[split.name] = session.outputs(p.task.name, split.examples.inputs, words=words)
        decided = selection_rule.deciding(p, outputs["validation"])
        tasks[p.task.name], scores[p.task.name] = decided.task, decided.scores(outputs)
        held[p.task.name] = HeldOutRows(examples=p.validation.examples, outputs=outputs["validation"])
    return tasks, scores, held


def score_lines(prepared: Prepared, splits: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Its scores with those of the best constant answer, and comments."""
    task, rows = prepared.task, {split.name: len(split.examples.targets) for split in prepared.splits}
    scores = {split: dict(values) for split, values in splits.items()}
    baselines = {"constant": constant_scores(prepared, prepared.validation.examples)}
    shown = scores_shown(task, scores, baselines, rows=rows)
    return [f"{task.name}: {shown}", *warnings_of(task, scores, baselines, rows)]


def search_lines(learned: RecipeResult) -> list[str]:
    """One line per candidate, with the chosen one marked."""
    lines = []
    for candidate in learned.tried:
        mark = ", chosen" if candidate.candidate == learned.chosen else ""
        result = candidate.error
        if candidate.score is not None:
            result = f"validation {candidate.score:.4f} after epoch {candidate.best_epoch}"
        lines.append(f"  {candidate_name(candidate.candidate)}: {result}{mark}")
    return lines
