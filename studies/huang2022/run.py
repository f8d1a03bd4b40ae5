"""Prompts against their baselines on the seven NHC tasks (Huang et al. 2022): what each method scores and costs.

On one busy core with bfloat16 arithmetic a run of 3,150 updates takes 8 to 13 minutes, main (10 methods, 5 seeds) about
8 h 30 min, ablation (5 more methods, 3 seeds) 3 h, grid (figure 2, one seed) 1 h. `--size 450` takes half of the
headlines of each category, and half of the time.

It goes on where it stopped (`runs/conditioning_nhc.jsonl`). `--part 1/2 --rows FILE` makes every other group of runs,
so that two processes of one thread each share the work; `--jobs` names some of the runs; `--report --rows FILE...`
writes the results from the rows that are there and trains nothing. `python -m studies huang2022` reads them.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from studies import huang2022 as paper
from studies.huang2022.methods import (
    ABLATION,
    ABLATION_SEEDS,
    GRID,
    GRID_SEEDS,
    ISOLATED,
    MAIN,
    MAIN_SEEDS,
    MTOP,
    POOLED,
    SEARCH,
    SEARCH_SEEDS,
    SINGLE,
    Method,
    tried_for,
)
from studies.huang2022.runs import Runs, Scale
from studies.results import Claim, Study
from studies.settings import DATA, RESULTS, checked_names, parsed, part_of, report, rows_of, say, study_arguments
from studies.shared.rows import over_seeds

NAME = "conditioning_nhc"
COMMAND = (
    "python -m studies huang2022 run --threads 1 --size 450 --seeds I --rows FILE, two processes at once; then "
    "--report --rows FILE FILE"
)
JOBS = ("main", "ablation", "search", "grid")
# Said where a target is missed
WHY = {
    ("mtop-vs-single", "validation"): "whatever shares a trunk that learns is below a trunk a task on this split, with "
    "prompts and without, where a task alone chooses its epoch by itself; a lower rate is better for both sides and "
    "closes nothing; all headlines are to try",
    (
        "mtop-vs-single",
        "test",
    ): "seeds differ by more than that; few texts here are a task's own, so accuracy follows how "
    "often a head says no; mean recall is the fairer number",
    (
        "isolated-vs-pooled",
        "validation",
    ): "no rate closes it; 8 rows in place of 2 leave 0.2 of it on three seeds (search)",
    ("isolated-vs-pooled", "test"): "seeds differ by as much; mean recall says more",
}
LEAST = 3  # seeds of a claim; with fewer than are planned its note says so


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
    """Rows as they come; claims from three seeds of their methods on."""
    rows = paper.rows_of(raw)
    lacking = [*paper.table1(rows).notes, *paper.table3(rows).notes]
    report(NAME, command=COMMAND, rows=raw, claims=claims(rows), lacking=lacking)
    paper.plot_methods(rows, RESULTS / f"{NAME}.png")
    if {row.method for row in rows} & {method.name for method in ABLATION.values() if method not in MAIN}:
        paper.plot_methods(rows, RESULTS / f"{NAME}_ablation.png", methods=tuple(ABLATION.values()))
    if len(paper.grid(rows)) > 1:
        paper.plot_figure2(rows, RESULTS / f"{NAME}_rows.png")


def searched(rows: Sequence[paper.Row], methods: Sequence[Method], measure: paper.Measure) -> str:
    """How methods compare at the best of the learning rates that were tried for them, chosen on the builder's split."""
    bests = []
    for method in methods:
        tried = [other for other in tried_for(method) if other.learning_rate is not None]
        means = {m: paper.averages(rows, m.name, "validation") for m in tried}
        there = {m: statistics.mean(points.values()) for m, points in means.items() if points}
        if len(there) < 2:
            return ""
        best = max(there, key=lambda m: there[m])
        value = statistics.mean(paper.averages(rows, best.name, measure).values())
        bests.append(f"{value:.2f} at {best.learning_rate:g}")
    several = SEARCH_SEEDS[methods[0].way]
    seeds = "one seed" if len(several) == 1 else f"seeds {', '.join(map(str, several))}"
    return f"at the best of the rates that were tried, {seeds}: {' and '.join(bests)}"


def claims(rows: Sequence[paper.Row]) -> list[Claim]:
    """Both comparisons, on the builder's split as in the paper, and on texts that chose no checkpoint."""
    cost = {row.method: row for row in rows}
    compared = (
        ("mtop-vs-single", "MTOP, with one pass of the encoder, over single-task fine-tuning", MTOP, SINGLE),
        ("isolated-vs-pooled", "isolated prompts over pooled attention, the trunk frozen", ISOLATED, POOLED),
    )
    claims_made = []
    for name, text, method, other in compared:
        both = [row for row in rows if row.method in (method.name, other.name)]
        if len({(row.rows, row.scale, row.device) for row in both}) > 1:
            several = sorted({f"{row.rows} rows on {row.device}, settings {row.scale}" for row in both})
            print(f"no claim {name}: its methods were not run alike: {'; '.join(several)}")
            continue
        for suffix, measure in (("", "validation"), ("-test", "test")):
            points = paper.differences(rows, method.name, other.name, measure)
            spread = over_seeds(points)
            if spread is None or spread.seeds < LEAST:
                print(f"no claim {name}{suffix} yet: it needs {LEAST} seeds of both methods")
                continue
            recall = over_seeds(paper.differences(rows, method.name, other.name, "recall"))
            note = f"by seed {', '.join(f'{value:+.2f}' for value in points.values())}"
            if spread.seeds < len(MAIN_SEEDS):
                note = f"{spread.seeds} of {len(MAIN_SEEDS)} seeds so far; {note}"
            if recall is not None:
                note += f"; mean recall on test {recall.mean:+.2f}"
            medians = [statistics.median(paper.averages(rows, m.name, measure).values()) for m in (method, other)]
            note += f"; medians {medians[0]:.2f} and {medians[1]:.2f}"
            if rates := searched(rows, (method, other), measure):
                note += f"; {rates}"
            if spread.mean < 0:
                note += f"; missed: {WHY[name, measure]}"
            note += f"; FLOPs {cost[method.name].over_plain:.2f} and {cost[other.name].over_plain:.2f} plain passes"
            claims_made.append(
                Claim(
                    id=f"conditioning.{name}{suffix}",
                    text=f"{text}: mean accuracy of the seven tasks on "
                    + ("the builder's split" if measure == "validation" else "huffpost41's test split"),
                    target=0.0,
                    value=round(spread.mean, 2),
                    unit="points",
                    holds=spread.mean >= 0 and cost[method.name].passes == 1,
                    note=f"{note}; seven tasks of {both[0].rows:,} rows on minilm, 5 epochs where a trunk learns",
                )
            )
    return claims_made


if __name__ == "__main__":
    main()
