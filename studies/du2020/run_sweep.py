"""Du et al. 2020 at our scale: how many layers to average, and whether to shrink before or after the mean.

On the plain trunk, ten poolers on each of eight tasks and three seeds: about twenty minutes of one core a seed. It
goes on where it stopped (`runs/sweep.jsonl`). `--part 1/2 --rows FILE` makes half of the runs, so that two processes of
one thread each share the work; `--report --rows FILE...` writes the results from the rows that are there and trains
nothing. Features of a task, 8 GB at most, are deleted when it is done. `python -m studies du2020 sweep` reads the rows.
"""

from __future__ import annotations

from typing import Any

from studies.du2020.claims import sweep_claims
from studies.du2020.leave_out import SETS
from studies.du2020.sweep import Sweep, missing, plot_sweep, sweep_lines, swept_of
from studies.results import Study
from studies.settings import DATA, RESULTS, parsed, part_of, report, rows_of, say, study_arguments

NAME = "together_sweep"
SEEDS = (1, 2, 3)
COMMAND = (
    "python -m studies du2020 run-sweep --threads 1 --part 1/2 --rows FILE; "
    "python -m studies du2020 run-sweep --report --rows FILE FILE"
)


def main() -> None:
    options = parsed(study_arguments(__doc__, "sweep.jsonl", seeds=SEEDS, part=True))
    if options.report:
        return write_report(rows_of(options.rows))
    file = options.rows[0]
    runs = Sweep(DATA, file.with_suffix(""), Study(file), say=say)
    jobs = [(dataset, int(seed)) for seed in options.seeds.split(",") for dataset in SETS]
    for dataset, seed in part_of(jobs, options.part):
        runs.run(dataset, seed)
    return None


def write_report(rows: list[dict[str, Any]]) -> None:
    """Rows as they come; claims when three seeds are there."""
    runs = swept_of(rows)
    lacking = missing(runs, [dataset.task for dataset in SETS], SEEDS)
    if runs:
        plot_sweep(sweep_lines(runs), RESULTS / f"{NAME}.png")
    report(NAME, command=COMMAND, rows=rows, claims=[] if lacking else sweep_claims(rows), lacking=lacking)


if __name__ == "__main__":
    main()
