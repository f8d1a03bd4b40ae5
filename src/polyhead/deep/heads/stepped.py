"""Heads over kept features that are trained in steps, by the folds or the validation rows of `train.heads.trials`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path as FilePath

import msgspec
import numpy as np
import torch

from polyhead.deep.examples import FeatureExamples, module_outputs
from polyhead.deep.loop.fit import TaskLoop
from polyhead.deep.loop.loss import LOSSES
from polyhead.deep.nn.dropout import own_generator
from polyhead.deep.nn.runtime import single_thread
from polyhead.deep.sharing.part import PooledPart
from polyhead.plan import Path
from polyhead.project.strategies.base import HeadCandidate
from polyhead.tasks.kinds import kind_of
from polyhead.train.data.kept_examples import KeptExamples
from polyhead.train.data.prepared import Split
from polyhead.train.events import Events
from polyhead.train.heads import selection_rule
from polyhead.train.heads.trials import Trial, Trials
from polyhead.train.runs import SUFFIX, Fitted, stream

RACED = 1 / 3  # share of its rounds after which a head far behind the best linear one is dropped
FAR = 2  # standard errors of the difference
# With folds, updates after which a head is dropped that was never ahead of the best linear one: heads that were kept
# were ahead by then (docs/project/log.md, 2026-11-28).
AHEAD_BY = 125
MOST_TOKENS = 2**21  # that the training of each fold reads; rows of short texts end before


def trained(trials: Trials, candidate: HeadCandidate, path: Path) -> Trial:
    """The candidate, trained without the selection rows; by folds if there are any."""
    with single_thread() as threads:
        return _by_folds(trials, candidate, path, threads) if trials.folds else _by_validation(trials, candidate, path)


def trained_again(trials: Trials, trial: Trial, everything: Split) -> tuple[dict[str, np.ndarray], Fitted]:
    """The arrays of the head trained on all rows for the best number of updates."""
    with single_thread():
        module = _module(trials, trial.path)
        loop = _loop(trials, module, _examples(trials, everything, trial.path), None, events=trials.events)
        loop.advance(max(1, round(trial.setting / loop.steps)))
        return _arrays(module), loop.finish()


def _by_validation(trials: Trials, candidate: HeadCandidate, path: Path) -> Trial:
    prepared, module = trials.prepared, _module(trials, path)
    train, validation = (_examples(trials, split, path) for split in (prepared.train, prepared.validation))
    folder = trials.checkpoints
    kept = folder / f"{prepared.task.name}-{candidate.name}{SUFFIX}" if folder else None
    loop = _loop(trials, module, train, validation, checkpoint=kept, events=trials.events)
    raced = math.ceil(loop.most * RACED)
    loop.advance(raced)
    # A resumed run that is beyond this round has passed it.
    has_passed = loop.passed(raced)
    if has_passed or not _far_behind(trials, module_outputs(module.eval(), validation), loop.best_score):
        loop.advance()
    fitted = loop.finish()
    return Trial(
        candidate=candidate,
        path=path,
        outputs=module_outputs(module, validation),
        offset=None,
        setting=fitted.best_update,
        fitted=fitted,
        arrays=_arrays(module),
    )


def _by_folds(trials: Trials, candidate: HeadCandidate, path: Path, threads: int) -> Trial:
    """All folds trained side by side and validated together; the best state for all of them is kept.

    A single fold holds out too few rows to decide when to stop.
    """
    task, runs = trials.prepared.task, list[FoldRun]()
    for train, left_out in trials.sides:
        module = _module(trials, path)
        examples = _examples(trials, train, path)
        loop = _loop(trials, module, examples, None)
        read = float(examples.lengths.sum()) * loop.steps / examples.steps(trials.prepared.training.batch)
        runs.append(FoldRun(module=module, loop=loop, held=_examples(trials, left_out, path), tokens=read))
    label = f"{task.name} ({candidate.name}, {trials.folds} folds)"
    progress = trials.events.progress(label, unit="rounds", at_most=True)
    best_score, best_round, best_outputs = -float("inf"), 0, list[np.ndarray]()
    rounds = list[list[np.ndarray]]()
    patience, raced = runs[0].loop.schedule.patience, math.ceil(runs[0].loop.most * RACED)
    most, early = _most_rounds(runs), math.ceil(AHEAD_BY / runs[0].loop.steps)
    with rounds_of(runs, threads=threads) as answered:
        for number, outputs in enumerate(answered, start=1):
            score = trials.best_shift(outputs, trials.held)[0]
            if score > best_score:
                best_score, best_round, best_outputs = score, number, outputs
            if len(trials.held.targets) < selection_rule.FEW:
                rounds.append(outputs)
            note = f"validation {score:.4f}, best {best_score:.4f}"
            progress.update(number, most, note=note)
            progress.lap("round", number, most, note)
            if number >= most or number - best_round >= patience:
                break
            if number == early and not _is_ahead(trials, best_score):
                break
            if number == raced and _far_behind(trials, best_outputs, best_score):
                break
    seconds, fitted = progress.finish(), runs[0].loop.finish(number)
    if rounds:  # with few rows the best of many rounds is better than chance by chance
        sizes = [len(left_out.examples.targets) for _, left_out in trials.sides]
        best_outputs = selection_rule.of_best_rounds(task, trials.held, rounds, sizes)
    return Trial(
        candidate=candidate,
        path=path,
        outputs=best_outputs,
        offset=None,
        setting=best_round * fitted.steps,
        fitted=msgspec.structs.replace(fitted, best_epoch=best_round, seconds=seconds),
        arrays=None,
    )


def _most_rounds(runs: Sequence[FoldRun]) -> int:
    """Rounds in which no fold reads more than MOST_TOKENS, at least those of AHEAD_BY: counted, so no clock decides."""
    loop, read = runs[0].loop, max(run.tokens for run in runs)
    return min(loop.most, max(math.ceil(AHEAD_BY / loop.steps), int(MOST_TOKENS / max(read, 1.0))))


def _is_ahead(trials: Trials, best: float) -> bool:
    """Whether this score is above that of the best linear head; True where there is none."""
    linear = trials.linear
    return linear is None or best > selection_rule.choosing_score(trials.prepared.task, trials.held, linear.outputs)


def _far_behind(trials: Trials, outputs: list[np.ndarray], best: float) -> bool:
    """Whether the best linear head is significantly better than this one ever was."""
    linear, task, held = trials.linear, trials.prepared.task, trials.held
    if linear is None:
        return False
    lost = selection_rule.choosing_score(task, held, linear.outputs) - best
    shifted = trials.best_shift(outputs, held)[1]
    return lost > 0 and lost > FAR * selection_rule.paired_error(task, held, shifted, linear.outputs)


def _module(trials: Trials, path: Path) -> PooledPart:
    training = trials.prepared.training
    generator = torch.Generator().manual_seed(stream(training.seed, "init", trials.prepared.task.name))
    width = trials.source.facts.architecture.width
    return PooledPart(path, width, dropouts=training.dropouts, generator=generator)


def _arrays(module: PooledPart) -> dict[str, np.ndarray]:
    return {name: value.detach().numpy().copy() for name, value in module.state_dict().items()}


def _examples(trials: Trials, split: Split, path: Path) -> FeatureExamples:
    return FeatureExamples(trials.examples(split, path))


def _loop(
    trials: Trials,
    module: PooledPart,
    train: FeatureExamples,
    validation: FeatureExamples | None,
    *,
    checkpoint: FilePath | None = None,
    events: Events | None = None,
) -> TaskLoop:
    """A training run; without `validation` nothing stops it early, and its last weights are kept."""
    prepared, task, kind = trials.prepared, trials.prepared.task, kind_of(trials.prepared.task)
    weights = trials.class_weights()

    def score() -> float | None:
        if validation is None:
            return None
        return trials.best_shift(module_outputs(module, validation), prepared.validation.examples)[0]

    return TaskLoop(
        module,
        train,
        loss=LOSSES[kind.loss],
        score=score,
        training=prepared.training,
        weights=None if weights is None else torch.from_numpy(weights),
        checkpoint=checkpoint,
        events=events,
        label=f"{task.name} ({module.path.pool.positions})",
        last=validation is None,
    )


class FoldRun(msgspec.Struct, frozen=True, kw_only=True):
    """One fold's head, its training, and the rows that it is not trained on."""

    module: PooledPart
    loop: TaskLoop
    held: FeatureExamples
    tokens: float  # that a round reads


