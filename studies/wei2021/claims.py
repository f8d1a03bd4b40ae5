"""The claims of Wei et al. 2021 at our scale, from the rows of the study alone."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

import msgspec

from polyhead.plan.cost.allocate import Allocation, AllocationOption, best_under
from studies.evidence import Estimate, by_draw, estimate, judged
from studies.results import Claim
from studies.trained import NOT, UNKNOWN, Learned, simple_scores, whole
from studies.wei2021.study import EPOCHS, TASKS, Run, full_learned, options_of, runs_of
from studies.wei2021.table import ONE_A_LAYER

LAYERS = 6
FULL = LAYERS * len(TASKS)
LEARNED = 5.0  # points above the constant answer from which a task counts as learned
Points = dict[str, dict[int, float]]  # by task and seed


def claims(rows: Sequence[Mapping[str, object]]) -> list[Claim]:
    """All of them; that of the searches only where they ran."""
    runs = runs_of(rows)
    options = options_of(runs)
    half, third = (best_under(options, budget, ONE_A_LAYER) for budget in (FULL // 2, round(0.34 * FULL)))
    baseline = whole("full fine-tuning", full_learned(runs))
    hardly = [task for task in TASKS if _above_constant(runs, task) < LEARNED]
    note = f"full fine-tuning is less than {LEARNED:.0f} points above the constant answer on {', '.join(hardly)}"
    known = [task for task in TASKS if task not in hardly]
    size = f"{scale(rows)}; the same seeds"
    aimed, of_known, goal = share(runs, half), share(runs, half, known), share(runs, third)
    bound = judged(
        "branches.mixed-lower-bound",
        "the same ratio: the lower end of its 95 % interval over seeds",
        aimed,
        target=0.975,
        unit="ratio",
        against=baseline,
    )
    return [
        judged(
            "branches.mixed-quality",
            f"mixed model, the exact best on validation within {FULL // 2} of {FULL} layer evaluations "
            f"({half.layers} used): mean test score of eight tasks over that of full fine-tuning ({size})",
            aimed,
            target=0.99,
            unit="ratio",
            digits=4,
            note=note if hardly else "",
            against=baseline,
        ),
        msgspec.structs.replace(bound, value=round(aimed.mean if aimed.low is None else aimed.low, 4)),
        judged(
            "branches.mixed-learned",
            f"the same ratio over the tasks on which full fine-tuning is {LEARNED:.0f} points above the constant "
            f"answer, {', '.join(known)}",
            of_known,
            target=0.99,
            unit="ratio",
            digits=4,
            against=baseline,
        ),
        judged(
            "branches.mixed-goal",
            f"the goal beyond: the best on validation within 34 % of the layer evaluations ({third.layers} of {FULL})",
            goal,
            target=0.996,
            unit="ratio",
            digits=4,
            against=baseline,
        ),
        *orderings(runs),
        *([search_cost(rows)] if any(row["method"] == "search" for row in rows) else []),
    ]


def orderings(runs: Sequence[Run]) -> list[Claim]:
    """What the paper finds of depth and students, here at equal epochs for both sides."""
    depth = [points_of(runs, f"branch-{layers}") for layers in range(1, LAYERS + 1)]
    first, last = less(depth[1], depth[0]), less(depth[-1], depth[-2])
    students = {(n, init): points_of(runs, _student(n, init)) for n in (1, 2) for init in ("teacher", "pretrained")}
    starts = [less(students[n, "teacher"], students[n, "pretrained"]) for n in (1, 2)]
    both = {f"{task} {n}": points for n, one in enumerate(starts, 1) for task, points in one.items() if points}
    equal = sum(gain == 0 for points in both.values() for gain in points.values())
    higher = sum(gain > 0 for points in both.values() for gain in points.values())
    count = sum(map(len, both.values()))
    at = f"mean test score of eight tasks, {EPOCHS} epochs each"
    return [
        judged(
            "branches.student-init",
            f"students that start from their teacher minus those that start from the trunk, at equal epochs, test "
            f"score: mean by seed of {len(both)} pairs of task and length",
            by_draw(both),
            target=0.0,
            side="above",
            note=f"higher in {higher} of {count} runs, equal in {equal}",
        ),
        judged("evidence.more-layers", f"two private layers less one, {at}", by_draw(first), target=0.0, side="above"),
        judged(
            "evidence.layers-diminish",
            f"what the second private layer brings, less what the sixth brings, {at}",
            by_draw(less(first, last)),
            target=0.0,
            side="above",
        ),
        judged(
            "evidence.student-branch",
            "a student of one layer less a branch of one layer, which was not distilled, mean test score of the tasks "
            "that have both",
            by_draw(less(students[1, "teacher"], depth[0])),
            target=0.0,
        ),
    ]


def joint_claims(rows: Sequence[Mapping[str, object]], others: Sequence[Mapping[str, object]]) -> list[Claim]:
    """MT-DNN (Liu et al. 2019), the paper's joint baseline, against full fine-tuning, whose rows are `others`."""
    runs, beside = runs_of(rows), runs_of(others)
    full = points_of(beside, f"full-{LAYERS}")
    trunks = [row for row in rows if row["method"] == "trunk"]
    last = sum(row["best_epoch"] == EPOCHS for row in trunks)
    state = NOT if last else UNKNOWN
    why = f"MT-DNN is {state} ({last} of {len(trunks)} trunks end at the last epoch)"
    ours = Learned(state=state, why=why)
    against, made = whole("full fine-tuning", full_learned(beside)), []
    for id, method, title in (
        ("evidence.mtdnn-full", "together", "MT-DNN (full), one trunk for all tasks"),
        ("evidence.mtdnn-left-out", "left-out", "MT-DNN (leave-one-out), frozen, with an output layer"),
    ):
        found = by_draw(less(points_of(runs, f"{method}-{LAYERS}"), full))
        text = f"{title}, less full fine-tuning, mean test score of eight tasks"
        made.append(judged(id, text, found, target=0.0, ours=ours, against=against))
    return made


