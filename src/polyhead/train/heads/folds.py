"""A head that is trained in steps on each fold, all folds round by round, in as many threads as torch may have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import numpy as np

from polyhead.nn.dropout import own_generator
from polyhead.sharing.part import PooledPart
from polyhead.train.data.examples import FeatureExamples, outputs_of
from polyhead.train.loop.fit import Course


class FoldRun(NamedTuple):
    """One fold's head, its training, and the rows that it does not learn from."""

    module: PooledPart
    course: Course
    held: FeatureExamples


@contextmanager
def rounds_of(runs: Sequence[FoldRun], *, threads: int) -> Iterator[Iterator[list[np.ndarray]]]:
    """After each further round the outputs of all rows held out, fold after fold; how many threads changes no bit."""
    rounds = range(1, runs[0].course.most + 1)
    if threads < 2:
        yield ([row for run in runs for row in _outputs(run, number)] for number in rounds)
        return
    with ThreadPoolExecutor(min(threads, len(runs)), "polyhead-folds") as pool:
        yield ([row for rows in pool.map(partial(_outputs, number=number), runs) for row in rows] for number in rounds)


def _outputs(run: FoldRun, number: int) -> list[np.ndarray]:
    with own_generator():
        run.course.advance(number)
    return outputs_of(run.module.eval(), run.held)
