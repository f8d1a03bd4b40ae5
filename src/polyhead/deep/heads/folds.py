"""Heads trained in steps on each fold, all folds round by round, in as many threads as torch may use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

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

    The number of `threads` changes no bit.
    """
    rounds = range(1, runs[0].course.most + 1)
    if threads < 2:
        yield ([row for run in runs for row in _trained(run, number)] for number in rounds)
        return
    each = (torch.get_num_threads(),)  # a new thread uses as many OpenMP threads for products as exist, unless limited
    with ThreadPoolExecutor(min(threads, len(runs)), "polyhead-folds", torch.set_num_threads, each) as pool:
        yield ([row for rows in pool.map(partial(_trained, number=number), runs) for row in rows] for number in rounds)


def _trained(run: FoldRun, number: int) -> list[np.ndarray]:
    """The outputs for the held-out rows, after this many rounds."""
    with own_generator():
        run.course.advance(number)
    return module_outputs(run.module.eval(), run.held)