def points_of(runs: Sequence[Run], name: str) -> Points:
    """Test points of an option by task and seed."""
    points: Points = {}
    for run in runs:
        if run.option == name:
            points.setdefault(run.task, {})[run.seed] = run.points("test")
    return points


def less(points: Mapping[str, Mapping[int, float]], others: Mapping[str, Mapping[int, float]]) -> Points:
    """The first less the second, by task and seed that both have."""
    return {
        task: {seed: value - others[task][seed] for seed, value in by_seed.items() if seed in others[task]}
        for task, by_seed in points.items()
        if task in others
    }


def share(runs: Sequence[Run], allocation: Allocation, tasks: Sequence[str] = TASKS) -> Estimate:
    """A choice's mean test score over that of full fine-tuning, by seed."""

    def by_seed(name_of: Callable[[AllocationOption], str]) -> dict[int, float]:
        columns = [points_of(runs, name_of(allocation.chosen[task])).get(task, {}) for task in tasks]
        seeds = set.intersection(*map(set, columns))
        return {seed: statistics.mean(column[seed] for column in columns) for seed in sorted(seeds)}

    chosen, full = by_seed(lambda option: option.name), by_seed(lambda _: f"full-{LAYERS}")
    return estimate(chosen[seed] / full[seed] for seed in sorted(chosen.keys() & full.keys()))


def search_cost(rows: Sequence[Mapping[str, object]]) -> Claim:
    """What a search takes, over one full fine-tuning of so few epochs."""
    searches = {(r["task"], r["seed"]): r for r in rows if r["method"] == "search"}
    full = {(r["task"], r["seed"]): r for r in rows if r["method"] == "full"}
    spent = sum(float(str(row["cpu_seconds"])) for row in searches.values())
    once = sum(float(str(full[key]["cpu_seconds"])) for key in searches)
    return Claim(
        id="branches.search-cost",
        text=f"successive halving over all six depths, its trunk pass included, against one full fine-tuning of each "
        f"task, {EPOCHS} epochs at one rate, CPU seconds ({spent:.0f} against {once:.0f})",
        target=3.0,
        value=spent / once,
        unit="times",
        holds=spent / once <= 3.0,
        note="of time alone: this full fine-tuning has not converged, and one that has takes longer",
    )


def scale(rows: Sequence[Mapping[str, object]]) -> str:
    """How many rows and epochs."""
    sizes = sorted({int(str(row["train_rows"])) for row in rows if "train_rows" in row})
    return f"{sizes[0]:,} to {sizes[-1]:,} training rows a task, {EPOCHS} epochs"


def _above_constant(runs: Sequence[Run], task: str) -> float:
    """Points of full fine-tuning above the constant answer where that is known; correlations have 0, others count."""
    full = [run for run in runs if run.task == task and run.option == f"full-{LAYERS}"]
    constant = simple_scores(task, full[0].metric, 10**9).get("constant", 0.0)
    return statistics.mean(run.points("test") for run in full) - constant


def _student(layers: int, init: str) -> str:
    return f"student-{layers}" + ("" if init == "teacher" else f" from {init}")
