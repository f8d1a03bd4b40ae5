"""Branches of every depth, full fine-tuning, students and searches on eight tasks: quality, and what a search costs.

Hours on two cores. It goes on where it stopped (`runs/branches.jsonl`). `--tasks a,b --rows FILE` makes the rows of
some tasks only, so that two processes of one thread each share the work; `--report --rows FILE...` writes the results
from the rows that are there and trains nothing. Models and outputs lie beside the rows, in a folder of the same name.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from polyhead.evaluate.report.frontier import plot_frontier, separate_models
from polyhead.plan.cost.allocate import Allocation, best_under, price_of
from polyhead.project.pretrained import load_trunk
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from studies.results import Claim, Study
from studies.settings import DATA, RESULTS, parsed, report, say, study_arguments
from studies.wei2021 import Run, as_published, missing, options_of, plot_figure2, runs_of
from studies.wei2021.runs import SEEDS, Runs
from studies.wei2021.tasks import TASKS

NAME = "branches_quality"
LAYERS = 6
FULL = LAYERS * len(TASKS)
RESAMPLES = 1000
COMMAND = (
    "python -m studies wei2021 run --threads 1 --tasks ... --rows FILE, two processes at once with half of the "
    "tasks each; then --report --rows FILE FILE"
)
LEARNED = 5.0  # points above the constant answer from which a task counts as learned


def main() -> None:
    parser = study_arguments(__doc__, "branches.jsonl")
    parser.add_argument("--tasks", default=",".join(TASKS))
    options = parsed(parser)
    tasks = options.tasks.split(",")
    if not options.report:
        make_rows(runs_in(options.rows[0]), tasks)
    if options.report or set(tasks) == set(TASKS):
        write_report([runs_in(file) for file in options.rows])


def runs_in(file: Path) -> Runs:
    return Runs(DATA, file.with_suffix(""), Study(file), say=say)


def make_rows(runs: Runs, tasks: list[str]) -> None:
    """One seed after another, so that what is there at any time is a whole study of fewer seeds."""
    for seed in SEEDS:
        runs.grid(tasks, [seed])
        runs.students(tasks, [seed])
        runs.halves(tasks, [seed])
    for seed in SEEDS:
        runs.searches(tasks, [seed])


def write_report(several: list[Runs]) -> None:
    everything = [row for runs in several for row in runs.study.rows]
    rows = sorted(everything, key=lambda row: (TASKS.index(str(row["task"])), row["seed"]))
    runs = runs_of(rows)
    by_task = {str(row["task"]): source for source in several for row in source.study.rows}
    lacking = [*missing(runs), *(f"seed {seed}" for seed in SEEDS if seed not in {run.seed for run in runs})]
    made = [] if lacking else claims(rows, runs, by_task)  # rows are kept as they come, claims wait for all of them
    report(NAME, command=COMMAND, rows=rows, claims=made, lacking=lacking)
    if lacking:
        return
    plot_figure2(runs, RESULTS / "branches_students.png")
    price = price_of("layers", load_trunk("minilm").architecture)
    full = [statistics.mean(r.points("validation") for r in runs if is_full(r, task)) for task in TASKS]
    baseline = separate_models("full fine-tuning", full, price, layers=LAYERS)
    options = options_of(runs)
    plot_frontier(
        options, price, RESULTS / "branches_frontier.png", offered=as_published(options), baselines=[baseline]
    )


def is_full(run: Run, task: str) -> bool:
    return run.method == "full" and run.task == task


def claims(rows: list[dict], runs: tuple[Run, ...], by_task: dict[str, Runs]) -> list[Claim]:
    """All of them; that of the searches only where they ran."""
    price = price_of("layers", load_trunk("minilm").architecture)
    half, third = (best_under(options_of(runs), budget, price) for budget in (FULL // 2, round(0.34 * FULL)))
    low, middle = interval(runs, half, by_task)
    learned = learned_tasks(runs, by_task)
    aimed, of_learned, goal = share(runs, half), share(runs, half, learned), share(runs, third)
    hardly = [task for task in TASKS if task not in learned]
    note = (
        f"Full fine-tuning itself is less than {LEARNED:.0f} points above the constant answer on {', '.join(hardly)}."
        if hardly
        else ""
    )
    claims_made = [
        Claim(
            id="branches.mixed-quality",
            text=f"mixed model, the exact best on validation within {FULL // 2} of {FULL} layer evaluations "
            f"({half.layers} used): mean test score of eight tasks over that of full fine-tuning "
            f"({aimed.shown}; {scale(rows)})",
            target=0.99,
            value=aimed.ratio,
            unit="ratio",
            holds=aimed.ratio >= 0.99,
            note=note,
        ),
        Claim(
            id="branches.mixed-lower-bound",
            text=f"the same ratio: lower end of its 95 % interval by paired bootstrap over test examples and seeds "
            f"({RESAMPLES} resamples, median {middle:.4f})",
            target=0.975,
            value=low,
            unit="ratio",
            holds=low >= 0.975,
            note=note,
        ),
        Claim(
            id="branches.mixed-learned",
            text=f"the same ratio over the tasks that full fine-tuning learns at this size, {', '.join(learned)} "
            f"({of_learned.shown})",
            target=0.99,
            value=of_learned.ratio,
            unit="ratio",
            holds=of_learned.ratio >= 0.99,
        ),
        Claim(
            id="branches.mixed-goal",
            text=f"the goal beyond: the best on validation within 34 % of the layer evaluations "
            f"({third.layers} of {FULL}; {goal.shown})",
            target=0.996,
            value=goal.ratio,
            unit="ratio",
            holds=goal.ratio >= 0.996,
            note=note,
        ),
        student_starts(runs),
    ]
    if any(row["method"] == "search" for row in rows):
        claims_made.append(search_cost(rows))
    return claims_made


def learned_tasks(runs: tuple[Run, ...], by_task: dict[str, Runs]) -> list[str]:
    """Tasks on which full fine-tuning scores LEARNED points or more above one and the same answer for every text."""
    tasks = []
    for task in TASKS:
        prepared = by_task[task].prepared(task)
        targets = prepared.splits[-1].examples.targets
        full = statistics.mean(
            run.points("test") for run in runs if run.option == f"full-{LAYERS}" and run.task == task
        )
        if full - 100 * constant(prepared.task, targets) >= LEARNED:
            tasks.append(task)
    return tasks


def constant(task: Task, targets: list[np.ndarray]) -> float:
    """The score of the best constant answer; 0 for correlations."""
    if kind_of(task).default_metric(task) in ("pearson", "matthews"):
        return 0.0
    width = kind_of(task).width(task)
    answers = [np.tile(np.eye(width, dtype=np.float32)[label], (len(targets), 1)) for label in range(width)]
    members = np.arange(len(targets))
    return max(score(task, outputs, targets, members) for outputs in answers)


class Share:
    """A choice's mean test score over that of full fine-tuning, by seed and in the mean."""

    def __init__(self, chosen: dict[int, float], full: dict[int, float]) -> None:
        self.ratio = statistics.mean(chosen.values()) / statistics.mean(full.values())
        seeds = [chosen[seed] / full[seed] for seed in chosen]
        spread = f" ± {statistics.stdev(seeds):.3f}" if len(seeds) > 1 else ""
        self.shown = (
            f"{statistics.mean(chosen.values()):.2f} against {statistics.mean(full.values()):.2f}, {len(seeds)} "
            f"seeds, ratio by seed {statistics.mean(seeds):.3f}{spread}"
        )


