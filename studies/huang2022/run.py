"""Prompts against their baselines on the seven NHC tasks (Huang et al. 2022): what each method scores and costs.

On one busy core with bfloat16 arithmetic a run of 3,150 updates takes 8 to 13 minutes, main (10 methods, 5 seeds) about
8 h 30 min, ablation (5 more methods, 3 seeds) 3 h, grid (figure 2, one seed) 1 h. `--size 450` takes half of the
headlines of each category, and half of the time.

It goes on where it stopped (`runs/conditioning_nhc.jsonl`). `--part 1/2 --rows FILE` makes every other group of runs,
so that two processes of one thread each share the work; `--jobs` names some of the runs; `--report --rows FILE...`
writes the results from the rows that are there and trains nothing. `python -m studies huang2022` reads them.
"""

from __future__ import annotations

from collections.abc import Sequence

from studies import huang2022 as paper
from studies.huang2022.claims import claims
from studies.huang2022.methods import (
    ABLATION,
    ABLATION_SEEDS,
    GRID,
    GRID_SEEDS,
    MAIN,
    MAIN_SEEDS,
    SEARCH,
    SEARCH_SEEDS,
    Method,
)
from studies.huang2022.runs import Runs, Scale
from studies.results import Study
from studies.settings import DATA, RESULTS, checked_names, parsed, part_of, report, rows_of, say, study_arguments

NAME = "conditioning_nhc"
COMMAND = (
    "python -m studies huang2022 run --threads 1 --size 450 --seeds 1 --rows FILE; "
    "python -m studies huang2022 run --report --rows FILE FILE"
)
JOBS = ("main", "ablation", "search", "grid")


def main() -> None:
    parser = study_arguments(__doc__, f"{NAME}.jsonl", jobs=JOBS, seeds=MAIN_SEEDS, part=True, device=True)
    parser.add_argument("--size", type=int, help="headlines of a category, by default all: 900")
    options = parsed(parser)
    if options.report:
        write_report(rows_of(options.rows))
        return
    file = options.rows[0]
    names, seeds = checked_names(options.jobs, JOBS, "job"), checked_names(options.seeds, map(str, MAIN_SEEDS), "seed")
    scale = Scale(size=options.size)
    runs = Runs(DATA, file.with_suffix(""), Study(file), scale=scale, device=options.device, say=say)
    for job in part_of(jobs_of(names, [int(seed) for seed in seeds]), options.part):
        for method, seed in job:
            runs.run(method, seed)


def jobs_of(names: Sequence[str], seeds: Sequence[int]) -> list[list[tuple[Method, int]]]:
    """The runs by seed; every other one of them is half the work, and has all of a seed, whose methods share donors."""

    def made(name: str, methods: Sequence[Method], of: Sequence[int]) -> list[list[tuple[Method, int]]]:
        return [[(m, seed) for m in methods] for seed in of if seed in seeds and name in names]

    main, grid = made("main", MAIN, MAIN_SEEDS), made("grid", list(GRID.values()), GRID_SEEDS)
    ablation = made("ablation", [m for m in ABLATION.values() if m not in MAIN], ABLATION_SEEDS)
    search = [
        [(m, seed) for m in SEARCH if seed in SEARCH_SEEDS[m.way] and seed in seeds and "search" in names]
        for seed in sorted({seed for several in SEARCH_SEEDS.values() for seed in several})
    ]
    search[0] += [run for job in grid for run in job]  # of the first seed alone
    return [*main[:4], *ablation, *main[4:], *search]


def write_report(raw: list[dict[str, object]]) -> None:
    """Rows as they come, and what they show."""
    rows = paper.rows_of(raw)
    lacking = [*paper.table1(rows).notes, *paper.table3(rows).notes]
    report(NAME, command=COMMAND, rows=raw, claims=claims(raw), lacking=lacking)
    paper.plot_methods(rows, RESULTS / f"{NAME}.png")
    if {row.method for row in rows} & {method.name for method in ABLATION.values() if method not in MAIN}:
        paper.plot_methods(rows, RESULTS / f"{NAME}_ablation.png", methods=tuple(ABLATION.values()))
    if len(paper.grid(rows)) > 1:
        paper.plot_figure2(rows, RESULTS / f"{NAME}_rows.png")


if __name__ == "__main__":
    main()
