"""The task of each micro-batch in joint training, and how often each task is read.

All randomness here comes from the seed and a number of epochs or passes, so that an epoch does not depend on earlier
interruptions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np

from polyhead.deep.examples import TextExamples
from polyhead.deep.loop.feed import TrainingBatch
from polyhead.errors import ConfigError
from polyhead.progress import counted
from polyhead.project.recipes import Joint, Sampling, Training
from polyhead.train.data.batches import LengthSorted
from polyhead.train.runs import ProcessRank, stream


class ExpectedShares(msgspec.Struct, frozen=True, kw_only=True):
    """The expected passes over a task in a whole run; a pass is every batch of the task once."""

    task: str
    examples: int
    micro_batches: float
    passes: float


class Mixture:
    """The tasks of every update of a run: `epochs` times `steps` updates, each of several single-task micro-batches.

    `sizes` are the tasks' numbers of training examples, in task order; `batch` examples make a micro-batch. `in_a_pass`
    are the micro-batches of one pass over each task, if a budget of tokens makes more of them. Raises ConfigError for a
    task without examples, for shares that name no task or omit all of them, and for a schedule of more epochs than
    there are.
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        recipe: Joint,
        *,
        batch: int,
        epochs: int,
        seed: int,
        in_a_pass: Mapping[str, int] | None = None,
    ) -> None:
        sampling, self.tasks = recipe.sampling, tuple(sizes)
        _check(sizes, sampling, epochs)
        self._sizes, self._batch, self._tokens, self._epochs = dict(sizes), batch, recipe.tokens, epochs
        self.micro_batches = len(sizes) if sampling.kind == "all" else recipe.micro_batches
        counted = capped(sizes, sampling.cap)
        by_count = dict(zip(sizes, _batches(sizes, batch).tolist(), strict=True))
        self.in_a_pass = by_count if in_a_pass is None else dict(in_a_pass)
        batches = _batches(counted, batch) if in_a_pass is None else _part(in_a_pass, counted, sizes)
        self.steps = recipe.steps or -(-int(batches.sum()) // self.micro_batches)
        mixed = recipe.scheme == "heterogeneous"
        self._draws = self.steps * (self.micro_batches if mixed else 1)  # of an epoch
        self._repeats = 1 if mixed else self.micro_batches
        self._kind, self._seed, self._batches = sampling.kind, seed, batches
        self._shares = np.stack([_shares_of(sampling, counted, batches, epoch, epochs) for epoch in range(epochs)])
        self._run: np.ndarray | None = None  # scheme `dataset`: all draws of one task, then all of the next
        if recipe.scheme == "dataset":
            total = epochs * self._draws
            self._run = np.repeat(np.arange(len(sizes)), apportioned(self._shares.mean(axis=0), total))
            rows = self._run.reshape(epochs, self._draws)
            self._shares = np.stack([np.bincount(row, minlength=len(sizes)) / self._draws for row in rows])

    def updates(self, epoch: int) -> Iterator[tuple[str, ...]]:
        """For each update of the epoch, from 0, the tasks of its micro-batches."""
        self._check_epoch(epoch)
        drawn = self._drawn(epoch).repeat(self._repeats)
        for row in drawn.reshape(self.steps, self.micro_batches):
            yield tuple(self.tasks[index] for index in row)

    def shares(self, epoch: int) -> dict[str, float]:
        """Each task's expected share of the epoch's micro-batches; they sum to 1."""
        self._check_epoch(epoch)
        return dict(zip(self.tasks, self._shares[epoch].tolist(), strict=True))

    def expected(self) -> tuple[ExpectedShares, ...]:
        """The expected reading of each task over the whole run; less if patience ends the run early."""
        micro_batches = self._shares.sum(axis=0) * self.steps * self.micro_batches
        passes = micro_batches / [self.in_a_pass[task] for task in self.tasks]
        return tuple(
            ExpectedShares(task=task, examples=self._sizes[task], micro_batches=m, passes=p)
            for task, m, p in zip(self.tasks, micro_batches.tolist(), passes.tolist(), strict=True)
        )

    def lines(self) -> list[str]:
        """`expected` as a table, printed before training."""
        updates = self._epochs * self.steps
        size = f"{self._batch} examples"
        if self._tokens is not None:
            size = f"at most {size} and {self._tokens} tokens"
        lines = [
            f"{counted(self._epochs, 'epoch')} x {counted(self.steps, 'update')} x "
            f"{counted(self.micro_batches, 'micro-batch', several='micro-batches')} of {size}; expected"
            " for each task:"
        ]
        width = max(map(len, self.tasks))
        for share in self.expected():
            lines.append(
                f"{share.task:<{width}}  {share.examples:>9} examples  {share.micro_batches:>10.1f} micro-batches"
                f"  {share.micro_batches / updates:>6.2f} an update  {share.passes:>8.2f} passes"
            )
        return lines

    def _drawn(self, epoch: int) -> np.ndarray:
        """The tasks of an epoch's draws, by index: (draws,)."""
        start, draws, tasks = epoch * self._draws, self._draws, len(self.tasks)
        if self._run is not None:
            return self._run[start : start + draws]
        if self._kind in ("round_robin", "all"):  # an epoch continues where the last one ended
            return np.arange(start, start + draws) % tasks
        if self._kind != "shuffled":  # every draw is independent
            generator = np.random.default_rng(stream(self._seed, "mixture", epoch))
            return generator.choice(tasks, size=draws, p=self._shares[epoch])
        # Passes over a list of every task's batches; an epoch continues in the pass where the last one ended.
        listed = np.repeat(np.arange(tasks), self._batches)
        first, last = start // len(listed), (start + draws - 1) // len(listed)
        seeds = (stream(self._seed, "mixture pass", number) for number in range(first, last + 1))
        passes = np.concatenate([np.random.default_rng(seed).permutation(listed) for seed in seeds])
        return passes[start - first * len(listed) :][:draws]

    def _check_epoch(self, epoch: int) -> None:
        assert 0 <= epoch < self._epochs, epoch


class MixedFeed:
    """Micro-batches of several tasks: each task's examples in separate passes, which continue across epochs.

    With several processes each advances in every task's pass, and makes only the batches that it computes. A
    micro-batch has at most `tokens` tokens, padding included, if given.
    """

    def __init__(
        self,
        examples: Mapping[str, TextExamples],
        mixture: Mixture,
        training: Training,
        *,
        tokens: int | None = None,
        place: ProcessRank | None = None,
    ) -> None:
        self._examples, self._mixture, self._training = examples, mixture, training
        self._tokens, self._place = tokens, place or ProcessRank()
        self.steps = mixture.steps
        # number of the pass, its batches read so far, examples in all
        self._cursors = {name: [0, 0, 0] for name in examples}
        self._open: dict[str, Iterator[np.ndarray]] = {}

    def updates(self, epoch: int) -> Iterator[Sequence[tuple[str, TrainingBatch | None]]]:
        """One epoch."""
        for names in self._mixture.updates(epoch):
            members = [self._next(name) for name in names]
            yield [
                (name, self._examples[name].batch(rows) if self._place.owns(index) else None)
                for index, (name, rows) in enumerate(zip(names, members, strict=True))
            ]

    def seen(self, epochs: int) -> int:
        """Number of examples read so far."""
        return sum(cursor[2] for cursor in self._cursors.values())

    def state(self) -> dict[str, list[int]]:
        """Positions in each task's examples."""
        return {name: list(cursor) for name, cursor in self._cursors.items()}

    def restore(self, state: dict[str, list[int]]) -> None:
        """Resumes from there."""
        self._cursors = {name: list(cursor) for name, cursor in state.items()}
        self._open = {}

    def _next(self, name: str) -> np.ndarray:
        cursor = self._cursors[name]
        if name not in self._open:
            self._open[name] = self._pass(name, cursor[0])
            for _ in range(cursor[1]):
                next(self._open[name])
        members = next(self._open[name], None)
        if members is None:
            cursor[:2] = [cursor[0] + 1, 0]
            self._open[name] = self._pass(name, cursor[0])
            members = next(self._open[name])
        cursor[1] += 1
        cursor[2] += len(members)
        return members

    def _pass(self, name: str, number: int) -> Iterator[np.ndarray]:
        generator = np.random.default_rng(stream(self._training.seed, "order", name, number))
        return self._examples[name].drawn(self._training.batch, generator, tokens=self._tokens)


def mixture_of(
    sizes: Mapping[str, int], recipe: Joint, training: Training, in_a_pass: Mapping[str, int] | None = None
) -> Mixture:
    """The mixture of a training run, with as many epochs as its schedule."""
    epochs = training.most_epochs
    while True:
        mixture = Mixture(sizes, recipe, batch=training.batch, epochs=epochs, seed=training.seed, in_a_pass=in_a_pass)
        needed = training.schedule(mixture.steps, passes=1).rounds
        if needed == epochs:
            return mixture
        epochs = needed


def batches_in_a_pass(
    examples: Mapping[str, LengthSorted[TrainingBatch]], training: Training, tokens: int | None
) -> dict[str, int]:
    """Micro-batches of each task's first pass; under a budget of tokens passes differ slightly."""
    counts = {}
    for name, texts in examples.items():
        generator = np.random.default_rng(stream(training.seed, "order", name, 0))
        counts[name] = sum(1 for _ in texts.drawn(training.batch, generator, tokens=tokens))
    return counts


def capped(sizes: Mapping[str, int], cap: int | None) -> dict[str, int]:
    """The tasks' numbers of examples, up to the cap."""
    return {task: size if cap is None else min(size, cap) for task, size in sizes.items()}


def size_shares(sizes: Mapping[str, int], exponent: float) -> np.ndarray:
    """`N_i^exponent / sum_j N_j^exponent` (tasks,), computed from logarithms, so that no power overflows."""
    logs = exponent * np.log(np.array(list(sizes.values()), np.float64))
    powers = np.exp(logs - logs.max())
    return np.asarray(powers / powers.sum())


def apportioned(shares: np.ndarray, total: int) -> np.ndarray:
    """Integers that sum to `total`, by largest remainders: each is its share, rounded up or down."""
    exact = shares * (total / shares.sum())
    whole = np.floor(exact).astype(np.int64)
    first = np.argsort(whole - exact, kind="stable")[: total - int(whole.sum())]
    whole[first] += 1
    return np.asarray(whole)


def _shares_of(
    sampling: Sampling, counted: Mapping[str, int], batches: np.ndarray, epoch: int, epochs: int
) -> np.ndarray:
    """Each task's share of an epoch's draws, (tasks,)."""
    exponent = sampling.exponent
    match sampling.kind:
        case "round_robin" | "all":
            return np.full(len(counted), 1 / len(counted))
        case "shuffled":
            return np.asarray(batches / batches.sum())
        case "schedule":
            scheduled = sampling.schedule[min(epoch, len(sampling.schedule) - 1)]
            shares = np.array([scheduled.get(task, 0.0) for task in counted])
            return np.asarray(shares / shares.sum())
        case "annealed":
            exponent -= (sampling.exponent - sampling.end) * epoch / max(1, epochs - 1)
    return size_shares(counted, exponent)


def _batches(sizes: Mapping[str, int], batch: int) -> np.ndarray:
    """(tasks,) batches in one pass."""
    return np.array([math.ceil(size / batch) for size in sizes.values()], np.int64)


def _part(in_a_pass: Mapping[str, int], counted: Mapping[str, int], sizes: Mapping[str, int]) -> np.ndarray:
    """(tasks,) batches of the examples that count, as a fraction of a pass."""
    return np.array([-(-in_a_pass[task] * counted[task] // size) for task, size in sizes.items()], np.int64)


def _check(sizes: Mapping[str, int], sampling: Sampling, epochs: int) -> None:
    empty = [task for task, size in sizes.items() if size < 1]
    if empty or not sizes:
        raise ConfigError(
            "tasks to train together need examples",
            got=f"none for {', '.join(empty)}" if empty else "no task",
            allowed="1 task or more, each with 1 training example or more",
        )
    unknown = sorted({task for shares in sampling.schedule for task in shares} - set(sizes))
    if unknown:
        raise ConfigError("sampling.schedule names tasks that are not there", got=unknown, allowed=list(sizes))
    if len(sampling.schedule) > epochs:
        raise ConfigError(
            "sampling.schedule has more epochs than are trained",
            got=f"shares for {len(sampling.schedule)} epochs",
            allowed=f"at most {epochs}, as training.epochs says",
            do="raise training.epochs, or shorten the schedule",
        )