def share(runs: tuple[Run, ...], allocation: Allocation, tasks: Sequence[str] = TASKS) -> Share:
    def by_seed(name_of: Callable[[str], str]) -> dict[int, float]:
        scores: dict[int, list[float]] = {}
        for run in runs:
            if run.task in tasks and run.option == name_of(run.task):
                scores.setdefault(run.seed, []).append(run.points("test"))
        return {seed: statistics.mean(shares) for seed, shares in sorted(scores.items()) if len(shares) == len(tasks)}

    chosen, full = by_seed(lambda task: allocation.chosen[task].name), by_seed(lambda task: f"full-{LAYERS}")
    seeds = chosen.keys() & full.keys()
    return Share({seed: chosen[seed] for seed in seeds}, {seed: full[seed] for seed in seeds})


def interval(runs: tuple[Run, ...], allocation: Allocation, by_task: dict[str, Runs]) -> tuple[float, float]:
    """The 2.5th percentile and the median of the ratio, examples and seeds drawn anew, the same for both models."""
    rng = np.random.default_rng(0)
    seeds = sorted({run.seed for run in runs})
    totals = np.zeros((2, RESAMPLES))
    for task in TASKS:
        prepared = by_task[task].prepared(task)
        targets = prepared.splits[-1].examples.targets
        names = (allocation.chosen[task].name, f"full-{LAYERS}")
        outputs = {(n, s): by_task[task].outputs_of(task, s, n) for n in names for s in seeds}
        for resample in range(RESAMPLES):
            drawn, members = rng.choice(seeds, len(seeds)), rng.integers(0, len(targets), len(targets))
            for index, name in enumerate(names):
                scores = [score(prepared.task, outputs[name, seed][members], targets, members) for seed in set(drawn)]
                weights = [int((drawn == seed).sum()) for seed in set(drawn)]
                totals[index, resample] += np.average(scores, weights=weights)
    ratios = totals[0] / totals[1]
    return float(np.quantile(ratios, 0.025)), float(np.median(ratios))


