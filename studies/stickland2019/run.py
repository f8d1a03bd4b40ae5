"""Functions of each task's own in one encoder, on eight tasks (Stickland and Murray 2019): methods and samplings.

The eight tasks of GLUE that the paper has, 2,000 training rows each in the mean: sets keep the proportions of their
files (340 rows of RTE to 5,454 of SST-2), since sampling by size would be uniform otherwise. As in the paper, one epoch
is kept for all tasks by its mean validation score on 100 rows each, and all tasks share one pooler, which starts at
random here. An update reads 16 rows of one task, where the paper's has 32. SST-2's file has phrases of the same
sentences, so a part of its 100 rows is like what was trained on, for all methods alike; no reported row is. All updates
together, 992, read the sets once where sampling is proportional; the paper's read them twice. Trunk and parts learn at
2e-4, with 10 % warm-up; the sampling exponent falls from 1 to 0.2 over 8 epochs. `single` is a trunk a task, with the
updates that its rows are of all rows, each with an epoch of its own. Reported are whole test splits, or the published
validation split where test has no labels.

A run takes about eight minutes of one core of an AMD EPYC, two of them for the scores of whole splits. `--jobs` names
parts: main (30 runs), ablation (32 runs of one seed), questions (9 runs on SQuAD with SocialIQA, 250 updates of 16
rows). `--methods` and `--samplings` name runs on the eight tasks in their place; `--list` shows what there is.

It goes on where it stopped (`runs/conditioning_adapters.jsonl`). `--part 1/2 --rows FILE` makes half of the runs, so
that two processes of one thread each share the work; `--report --rows FILE...` writes the results from the rows that
are there and trains nothing. `python -m studies stickland2019` reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from studies import stickland2019 as paper
from studies.results import Study
from studies.settings import DATA, RESULTS, checked_names, parsed, part_of, report, rows_of, say, study_arguments
from studies.stickland2019.claims import claims
from studies.stickland2019.methods import ABLATION_SEEDS, MAIN_SEEDS
from studies.stickland2019.runs import ON_QUESTIONS, Runs, Scale

NAME = "conditioning_adapters"
COMMAND = (
    "python -m studies stickland2019 run --threads 1 --jobs main --seeds 1 --rows FILE; "
    "python -m studies stickland2019 run --report --rows FILE FILE"
)
JOBS = ("main", "ablation", "questions")


class Job(NamedTuple):
    """One run: on the eight tasks, or on questions."""

    scale: Scale
    method: paper.Method
    sampling: str
    seed: int


def main() -> None:
    parser = study_arguments(__doc__, f"{NAME}.jsonl", jobs=JOBS, seeds=MAIN_SEEDS, part=True, device=True)
    parser.add_argument("--methods", help="in place of the jobs, these methods")
    parser.add_argument("--samplings", default="annealed", help="of --methods")
    parser.add_argument("--list", action="store_true", help="name the methods and samplings")
    options = parsed(parser)
    seeds = [int(seed) for seed in checked_names(options.seeds, map(str, MAIN_SEEDS), "seed")]
    if options.list:
        print("\n".join(f"{method.name:20s} {method.title}" for method in paper.METHODS.values()))
        print(f"samplings: {', '.join(paper.SAMPLINGS)}")
    elif options.report:
        write_report(rows_of(options.rows))
    else:
        jobs = [job for name in checked_names(options.jobs, JOBS, "job") for job in jobs_of(name, seeds)]
        if options.methods:
            jobs = chosen(options.methods.split(","), options.samplings.split(","), seeds)
        train(part_of(jobs, options.part), options.rows[0], options.device)


def jobs_of(name: str, seeds: Sequence[int]) -> list[Job]:
    """The runs of one part, seed by seed, so that what is there at any time is a whole study of fewer."""
    jobs = []
    for seed in seeds:
        both: list[tuple[paper.Method, str]] = []
        if name == "main":
            both = [(method, "annealed") for method in paper.MAIN]
            both += [(paper.SINGLE, "alone")]
            both += [(m, s) for m in paper.SAMPLED for s in ("proportional", "square-root")]
        elif name == "ablation" and seed in ABLATION_SEEDS:
            others = [m for m in (*paper.TABLE3, *paper.ABLATION) if m not in paper.MAIN]
            both = [(method, "annealed") for method in others]
            both += [(method, "round-robin") for method in paper.SAMPLED]
        elif name == "questions":
            both = [(method, "round-robin") for method in paper.ASKED]
        scale = ON_QUESTIONS if name == "questions" else Scale()
        jobs += [Job(scale, method, sampling, seed) for method, sampling in both]
    return jobs


def chosen(methods: Sequence[str], samplings: Sequence[str], seeds: Sequence[int]) -> list[Job]:
    """The runs that are asked for by name."""
    for names, known in ((methods, paper.METHODS), (samplings, paper.SAMPLINGS)):
        unknown = [name for name in names if name not in known]
        if unknown:
            raise SystemExit(f"no such method or sampling: {', '.join(unknown)}; --list shows them")
    jobs = [Job(Scale(), paper.METHODS[m], s, seed) for seed in seeds for m in methods for s in samplings]
    odd = [job for job in jobs if (job.method is paper.SINGLE) != (job.sampling == "alone")]
    if odd:
        raise SystemExit("a trunk a task has the sampling 'alone', and nothing else has: --samplings alone")
    return jobs


def train(jobs: Sequence[Job], file: Path, device: str) -> None:
    study, made = Study(file), dict[Scale, Runs]()
    for job in jobs:
        if job.scale not in made:
            made[job.scale] = Runs(DATA, file.with_suffix(""), study, scale=job.scale, device=device, say=say)
        made[job.scale].run(job.method, job.sampling, job.seed)


def write_report(raw: list[dict[str, object]]) -> None:
    """Rows as they come, and each method's mean over seeds; a claim when the main methods are there."""
    rows = paper.rows_of(raw)
    runs = paper.beside(paper.runs_of(raw), rows)
    report(NAME, command=COMMAND, rows=[*raw, *means(rows)], claims=claims(raw), lacking=paper.missing(rows))
    draw(rows, runs)


def means(rows: Sequence[paper.Row]) -> list[dict[str, object]]:
    """The mean of the eight tasks with its standard error, and how it stands to PALs annealed."""
    rows_of_means: list[dict[str, object]] = []
    for split in ("validation", "test"):
        for line in paper.compared(rows, split=split):
            key = {"stage": "mean", "method": line.method, "sampling": line.sampling, "split": split}
            above = {f"above_pals_{name}": value for name, value in spread_of(line.above_pals).items()}
            rows_of_means.append({**key, **spread_of(line.average), **above})
    return rows_of_means


def spread_of(cell: paper.Cell | None) -> dict[str, object]:
    if cell is None:
        return {}
    error = None if cell.error is None else round(cell.error, 3)
    return {"mean": round(cell.mean, 3), "standard_error": error, "seeds": cell.seeds}


def draw(rows: Sequence[paper.Row], runs: Sequence[paper.Run]) -> None:
    """The plots whose rows are there."""
    there = paper.compared(rows)
    names = {line.method for line in there}
    if there:
        paper.plot_methods(rows, RESULTS / f"{NAME}.png", methods=["single", *(method.name for method in paper.TABLE3)])
    if names & {method.name for method in paper.ABLATION}:
        paper.plot_methods(rows, RESULTS / f"{NAME}_ablation.png")
    if {"pals", "low-rank"} <= names:
        paper.plot_curves(paper.curves(runs, rows), RESULTS / f"{NAME}_curves.png")


if __name__ == "__main__":
    main()
