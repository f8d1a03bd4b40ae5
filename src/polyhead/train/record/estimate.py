"""The time that a run takes, estimated from the first seconds of its encoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polyhead.plan import Path, cost, merge
from polyhead.progress import EARLY, duration
from polyhead.text.question import read_alone
from polyhead.train.candidates import candidates
from polyhead.train.data.prepared import FOLDS, Prepared
from polyhead.train.data.source import FeatureSource, Filled
from polyhead.train.events import Events, Progress

SAID_FROM = 20.0  # seconds of encoding
LEARNED = 3  # FLOPs of a training step for each of an answer, about;
LEARNED_KEPT = 2  # over kept features, which get no gradient
SOLVED = 600  # losses and gradients of all rows that a linear head takes over all penalties, about
PACE = 1e-9  # seconds of a FLOP over a table of word vectors, which computes next to nothing, whatever reading it takes
UPDATE_SECONDS = 0.004  # of an update of a head, beside its FLOPs


def estimating(
    progress: Progress,
    events: Events,
    todo: Sequence[Prepared],
    paths: Mapping[str, Sequence[Path]],
    source: FeatureSource,
) -> Filled:
    """Shows the progress of encoding, and says once how long encoding and heads will take, if that is long."""
    is_said = not (source.encodes and todo)
    began: tuple[float, float] | None = None

    def filled(done: int, total: int, share: float) -> None:
        nonlocal is_said, began
        progress.update(done, total, share)
        began = began or (progress.seconds, share)  # the first batch is slower than others, and not counted
        passed, encoded = progress.seconds - began[0], share - began[1]
        if is_said or passed < EARLY or encoded <= 0:
            return
        is_said, seconds = True, passed / encoded
        if seconds >= SAID_FROM:
            heads = head_seconds(todo, paths, source, texts=total, seconds=seconds)
            events.line(f"estimate: encoding about {duration(seconds)}, heads at most {duration(heads)}")

    return filled


def head_seconds(
    todo: Sequence[Prepared], paths: Mapping[str, Sequence[Path]], source: FeatureSource, *, texts: int, seconds: float
) -> float:
    """Seconds of all candidate heads, if nothing stops one early; encoding so many `texts` takes `seconds`.

    Heads compute as fast as the trunk does, beside a fixed cost of each update.
    """
    tokens = sum(p.tokens for p in todo)
    read = sum(len(text) for p in todo for split in p.splits[:2] for text in read_alone(split.examples.inputs))
    trunk = merge({p.task.name: paths[p.task.name][0] for p in todo[:1]})
    encoded = texts * cost.flops(trunk, source.facts.architecture, max(1, tokens // max(1, read)))
    flop = seconds / max(1, encoded) if source.facts.architecture.layers else PACE
    return sum(_of_task(p, paths[p.task.name], source, flop=flop) for p in todo)


def _of_task(p: Prepared, paths: Sequence[Path], source: FeatureSource, *, flop: float) -> float:
    """Seconds of training one task, about; `flop` is the seconds of one."""
    name, rows, training = p.task.name, len(p.train.examples.targets), p.training
    is_kept = p.strategy.reads_kept_features
    solvers = [candidate.solver for candidate in candidates(p, source)] if is_kept else ["steps"] * len(paths)
    learned = LEARNED_KEPT if is_kept else LEARNED
    updates = training.schedule(-(-rows // training.batch)).most_updates
    tokens = max(1, p.tokens // (rows + len(p.validation.examples.targets)))
    total = 0.0
    for path, solver in zip(paths, solvers, strict=True):
        row_seconds = flop * cost.added(merge({name: path}), name, source.facts.architecture, tokens=tokens).flops
        if solver == "linear":
            total += SOLVED * 2 * rows * row_seconds
        else:
            total += updates * (learned * training.batch * row_seconds + UPDATE_SECONDS)
    return total * (FOLDS if p.folded else 1)
