"""Heads trained in steps on each fold, all folds round by round, stacked, in as many threads as torch may use."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import msgspec
import numpy as np
import torch

from polyhead.deep.examples import FeatureExamples, module_outputs
from polyhead.deep.heads.stack import StackedCourse
from polyhead.deep.nn.dropout import own_generator
from polyhead.deep.sharing.part import PooledPart
from polyhead.project.recipes import Schedule


class FoldRun(msgspec.Struct, frozen=True, kw_only=True):
    """One fold's head, the rows that it is trained on, and those that it is not."""

    module: PooledPart
    train: FeatureExamples
    held: FeatureExamples
    schedule: Schedule


class FoldStack(msgspec.Struct, frozen=True, kw_only=True):
    """Folds that are trained as one."""

    runs: Sequence[FoldRun]
    course: StackedCourse

    def trained(self, rounds: int) -> list[list[np.ndarray]]:
        """Each fold's outputs for its held-out rows, after this many rounds."""
        with own_generator():
            self.course.advance(rounds)
        self.course.stack.take_apart()
        return [module_outputs(run.module.eval(), run.held) for run in self.runs]


def stacks_of(
    runs: Sequence[FoldRun], course: Callable[[Sequence[FoldRun]], StackedCourse], *, threads: int
) -> list[FoldStack]:
    """The folds in stacks, one for each thread, or more if folds differ in their schedules."""
    size, stacks = math.ceil(len(runs) / min(threads, len(runs))), list[FoldStack]()
    for schedule in dict.fromkeys(run.schedule for run in runs):
        alike = [run for run in runs if run.schedule == schedule]
        several = [alike[start : start + size] for start in range(0, len(alike), size)]
        stacks += [FoldStack(runs=group, course=course(group)) for group in several]
    return stacks


@contextmanager
def rounds_of(
    runs: Sequence[FoldRun], stacks: Sequence[FoldStack], *, threads: int
) -> Iterator[Iterator[list[np.ndarray]]]:
    """Trains all folds by one more round at each step; yields the outputs of all held-out rows, fold after fold."""
    rounds = range(1, stacks[0].course.most + 1)
    if threads < 2:
        yield (_in_order(runs, stacks, [stack.trained(number) for stack in stacks]) for number in rounds)
        return
    each = (torch.get_num_threads(),)  # a new thread uses as many OpenMP threads for products as exist, unless limited
    with ThreadPoolExecutor(min(threads, len(stacks)), "polyhead-folds", torch.set_num_threads, each) as pool:
        trained = partial(_trained, pool)
        yield (_in_order(runs, stacks, trained(stacks, number)) for number in rounds)


def _trained(pool: ThreadPoolExecutor, stacks: Sequence[FoldStack], rounds: int) -> list[list[list[np.ndarray]]]:
    return list(pool.map(lambda stack: stack.trained(rounds), stacks))


def _in_order(
    runs: Sequence[FoldRun], stacks: Sequence[FoldStack], outputs: Sequence[list[list[np.ndarray]]]
) -> list[np.ndarray]:
    by_run = {
        id(run): rows
        for stack, several in zip(stacks, outputs, strict=True)
        for run, rows in zip(stack.runs, several, strict=True)
    }
    return [row for run in runs for row in by_run[id(run)]]
