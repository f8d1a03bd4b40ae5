"""Heads trained in steps on each fold, all folds round by round, in as many threads as torch may use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import msgspec
import numpy as np
import torch

from polyhead.deep.examples import FeatureExamples, module_outputs
from polyhead.deep.loop.fit import Course
from polyhead.deep.nn.dropout import own_generator
from polyhead.deep.sharing.part import PooledPart


class FoldRun(msgspec.Struct, frozen=True, kw_only=True):
    """One fold's head, its training, and the rows that it is not trained on."""

    module: PooledPart
    course: Course
    held: FeatureExamples
    tokens: float  # that a round reads


@contextmanager
def rounds_of(runs: Sequence[FoldRun], *, threads: int) -> Iterator[Iterator[list[np.ndarray]]]:
    """Trains all folds by one more round at each step; yields the outputs of all held-out rows, fold after fold.

    The number of `threads` changes no bit. With several, a thread without a fold in this round begins the next.
    """
    rounds = range(1, runs[0].course.most + 1)
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
        run.course.advance(number)
    return module_outputs(run.module.eval(), run.held)
