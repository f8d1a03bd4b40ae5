"""Linear heads' answers to rows that they were not trained on, and a head that is retrained within seconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path as FilePath

import msgspec
import numpy as np

from polyhead.data.read import Examples
from polyhead.data.split import folds
from polyhead.errors import ConfigError
from polyhead.machine import one_blas_thread
from polyhead.plan import Path
from polyhead.project.recipes import Frozen, Training
from polyhead.project.strategies import Pooled
from polyhead.project.tables import Project, TaskEntry, strategy_of, training_of
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.kinds.base import softmax
from polyhead.tasks.task import Task
from polyhead.train.candidates import candidate_path, candidates
from polyhead.train.data.encoder import encoding_precision, load_any_trunk
from polyhead.train.data.extract import Extractor
from polyhead.train.data.kept_examples import examples_of
from polyhead.train.data.prepare import wanted_of
from polyhead.train.data.prepared import FEW, FOLDS, Prepared, Split
from polyhead.train.data.source import FeatureSource
from polyhead.train.data.stored import StoredFeatures, known_trunk
from polyhead.train.events import Events
from polyhead.train.heads.inputs import inputs_of
from polyhead.train.heads.label_words import prior_of, settings_to_try
from polyhead.train.heads.linear import Inputs
from polyhead.train.heads.search import PENALTIES, Swept, solution_of, swept
from polyhead.train.heads.selection_rule import clearly_less
from polyhead.train.runs import cache_folder, stream


class HeldOut(msgspec.Struct, frozen=True, kw_only=True):
    """Outputs of the heads that were not trained on a row, and the vectors that they read."""

    rows: np.ndarray  # int64: the examples, all unless their vectors take more than a gibibyte
    outputs: np.ndarray  # float32 (rows, labels)
    vectors: np.ndarray  # float32 (rows, inputs)


def features_for(
    project: Project, folder: FilePath, *, store: str | None = None, cache: FilePath | None = None
) -> FeatureSource:
    """Features of the project's frozen trunk: from a store, or those of training, with missing ones computed."""
    root = (folder / project.bundle).resolve()
    cache = cache or root.with_name(root.name + "-cache")
    precision = encoding_precision(project.training or Training(), root if store is None else None)
    if store is None:
        data = load_any_trunk(project, folder)
        return Extractor.within(data, cache, precision=precision)
    facts = known_trunk(project, folder, root) or load_any_trunk(project, folder).facts
    return StoredFeatures(store, facts, folder=cache_folder(cache, "stored"), precision=precision)


def whole_of(project: Project, entry: TaskEntry, task: Task, examples: Examples) -> Prepared:
    """A task whose labelled rows are all treated alike: none of them is a validation or test row."""
    strategy = strategy_of(project, entry)
    if not strategy.reads_kept_features or not isinstance(project.recipe, Frozen):
        strategy = Pooled()
    split = Split(name="train", examples=examples)
    return Prepared(
        task=task,
        strategy=strategy,
        training=training_of(project, entry),
        team=None,
        train=split,
        validation=split,
        test=None,
        whole=examples,
    )


def linear_inputs(prepared: Prepared, source: FeatureSource, events: Events) -> Inputs:
    """The inputs of the task's simplest linear head for each row; texts are encoded if they are not kept.

    Raises ConfigError for a task without a linear head, StoreError for a store without inputs for one.
    """
    path = _linear_path(prepared, source)
    progress = events.progress(source.doing, unit="texts")
    source.fill(wanted_of(prepared, prepared.train, path, source), update=progress.update)
    progress.finish()
    with one_blas_thread():
        examples = examples_of(prepared, prepared.train, path, source)
        return inputs_of(path, examples, loss=kind_of(prepared.task).loss, outputs=path.head.width)


def words_prior(prepared: Prepared, source: FeatureSource) -> np.ndarray | None:
    """The prior weights of such a head from labels' words; None if the source cannot encode, or all are equal."""
    if not source.encodes:
        return None
    path = _linear_path(prepared, source)
    with one_blas_thread():
        return prior_of(path, prepared.task, source)


