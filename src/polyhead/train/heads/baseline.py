"""What every trained part is compared with: the best answer that reads no text, and a linear head."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from polyhead.nn.threads import one_thread
from polyhead.plan import Codec, Path
from polyhead.strategies.base import Candidate
from polyhead.strategies.pooled import baseline_of
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.read import Examples
from polyhead.train.data.examples import outputs_of
from polyhead.train.data.extract import Extractor
from polyhead.train.data.inputs import examples_of
from polyhead.train.data.prepared import Prepared
from polyhead.train.heads.paths import candidates
from polyhead.train.heads.select import Trial, Trials, best_linear
from polyhead.train.heads.trained import Baselines, Trained
from polyhead.train.loop.events import Events

"""`constant` and `linear`: split -> metric -> value."""


def constant_scores(prepared: Prepared, held: Examples) -> dict[str, dict[str, float]]:
    """The scores of one answer for every row, the best by the training rows."""
    task, targets = prepared.task, prepared.train.examples.targets
    splits = {"validation": held} | ({"test": prepared.test.examples} if prepared.test else {})
    scores = {}
    for name, examples in splits.items():
        outputs = kind_of(task).constant(task, targets, examples.each())
        if outputs is not None:
            scores[name] = examples.scores(task, outputs)
    return scores


def baseline_path(prepared: Prepared, path: Path, extractor: Extractor) -> Path | None:
    """The path of the linear head with which one on `path` is compared; None where it needs no more or has none.

    Of a task over words it reads the same words; of pairs the mean vectors of the last layer, else of the last two.
    """
    task, is_kept = prepared.task, prepared.strategy.reads_kept_features
    kind = kind_of(task)
    has_linear = is_kept and any(head.solver == "linear" for head in candidates(prepared, extractor))
    if kind.loss == "span_cross_entropy" or has_linear:
        return None
    if kind.per_word and is_kept:
        head = msgspec.structs.replace(path.head, hidden=0, activation="tanh", hidden_part=None)
        return Path(nodes=(*path.nodes[:-1], head))
    shape, codec = extractor.data.architecture, Codec()
    return baseline_of(task).path(task, trunk=extractor.digest, shape=shape, codec=codec)


def with_baselines(prepared: Prepared, trained: Trained, extractor: Extractor) -> Trained:
    """The same with the scores of simple answers, where it has none yet."""
    if trained.baselines:
        return trained
    with one_thread():
        trials = Trials(prepared, extractor, checkpoints=None, events=Events())
        several = []
        path = baseline_path(prepared, trained.path, extractor)
        if path is not None:
            strategy = baseline_of(prepared.task)
            several = [trials.tried(Candidate(name="linear", strategy=strategy, solver="linear"), path)]
        baselines = baselines_of(prepared, trials, several, extractor)
    return msgspec.structs.replace(trained, baselines=baselines)


def baselines_of(prepared: Prepared, trials: Trials, several: Sequence[Trial], extractor: Extractor) -> Baselines:
    """Scores of simple answers on the rows that choose, and on test; the linear one is the best of those tried."""
    baselines: Baselines = {"constant": constant_scores(prepared, trials.held)}
    best = best_linear(several)
    if best is not None:
        baselines["linear"] = {"validation": trials.held.scores(prepared.task, best.outputs)}
        if prepared.test is not None:
            module, _ = trials.kept(best)
            outputs = outputs_of(module, examples_of(prepared, prepared.test, best.path, extractor))
            baselines["linear"]["test"] = prepared.test.examples.scores(prepared.task, outputs)
    return baselines
