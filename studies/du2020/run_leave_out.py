"""Du et al. 2020 at our scale: frozen trunks that learned from all tasks but one, or but one group, or from all.

Two to three hours of one core a seed (`--estimate` says how many, and ends), seed by seed. It goes on where it stopped
(`runs/leave_out.jsonl`). `--part 1/2 --rows FILE` makes half of the runs, so that two processes of one thread each
share the work; `--report --rows FILE...` writes the results from the rows that are there and trains nothing: claims are
of seeds that have all rows. Learned trunks lie beside the rows (12 of 90 MB a seed); features of a task, 4 GB at most,
are deleted when it is done.
"""

from __future__ import annotations

from typing import Any

from studies.du2020.claims import leave_out_claims
from studies.du2020.effort import effort
from studies.du2020.figures import plot_tasks
from studies.du2020.leave_out import MORE, SETS, LeaveOut, Settings
from studies.du2020.study import cells_of, missing, study_table, whole_seeds
from studies.results import Study
from studies.settings import DATA, RESULTS, parsed, part_of, report, rows_of, say, study_arguments

NAME = "together_leave_out"
SEEDS = (1, 2, 3)
COMMAND = (
    "python -m studies du2020 run-leave-out --threads 1 --part 1/2 --rows FILE; "
    "python -m studies du2020 run-leave-out --report --rows FILE FILE"
)


def main() -> None:
    parser = study_arguments(__doc__, "leave_out.jsonl", seeds=SEEDS, part=True)
    parser.add_argument("--more", default="", help=f"also these sets: {', '.join(dataset.task for dataset in MORE)}")
    parser.add_argument("--estimate", action="store_true")
    options = parsed(parser)
    if options.report:
        return write_report(rows_of(options.rows))
    file = options.rows[0]
    more = tuple(dataset for dataset in MORE if dataset.task in options.more.split(","))
    study = Study(file)
    seeded = [Settings(sets=(*SETS, *more), seed=int(seed)) for seed in options.seeds.split(",")]
    several = [LeaveOut(DATA, file.with_suffix(""), study, settings, say=say) for settings in seeded]
    jobs = [job for runs in several for job in runs.jobs()]
    mine = part_of(jobs, options.part)
    efforts = effort(several[0])
    for part in efforts:
        print(f"{part.what:28s} {part.runs:4d}  {part.minutes:6.1f} min a seed")
    minutes = len(several) * sum(part.minutes for part in efforts)
    print(f"{len(jobs)} jobs, about {minutes:.0f} min of one thread; this part makes {len(mine)}")
    if not options.estimate:
        for job in mine:
            say(job.name)
            job.run()
    return None


def write_report(rows: list[dict[str, Any]]) -> None:
    """Rows are kept as they come; claims and the plot are of seeds that have all of them."""
    cells = cells_of(rows)
    seeds = whole_seeds(cells)
    if seeds:
        plot_tasks(study_table([cell for cell in cells if cell.seed in seeds]), RESULTS / f"{NAME}.png")
    claims = leave_out_claims(rows)
    report(NAME, command=COMMAND, rows=rows, claims=claims, lacking=missing(cells, SEEDS))


if __name__ == "__main__":
    main()