def score(task: Task, outputs: np.ndarray, targets: list[np.ndarray], members: np.ndarray) -> float:
    kind = kind_of(task)
    return kind.evaluate(task, list(outputs), [targets[i] for i in members])[kind.default_metric(task)]


def search_cost(rows: list[dict]) -> Claim:
    searches = {(r["task"], r["seed"]): r for r in rows if r["method"] == "search"}
    full = {(r["task"], r["seed"]): r for r in rows if r["method"] == "full"}
    spent = sum(float(r["cpu_seconds"]) for r in searches.values())
    once = sum(float(full[key]["cpu_seconds"]) for key in searches)
    seeds = sorted({seed for _, seed in searches})
    gains = [100 * (float(r["test"]) - float(full[key]["test"])) for key, r in searches.items()]
    return Claim(
        id="branches.search-cost",
        text=f"successive halving over all six depths, its trunk pass included, against one full fine-tuning of each "
        f"task, CPU seconds, seeds {seeds} ({spent:.0f} against {once:.0f} s; what it found scores "
        f"{statistics.mean(gains):+.1f} points against full fine-tuning on test)",
        target=3.0,
        value=spent / once,
        unit="times",
        holds=spent / once <= 3.0,
    )


def student_starts(runs: tuple[Run, ...]) -> Claim:
    """Pairs of one task, length and seed; those that answer alike for every text are counted, and say nothing."""
    scores = {(r.task, r.layers, r.seed, r.init): r.points("test") for r in runs if r.method == "student"}
    gains = [
        value - scores[task, layers, seed, "pretrained"]
        for (task, layers, seed, init), value in scores.items()
        if init == "teacher" and (task, layers, seed, "pretrained") in scores
    ]
    differing = np.array([gain for gain in gains if gain != 0.0])
    drawn = np.random.default_rng(0).choice(differing, (RESAMPLES, len(differing))).mean(axis=1)
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Claim(
        id="branches.student-init",
        text=f"students that start from their teacher minus those that start from the trunk, test score: mean of "
        f"{len(differing)} pairs of task, length and seed, higher in {int((differing > 0).sum())}; "
        f"{len(gains) - len(differing)} more are equal (95 % interval {low:.2f} to {high:.2f})",
        target=0.0,
        value=float(differing.mean()),
        unit="points",
        holds=bool(low > 0),
    )


def scale(rows: list[dict]) -> str:
    sizes = sorted({int(row["train_rows"]) for row in rows})
    return f"{sizes[0]:,} to {sizes[-1]:,} training rows a task, 3 epochs"


if __name__ == "__main__":
    main()
