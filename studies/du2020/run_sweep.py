"""Du et al. 2020 at our scale: how many layers to average, and whether to shrink before or after the mean.

On the plain trunk, ten poolers on each of eight tasks and three seeds: about twenty minutes of one core a seed. It
goes on where it stopped (`runs/sweep.jsonl`). `--part 1/2 --rows FILE` makes half of the runs, so that two processes of
one thread each share the work; `--report --rows FILE...` writes the results from the rows that are there and trains
nothing. Features of a task, 8 GB at most, are deleted when it is done. `python -m studies du2020 sweep` reads the rows.
"""

from __future__ import annotations

import statistics

from studies.du2020.leave_out import SETS
from studies.du2020.sweep import CODECS, Sweep, missing, order, plot_sweep, sweep_lines, swept_of
from studies.results import Claim, Study
from studies.settings import DATA, RESULTS, parsed, part_of, report, rows_of, say, study_arguments

NAME = "together_sweep"
SEEDS = (1, 2, 3)
COMMAND = (
    f"python benchmarks/{NAME}.py --threads 1 --part i/2 --rows FILE, two processes at once; "
    "then --report --rows FILE FILE"
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


def write_report(rows: list[dict]) -> None:
    """Rows as they come; claims when three seeds are there."""
    runs = swept_of(rows)
    lacking = missing(runs, [dataset.task for dataset in SETS], SEEDS)
    if runs:
        plot_sweep(sweep_lines(runs), RESULTS / f"{NAME}.png")
    report(NAME, command=COMMAND, rows=rows, claims=[] if lacking else claims_of(rows), lacking=lacking)


def claims_of(rows: list[dict]) -> list[Claim]:
    """The paper's words: at 8 bits the order does not matter, at one bit shrinking each layer first is better."""
    runs, claims = swept_of(rows), []
    for codec in CODECS:
        gains = order(runs, codec)
        gain = statistics.mean(gains)
        is_neutral = codec == "uint8"
        claims.append(
            Claim(
                id=f"together.{codec}-before-mean",
                text=f"{codec} of each of 4 layers before their mean against {codec} of the mean, average accuracy of "
                f"{len({run.task for run in runs})} tasks, attention over the plain frozen trunk: "
                + ("the distance, at most 0.2" if is_neutral else "the gain"),
                target=0.2 if is_neutral else 0.0,
                value=round(abs(gain) if is_neutral else gain, 2),
                unit="points",
                holds=abs(gain) <= 0.2 if is_neutral else gain > 0,
                note=f"by seed {', '.join(f'{gain:+.2f}' for gain in gains)}; at most 1,000 training rows a task",
            )
        )
    return claims


if __name__ == "__main__":
    main()
