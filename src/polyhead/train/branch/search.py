"""How many private layers a task needs: every depth trained to the end, or successive halving on validation.

Halving (Jamieson and Talwalkar 2016): all candidates train for one epoch; the better half goes on for one more, and
so on; the last ones train to the end. A candidate's training is the one that the whole grid would give it, as the
learning rate follows the whole run's schedule; only those that fall behind stop early.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import msgspec

from polyhead.train.branch.run import Branches, TrainedBranch
from polyhead.train.data.taps import OnTap
from polyhead.train.loop.fit import Course

LEAST_LEFT = 2  # candidates that train to the end


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One depth at one seed: how long it trained and its best validation score."""

    layers: int
    seed: int
    epochs: int
    score: float


class DepthSearch(msgspec.Struct, frozen=True, kw_only=True):
    """What a search found: the best branch, the best of every depth that was trained to the end, every candidate."""

    best: TrainedBranch
    ended: tuple[TrainedBranch, ...]
    candidates: tuple[Candidate, ...]


def spread(candidates: Sequence[Candidate]) -> dict[int, dict[str, float]]:
    """For each depth the maximum, mean, median and spread (standard deviation) of its seeds' validation scores.

    After halving these are the best scores that each candidate had when it stopped.
    """
    spreads: dict[int, dict[str, float]] = {}
    for layers in sorted({candidate.layers for candidate in candidates}):
        scores = [c.score for c in candidates if c.layers == layers]
        spreads[layers] = {
            "max": max(scores),
            "mean": statistics.mean(scores),
            "median": statistics.median(scores),
            "spread": statistics.stdev(scores) if len(scores) > 1 else 0.0,
        }
    return spreads


def halving(branches: Branches, depths: Sequence[int], seeds: Sequence[int]) -> DepthSearch:
    """The best of all depths and seeds, most of which train for an epoch or two only."""
    running = {(layers, seed): _begun(branches, layers, seed) for layers in depths for seed in seeds}
    epochs = max(course.most for _, course in running.values())
    fallen: list[Candidate] = []
    done = 0
    while done < epochs:
        # The last rung runs to the end, so that no candidate is judged on a schedule that it did not finish.
        done = epochs if len(running) <= LEAST_LEFT else done + 1
        for _, course in running.values():
            course.advance(done)
        for key in _worse_half(running) if done < epochs else ():
            fallen.append(_candidate(key, running.pop(key)[1]))  # its weights and optimizer are not needed again
    ended = {key: _ended(branches, key, *running.pop(key)) for key in list(running)}
    return _searched(ended, fallen)


def grid(branches: Branches, depths: Sequence[int], seeds: Sequence[int]) -> DepthSearch:
    """The best of all depths and seeds, each trained to the end."""
    ended = {}
    for layers in depths:
        for seed in seeds:
            module, course = _begun(branches, layers, seed)
            course.advance()
            ended[layers, seed] = _ended(branches, (layers, seed), module, course)
    return _searched(ended, [])


Key = tuple[int, int]


def _begun(branches: Branches, layers: int, seed: int) -> tuple[OnTap, Course]:
    return branches.course(branches.path(layers), seed=seed)


def _ended(branches: Branches, key: Key, module: OnTap, course: Course) -> tuple[TrainedBranch, Candidate]:
    return branches.grown(branches.path(key[0]), module, course), _candidate(key, course)


def _candidate(key: Key, course: Course) -> Candidate:
    return Candidate(layers=key[0], seed=key[1], epochs=course.done, score=course.best)


def _worse_half(running: Mapping[Key, tuple[OnTap, Course]]) -> list[Key]:
    keep = max(LEAST_LEFT, -(-len(running) // 2))
    return sorted(running, key=lambda key: (-running[key][1].best, key))[keep:]


def _searched(ended: Mapping[Key, tuple[TrainedBranch, Candidate]], fallen: Sequence[Candidate]) -> DepthSearch:
    """Of those that trained to the end the best; ties: fewer layers, then the smaller seed (2.a.6)."""
    ranked = sorted(ended, key=lambda key: (-ended[key][1].score, key))
    of_depth = {key[0]: key for key in reversed(ranked)}
    candidates = [*fallen, *(candidate for _, candidate in ended.values())]
    return DepthSearch(
        best=ended[ranked[0]][0],
        ended=tuple(ended[of_depth[layers]][0] for layers in sorted(of_depth)),
        candidates=tuple(sorted(candidates, key=lambda one: (one.layers, one.seed))),
    )
