"""One task, from kept features to a trained part with its scores."""

from __future__ import annotations

import time
from pathlib import Path as FilePath
from typing import Any

import msgspec
import numpy as np

from polyhead.nn.threads import one_thread
from polyhead.plan import Codec, Path
from polyhead.sharing.pooled import PooledPart
from polyhead.strategy import Pooled
from polyhead.train.baseline import Baselines, baselines_of
from polyhead.train.candidates import Candidate, candidates_of
from polyhead.train.choice import score_of
from polyhead.train.events import Events
from polyhead.train.examples import outputs_of
from polyhead.train.extract import Extractor
from polyhead.train.fit import Fitted
from polyhead.train.heads import Trials
from polyhead.train.inputs import examples_of
from polyhead.train.prepare import Prepared, Split


class Trained(msgspec.Struct, frozen=True, kw_only=True):
    """A trained part, where it sits, and how it did on whole splits."""

    path: Path
    arrays: dict[str, np.ndarray]
    scores: dict[str, dict[str, float]]  # split -> metric -> value
    fitted: Fitted
    tried: dict[str, float]  # candidate -> score on rows held out, where it was chosen
    chosen: str = ""  # which of them
    folds: int = 0  # that stand in for a validation split
    refitted: bool = False  # whether it learned from the validation rows too, after they had chosen it
    baselines: Baselines = {}  # simple answers -> split -> metric -> value

    def notes(self) -> dict[str, Any]:
        """What is written beside the part: scores, those of the baselines, what was tried, how training went.

        Without seconds: what a bundle holds is the same for the same seed. Branches that were found again come from a
        file, where an epoch's number has become a float.
        """
        history = [
            {"epoch": int(row["epoch"]), **{n: v for n, v in row.items() if n not in ("epoch", "seconds")}}
            for row in self.fitted.history
        ]
        notes: dict[str, Any] = {"splits": self.scores, "baselines": self.baselines, "tried": self.tried}
        notes["history"] = history
        if self.chosen:
            notes["chosen"] = self.chosen
        if self.folds:
            notes["folds"] = self.folds
        if self.refitted:
            notes["refitted"] = True
        return notes


def candidates(prepared: Prepared, extractor: Extractor) -> tuple[Candidate, ...]:
    """The heads that are tried for a pooled task."""
    assert isinstance(prepared.strategy, Pooled)
    return candidates_of(prepared.task, prepared.strategy, extractor.data.architecture.layers)


def paths_of(prepared: Prepared, extractor: Extractor, codec: Codec) -> list[Path]:
    """A path for each candidate."""
    shape, trunk = extractor.data.architecture, extractor.digest
    return [
        candidate.path(prepared.task, trunk=trunk, shape=shape, codec=codec)
        for candidate in candidates(prepared, extractor)
    ]


def train_task(
    prepared: Prepared,
    paths: list[Path],
    extractor: Extractor,
    *,
    checkpoints: FilePath | None,
    events: Events,
) -> Trained:
    """Tries a head on each path, and keeps one of them; the test split is read once, by the part that is kept."""
    task, began = prepared.task, time.monotonic()
    with one_thread():
        trials = Trials(prepared, extractor, checkpoints=checkpoints, events=events)
        several = [
            trials.tried(candidate, path)
            for candidate, path in zip(candidates(prepared, extractor), paths, strict=True)
        ]
        best = trials.best(several)
        module, fitted = trials.kept(best)
        scores = {"validation": trials.held.scores(task, best.outputs)}
        baselines = baselines_of(prepared, trials, several, extractor) if len(several) > 1 else {}
        if prepared.test is not None:
            scores["test"] = evaluate_part(module, prepared, prepared.test, best.path, extractor)
    arrays = {name: value.detach().numpy().copy() for name, value in module.state_dict().items()}
    tried = {trial.candidate.name: score_of(task, trials.held, trial.outputs) for trial in several}
    return Trained(
        path=best.path,
        arrays=arrays,
        scores=scores,
        fitted=msgspec.structs.replace(fitted, seconds=time.monotonic() - began),
        tried=tried if len(several) > 1 else {},
        chosen=best.candidate.name,
        folds=trials.folds,
        refitted=trials.learns_all(best),
        baselines=baselines,
    )


def evaluate_part(
    module: PooledPart, prepared: Prepared, split: Split, path: Path, extractor: Extractor
) -> dict[str, float]:
    """All metrics of the task's kind on the whole split."""
    outputs = outputs_of(module, examples_of(prepared, split, path, extractor))
    return split.examples.scores(prepared.task, outputs)
