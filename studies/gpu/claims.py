"""The claims of the studies with whole training sets; each option at the rate that is best on validation."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from studies.evidence import Estimate, by_draw, estimate, judged
from studies.gpu.jobs import HELD_OUT, ORDER, WHOLE
from studies.results import Claim
from studies.trained import Fit, Learned, learned, whole

Row = Mapping[str, Any]
Option = tuple[str, int, str]  # method, private layers, start of a student
FULL, BRANCH, ATTENTION, MEAN = ("full", 6, ""), ("branch", 3, ""), ("pooled-attention", 0, ""), ("pooled-mean", 0, "")
Points = dict[str, dict[int, float]]  # by task and seed


def claims(rows: Sequence[Row]) -> list[Claim]:
    """All of them; what has not run yet is said in each."""
    best = at_best_rates(rows)
    full, branch = (whole(what, fits(best, option)) for what, option in (("full fine-tuning", FULL), (_THREE, BRANCH)))
    return [
        judged(
            "evidence.whole-sets-branch",
            f"{_THREE} over full fine-tuning, whole training sets, the same search for both: mean test score of "
            f"{len(ORDER)} tasks",
            ratio(best, BRANCH, FULL),
            target=0.99,
            unit="ratio",
            digits=4,
            ours=branch,
            against=full,
            lacking=lacking(best, BRANCH, FULL),
        ),
        judged(
            "evidence.whole-sets-student",
            "students of one layer over full fine-tuning, the same; 0.94 in the paper",
            ratio(best, ("student", 1, "teacher"), FULL),
            target=0.94,
            unit="ratio",
            digits=4,
            ours=whole("a student of one layer", fits(best, ("student", 1, "teacher"))),
            against=full,
            lacking=lacking(best, ("student", 1, "teacher"), FULL),
        ),
        *(_starts(best, layers) for layers in (1, 2)),
        judged(
            "evidence.whole-sets-attention",
            "attention less the mean of positions, over the mean of four layers of the frozen trunk, whole training "
            "sets, mean test score; 5.6 in the paper",
            by_draw(less(best, ATTENTION, MEAN)),
            target=5.0,
            lacking=lacking(best, ATTENTION, MEAN),
        ),
        judged(
            "evidence.whole-sets-frozen",
            "attention over the frozen trunk over full fine-tuning, whole training sets: mean test score",
            ratio(best, ATTENTION, FULL),
            target=0.95,
            unit="ratio",
            digits=4,
            against=full,
            lacking=lacking(best, ATTENTION, FULL),
        ),
        *_pre_finetuned(best),
        judged(
            "evidence.whole-sets-pals",
            "one trunk for all tasks, annealed sampling, whole training sets: projected attention of each task less "
            f"sharing alone, mean test score of {len(ORDER)} tasks",
            by_draw(less(best, _PALS, _SHARED)),
            target=0.0,
            side="above",
            ours=whole("PALs", fits(best, _PALS)),
            against=whole("sharing", fits(best, _SHARED)),
            lacking=lacking(best, _PALS, _SHARED, seeds=WHOLE.mix_seeds),
        ),
    ]


_THREE = "three private layers"
_PALS, _SHARED = ("pals", 6, ""), ("shared", 6, "")
_MIXED, _FEW, _SMOOTH = (("full", 6, name) for name in ("sets-24", "sets-6", "sets-24-r3f"))


def _pre_finetuned(best: Sequence[Row]) -> list[Claim]:
    """Aghajanyan et al. 2021: fine-tuning from trunks that learned from many sets, each at its best rate."""
    on = f"mean test score of {len(HELD_OUT)} tasks held out, whole training sets"
    held = [row for row in best if row["task"] in HELD_OUT]
    found = []
    for id, text, options, side in (
        (
            "mixed",
            f"fine-tuning from a trunk that learned from 24 sets less fine-tuning, {on}",
            (_MIXED, FULL),
            "above",
        ),
        ("few", f"the same from 6 sets, for as many updates, {on}; a loss in the paper", (_FEW, FULL), "most"),
        ("more", f"from 24 sets less from 6, {on}", (_MIXED, _FEW), "above"),
        ("r3f", f"from 24 sets with R3F less without, {on}", (_SMOOTH, _MIXED), "above"),
    ):
        first, second = options
        found.append(
            judged(
                f"evidence.whole-sets-{id}",
                text,
                by_draw(less(held, first, second)),
                target=0.0,
                side="above" if side == "above" else "most",
                ours=whole("fine-tuning from the first", fits(held, first)),
                against=whole("fine-tuning from the second", fits(held, second)),
                lacking=lacking(held, first, second, tasks=HELD_OUT, seeds=WHOLE.mix_seeds),
            )
        )
    return found


def _starts(best: Sequence[Row], layers: int) -> Claim:
    first, second = ("student", layers, "teacher"), ("student", layers, "pretrained")
    return judged(
        f"evidence.whole-sets-start-{layers}",
        f"students of {layers} layer{'s' * (layers > 1)} from their teacher less those from the trunk, whole training "
        "sets, each at its best rate, mean test score",
        by_draw(less(best, first, second)),
        target=0.0,
        side="above",
        ours=whole("the student from its teacher", fits(best, first)),
        against=whole("the student from the trunk", fits(best, second)),
        lacking=lacking(best, first, second),
    )


def at_best_rates(rows: Iterable[Row]) -> list[Row]:
    """Of each option and task the rows of one rate, the best on validation in the mean over seeds."""
    by_rate: dict[tuple[str, Option], dict[float, list[Row]]] = {}
    for row in rows:
        by_rate.setdefault((row["task"], _option(row)), {}).setdefault(row["rate"], []).append(row)
    best: list[Row] = []
    for rates in by_rate.values():
        most = max(map(len, rates.values()))  # of a search that was cut short the rates that have all seeds
        scores = {r: statistics.mean(row["validation"] for row in of) for r, of in rates.items() if len(of) == most}
        best += rates[max(scores, key=lambda rate: scores[rate])]
    return best


def points(best: Iterable[Row], option: Option) -> Points:
    """Test points by task and seed."""
    found: Points = {}
    for row in best:
        if _option(row) == option:
            found.setdefault(row["task"], {})[row["seed"]] = 100 * row["test"]
    return found


def fits(best: Iterable[Row], option: Option) -> dict[str, Learned]:
    """How far an option had learned each task."""
    own = [row for row in best if _option(row) == option]
    allowed = max((row["epochs"] for row in own), default=None)
    return learned(
        (
            Fit(
                task=row["task"],
                score=100 * row["test"],
                best_epoch=row["best_epoch"],
                metric=row["metric"],
                rows=row["train_rows"],
            )
            for row in own
        ),
        allowed=allowed,
    )


def less(best: Sequence[Row], option: Option, other: Option) -> Points:
    """The first less the second, by task and seed that both have."""
    mine, others = points(best, option), points(best, other)
    return {
        task: {seed: value - others[task][seed] for seed, value in by_seed.items() if seed in others[task]}
        for task, by_seed in mine.items()
        if task in others
    }


def ratio(best: Sequence[Row], option: Option, other: Option) -> Estimate:
    """The first's mean over tasks, over the second's, by seed that all tasks of both have."""
    mine, others = points(best, option), points(best, other)
    tasks = [task for task in mine if task in others]
    seeds = set.intersection(*(mine[task].keys() & others[task].keys() for task in tasks)) if tasks else set()
    return estimate(
        statistics.mean(mine[task][seed] for task in tasks) / statistics.mean(others[task][seed] for task in tasks)
        for seed in sorted(seeds)
    )


def lacking(
    best: Sequence[Row], *options: Option, tasks: Sequence[str] = ORDER, seeds: Sequence[int] = WHOLE.seeds
) -> str:
    """Tasks that lack seeds of any of these options; empty where there are none."""
    there = {task: [points(best, option).get(task, {}).keys() for option in options] for task in tasks}
    counts = {task: len(set(seeds).intersection(*several)) for task, several in there.items()}
    short = [f"{task} {count}" for task, count in counts.items() if count < len(seeds)]
    return f"seeds of {len(seeds)} that both have: {', '.join(short)}" if short else ""


def _option(row: Row) -> Option:
    return row["method"], row["layers"], row["init"]
