"""Fine-tuning of a trunk for one task, with a small fixed search over learning rate, Adam's epsilon and dropout.

The second stage of Aghajanyan et al. 2021: the trunk is a pre-trained or a pre-finetuned one, all of it learns, and
the head is a fresh one or the one that pre-finetuning left. The trunk becomes the task's own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path as FilePath

import msgspec
import numpy as np
import torch
from torch import nn

from polyhead.deep.examples import module_outputs
from polyhead.deep.loop.smooth import normalise_heads, settle_heads
from polyhead.deep.recipes.course import JointCourse, JointResult, text_examples
from polyhead.deep.recipes.paths import fingerprint_of, joint_paths
from polyhead.deep.recipes.together import JointModel
from polyhead.encoder.data import TrunkData, arrays_digest
from polyhead.errors import NotFinite, TrainError
from polyhead.project.recipes import ONE_TASK, Joint, SearchGrid, SearchPoint
from polyhead.train.data.prepared import Prepared
from polyhead.train.events import Events
from polyhead.train.runs import SUFFIX, ProcessRank
from polyhead.train.training import CandidateResult


class SearchResult(msgspec.Struct, frozen=True, kw_only=True):
    """The candidate that was chosen, what it learned, and its scores on whole splits."""

    learned: JointResult
    chosen: SearchPoint
    tried: tuple[CandidateResult, ...]
    scores: dict[str, dict[str, float]]  # split -> metric -> value


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
) -> SearchResult:
    """Fine-tunes `data` for the task once a candidate, and keeps the best on validation (ties: the first).

    The rule for stopping is that of all training here: a candidate stops after `patience` epochs without a better
    validation score, at `epochs` at the latest, and its best epoch counts. Epochs, patience, batch and seed are the
    task's own; the test split is read once, by the candidate that is chosen. `head` are the arrays of a part that
    every candidate starts from (`JointResult.arrays`, `Bundle.part`); without them heads are fresh. Given ones have
    their start: they learn with the trunk at once, without the recipe's `head_epochs`, whatever `init` a prompt has.
    `checkpoints` is a folder where a search that was stopped goes on; files of other data, numbers, trunks and heads
    may lie there too. A candidate whose numbers do not stay finite has failed, and the search goes on; raises
    NotFinite if all fail.
    """
    best: tuple[SearchPoint, JointCourse, JointResult] | None = None
    tried: list[CandidateResult] = []
    for candidate in (search or SearchGrid()).candidates:
        heard = events.within(candidate_name(candidate)) if events is not None else None
        course = _course(prepared, data, candidate, head, recipe, precision, checkpoints, heard, place)
        label = f"{prepared.task.name} {candidate_name(candidate)}"
        try:
            learned = course.learn(label, fresh=head is None)
        except NotFinite as error:
            tried.append(CandidateResult(candidate=candidate, error=error.what))
            if events is not None:
                events.line(f"{label} failed: {error.what}")
            continue
        fitted = learned.fitted
        tried.append(
            CandidateResult(
                candidate=candidate, score=fitted.score, best_epoch=fitted.best_epoch, epochs=len(fitted.history)
            )
        )
        if best is None or fitted.score > best[2].fitted.score:
            best = (candidate, course, learned)
    if best is None:
        failures = "; ".join(f"{candidate_name(result.candidate)}: {result.error}" for result in tried)
        raise NotFinite(
            f"no candidate of the search for task '{prepared.task.name}' could be trained: {failures}",
            do="search among lower learning rates",
            tried=tuple(tried),
        )
    candidate, course, learned = best
    return SearchResult(learned=learned, chosen=candidate, tried=tuple(tried), scores=course_scores(course, prepared))


def course_scores(
    course: JointCourse, prepared: Prepared, module: JointModel | None = None
) -> dict[str, dict[str, float]]:
    """One task's metrics on its whole validation and test splits, as the course's module stands, or by `module`."""
    return prepared.scores(split_outputs(course, prepared, module or course.module))


def split_outputs(course: JointCourse, prepared: Prepared, module: JointModel) -> dict[str, list[np.ndarray]]:
    """What a course's module puts out for a task's whole validation and test splits."""
    task, outputs = prepared.task, dict[str, list[np.ndarray]]()
    for split in prepared.splits[1:]:
        texts = text_examples(split.examples, task, course.tokenizer)
        outputs[split.name] = module_outputs(module.bound(task.name), texts)
    return outputs


def _course(
    prepared: Prepared,
    data: TrunkData,
    candidate: SearchPoint,
    head: Mapping[str, np.ndarray] | None,
    recipe: Joint,
    precision: str,
    checkpoints: FilePath | None,
    events: Events | None,
    place: ProcessRank | None,
) -> JointCourse:
    training = msgspec.structs.replace(
        prepared.training, learning_rate=candidate.learning_rate, dropout=candidate.dropout
    )
    tuned = msgspec.structs.replace(prepared, training=training)
    recipe = msgspec.structs.replace(recipe, layer_dropout=candidate.dropout)
    checkpoint = None
    if checkpoints is not None:
        tag = _tag(fingerprint_of([tuned], recipe, data), head, candidate.epsilon, precision)
        checkpoint = checkpoints / f"{candidate_name(candidate).replace(' ', '-')}-{tag}{SUFFIX}"
    course = JointCourse(
        [tuned],
        joint_paths([tuned], data, recipe),
        data,
        recipe,
        training=training,
        precision=precision,
        checkpoint=checkpoint,
        events=events,
        place=place,
        epsilon=candidate.epsilon,
    )
    if head is not None:
        settle_heads(course.module)  # as the given one is
        _start(course.module.model.parts[tuned.task.name], head, tuned)
        if recipe.smoothing is not None and recipe.smoothing.spectral:
            normalise_heads(course.module)
    return course


def _tag(fingerprint: str, head: Mapping[str, np.ndarray] | None, epsilon: float, precision: str) -> str:
    """A short digest of what decides a candidate's run."""
    started = ["as it is", arrays_digest(head)] if head is not None else None
    content = [fingerprint, started, epsilon, precision]
    return hashlib.sha256(msgspec.json.encode(content)).hexdigest()[:16]


def candidate_name(candidate: SearchPoint) -> str:
    """`rate 0.0001 epsilon 1e-08 dropout 0.1`."""
    return f"rate {candidate.learning_rate:g} epsilon {candidate.epsilon:g} dropout {candidate.dropout:g}"


def _start(part: nn.Module, head: Mapping[str, np.ndarray], prepared: Prepared) -> None:
    """Puts the arrays in; raises TrainError where they are those of another part."""
    own = {name: tuple(value.shape) for name, value in part.state_dict().items()}
    shapes = {name: tuple(value.shape) for name, value in head.items()}
    if own != shapes:
        differing = sorted(name for name in own.keys() | shapes.keys() if own.get(name) != shapes.get(name))
        raise TrainError(
            f"task '{prepared.task.name}' cannot start from this head",
            got=f"other arrays at {', '.join(differing[:3])}",
            allowed="arrays of a part with the same pooler, head and number of outputs",
            do="give the task the strategy and labels that the head was trained with, or start from a fresh head",
        )
    part.load_state_dict({name: torch.tensor(np.asarray(value)) for name, value in head.items()})