@contextmanager
def rounds_of(runs: Sequence[FoldRun], *, threads: int) -> Iterator[Iterator[list[np.ndarray]]]:
    """Trains all folds by one more round at each step; yields the outputs of all held-out rows, fold after fold.

    The number of `threads` changes no bit. With several, a thread without a fold in this round begins the next.
    """
    rounds = range(1, runs[0].loop.most + 1)
    if threads < 2:
        yield ([row for run in runs for row in _trained(run, number)] for number in rounds)
        return
    each = (torch.get_num_threads(),)  # a new thread uses as many OpenMP threads for products as exist, unless limited
    pool = ThreadPoolExecutor(min(threads, len(runs)), "polyhead-folds", torch.set_num_threads, each)
    try:
        yield _ahead(pool, runs, rounds)
    finally:
        pool.shutdown(cancel_futures=True)


def _ahead(pool: ThreadPoolExecutor, runs: Sequence[FoldRun], rounds: range) -> Iterator[list[np.ndarray]]:
    """The outputs of each round; what threads have no work for is one round more."""
    begun = [pool.submit(_trained, run, rounds[0]) for run in runs]
    for number in rounds:
        ahead = [
            pool.submit(_trained, run, number + 1, before)
            for run, before in zip(runs, begun, strict=True)
            if number + 1 in rounds
        ]
        yield [row for future in begun for row in future.result()]
        begun = ahead


def _trained(run: FoldRun, number: int, before: Future[list[np.ndarray]] | None = None) -> list[np.ndarray]:
    """The outputs for the held-out rows, after this many rounds; `before` is the fold's last one, maybe under way."""
    if before is not None:
        before.result()
    with own_generator():
        run.loop.advance(number)
    return module_outputs(run.module.eval(), run.held)


def part_outputs(path: Path, arrays: Mapping[str, np.ndarray], examples: KeptExamples, width: int) -> list[np.ndarray]:
    """The outputs of the part with these arrays for every example, in order; `width` is the encoder's."""
    part = PooledPart(path, width)
    part.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in arrays.items()})
    with single_thread():
        return module_outputs(part.eval(), FeatureExamples(examples))