def _linear_path(prepared: Prepared, source: FeatureSource) -> Path:
    linear = [candidate for candidate in candidates(prepared, source) if candidate.solver == "linear"]
    if not linear:
        raise ConfigError(
            f"task '{prepared.task.name}' has no linear head over kept features here",
            got=f"kind '{prepared.task.kind}', strategy '{prepared.strategy.kind}'",
            do="set positions 'auto', or keep the mean vectors of the last layers",
        )
    codec, per = prepared.strategy.feature_codec()
    return source.coded(
        candidate_path(linear[0], prepared, source, codec), is_named=prepared.strategy.names_codec, per=per, inputs=list
    )


def held_out(prepared: Prepared, source: FeatureSource, events: Events) -> HeldOut:
    """Five heads, each trained on four fifths of the rows and applied to the rest; equal texts stay together.

    The penalty is the one with the smallest mean loss over all rows.
    """
    inputs, task = linear_inputs(prepared, source, events), prepared.task
    rows = np.unique(inputs.members)
    read = prepared.train.examples.take(rows.tolist())
    inputs = msgspec.structs.replace(inputs, members=np.arange(len(rows)))
    parts = folds(read, FOLDS, stream(prepared.training.seed, "folds", task.name), task)
    with one_blas_thread():
        best = min(swept(inputs.sides(parts)), key=lambda step: float(step.losses.mean()))
        outputs = np.empty((len(inputs.values), inputs.outputs), np.float32)
        outputs[np.concatenate(parts)] = best.outputs
    return HeldOut(rows=rows, outputs=outputs, vectors=inputs.values)


TRIED = PENALTIES[::2]  # for a waiting person: every second one


class FewLabelsFit(msgspec.Struct, frozen=True, kw_only=True):
    """A head's answers to all texts, and its accuracy on labelled ones that it was not trained on."""

    probabilities: np.ndarray  # float64 (texts, labels)
    accuracy: float | None  # by folds; None if no label has a second row


class FewLabels:
    """All texts as inputs of a linear head, (texts, inputs); `prior` (labels, inputs) comes from labels' words."""

    def __init__(self, values: np.ndarray, labels: int, prior: np.ndarray | None) -> None:
        self.values, self._labels, self._prior = values, labels, prior

    def learn(self, rows: Sequence[int], labels: Sequence[int], *, seed: int = 1) -> FewLabelsFit:
        """A head trained on these texts; five folds decide on the penalty, and may change the strength of the prior."""
        targets = np.asarray(labels, np.int64)
        whole = Inputs(
            values=self.values[np.asarray(rows, np.int64)],
            targets=targets,
            members=np.arange(len(rows)),
            loss="cross_entropy",
            outputs=self._labels,
        )
        with one_blas_thread():
            strength, penalty, accuracy = self._best(whole, _dealt(targets, np.random.default_rng(seed)))
            solution = solution_of(whole.drawn(self._prior, strength), penalty)
            outputs = solution.outputs(msgspec.structs.replace(whole, values=self.values))
        return FewLabelsFit(probabilities=softmax(outputs), accuracy=accuracy)

    def _best(self, whole: Inputs, folds: Sequence[list[int]]) -> tuple[float, float, float | None]:
        """(strength of the prior, penalty, accuracy on held-out rows)."""
        prior = self._prior if len(whole.values) <= FEW * self._labels else None
        strengths, penalties = settings_to_try(prior, TRIED)
        if len(folds) < 2:
            return strengths[0], penalties[0], None
        sides = whole.sides(folds)
        targets = np.concatenate([held.targets for _, held in sides])
        best: tuple[Swept, float] | None = None
        for strength in strengths:
            steps = swept([(train.drawn(prior, strength), held) for train, held in sides], penalties)
            least = min(steps, key=lambda step: float(step.losses.mean()))
            if best is None or clearly_less(least.losses, best[0].losses, least_errors=1.0):
                best = least, strength
        assert best is not None
        accuracy = float((best[0].outputs.argmax(axis=1) == targets).mean())
        return best[1], best[0].heads[0].penalty, accuracy


def _dealt(labels: np.ndarray, generator: np.random.Generator) -> list[list[int]]:
    """Folds with about a fifth of each label; empty if no label has a second row."""
    counts = np.bincount(labels)
    if counts.max(initial=0) < 2 or np.count_nonzero(counts) < 2:
        return []
    folds: list[list[int]] = [[] for _ in range(min(FOLDS, len(labels)))]
    place = 0
    for label in np.unique(labels):
        for row in generator.permutation(np.flatnonzero(labels == label)):
            folds[place % len(folds)].append(int(row))
            place += 1
    return [sorted(fold) for fold in folds]
