"""What the rows of a study of joint training say: gains over the plain trunk, and how much of the gap they close.

Scores and gains are in points (of 100), by task and seed. A mean over tasks exists for seeds that have all of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from polyhead.errors import DataError
from polyhead.values import Value
from studies.aghajanyan2021.mixes import NATURAL_MIXES, NESTED_MIXES, ROWS, SMALL_MIXES, WHOLE_MIX
from studies.aghajanyan2021.sets import HELD_OUT, NESTED
from studies.shared.rows import BySeed, Split, Spread, over_seeds, paired, rows_of_files, seeds_with_all, typed_rows

Stage = Literal["heads", "full"]
PLAIN = "plain"  # the trunk that learned from no set
BEST = f"sets-{NESTED[-1]}"
MAKE = "python -m studies aghajanyan2021 run"
_TODAY = {mix.name: mix.digest() for mix in (*NESTED_MIXES, WHOLE_MIX, *SMALL_MIXES, *NATURAL_MIXES)}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One held-out task: frozen heads, or full fine-tuning, over a mix's trunk; other keys of its row are of no use."""

    stage: Stage
    mix: str
    task: str
    rows: int  # training rows at most
    seed: int
    validation: float  # score, 0 to 1
    test: float
    metric: str = ""
    digest: str = ""  # of the mix


class Trunk(msgspec.Struct, frozen=True, kw_only=True):
    """One learned trunk, and what it took."""

    mix: str
    seed: int
    examples: dict[str, int]  # training rows by task
    score: float  # mean validation score of its own tasks
    seconds: float
    dropped: int = 0  # training rows that held a text on which something is evaluated
    digest: str = ""


class Closed(Value):
    """How much of the gap between frozen heads and full fine-tuning a trunk closes: sum of gains over sum of gaps."""

    share: float | None  # over all seeds; None where full fine-tuning is no better than the plain frozen trunk
    seeds: dict[int, float]  # the same of each seed alone, where it has a gap
    gain: Spread  # points, mean of the tasks
    gap: Spread


def read_rows(paths: Iterable[Path | str]) -> tuple[tuple[Row, ...], tuple[Trunk, ...]]:
    """All rows of these files, results files or JSON lines; raises DataError where they hold none."""
    raw, source = rows_of_files(paths, make=MAKE)
    return rows_of(raw, source=source), trunks_of(raw)


def rows_of(raw: Iterable[Mapping[str, Any]], *, source: str = "the study") -> tuple[Row, ...]:
    """The rows of held-out tasks, each once; those of a mix under other settings than today's are left out.

    Where no row of a mix has today's settings, those that came last count. Raises DataError for a row that lacks a key.
    """
    rows: dict[tuple[object, ...], Row] = {}
    for row in typed_rows(raw, Row, ("heads", "full"), source=source):
        rows.setdefault((row.stage, row.mix, row.digest, row.task, row.rows, row.seed), row)
    if not rows:
        raise DataError(f"{source} holds no run of a held-out task", allowed="rows of stage heads or full")
    counting = _digests(rows.values())
    return tuple(row for row in rows.values() if row.digest in ("", counting[row.mix]))


def trunks_of(raw: Iterable[Mapping[str, Any]], *, source: str = "the study") -> tuple[Trunk, ...]:
    """The learned trunks; of one that was learned anew the last row counts."""
    typed = typed_rows(raw, Trunk, ("trunk",), source=source)
    trunks = {(trunk.mix, trunk.digest, trunk.seed): trunk for trunk in typed}
    counting = _digests(trunks.values())
    return tuple(trunk for trunk in trunks.values() if trunk.digest in ("", counting[trunk.mix]))


def tasks_of(rows: Sequence[Row]) -> tuple[str, ...]:
    """The held-out tasks that have rows, in the study's order, then any others."""
    there = dict.fromkeys(row.task for row in rows)
    known = [dataset.task for dataset in HELD_OUT if dataset.task in there]
    return (*known, *(task for task in there if task not in known))


def scores(
    rows: Sequence[Row], mix: str = PLAIN, *, stage: Stage = "heads", size: int = ROWS, split: Split = "test"
) -> dict[str, BySeed]:
    """Points by task and seed."""
    points: dict[str, BySeed] = {}
    for row in rows:
        if (row.stage, row.mix, row.rows) == (stage, mix, size):
            value = row.test if split == "test" else row.validation
            points.setdefault(row.task, {})[row.seed] = 100 * value
    return points


