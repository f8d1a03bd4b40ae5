"""What the default is worth beside what was before and beside simple baselines: rows of sets, sizes and draws."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from studies.evidence import by_draw, counted, estimate, judged
from studies.results import Claim

SIZES = ("8", "64", "1500", "all")
DRAWS = (1, 2, 3)
WORSE = -1.0  # points from which a set counts as lost
Rows = Sequence[Mapping[str, Any]]
Points = dict[str, dict[int, float]]  # by set and draw


def claims(rows: Rows, before: Rows) -> list[Claim]:
    """For each size: mean gain over the rows from before, sets that lose a point, and sets behind a baseline."""
    claimed = []
    for size in SIZES:
        ahead, gains = over_baseline(rows, size), over_before(before, rows, size)
        if gains:
            over = "test score of the default less that of before"
            claimed += [
                mean(f"heads.mean_{size}", over, gains, size),
                mean(f"heads.over_{size}", "test score of the default less the best simple baseline's", ahead, size),
                lost(f"heads.lost_{size}", "the default lost more than a point", gains, size, most=1),
                lost(
                    f"heads.behind_{size}",
                    "the best simple baseline is ahead of the default by more than a point",
                    ahead,
                    size,
                    most=0,
                ),
            ]
    return claimed


def earlier_claims(rows: Rows) -> list[Claim]:
    """Of the rows from before heads read words: the default beside the best simple baseline."""
    claimed = []
    for size in SIZES:
        if ahead := over_baseline(rows, size):
            less = "before heads read words, the default's test score less the best simple baseline's"
            fewer = "before heads read words, the default is more than a point below that baseline"
            claimed += [
                mean(f"right.mean_{size}", less, ahead, size),
                lost(f"right.lost_{size}", fewer, ahead, size, most=2),
            ]
    return claimed


def mean(id: str, text: str, points: Points, size: str) -> Claim:
    """The claim that the mean over sets is above 0."""
    return judged(
        id,
        f"{text}, mean of {len(points)} sets, {amount_of(size)}",
        by_draw(points),
        target=0,
        side="above",
        digits=3,
        note=listed(points),
        lacking=lacking_draws(points),
    )


def lost(id: str, text: str, points: Points, size: str, *, most: int) -> Claim:
    """The claim that at most so many sets lose more than a point."""
    means = {name: estimate(by_draws.values()) for name, by_draws in points.items()}
    worse = {name: points[name] for name in sorted(points) if means[name].mean < WORSE}
    return judged(
        id,
        f"sets of {len(points)} on which {text}, {amount_of(size)}",
        counted(means, WORSE, side="most"),
        target=most,
        side="most",
        unit="sets",
        note=listed(worse) or "none",
        lacking=lacking_draws(points),
    )


def quick_claims(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], *, most: float) -> Iterator[Claim]:
    """For each size what effort quick loses to the default; pairs are rows of both, of one set, size and draw."""
    for size in SIZES:
        mine = [(row, default) for row, default in pairs if row["size"] == size]
        points: Points = {}
        for row, default in mine:
            points.setdefault(row["set"], {})[row["draw"]] = 100 * (default["default"] - row["score"])
        if not points:
            continue
        timed = [pair for pair in mine if len({row.get("hardware") for row in pair}) == 1]  # on one machine
        seconds = [statistics.median(each["seconds"] for each in several) for several in zip(*timed, strict=True)]
        told = "; no pair of rows is of one machine: no seconds"
        if seconds:
            told = f"; seconds without encoding, {len(timed)} pairs of rows of one machine: {seconds[0]:.1f} beside "
            told += f"{seconds[1]:.1f} (medians; the default's were taken beside other work)"
        means = {name: statistics.mean(by_draws.values()) for name, by_draws in points.items()}
        worst = {name: points[name] for name in sorted(means, key=lambda name: -means[name])[:3]}
        yield judged(
            f"minute.quick_{size}",
            f"points of the test score that effort quick loses to the default, mean of {len(points)} sets, "
            + amount_of(size).replace("class", "label"),
            by_draw(points),
            target=most,
            side="most",
            note=f"most: {listed(worst)}{told}",
            lacking=lacking_draws(points),
        )


def best_claims(
    pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], *, sets: Sequence[str], minutes: float
) -> Iterator[Claim]:
    """Claims about effort best: points lost to the default, and minutes; pairs as of `quick_claims`."""
    points: Points = {}
    for row, default in pairs:
        points.setdefault(row["set"], {})[row["draw"]] = 100 * (default["default"] - row["score"])
    if not points:
        return
    branches = sum(row["chosen"] is None for row, _ in pairs)
    absent = [name for name in sets if name not in points]
    yield judged(
        "minute.best",
        f"points of the test score that effort best loses to the default, mean of {len(points)} sets, 1500 rows",
        by_draw(points),
        target=0,
        side="most",
        note=f"{listed(points)}; {branches} of {len(pairs)} runs kept a branch; {minutes:g} minutes were given",
        lacking=f"without {', '.join(absent)}" if absent else lacking_draws(points),
    )
    longest = max(row["seconds"] for row, _ in pairs) / 60
    alone = [row["seconds"] / 60 for row, _ in pairs if not row.get("beside_other_work")]
    slowed = f"{len(pairs) - len(alone)} of {len(pairs)} runs shared their core with other work"
    yield Claim(
        id="minute.best_minutes",
        text=f"minutes that the longest of {len(pairs)} runs of effort best took, without encoding",
        target=minutes,
        value=round(longest, 2),
        unit="minutes",
        holds=False if longest > minutes else None if absent or lacking_draws(points) else True,
        note=f"{slowed}; the longest of the others {max(alone):.2f}" if alone and len(alone) < len(pairs) else "",
    )


def over_before(before: Rows, rows: Rows, size: str) -> Points:
    """In points: the default less that of before, of each draw that both have."""
    old, new = (
        {(row["set"], row["draw"]): row["default"] for row in several if row["size"] == size}
        for several in (before, rows)
    )
    points: Points = {}
    for name, draw in sorted(new.keys() & old.keys()):
        points.setdefault(name, {})[draw] = 100 * (new[name, draw] - old[name, draw])
    return points


def over_baseline(rows: Rows, size: str) -> Points:
    """In points: the default less the baseline with the best mean over draws."""
    points: Points = {}
    for name in dict.fromkeys(row["set"] for row in rows if row["size"] == size):
        mine = [row for row in rows if (row["set"], row["size"]) == (name, size)]
        means = {kind: statistics.mean(row["baselines"][kind] for row in mine) for kind in mine[0]["baselines"]}
        best = max(means, key=lambda kind: means[kind])
        points[name] = {row["draw"]: 100 * (row["default"] - row["baselines"][best]) for row in mine}
    return points


def lacking_draws(points: Points, wanted: int = len(DRAWS)) -> str:
    """Which sets have fewer draws than are wanted, in words; empty: none."""
    few = [name for name, by_draws in points.items() if len(by_draws) < wanted]
    return f"fewer than {wanted} draws of {', '.join(few)}" if few else ""


def amount_of(size: str) -> str:
    """A size in words."""
    return "all rows" if size == "all" else f"{size} rows" + (" a class" if int(size) < 1000 else "")


def listed(points: Mapping[str, Mapping[int, float]]) -> str:
    """Each set's mean over its draws."""
    return ", ".join(f"{name} {statistics.mean(by_draws.values()):+.1f}" for name, by_draws in points.items())
