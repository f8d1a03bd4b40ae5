"""What a trunk that learned from many tasks gives to tasks it never saw, beside the plain trunk and full fine-tuning.

Hours on two cores. It goes on where it stopped (`runs/together.jsonl`). `--part 1/2 --rows FILE` makes half of the
runs, so that two processes of one thread each share the work; `--jobs` names some of them; `--report --rows FILE...`
writes the results from the rows that are there and trains nothing. Learned trunks lie beside the rows.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from studies.aghajanyan2021 import figures, study
from studies.aghajanyan2021.mixes import (
    LEARN_ROWS,
    NATURAL_MIXES,
    NESTED_MIXES,
    ROWS,
    SMALL_MIXES,
    SMALL_ROWS,
    SMALL_SETS,
    WHOLE_MIX,
    Mix,
)
from studies.aghajanyan2021.runs import Runs
from studies.results import Claim, Study
from studies.settings import DATA, RESULTS, checked_names, parsed, part_of, report, rows_of, say, study_arguments
from studies.shared.rows import over_seeds

NAME = "together_quality"
SEEDS = (1, 2, 3)
SIZES = (100, 300, 700, ROWS)  # training rows of a held-out task, for the heat map
SCALE = f"24 sets of at most {LEARN_ROWS:,} rows, held-out tasks of at most {ROWS:,}, 128 tokens"
COMMAND = (
    "python -m studies aghajanyan2021 run --threads 1 --part 1/2 --rows FILE, two processes at once; then --report "
    "--rows FILE FILE"
)
COMPARED = (
    ("heterogeneous-batch", "heterogeneous updates minus batch-homogeneous ones", "heterogeneous", "batch"),
    ("heterogeneous-sequential", "heterogeneous updates minus one set after the other", "heterogeneous", "dataset"),
    ("scaling", "losses divided by ln n minus losses as they are", "heterogeneous", "unscaled"),
    ("annealed", "annealed sampling minus proportional", "annealed", "proportional"),
)
WHY = {  # what is known of a comparison beyond its numbers, from docs/project/log.md
    "scaling": "at this size it neither helps nor harms; with longer training it might",
    "annealed": "what a trunk gives to other tasks is not what Stickland and Murray measured, who score the tasks that "
    "learn, of which the small ones gain. These trunks and their heads were made on an Intel Xeon, the plain trunk's "
    "rows on an AMD EPYC",
}
ORIGIN = (
    "the share of learned weights in the trunk, 0.7, was chosen on validation of seed 1, whose trunk was learned while "
    "dropout was drawn in another way than now"
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
    """Rows as they come; claims when three seeds of the main part are there."""
    rows, trunks = study.rows_of(raw), study.trunks_of(raw)
    all_claims = [*claims(rows), *comparisons(rows)]
    report(NAME, command=COMMAND, rows=raw, claims=all_claims, lacking=study.missing(rows))
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


def claims(rows: Sequence[study.Row]) -> list[Claim]:
    """Claims on the trunk that learned from all sets, against the plain one, on whole test splits."""
    closed, better = study.gap_closed(rows), study.better(rows)
    gain = over_seeds(study.mean_by_seed(rows, study.gains(rows)))
    if closed is None or closed.share is None or gain is None or closed.gain.seeds < len(SEEDS):
        print("no claims yet: they need three seeds of heads over both trunks, and of full fine-tuning")
        return []
    note = f"mean of {gain.seeds} seeds, deviation {gain.deviation or 0.0:.2f}; {SCALE}; {ORIGIN}"
    share = f"by seed {', '.join(f'{value:.2f}' for value in closed.seeds.values())}; {SCALE}; {_negative(rows)}"
    return [
        Claim(
            id="together.tasks-that-gain",
            text="held-out tasks of 8 on which frozen heads over the pre-finetuned trunk beat those over the plain one",
            target=6,
            value=len(better),
            unit="tasks",
            holds=len(better) >= 6,
            note=f"{', '.join(better)}; {SCALE}",
        ),
        Claim(
            id="together.mean-gain",
            text="mean gain of frozen heads over the 8 held-out tasks, pre-finetuned trunk against the plain one",
            target=2.0,
            value=round(gain.mean, 2),
            unit="points",
            holds=gain.mean >= 2.0,
            note=note,
        ),
        Claim(
            id="together.gap-closed",
            text="sum of those gains over the sum of gaps between the plain frozen trunk and full fine-tuning",
            target=0.5,
            value=round(closed.share, 3),
            unit="share",
            holds=closed.share >= 0.5,
            note=share,
        ),
    ]


def _negative(rows: Sequence[study.Row]) -> str:
    """How tasks count on which full fine-tuning is the worse of the two."""
    gain = {task: statistics.mean(seeds.values()) for task, seeds in study.gains(rows).items()}
    gap = {task: statistics.mean(seeds.values()) for task, seeds in study.gaps(rows).items()}
    below = [f"{task} {points:+.1f}" for task, points in gap.items() if points < 0]
    share = sum(gain.values()) / sum(max(0.0, points) for points in gap.values())
    return (
        "full fine-tuning has one setting, 3 epochs at 2e-4, and is worse than frozen heads over the plain trunk on "
        f"{', '.join(below) or 'no task'}; these gaps count as they are, and as nothing the share is {share:.3f}"
    )


def comparisons(rows: Sequence[study.Row]) -> list[Claim]:
    """Claims that compare two ways of making a trunk, whatever the outcome, where all seeds were run."""
    made = []
    for id, what, name, other_name in COMPARED:
        ours, theirs = (study.mean_by_seed(rows, study.scores(rows, mix)) for mix in (name, other_name))
        spread = over_seeds({seed: ours[seed] - theirs[seed] for seed in ours.keys() & theirs.keys()})
        if spread is None or spread.seeds < len(SEEDS):
            continue
        note = f"mean of {spread.seeds} seeds, deviation {spread.deviation or 0.0:.2f}"
        made.append(
            Claim(
                id=f"together.{id}",
                text=f"frozen heads over the 8 held-out tasks, trunks that learned from {SMALL_SETS} sets: {what}; "
                "above 0 is asked",
                target=0.0,
                value=round(spread.mean, 2),
                unit="points",
                holds=round(spread.mean, 2) > 0,
                note="; ".join([note, f"at most {SMALL_ROWS} rows a set", *([WHY[id]] if id in WHY else [])]),
            )
        )
    return made


if __name__ == "__main__":
    main()