def gains(rows: Sequence[Row], mix: str = BEST, *, size: int = ROWS, split: Split = "test") -> dict[str, BySeed]:
    """Frozen heads over the mix's trunk minus those over the plain one, by task and seed."""
    return _differences(scores(rows, mix, size=size, split=split), scores(rows, size=size, split=split))


def gaps(rows: Sequence[Row], *, split: Split = "test") -> dict[str, BySeed]:
    """Full fine-tuning of the plain trunk minus frozen heads over it, by task and seed."""
    return _differences(scores(rows, stage="full", split=split), scores(rows, split=split))


def mean_by_seed(rows: Sequence[Row], points: Mapping[str, BySeed]) -> BySeed:
    """The mean over the study's tasks, of each seed that has them all."""
    return seeds_with_all(points.get(task, {}) for task in tasks_of(rows))


def better(rows: Sequence[Row], mix: str = BEST, *, split: Split = "test") -> tuple[str, ...]:
    """The tasks that gain in the mean over seeds."""
    gain = gains(rows, mix, split=split)
    return tuple(task for task in tasks_of(rows) if task in gain and statistics.mean(gain[task].values()) > 0)


def gap_closed(rows: Sequence[Row], mix: str = BEST, *, split: Split = "test") -> Closed | None:
    """Sum of gains over sum of gaps, over tasks and seeds; None until one seed has all tasks of all three.

    A task on which full fine-tuning is worse than frozen heads counts with its negative gap.
    """
    gain = mean_by_seed(rows, gains(rows, mix, split=split))
    gap = mean_by_seed(rows, gaps(rows, split=split))
    seeds = sorted(gain.keys() & gap.keys())
    of_gains, of_gaps = over_seeds({s: gain[s] for s in seeds}), over_seeds({s: gap[s] for s in seeds})
    if of_gains is None or of_gaps is None:
        return None
    return Closed(
        share=of_gains.mean / of_gaps.mean if of_gaps.mean > 0 else None,
        seeds={seed: gain[seed] / gap[seed] for seed in seeds if gap[seed] > 0},
        gain=of_gains,
        gap=of_gaps,
    )


def nested(rows: Sequence[Row], *, split: Split = "test") -> dict[int, BySeed]:
    """Mean gain by number of sets and seed; no sets, no gain."""
    gain_by_count = {0: dict.fromkeys(mean_by_seed(rows, scores(rows, split=split)), 0.0)}
    gain_by_count |= {n: mean_by_seed(rows, gains(rows, f"sets-{n}", split=split)) for n in NESTED}
    return {count: points for count, points in gain_by_count.items() if points}


def sizes_of(rows: Sequence[Row], mix: str = BEST) -> tuple[int, ...]:
    """Training sizes at which heads over the mix's trunk and over the plain one were trained."""
    of_mix, plain = ({r.rows for r in rows if r.stage == "heads" and r.mix == name} for name in (mix, PLAIN))
    return tuple(sorted(of_mix & plain))


def missing(rows: Sequence[Row]) -> tuple[str, ...]:
    """Runs that the study still lacks against its own other tasks and seeds."""
    seeds, groups = {row.seed for row in rows}, dict.fromkeys((row.stage, row.mix, row.rows) for row in rows)
    lines = []
    for stage, mix, size in groups:
        points = scores(rows, mix, stage=stage, size=size)
        for task in tasks_of(rows):
            lacking = len(seeds - points.get(task, {}).keys())
            if lacking:
                done = f"{len(seeds) - lacking} of {len(seeds)}"
                lines.append(f"{done} seeds of {stage} over the trunk {mix}, {size} rows, on {task}")
    return tuple(lines)


def _differences(scores: Mapping[str, BySeed], others: Mapping[str, BySeed]) -> dict[str, BySeed]:
    differences = {task: paired(points, others.get(task, {})) for task, points in scores.items()}
    return {task: points for task, points in differences.items() if points}


def _digests(rows: Iterable[Row | Trunk]) -> dict[str, str]:
    """Of each mix the settings that count."""
    digests: dict[str, list[str]] = {}
    for row in rows:
        digests.setdefault(row.mix, []).append(row.digest)
    return {mix: _TODAY[mix] if _TODAY.get(mix) in known else known[-1] for mix, known in digests.items()}
