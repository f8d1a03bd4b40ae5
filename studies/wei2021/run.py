"""Branches of every depth, full fine-tuning, students and searches on eight tasks: quality, and what a search costs.

Hours on two cores. It goes on where it stopped (`runs/branches.jsonl`). `--tasks a,b --rows FILE` makes the rows of
some tasks only, so that two processes of one thread each share the work; `--report --rows FILE...` writes the results
from the rows that are there and trains nothing. Models and outputs lie beside the rows, in a folder of the same name.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from polyhead.evaluate.report.frontier import plot_frontier, separate_models
from polyhead.plan.cost.allocate import price_of
from polyhead.project.pretrained import load_trunk
from studies.results import Study
from studies.settings import DATA, RESULTS, parsed, report, say, study_arguments
from studies.wei2021 import as_published, missing, options_of, plot_figure2, runs_of
from studies.wei2021.claims import LAYERS, claims
from studies.wei2021.runs import SEEDS, Runs
from studies.wei2021.tasks import TASKS

NAME = "branches_quality"
COMMAND = (
    "python -m studies wei2021 run --threads 1 --tasks cola,sst2 --rows FILE; "
    "python -m studies wei2021 run --report --rows FILE FILE"
)


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
    lacking = [*missing(runs), *(f"seed {seed}" for seed in SEEDS if seed not in {run.seed for run in runs})]
    made = [] if lacking else claims(rows)  # rows are kept as they come, claims wait for all of them
    report(NAME, command=COMMAND, rows=rows, claims=made, lacking=lacking)
    if lacking:
        return
    plot_figure2(runs, RESULTS / "branches_students.png")
    price = price_of("layers", load_trunk("minilm").architecture)
    full = [
        statistics.mean(run.points("validation") for run in runs if (run.method, run.task) == ("full", task))
        for task in TASKS
    ]
    baseline = separate_models("full fine-tuning", full, price, layers=LAYERS)
    options = options_of(runs)
    plot_frontier(
        options, price, RESULTS / "branches_frontier.png", offered=as_published(options), baselines=[baseline]
    )


if __name__ == "__main__":
    main()
