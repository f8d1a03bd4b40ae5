"""Full fine-tuning and branches that have learned: three rates each, up to ten epochs, early stopping; eight tasks.

Hours on one core. It goes on where it stopped (`runs/branches_searched.jsonl`). `--tasks a,b --rows FILE`
makes the rows of some tasks only, so that two processes of one thread each share the work; `--report --rows FILE...`
writes the results from the rows that are there and trains nothing.
"""

from __future__ import annotations

from studies.results import Study
from studies.settings import DATA, parsed, report, rows_of, say, study_arguments
from studies.wei2021.runs import SEEDS
from studies.wei2021.searched import SearchedRuns, claims, lacking
from studies.wei2021.tasks import TASKS

NAME = "branches_searched"
COMMAND = (
    "python -m studies wei2021 run-searched --threads 1 --tasks cola,sst2 --rows FILE; "
    "python -m studies wei2021 run-searched --report --rows FILE FILE"
)


def main() -> None:
    parser = study_arguments(__doc__, f"{NAME}.jsonl", seeds=SEEDS)
    parser.add_argument("--tasks", default=",".join(TASKS))
    options = parsed(parser)
    if options.report:
        rows = rows_of(options.rows)
        return report(NAME, command=COMMAND, rows=rows, claims=claims(rows), lacking=lacking(rows))
    file = options.rows[0]
    runs = SearchedRuns(DATA, file.with_suffix(""), Study(file), say=say)
    return runs.search(options.tasks.split(","), [int(seed) for seed in options.seeds.split(",")])


if __name__ == "__main__":
    main()
