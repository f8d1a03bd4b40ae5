"""Paths of heads over kept features, and the simple answers that every trained part is compared with."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from polyhead.bundle.read import Bundle
from polyhead.nn.runtime import one_thread
from polyhead.plan import Codec, Path
from polyhead.strategies.base import Candidate, with_codec
from polyhead.strategies.pooled import baseline_of
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.read import Examples
from polyhead.text.tokenize import Input
from polyhead.train.data.examples import outputs_of
from polyhead.train.data.extract import Extractor
from polyhead.train.data.features import examples_of
from polyhead.train.data.prepare import single_inputs
from polyhead.train.data.prepared import Prepared
from polyhead.train.heads.select import Trial, Trials, best_linear
from polyhead.train.loop.events import Events
from polyhead.train.record.draft import Baselines, Trained


def candidates(prepared: Prepared, extractor: Extractor) -> tuple[Candidate, ...]:
    """The heads that are tried for a task."""
    return prepared.strategy.candidates(prepared.task, extractor.data.architecture.layers)


def paths_of(prepared: Prepared, extractor: Extractor, codec: Codec) -> list[Path]:
    """A path for each candidate."""
    shape, trunk = extractor.data.architecture, extractor.digest
    return [
        candidate.strategy.path(prepared.task, trunk=trunk, shape=shape, codec=codec)
        for candidate in candidates(prepared, extractor)
    ]


def feature_paths(
    todo: Sequence[Prepared], prepared: Sequence[Prepared], extractor: Extractor, bundle: Bundle
) -> dict[str, list[Path]]:
    """Each task's candidate paths; a codec's constants are shared by all tasks that store the same value.

    A bundle's own constants come first, so that a task added later reads the features that are kept already. Others
    come from the texts of all tasks, those that are done too, so that a resumed run finds the same ones.
    """
    known: dict[bytes, Codec] = {}
    for record in bundle.tasks.values():
        per = "dimension" if len(record.path.pool.codec.scale) > 1 else "tensor"
        known.setdefault(_key(record.path, per), record.path.pool.codec)
    paths: dict[str, list[Path]] = {}
    for p in todo:
        bare, per = p.strategy.feature_codec()
        paths[p.task.name] = []
        for path in paths_of(p, extractor, bare):
            key = _key(path, per)
            if key not in known:
                known[key] = extractor.calibrated(path, _texts_like(key, prepared, extractor), per=per)
            paths[p.task.name].append(with_codec(path, known[key]))
    return paths


def _key(path: Path, per: str) -> bytes:
    """The stored value of a path, codec constants left out."""
    pool = path.stored().pool
    bare = msgspec.structs.replace(pool.codec, scale=(), zero=(), arrays="")
    of = per if pool.codec.format.has_constants else ""
    return msgspec.json.encode([msgspec.structs.replace(pool, codec=bare), of])


def _texts_like(key: bytes, prepared: Sequence[Prepared], extractor: Extractor) -> list[Input]:
    """Training inputs of every task that stores the same value, one task after the other."""
    lists: list[list[Input]] = []
    for p in prepared:
        bare, per = p.strategy.feature_codec()
        if any(_key(path, per) == key for path in paths_of(p, extractor, bare)):
            lists += single_inputs(p.train.examples.inputs, p.task)
    return [text for inputs in lists for text in inputs]


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
