"""One run of a study, whichever: a trunk that learns, a head over a frozen trunk, full fine-tuning.

Each gives the facts of its row: scores by the task's own metric, rows of each split, what it took.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath
from typing import TYPE_CHECKING

import msgspec

from polyhead.project.strategies import Pooled
from studies.shared.runs import Facts, Say, silent

if TYPE_CHECKING:
    from polyhead.deep.recipes.joint_loop import JointLoop
    from polyhead.encoder.data import TrunkData
    from polyhead.plan import Path
    from polyhead.project.recipes import Joint, SearchGrid
    from polyhead.train.data.extract import Extractor
    from polyhead.train.data.prepared import Prepared
    from polyhead.train.runs import ProcessRank


def learn(
    prepared: Sequence[Prepared],
    data: TrunkData,
    recipe: Joint,
    *,
    held: Sequence[Prepared],
    folder: FilePath,
    label: str,
    precision: str = "bfloat16",
    say: Say = silent,
    own_heads: bool = False,
    paths: Mapping[str, Path] | None = None,
    frozen: bool = False,
    place: ProcessRank | None = None,
) -> Facts:
    """Trains `data` on these tasks together and writes the learned trunk as the bundle `folder`, without heads.

    No text of an evaluation split is trained on, of these tasks or of those that are `held` out. A checkpoint and a
    log lie beside the folder while training goes on. With `own_heads` the row holds every task's scores on whole
    splits, by the head that it learned with, and all metrics of the reported split. `paths` stand in for those of the
    tasks' strategies; a `frozen` trunk stays as it is.
    """
    from polyhead.bundle.create import write_bundle
    from polyhead.deep.recipes.joint_loop import JointLoop
    from polyhead.deep.recipes.paths import joint_paths
    from polyhead.train.data.leaks import without_leaks
    from polyhead.train.events import Events

    prepared, leaks = without_leaks(prepared, others=held)
    checkpoint = folder.with_name(folder.name + ".checkpoint")
    loop = JointLoop(
        prepared,
        paths or joint_paths(prepared, data, recipe),
        data,
        recipe,
        training=prepared[0].training,
        precision=precision,
        checkpoint=checkpoint,
        events=Events(say=say, file=folder.with_name(folder.name + ".jsonl")),
        place=place,
        frozen=frozen,
    )
    clock = time.monotonic()
    learned = loop.learn(label)
    seconds = round(time.monotonic() - clock, 1)
    shutil.rmtree(folder, ignore_errors=True)
    write_bundle(folder, learned.blended)
    checkpoint.unlink(missing_ok=True)
    return {
        "sets": len(prepared),
        "examples": {p.task.name: len(p.train.examples.targets) for p in prepared},
        "dropped": sum(drop.rows for drop in leaks.dropped),
        "steps": loop.mixture.steps * len(learned.fitted.history),
        "best_epoch": learned.fitted.best_epoch,
        "score": round(learned.fitted.score, 4),
        "validation": learned.validation,
        **(_own_scores(loop) if own_heads else {}),
        "seconds": seconds,
    }


def _own_scores(loop: JointLoop) -> Facts:
    """Each task's own metric by split, and all its metrics on the reported split, as the loop's module stands."""
    from polyhead.deep.recipes.joint_loop import joint_scores

    scores_by_task = {name: joint_scores(loop, prepared) for name, prepared in loop.prepared.items()}
    return {
        "own": {name: own_metric(loop.prepared[name], scores) for name, scores in scores_by_task.items()},
        "metrics": {name: scores["test"] for name, scores in scores_by_task.items()},
    }


def frozen_path(prepared: Prepared, extractor: Extractor) -> Path:
    """The path of a pooled task; constants of uint8 come from its own training inputs."""
    from polyhead.project.strategies.base import with_codec
    from polyhead.train.candidates import candidate_paths
    from polyhead.train.data.prepare import single_inputs

    strategy = prepared.strategy
    assert isinstance(strategy, Pooled)
    bare, _ = strategy.feature_codec()
    (path,) = candidate_paths(prepared, extractor, bare)
    if bare.name != "uint8":
        return path
    inputs = [text for several in single_inputs(prepared.train.examples.inputs, prepared.task) for text in several]
    return with_codec(path, extractor.calibrated(path, inputs, per=strategy.codec_per))


def read_once(prepared: Sequence[Prepared], extractor: Extractor) -> None:
    """Keeps what all of these tasks read, from one pass over the texts."""
    from polyhead.train.data.prepare import wanted

    extractor.fill([request for p in prepared for request in wanted(p, frozen_path(p, extractor), extractor)])


def head(prepared: Prepared, extractor: Extractor) -> Facts:
    """A pooler and a head over the frozen trunk."""
    from polyhead.train.events import Events
    from polyhead.train.heads.run import train_task

    read_once([prepared], extractor)
    clock = time.monotonic()
    path = frozen_path(prepared, extractor)
    trained = train_task(prepared, [path], extractor, checkpoints=None, events=Events())
    seconds = round(time.monotonic() - clock, 1)
    return {**_facts(prepared, trained.scores, trained.fitted.best_epoch), "seconds": seconds}


def fine_tune(
    prepared: Prepared, data: TrunkData, *, search: SearchGrid | None = None, precision: str = "bfloat16"
) -> Facts:
    """Full fine-tuning for one task; without a search, at the numbers of its own training alone."""
    from polyhead.deep.recipes.fine_tune import refine
    from polyhead.project.recipes import SearchGrid

    training = prepared.training
    alone = SearchGrid(learning_rates=(training.learning_rate,), epsilons=(1e-8,), dropouts=(training.dropout,))
    clock = time.monotonic()
    refined = refine(prepared, data, search=search or alone, precision=precision)
    facts = _facts(prepared, refined.scores, refined.learned.fitted.best_epoch)
    searched = {"chosen": msgspec.to_builtins(refined.chosen), "tried": msgspec.to_builtins(list(refined.tried))}
    return {**facts, **(searched if search is not None else {}), "seconds": round(time.monotonic() - clock, 1)}


def own_metric(prepared: Prepared, scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The score that counts, by split."""
    from polyhead.tasks.kinds import kind_of

    metric = kind_of(prepared.task).default_metric(prepared.task)
    return {split: by_metric[metric] for split, by_metric in scores.items()}


def _facts(prepared: Prepared, scores: Mapping[str, Mapping[str, float]], best_epoch: int) -> Facts:
    from polyhead.tasks.kinds import kind_of

    return {
        "metric": kind_of(prepared.task).default_metric(prepared.task),
        **own_metric(prepared, scores),
        **{f"{split.name}_rows": len(split.examples.targets) for split in prepared.splits},
        "best_epoch": best_epoch,
    }
