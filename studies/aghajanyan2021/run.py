"""What a trunk that learned from many tasks gives to tasks it never saw, beside the plain trunk and full fine-tuning.

Hours on two cores. It goes on where it stopped (`runs/together.jsonl`). `--part 1/2 --rows FILE` makes half of the
runs, so that two processes of one thread each share the work; `--jobs` names some of them; `--report --rows FILE...`
writes the results from the rows that are there and trains nothing. Learned trunks lie beside the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from studies.aghajanyan2021 import figures, study
from studies.aghajanyan2021.claims import claims
from studies.aghajanyan2021.mixes import NATURAL_MIXES, NESTED_MIXES, ROWS, SMALL_MIXES, WHOLE_MIX, Mix
from studies.aghajanyan2021.runs import Runs
from studies.results import Study
from studies.settings import DATA, RESULTS, checked_names, parsed, part_of, report, rows_of, say, study_arguments

NAME = "together_quality"
SEEDS = (1, 2, 3)
SIZES = (100, 300, 700, ROWS)  # training rows of a held-out task, for the heat map
COMMAND = (
    "python -m studies aghajanyan2021 run --threads 1 --part 1/2 --rows FILE; "
    "python -m studies aghajanyan2021 run --report --rows FILE FILE"
)
JOBS = ("main", "whole", "nested", "schemes", "samplers", "sizes", "full-mixed")


def main() -> None:
    options = parsed(study_arguments(__doc__, "together.jsonl", jobs=JOBS, seeds=SEEDS, part=True))
    if options.report:
        write_report(rows_of(options.rows))
        return
    file = options.rows[0]
    runs = Runs(DATA, file.with_suffix(""), Study(file), say=say)
    seeds = [int(seed) for seed in options.seeds.split(",")]
    jobs = [job for name in checked_names(options.jobs, JOBS, "job") for job in jobs_of(name, runs, seeds)]
    for job in part_of(jobs, options.part):
        job()


def jobs_of(name: str, runs: Runs, seeds: list[int]) -> Iterator[Callable[[], None]]:
    """The runs of one part of the study, seed by seed, so that what is there at any time is a whole study of fewer."""
    mixes: dict[str, tuple[Mix, ...]] = {
        "nested": NESTED_MIXES[:-1],
        "whole": (WHOLE_MIX,),
        "schemes": SMALL_MIXES,
        "samplers": NATURAL_MIXES,
    }
    for seed in seeds:
        if name == "main":
            yield partial(runs.full, seed)
            yield partial(plain_and_best, runs, seed)
        elif name == "full-mixed":
            yield partial(runs.full, seed, mix=NESTED_MIXES[-1])
        elif name == "sizes":
            yield partial(runs.frozen, seed, mix=None, sizes=SIZES)
            yield partial(runs.frozen, seed, mix=NESTED_MIXES[-1], sizes=SIZES)
        else:
            for mix in mixes[name]:
                yield partial(runs.frozen, seed, mix=mix)


def plain_and_best(runs: Runs, seed: int) -> None:
    runs.frozen(seed, mix=None)
    runs.frozen(seed, mix=NESTED_MIXES[-1])


def write_report(raw: list[dict[str, object]]) -> None:
    """Rows as they come, and what they show."""
    rows, trunks = study.rows_of(raw), study.trunks_of(raw)
    report(NAME, command=COMMAND, rows=raw, claims=claims(raw), lacking=study.missing(rows))
    draw(rows)
    for trunk in trunks:
        print(f"{trunk.mix:16s} seed {trunk.seed}  {trunk.seconds:6.0f} s  own validation {100 * trunk.score:.1f}")


def draw(rows: Sequence[study.Row]) -> None:
    """The plots whose rows are there."""
    if study.gains(rows):
        figures.plot_gains(rows, RESULTS / "together_gains.png")
    if len(study.nested(rows)) > 2:
        figures.plot_nested(rows, RESULTS / "together_nested.png")
    if len(study.sizes_of(rows)) > 1:
        figures.plot_heat(rows, RESULTS / "together_sizes.png")
    there = {row.mix for row in rows}
    for name, mixes in (("schemes", SMALL_MIXES), ("samplers", NATURAL_MIXES)):
        known = [mix.name for mix in mixes if mix.name in there]
        if len(known) > 1:
            figures.plot_mixes(rows, known, RESULTS / f"together_{name}.png")


if __name__ == "__main__":
    main()
