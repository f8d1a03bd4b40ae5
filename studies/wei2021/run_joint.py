"""The MT-DNN rows of Wei et al. 2021 at our scale: joint training over the eight tasks of `branches_quality`.

About four and a half hours of one core: a seed takes 11 minutes for the trunk of all tasks, and 80 for the eight that
each leave one task out. It goes on where it stopped (`runs/branches_mtdnn.jsonl`). `--tasks a,b --rows FILE` leaves out
some tasks only, so that two processes of one thread each share the work (`--jobs left-out`); `--report --rows FILE...`
writes the results from the rows that are there and trains nothing. `python -m studies wei2021 table2` reads them.
"""

from __future__ import annotations

from typing import Any

from studies.results import Claim, Study
from studies.settings import DATA, parsed, report, results_rows, rows_of, say, study_arguments
from studies.wei2021 import missing, runs_of
from studies.wei2021.claims import joint_claims
from studies.wei2021.joint import TogetherRuns
from studies.wei2021.runs import SEEDS
from studies.wei2021.tasks import TASKS

NAME, BESIDE = "branches_mtdnn", "branches_quality"
JOBS = ("together", "left-out")
COMMAND = "python -m studies wei2021 run-joint --threads 1 --rows FILE; python -m studies wei2021 run-joint --report"


def main() -> None:
    parser = study_arguments(__doc__, f"{NAME}.jsonl", jobs=JOBS, seeds=SEEDS)
    parser.add_argument("--tasks", default=",".join(TASKS), help="that are left out")
    options = parsed(parser)
    if options.report:
        rows = rows_of(options.rows)
        return report(NAME, command=COMMAND, rows=rows, claims=claims(rows), lacking=missing(runs_of(rows)))
    file = options.rows[0]
    runs = TogetherRuns(DATA, file.with_suffix(""), Study(file), say=say)
    for seed in map(int, options.seeds.split(",")):
        if "together" in options.jobs.split(","):
            runs.together([seed])
        if "left-out" in options.jobs.split(","):
            runs.left_out(options.tasks.split(","), [seed])
    return None


def claims(rows: list[dict[str, Any]]) -> list[Claim]:
    """Beside the full fine-tuning of `branches_quality`, where its results are."""
    others = results_rows(BESIDE)
    return joint_claims(rows, others) if others else []


if __name__ == "__main__":
    main()
