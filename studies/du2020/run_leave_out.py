"""Du et al. 2020 at our scale: frozen trunks that learned from all tasks but one, or but one group, or from all.

About two hours of one core (`--estimate` says how many, and ends). It goes on where it stopped
(`runs/leave_out.jsonl`). `--part 1/2 --rows FILE` makes half of the runs, so that two processes of one thread each
share the work; `--report --rows FILE...` writes the results from the rows that are there and trains nothing. Learned
trunks lie beside the rows (12 of 90 MB each); features of a task, 4 GB at most, are deleted when it is done.
"""

from __future__ import annotations

from typing import Any

from studies.du2020.claims import leave_out_claims
from studies.du2020.effort import effort
from studies.du2020.figures import plot_tasks
from studies.du2020.leave_out import MORE, SETS, LeaveOut, Settings
from studies.du2020.study import cells_of, missing, study_table
from studies.results import Study
from studies.settings import DATA, RESULTS, parsed, part_of, report, rows_of, say, study_arguments

NAME = "together_leave_out"
COMMAND = (
    "python -m studies du2020 run-leave-out --threads 1 --part 1/2 --rows FILE; "
    "python -m studies du2020 run-leave-out --report --rows FILE FILE"
)


def main() -> None:
    parser = study_arguments(__doc__, "leave_out.jsonl", part=True)
    parser.add_argument("--more", default="", help=f"also these sets: {', '.join(dataset.task for dataset in MORE)}")
    parser.add_argument("--estimate", action="store_true")
    options = parsed(parser)
    if options.report:
        return write_report(rows_of(options.rows))
    file = options.rows[0]
    more = tuple(dataset for dataset in MORE if dataset.task in options.more.split(","))
    settings = Settings(sets=(*SETS, *more))
    runs = LeaveOut(DATA, file.with_suffix(""), Study(file), settings, say=say)
    jobs = runs.jobs()
    mine = part_of(jobs, options.part)
    efforts = effort(runs)
    for part in efforts:
        print(f"{part.what:28s} {part.runs:4d}  {part.minutes:6.1f} min")
    minutes = sum(part.minutes for part in efforts)
    print(f"{len(jobs)} jobs, about {minutes:.0f} min of one thread; this part makes {len(mine)}")
    if not options.estimate:
        for job in mine:
            say(job.name)
            job.run()
    return None


def write_report(rows: list[dict[str, Any]]) -> None:
    """Rows are kept as they come; claims wait for all of them."""
    cells = cells_of(rows)
    lacking = missing(cells)
    claims = [] if lacking else leave_out_claims(rows)
    if not lacking:
        plot_tasks(study_table(cells), RESULTS / f"{NAME}.png")
    report(NAME, command=COMMAND, rows=rows, claims=claims, lacking=lacking)


if __name__ == "__main__":
    main()
